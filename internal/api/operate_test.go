package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"github.com/santhosh-tekuri/jsonschema/v6"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// operations is the part of the document that tests look at.
type operations struct {
	OpenAPI string `json:"openapi"`
	Paths   map[string]map[string]struct {
		OperationID string                `json:"operationId"`
		Security    []map[string][]string `json:"security"`
		RequestBody struct {
			Content map[string]struct {
				Schema json.RawMessage `json:"schema"`
			} `json:"content"`
		} `json:"requestBody"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]json.RawMessage `json:"schemas"`
	} `json:"components"`
}

func document(t *testing.T, r *rig) operations {
	t.Helper()
	return decode[operations](t, r.call("GET", "/api/v1/openapi.json", "", "").want(t, 200))
}

func TestDocument(t *testing.T) {
	t.Parallel()
	r := setup(t)
	doc := document(t, r)
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("got OpenAPI %s", doc.OpenAPI)
	}
	ids := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if op.OperationID == "" || ids[op.OperationID] {
				t.Errorf("%s %s: operation id %q is missing or there twice", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
		}
	}
	pack, err := catalogue().Get("test.echo", "")
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	_ = json.Unmarshal(pack.Info().Input, &want)
	_ = json.Unmarshal(doc.Paths["/api/v1/packs/test.echo"]["post"].RequestBody.Content["application/json"].Schema, &got)
	if diff := cmp.Diff(want, got); diff != "" || want == nil {
		t.Errorf("input schema of test.echo (-want +got):\n%s", diff)
	}
	if _, ok := doc.Paths["/api/v1/packs/test.secret"]; ok {
		t.Error("a hidden pack is in the document")
	}
	// Every reference leads somewhere.
	text := r.call("GET", "/api/v1/openapi.json", "", "").body
	for _, ref := range regexp.MustCompile(`"\$ref":"([^"]*)"`).FindAllStringSubmatch(text, -1) {
		if name, ok := strings.CutPrefix(ref[1], "#/components/schemas/"); !ok || doc.Components.Schemas[name] == nil {
			t.Errorf("reference %s leads nowhere", ref[1])
		}
	}
	a := r.call("GET", "/api/v1/openapi.json", "", "")
	r.call("GET", "/api/v1/openapi.json", "", "", "If-None-Match", a.header.Get("ETag")).want(t, 304)
}

// TestAnswersMatchTheDocument checks real answers against the schemas.
func TestAnswersMatchTheDocument(t *testing.T) {
	t.Parallel()
	r := setup(t)
	text := r.call("GET", "/api/v1/openapi.json", "", "").body
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	if err := compiler.AddResource("urn:doc", doc); err != nil {
		t.Fatal(err)
	}
	fail := decode[client.Problem](t, r.call("POST", "/api/v1/packs/test.fail", ann, `{"code":"invalid_input"}`).want(t, 400))
	file := decode[client.Result](t, r.call("POST", "/api/v1/packs/test.file", ann, "").want(t, 200))
	for name, a := range map[string]answer{
		"Problem":      r.call("GET", "/api/v1/jobs/"+fail.JobID+"/result", ann, ""),
		"Result":       r.call("GET", "/api/v1/jobs/"+file.JobID+"/result", ann, ""),
		"Job":          r.call("GET", "/api/v1/jobs/"+fail.JobID, ann, ""),
		"JobList":      r.call("GET", "/api/v1/jobs", ann, ""),
		"Pack":         r.call("GET", "/api/v1/packs/test.echo", ann, ""),
		"DeadList":     r.call("GET", "/api/v1/dead", ann, ""),
		"DeadLetter":   r.call("GET", "/api/v1/dead/"+fail.JobID, ann, ""),
		"ReplayList":   r.call("POST", "/api/v1/dead/replay", ann, `{"id":"`+fail.JobID+`"}`),
		"PoolList":     r.call("GET", "/api/v1/pools", ann, ""),
		"PoolStatus":   r.call("POST", "/api/v1/pools/core/pause", admin, `{"for_s":60,"reason":"r"}`),
		"WorkerList":   r.call("GET", "/api/v1/workers", admin, ""),
		"WorkerStatus": r.call("POST", "/api/v1/workers/worker-1/drain", admin, `{"within_s":60}`),
		"ArtifactList": r.call("GET", "/api/v1/artifacts", ann, ""),
		"Upload":       r.upload(ann, "a.txt", "", []byte("x")),
		"VersionInfo":  r.call("GET", "/version", "", ""),
		"Readiness":    r.call("GET", "/readyz", "", ""),
	} {
		ref := name
		if name == "DeadLetter" {
			ref = "JobDeadLetter"
		}
		schema, err := compiler.Compile("urn:doc#/components/schemas/" + ref)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(a.body))
		if err != nil {
			t.Fatalf("%s: %v in %q", name, err, a.body)
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v in %s", name, err, a.body)
		}
	}
}

func TestPackList(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) {
		c.Unavailable = func(i packs.Info) string {
			if i.Name == "test.wait" {
				return "no engine; set HELMDECK_ENGINE"
			}
			return ""
		}
	})
	list := decode[[]client.Pack](t, r.call("GET", "/api/v1/packs", ann, "").want(t, 200))
	var names []string
	for _, p := range list {
		names = append(names, p.Name)
		if p.Available != (p.Name != "test.wait") || (p.Reason != "") == p.Available {
			t.Errorf("%s: got available %t, %q", p.Name, p.Available, p.Reason)
		}
	}
	if diff := cmp.Diff([]string{"test.big", "test.echo", "test.fail", "test.file", "test.wait"}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	got := list[1]
	info := echo(2).Info()
	var needs packs.Needs
	want := client.Pack{
		Name: "test.echo", Summary: "Says what it is told.", Description: "Says what it is told.",
		Versions: []string{"v1", "v2"}, Latest: "v2", Pool: "core", Needs: needs, InputSchema: info.Input, OutputSchema: info.Output,
		Errors: info.Errors, Metadata: map[string]string{}, Examples: info.Examples,
		TimeoutS: 120, MaxAttempts: 3, MaxInputBytes: 64 << 10, Available: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pack (-want +got):\n%s", diff)
	}
	for path, want := range map[string][]string{
		"test.echo": {"v1", "v2"}, "test.echo/v1": {"v1"}, "test.echo/latest": {"v2"}, "test.secret": {"v1"},
	} {
		p := decode[client.Pack](t, r.call("GET", "/api/v1/packs/"+path, ann, "").want(t, 200))
		if diff := cmp.Diff(want, p.Versions); diff != "" || p.Latest != want[len(want)-1] {
			t.Errorf("%s: versions (-want +got):\n%s, latest %s", path, diff, p.Latest)
		}
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	bus := errors.New("no connection")
	var mu sync.Mutex // guards bus
	r := setup(t, func(c *api.Config) {
		c.Health = map[string]api.Health{
			"bus":   api.HealthFunc(func(context.Context) error { mu.Lock(); defer mu.Unlock(); return bus }),
			"store": api.HealthFunc(func(context.Context) error { return nil }),
		}
	})
	if got := r.call("GET", "/healthz", "", "").want(t, 200).body; got != `{"status":"ok"}`+"\n" {
		t.Errorf("got %s", got)
	}
	if got := r.call("GET", "/version", "", "").want(t, 200).body; got != `{"version":"v1.2.3"}`+"\n" {
		t.Errorf("got %s", got)
	}
	got := decode[client.Readiness](t, r.call("GET", "/readyz", "", "").want(t, 503))
	want := client.Readiness{Status: "unavailable", Checks: map[string]string{"bus": "no connection", "store": "ok"}, Pools: r.pools.pools}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("readiness (-want +got):\n%s", diff)
	}
	mu.Lock()
	bus = nil
	mu.Unlock()
	for query, status := range map[string]int{"": 200, "?pools=core": 200, "?pools=core,media": 503, "?pools=nonsense": 503, "?pools=": 200} {
		r.call("GET", "/readyz"+query, "", "").want(t, status)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.call("GET", "/metrics", "", "").want(t, 401)
	r.call("GET", "/metrics", ann, "").want(t, 403)
	r.call("GET", "/api/v1/jobs/01890000-0000-7000-8000-000000000000", ann, "")
	r.call("GET", "/nothing-that-"+strings.Repeat("grows", 9), "", "")
	text := r.call("GET", "/metrics", admin, "").want(t, 200).body
	for _, want := range []string{
		`helmdeck_http_requests_total{method="GET",route="/api/v1/jobs/{id}",status="404"} 1`,
		`helmdeck_http_requests_total{method="GET",route="other",status="404"} 1`,
		`helmdeck_http_streams 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s in\n%.2000s", want, text)
		}
	}
	open := setup(t, func(c *api.Config) { c.PublicMetrics = true })
	open.call("GET", "/metrics", "", "").want(t, 200)
}

func TestDocsWorkOffline(t *testing.T) {
	t.Parallel()
	r := setup(t)
	if got := r.call("GET", "/", "", "").want(t, 302).header.Get("Location"); got != "/docs" {
		t.Errorf("got Location %s", got)
	}
	page := r.call("GET", "/docs", "", "").want(t, 200)
	if !strings.HasPrefix(page.header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("got policy %q", page.header.Get("Content-Security-Policy"))
	}
	for _, ref := range regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(page.body, -1) {
		if ref[1] == "data:," {
			continue
		}
		if !strings.HasPrefix(ref[1], "/") || strings.HasPrefix(ref[1], "//") {
			t.Errorf("the page asks another host: %s", ref[1])
		}
		r.call("GET", ref[1], "", "").want(t, 200)
	}
	r.call("POST", "/docs", "", "").want(t, 405)
}

// lines is a log that several goroutines write to.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestLogAndTrace(t *testing.T) {
	t.Parallel()
	log := &lines{}
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	r := setup(t, func(c *api.Config) { c.Log, c.Tracer = zerolog.New(log), provider })
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r.call("GET", "/healthz", "", "")
	a := r.call("POST", "/api/v1/jobs", ann, `{"pack":"test.wait"}`, "Traceparent", parent, "X-Request-Id", "call-1").want(t, 202)
	job := decode[jobs.Job](t, a)
	r.until(job.ID, running)
	sub, err := r.world.Input(t.Context(), jobs.Key{ID: job.ID})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(sub.TraceParent, "00-0af7651916cd43dd8448eb211c80319c-") || sub.TraceParent == parent {
		t.Errorf("got traceparent %q in the job, want a child of the caller's", sub.TraceParent)
	}
	r.release <- struct{}{}
	r.call("GET", "/api/v1/artifacts/download/a/b?signature=s3cr3t", "", "").want(t, 403)
	r.eventually("the log lines", func() bool {
		r.call("GET", "/healthz", "", "")
		return strings.Contains(log.String(), `"status":403`)
	})
	text := log.String()
	for _, want := range []string{`"request":"call-1"`, `"path":"/api/v1/jobs"`, `"status":202`, `"caller":"ann"`, `"trace":"0af7651916cd43dd8448eb211c80319c"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %s:\n%s", want, text)
		}
	}
	if strings.Contains(text, "s3cr3t") || strings.Contains(text, ann) {
		t.Errorf("the log holds a secret:\n%s", text)
	}
	var names []string
	for _, s := range spans.Ended() {
		names = append(names, s.Name())
		for _, attr := range s.Attributes() {
			if strings.Contains(attr.Value.String(), "s3cr3t") {
				t.Errorf("span attribute %s holds a secret", attr.Key)
			}
		}
	}
	if !strings.Contains(strings.Join(names, "\n"), "POST /api/v1/jobs") {
		t.Errorf("got spans %q", names)
	}
}

// TestTraceContextPassesWithoutTracer: a server that exports nothing does not
// break the trace of its caller.
func TestTraceContextPassesWithoutTracer(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	a := r.call("POST", "/api/v1/jobs", ann, `{"pack":"test.echo","input":{"text":"a"}}`, "Traceparent", parent).want(t, 202)
	job := decode[jobs.Job](t, a)
	r.until(job.ID, ended)
	sub, err := r.world.Input(t.Context(), jobs.Key{ID: job.ID})
	if err != nil || sub.TraceParent != parent {
		t.Errorf("got traceparent %q, %v; want that of the caller", sub.TraceParent, err)
	}
}

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := api.New(api.Config{PublicURL: "deck"})
	if err == nil {
		t.Fatal("an empty configuration: want an error")
	}
	for _, want := range []string{"Jobs", "Schedules", "Packs", "Artifacts", "Events", "Pools", "Auth", "PublicURL"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s named", err, want)
		}
	}
}
