package app

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/metrics"
	"github.com/helmdeck/helmdeck/internal/telemetry"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

var update = flag.Bool("update", false, "rewrite the table of docs/metrics.md")

const metricsDoc = "../../docs/metrics.md"

var described = regexp.MustCompile(`fqName: "([^"]*)", help: "(.*)", unit: "[^"]*", constLabels: \{[^}]*\}, variableLabels: \{([^}]*)\}`)

// agentProgram puts a program where the scheduler looks for that of its
// sidecars. None is started here.
func agentProgram(t *testing.T) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, filepath.Join(filepath.Dir(exe), "helmdeck-agent")); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
}

// registries builds every role on a bus and returns what each registers.
func registries(t *testing.T) map[string]*prometheus.Registry {
	t.Helper()
	agentProgram(t)
	env := bustest.Start(t)
	settings := Settings{Profile: "embedded", Prefix: bus.DefaultPrefix, Audit: AuditSettings{OTLP: "http://127.0.0.1:4318"}, Log: zerolog.Nop()}
	guard, err := settings.guard()
	if err != nil {
		t.Fatal(err)
	}
	var done closer
	t.Cleanup(done.close)
	out := map[string]*prometheus.Registry{}
	process := func(role bus.Role) *prometheus.Registry {
		tel, err := telemetry.New(t.Context(), telemetry.Config{Getenv: func(string) string { return "" }})
		if err != nil {
			t.Fatal(err)
		}
		metrics.Publishes(tel.Registry)
		metrics.Connection(tel.Registry, env.Conn(role).Connected, env.Conn(role).Core().Losses)
		out[string(role)] = tel.Registry
		return tel.Registry
	}
	api := process(bus.RoleAPI)
	metrics.Space(api, env.Server.Space) // of helmdeck up
	ln, err := listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	if _, err := (&apiRole{Settings: settings, keys: NewKeys(), conn: env.Conn(bus.RoleAPI), guard: guard, dir: t.TempDir(), token: "t", registry: api}).build(t.Context(), ln, &done); err != nil {
		t.Fatal(err)
	}
	slots, err := SlotsOf(nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&workerRole{
		Settings: settings, keys: NewKeys(), conn: env.Conn(bus.RoleWorker), guard: guard, dir: t.TempDir(), slots: slots,
		registry: process(bus.RoleWorker),
	}).build(t.Context(), &done); err != nil {
		t.Fatal(err)
	}
	if _, err := (&schedulerRole{
		Settings: settings, conn: env.Conn(bus.RoleScheduler), guard: guard, dir: t.TempDir(), registry: process(bus.RoleScheduler),
	}).build(t.Context(), &done); err != nil {
		t.Fatal(err)
	}
	return out
}

// kind is what the name of a metric says it is.
func kind(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_duration_seconds"), strings.HasSuffix(name, "_wait_seconds"), strings.HasSuffix(name, "_lateness_seconds"):
		return "histogram"
	}
	return "gauge"
}

// TestMetricsAreDocumented: docs/metrics.md lists every metric of every
// process, and none besides.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	type row struct{ labels, help string }
	rows, roles := map[string]row{}, map[string][]string{}
	for role, reg := range registries(t) {
		descs := make(chan *prometheus.Desc)
		go func() { reg.Describe(descs); close(descs) }()
		for d := range descs {
			m := described.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("description not understood: %s", d)
			}
			if name := m[1]; strings.HasPrefix(name, "helmdeck_") {
				rows[name] = row{strings.ReplaceAll(m[3], ",", ", "), m[2]}
				roles[name] = append(roles[name], role)
			}
		}
	}
	var names []string
	for name := range rows {
		names = append(names, name)
	}
	slices.Sort(names)
	var table strings.Builder
	table.WriteString("| Metric | Kind | Labels | Processes | What it tells |\n| --- | --- | --- | --- | --- |\n")
	for _, name := range names {
		r := roles[name]
		slices.Sort(r)
		who := strings.Join(r, ", ")
		if len(r) == 3 {
			who = "all"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s |\n", name, kind(name), rows[name].labels, who, strings.ReplaceAll(rows[name].help, `\"`, `"`))
	}
	const from, to = "<!-- metrics: written by go test ./internal/app -run Metrics -update -->\n", "<!-- end of metrics -->"
	doc, err := os.ReadFile(metricsDoc)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(doc), from)
	old, tail, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", metricsDoc)
	}
	if *update {
		if err := os.WriteFile(metricsDoc, []byte(head+from+table.String()+to+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(old, table.String()); diff != "" {
		t.Errorf("%s is stale; run go test ./internal/app -run Metrics -update (-doc +registered):\n%s", metricsDoc, diff)
	}
}

// TestMetricsCount what jobs do in a process with all roles.
func TestMetricsCount(t *testing.T) {
	t.Parallel()
	agentProgram(t)
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	ready := make(chan Running, 1)
	ended := make(chan error, 1)
	slots, err := SlotsOf([]string{"core"}, 4)
	if err != nil {
		t.Fatal(err)
	}
	u := Up{
		Settings: Settings{Profile: "embedded", Prefix: bus.DefaultPrefix, TestPacks: true, Log: zerolog.Nop()},
		Data:     t.TempDir(), Listen: "127.0.0.1:0", NATSListen: "127.0.0.1:0", Roles: []string{"api", "worker", "scheduler"}, Slots: slots,
		Ready: func(r Running) { ready <- r },
	}
	up, down := context.WithCancel(ctx)
	defer func() {
		down()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	go func() { ended <- u.Run(up) }()
	var r Running
	select {
	case r = <-ready:
	case err := <-ended:
		ended <- err
		t.Fatalf("not up: %v", err)
	}
	token, err := os.ReadFile(r.TokenFile)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(r.URL, strings.TrimSpace(string(token)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	run := func(pack, input string, change ...func(*jobs.Request)) {
		t.Helper()
		req := jobs.Request{Pack: pack, Input: json.RawMessage(input)}
		for _, f := range change {
			f(&req)
		}
		job, err := c.Submit(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Await(ctx, job.ID) // a failure is what some are for
	}
	run("test.echo", `{"message":"a"}`)
	run("test.echo", `{"message":"b"}`, func(r *jobs.Request) { r.DelayS = 1 })
	run("test.fail", `{"code":"handler_failed"}`)
	run("test.fail", `{"code":"session_unavailable","times":1}`)
	if _, err := c.PausePool(ctx, "media", client.PauseRequest{}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`helmdeck_jobs_submitted_total{pack="test.echo",pool="core"} 2`,
		`helmdeck_jobs_submitted_total{pack="test.fail",pool="core"} 2`,
		`helmdeck_jobs_started_total{pack="test.echo",pool="core"} 2`,
		`helmdeck_jobs_started_total{pack="test.fail",pool="core"} 3`,
		`helmdeck_attempts_total{code="",pack="test.echo",pool="core",state="succeeded"} 2`,
		`helmdeck_attempts_total{code="handler_failed",pack="test.fail",pool="core",state="failed"} 1`,
		`helmdeck_attempts_total{code="session_unavailable",pack="test.fail",pool="core",state="retrying"} 1`,
		`helmdeck_attempt_duration_seconds_count{pack="test.echo",pool="core"} 2`,
		`helmdeck_jobs_wait_seconds_count{pool="core",priority="normal"} 4`,
		`helmdeck_schedule_lateness_seconds_count{kind="job"} 1`,
		`helmdeck_pool_paused{pool="media"} 1`,
		`helmdeck_pool_paused{pool="core"} 0`,
		`helmdeck_pool_workers{pool="core"} 1`,
		`helmdeck_workers 1`,
		`helmdeck_bus_connected 1`,
		`helmdeck_bus_stream_has_leader{stream="EVT"} 1`,
		`helmdeck_bus_stream_max_bytes{stream="EVT"} 1.073741824e+10`,
		`helmdeck_bus_advisories{kind="quorum_lost"} 0`,
		`helmdeck_reconciler_repaired_jobs_total 0`,
		`helmdeck_scheduler_sidecars 0`,
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		got, kinds := scrape(ctx, t, r.URL, string(token))
		missing := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return got[line] })
		if len(missing) == 0 {
			for name, typ := range kinds {
				if strings.HasPrefix(name, "helmdeck_") && typ != kind(name) {
					t.Errorf("%s is a %s, its name says %s", name, typ, kind(name))
				}
			}
			return
		}
		select {
		case <-tick.C: // the consumers lag a little
		case <-ctx.Done():
			t.Fatalf("never told: %s", strings.Join(missing, "\n"))
		}
	}
}

// scrape returns the lines of /metrics, and the type of each metric.
func scrape(ctx context.Context, t *testing.T, url, token string) (lines map[string]bool, kinds map[string]string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(token))
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines, kinds = map[string]bool{}, map[string]string{}
	text := bufio.NewScanner(res.Body)
	for text.Scan() {
		lines[text.Text()] = true
		if f := strings.Fields(text.Text()); len(f) == 4 && f[1] == "TYPE" {
			kinds[f[2]] = f[3]
		}
	}
	return lines, kinds
}
