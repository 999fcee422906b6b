package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/internal/auth"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/artifactstest"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/jobs/jobstest"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
	"github.com/helmdeck/helmdeck/pkg/schedules/schedulestest"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
	"github.com/helmdeck/helmdeck/pkg/webhooks/webhookstest"
)

func TestMain(m *testing.M) {
	// net/http lingers half a second after a connection it closed first.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// The tokens of the rig.
const (
	admin  = "token-of-the-admin"
	ann    = "token-of-ann"
	bob    = "token-of-bob"
	reader = "token-of-a-reader" // may read, not run
)

type echoIn struct {
	Text  string   `json:"text" jsonschema:"minLength=1" jsonschema_description:"What to say."`
	Count int      `json:"count,omitempty" jsonschema:"minimum=1,maximum=9" jsonschema_description:"How often."`
	Tags  []string `json:"tags,omitempty" jsonschema_description:"Labels."`
}

type echoOut struct {
	Text string `json:"text"`
}

type codeIn struct {
	Code string `json:"code,omitempty" jsonschema_description:"Code to fail with."`
}

func echo(version int) packs.Pack {
	return packs.Define(packs.Spec[echoIn, echoOut]{
		Name: "test.echo", Version: version, Summary: "Says what it is told.", Defaults: echoIn{Count: 1}, MaxInputBytes: 64 << 10,
		Examples: []packs.Example{{Title: "Hello", Input: json.RawMessage(`{"text":"hello"}`)}},
		Run: func(_ context.Context, _ *packs.Run, in echoIn) (echoOut, error) {
			return echoOut{Text: in.Text}, nil
		},
	})
}

func simple(name string, mod func(*packs.Spec[codeIn, echoOut])) packs.Pack {
	s := packs.Spec[codeIn, echoOut]{
		Name: name, Summary: "For tests.", MaxAttempts: 1, MaxInputBytes: 64 << 10,
		Run: func(context.Context, *packs.Run, codeIn) (echoOut, error) { return echoOut{}, nil },
	}
	if mod != nil {
		mod(&s)
	}
	return packs.Define(s)
}

func catalogue() *packs.Catalog {
	return packs.NewCatalog(echo(1), echo(2), simple("test.fail", nil), simple("test.wait", nil), simple("test.file", nil),
		simple("test.big", func(s *packs.Spec[codeIn, echoOut]) { s.MaxInputBytes = 96 << 10 }),
		simple("test.secret", func(s *packs.Spec[codeIn, echoOut]) { s.Hidden = true }))
}

type rig struct {
	*testing.T
	url     string
	api     *api.API
	server  *http.Server
	world   *jobstest.World
	store   *artifacts.Store
	hooks   *webhookstest.Memory
	pools   *fixedPools
	fleet   *oneWorker
	trail   *memoryTrail
	release chan struct{} // lets one test.wait go on
	http    *http.Client
}

// setup serves the API over a job system in memory with one worker.
func setup(t *testing.T, mods ...func(*api.Config)) *rig {
	t.Helper()
	r := &rig{T: t, world: jobstest.New(), release: make(chan struct{}), http: &http.Client{
		Transport:     &http.Transport{},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	var err error
	r.store, err = artifacts.New(artifacts.Config{Blobs: artifactstest.NewBlobs(16 << 20), Index: artifactstest.NewIndex()})
	if err != nil {
		t.Fatal(err)
	}
	r.trail = &memoryTrail{}
	cat := catalogue()
	r.pools = &fixedPools{pools: []api.PoolStatus{{Pool: "core", Waiting: 2, Workers: 1, Autoscale: 2}, {Pool: "media"}}}
	r.fleet = &oneWorker{client.WorkerStatus{
		ID: "worker-1", Host: "h", Version: "v1", Slots: map[string]int{"core": 4}, Running: map[string]int{"core": 1},
		LastBeat: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC),
	}}
	person := func(name string, scopes ...string) identity.Caller {
		return identity.Caller{Subject: name, Scopes: scopes}
	}
	sealer, err := webhooks.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	r.hooks = webhookstest.NewMemory()
	jobCfg := r.world.Config(cat)
	jobCfg.Sealer = sealer
	service, memory := jobs.New(jobCfg), schedulestest.NewMemory()
	cfg := api.Config{
		Jobs: service, Schedules: schedules.New(schedules.Config{
			Store: memory, Names: memory, Timers: memory, Jobs: service, KeySecret: []byte("secret"),
		}),
		Webhooks: r.hooks.Service(sealer), Packs: cat, Artifacts: r.store, Events: follower{r.world}, Pools: r.pools, Workers: r.fleet, Quotas: quotas{},
		Trail: r.trail, Audit: r.trail,
		Auth: auth.Static(map[string]identity.Caller{
			admin: person("admin", "admin"), ann: person("ann", "packs:*"), bob: person("bob", "packs:*"),
			reader: person("ann", "packs:read"),
		}),
		Version: "v1.2.3", Registry: prometheus.NewRegistry(),
	}
	for _, mod := range mods {
		mod(&cfg)
	}
	if r.api, err = api.New(cfg); err != nil {
		t.Fatal(err)
	}
	r.serve()
	return r
}

func (r *rig) serve() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.Fatal(err)
	}
	r.url = "http://" + l.Addr().String()
	r.server = r.api.Server()
	ctx, stop := context.WithCancel(context.Background())
	served, worked := make(chan error, 1), make(chan struct{})
	go func() { served <- r.server.Serve(l) }()
	go func() { defer close(worked); r.world.Work(ctx, "worker-1", r.work) }()
	r.Cleanup(func() {
		r.http.CloseIdleConnections()
		r.api.EndStreams()
		_ = r.server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			r.Errorf("serve: %v", err)
		}
		stop()
		<-worked
	})
}

// work is what the worker of the rig does.
func (r *rig) work(ctx context.Context, t jobstest.Task) (packs.Outcome, error) {
	switch t.Job.Pack {
	case "test.fail":
		var in codeIn
		if err := json.Unmarshal(t.Input, &in); err != nil {
			return packs.Outcome{}, err
		}
		e := packs.Errorf(packs.Code(in.Code), "it failed as asked")
		if e.Code == packs.InvalidInput {
			e.Details = []packs.Detail{{Pointer: "/code", Message: "is odd"}}
		}
		return packs.Outcome{}, e
	case "test.wait":
		t.Log("waiting", "for release")
		t.Progress(50, "half")
		select {
		case <-ctx.Done():
			return packs.Outcome{}, ctx.Err()
		case <-r.release:
			t.Log("released")
			return packs.Outcome{Output: json.RawMessage(`{"text":"released"}`)}, nil
		}
	case "test.file":
		k := t.Job.Key()
		ref, err := r.store.Put(ctx, artifacts.Draft{
			Pack: "test.file", Name: "notes.txt", JobID: t.Job.ID, Attempt: 1, Tenant: k.Tenant, Owner: k.Owner,
		}, strings.NewReader("0123456789"))
		if err != nil {
			return packs.Outcome{}, err
		}
		out := packs.Outcome{Output: json.RawMessage(`{"text":"stored"}`), Artifacts: []artifacts.Ref{ref}, SessionID: "s-1"}
		return out, r.store.Publish(ctx, ref)
	}
	return jobstest.Echo(ctx, t)
}

// follower gives the events of the World as the API wants them.
type follower struct{ w *jobstest.World }

func (f follower) Follow(ctx context.Context, key jobs.Key, after api.Cursor) iter.Seq2[api.Event, error] {
	return f.events(ctx, key, after, true)
}

func (f follower) History(ctx context.Context, key jobs.Key, after api.Cursor) iter.Seq2[api.Event, error] {
	return f.events(ctx, key, after, false)
}

func (f follower) events(ctx context.Context, key jobs.Key, after api.Cursor, live bool) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		var seq uint64
		if after != "" {
			n, err := strconv.ParseUint(strings.TrimPrefix(string(after), "EVT:"), 10, 64)
			if err != nil {
				yield(api.Event{}, api.ErrBadCursor)
				return
			}
			seq = n
		}
		for {
			events, changed := f.w.Events(key, seq)
			all, _ := f.w.Events(key, 0)
			for _, e := range events {
				out := api.Event{
					Cursor: api.Cursor("EVT:" + strconv.FormatUint(e.Seq, 10)), Type: e.Type,
					Kind: api.EventKind(e.Kind), Terminal: e.Terminal, Data: e.Data,
				}
				if !yield(out, nil) {
					return
				}
				seq = e.Seq
			}
			if n := len(all); !live || n > 0 && all[n-1].Terminal && all[n-1].Seq <= seq {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

type fixedPools struct {
	pools []api.PoolStatus
	err   error
}

func (p *fixedPools) Pools(context.Context) ([]api.PoolStatus, error) {
	return slices.Clone(p.pools), p.err
}

func (p *fixedPools) Pause(_ context.Context, pool string, pause client.PoolPause) error {
	return p.set(pool, &pause)
}

func (p *fixedPools) Resume(_ context.Context, pool, _ string) error { return p.set(pool, nil) }

func (p *fixedPools) set(pool string, pause *client.PoolPause) error {
	for i := range p.pools {
		if p.pools[i].Pool == pool {
			p.pools[i].Paused = pause
		}
	}
	return p.err
}

// oneWorker is a fleet of one.
type oneWorker struct{ status client.WorkerStatus }

func (w *oneWorker) Workers() []client.WorkerStatus { return []client.WorkerStatus{w.status} }

func (w *oneWorker) Drain(_ context.Context, id string, within time.Duration) (client.WorkerStatus, error) {
	if id != w.status.ID {
		return client.WorkerStatus{}, packs.Errorf(packs.NotFound, "there is no worker %q", id)
	}
	w.status.Draining, w.status.DrainBy = true, w.status.LastBeat.Add(within)
	return w.status, nil
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

// call sends a request; header holds pairs. A token, when not empty, is sent.
func (r *rig) call(method, path, token, body string, header ...string) answer {
	r.Helper()
	ctx, stop := context.WithTimeout(r.Context(), patience)
	defer stop()
	var reader io.Reader
	if body != "" {
		reader = bytes.NewReader([]byte(body))
	}
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, reader)
	if err != nil {
		r.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := r.http.Do(req)
	if err != nil {
		r.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatalf("%s %s: read the answer: %v", method, path, err)
	}
	return answer{res.StatusCode, res.Header, string(b)}
}

// want fails the test unless the status is the one wanted.
func (a answer) want(t *testing.T, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("got status %d, want %d; body: %.500s", a.status, status, a.body)
	}
	return a
}

// decode reads the body as a T.
func decode[T any](t *testing.T, a answer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("decode %.300q: %v", a.body, err)
	}
	return v
}

// submit submits a job as token and returns its record.
func (r *rig) submit(token, body string) jobs.Job {
	r.Helper()
	return decode[jobs.Job](r.T, r.call("POST", "/api/v1/jobs", token, body).want(r.T, 202))
}

// until waits until cond holds of the job.
func (r *rig) until(id string, cond func(jobs.Job) bool) jobs.Job {
	r.Helper()
	ctx, stop := context.WithTimeout(r.Context(), patience)
	defer stop()
	job, err := r.world.Wait(ctx, id, cond)
	if err != nil {
		r.Fatal(err)
	}
	return job
}

func ended(j jobs.Job) bool   { return j.State.Terminal() }
func running(j jobs.Job) bool { return j.State == jobs.Running }

// submitted waits until the test.wait job of ann with an idempotency key is
// submitted, and returns it.
func (r *rig) submitted(key string) jobs.Job {
	r.Helper()
	var job jobs.Job
	r.eventually("a submitted job", func() bool {
		list := decode[client.JobList](r.T, r.call("GET", "/api/v1/jobs?pack=test.wait", ann, "").want(r.T, 200))
		if len(list.Jobs) == 0 {
			return false
		}
		job = list.Jobs[0]
		return true
	})
	// The same call with the same key finds it.
	if got := decode[jobs.Job](r.T, r.call("POST", "/api/v1/packs/test.wait?wait=0", ann, `{}`, "Idempotency-Key", key)); got.ID != job.ID {
		r.Fatalf("got job %s for key %q, want %s", got.ID, key, job.ID)
	}
	return job
}

// eventually asks until cond holds; each question is a call over the wire, so
// it does not spin.
func (r *rig) eventually(what string, cond func() bool) {
	r.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			r.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// hangUpAfter sends req, calls then, and closes the connection. It returns
// the error of the call, nil when it was answered.
func (r *rig) hangUpAfter(req *http.Request, then func()) error {
	r.Helper()
	ctx, hangUp := context.WithCancel(req.Context())
	failed := make(chan error, 1)
	go func() {
		res, err := r.http.Do(req.WithContext(ctx))
		if err == nil {
			res.Body.Close()
		}
		failed <- err
	}()
	then()
	hangUp()
	return <-failed
}
