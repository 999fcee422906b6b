// Package packstest runs one pack in a test, without a bus, a worker or a
// scheduler: the real engine over an artifact store in memory.
//
//	res := packstest.Run(t, weather.Forecast, `{"city":"Graz"}`)
//	var out struct{ Degrees float64 }
//	res.Decode(t, &out)
//
// A pack that declares Egress gets a client that reaches loopback addresses
// alone, refusals included, so that it is tested against servers of the test's
// own; WithHTTP replaces it. A pack that needs a session gets one from
// WithLeaser.
package packstest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/artifactstest"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// Caller is who runs the pack unless WithCaller says otherwise.
var Caller = identity.Caller{Subject: "tester", Client: "packstest"}

// Result is how the run ended.
type Result struct {
	// Output is nil when the run failed.
	Output json.RawMessage
	// Err is nil when the run succeeded.
	Err *packs.Error
	// Warnings name unknown keys of the input.
	Warnings []string
	// Artifacts are those the run saved, in order. They are in the store of
	// WithStore, visible if the run succeeded.
	Artifacts []Artifact
	Progress  []Progress
	Logs      []string
	// Begun counts the calls of Begin.
	Begun     int
	SessionID string
}

// Artifact is a saved artifact with its bytes.
type Artifact struct {
	artifacts.Ref
	Bytes []byte
}

// Progress is one report of the handler.
type Progress struct {
	Percent float64
	Message string
}

// Decode decodes the output into v. The test ends when the run failed.
func (r Result) Decode(t testing.TB, v any) {
	t.Helper()
	if r.Err != nil {
		t.Fatalf("the pack failed: %v", r.Err)
	}
	if err := json.Unmarshal(r.Output, v); err != nil {
		t.Fatalf("decode output %s: %v", r.Output, err)
	}
}

// WantCode ends the test unless the run failed with code c.
func (r Result) WantCode(t testing.TB, c packs.Code) {
	t.Helper()
	switch {
	case r.Err == nil:
		t.Fatalf("the pack succeeded with %.500s, want %s", r.Output, c)
	case r.Err.Code != c:
		t.Fatalf("got %v, want code %s", r.Err, c)
	}
}

// settings collect the options of one run.
type settings struct {
	ctx        context.Context
	invocation packs.Invocation
	store      *artifacts.Store
	begun      bool
	callable   *packs.Catalog
	onProgress func(Progress)
	engine     packs.Engine
}

// Option changes how Run runs a pack.
type Option func(*settings)

// WithContext runs the pack under ctx in place of the test's context.
func WithContext(ctx context.Context) Option { return func(s *settings) { s.ctx = ctx } }

// WithCaller runs the pack for c.
func WithCaller(c identity.Caller) Option { return func(s *settings) { s.invocation.Caller = c } }

// WithAttempt sets the number of the attempt, 1 by default.
func WithAttempt(n int) Option { return func(s *settings) { s.invocation.Attempt = n } }

// WithTimeout replaces the pack's own timeout.
func WithTimeout(d time.Duration) Option { return func(s *settings) { s.invocation.Timeout = d } }

// WithGrace replaces the time a handler has to return after its context ended.
func WithGrace(d time.Duration) Option { return func(s *settings) { s.engine.Grace = d } }

// WithStore keeps artifacts in store, for runs that share them.
func WithStore(store *artifacts.Store) Option { return func(s *settings) { s.store = store } }

// WithHTTP gives the pack another client and URL check than Loopback's.
func WithHTTP(client *http.Client, check func(ctx context.Context, url string) error) Option {
	return func(s *settings) {
		s.invocation.Services.HTTP, s.invocation.Services.CheckURL = client, check
	}
}

// WithLeaser gives the pack sessions.
func WithLeaser(l sessions.Leaser) Option {
	return func(s *settings) { s.invocation.Services.Leaser = l }
}

// WithPacks lets the pack call these. Their children run at once, by the same
// options, and share the artifact store.
func WithPacks(callable ...packs.Pack) Option {
	return func(s *settings) { s.callable = packs.NewCatalog(callable...) }
}

// WithBegun pretends that an earlier attempt began the effect.
func WithBegun() Option { return func(s *settings) { s.begun = true } }

// WithOnProgress calls f at every report, to act while the pack runs.
func WithOnProgress(f func(Progress)) Option { return func(s *settings) { s.onProgress = f } }

// WithAlive calls f at every sign of life that is no report.
func WithAlive(f func()) Option { return func(s *settings) { s.invocation.Services.Alive = f } }

// NewStore returns an empty artifact store in memory.
func NewStore(t testing.TB) *artifacts.Store {
	t.Helper()
	store, err := artifacts.New(artifacts.Config{
		Blobs: artifactstest.NewBlobs(0), Index: artifactstest.NewIndex(), Log: zerolog.Nop(),
	})
	if err != nil {
		t.Fatalf("make artifact store: %v", err)
	}
	return store
}

// Run validates input, runs p and returns how it ended. input is JSON when it
// is a string, []byte or json.RawMessage; any other value is encoded.
func Run(t testing.TB, p packs.Pack, input any, options ...Option) Result {
	t.Helper()
	client := Loopback()
	defer client.CloseIdleConnections()
	s := &settings{ctx: t.Context(), invocation: packs.Invocation{
		JobID: "019a0000-0000-7000-8000-000000000001", Attempt: 1, Fence: 1, Worker: "packstest",
		Caller: Caller, Input: encode(t, input),
		Services: packs.Services{HTTP: client, CheckURL: CheckLoopback, Scratch: sync.OnceValues(func() (string, error) { return t.TempDir(), nil })},
	}}
	for _, o := range options {
		o(s)
	}
	if s.store == nil {
		s.store = NewStore(t)
	}
	rec := &recorder{settings: s}
	s.invocation.Services.Artifacts = s.store
	s.invocation.Services.Progress = rec.progress
	s.invocation.Services.Log = rec.log
	s.invocation.Services.Begin = rec.begin
	if s.callable != nil {
		s.invocation.Services.Calls = &children{settings: s}
	}

	_, warnings, _ := p.Validate(s.invocation.Input) // Execute returns the error
	out, err := s.engine.Execute(s.ctx, p, s.invocation)
	res := rec.result()
	res.Output, res.SessionID, res.Warnings = out.Output, out.SessionID, warnings
	if err != nil {
		var ok bool
		if res.Err, ok = errors.AsType[*packs.Error](err); !ok {
			t.Fatalf("the engine returned %T, want *packs.Error: %v", err, err)
		}
	}
	res.Artifacts = collect(t, s.store, out.Artifacts, err == nil)
	return res
}

func encode(t testing.TB, input any) json.RawMessage {
	t.Helper()
	switch v := input.(type) {
	case nil:
		return nil
	case string:
		return json.RawMessage(v)
	case []byte:
		return v
	case json.RawMessage:
		return v
	}
	text, err := json.Marshal(input)
	if err != nil {
		t.Fatalf("encode input: %v", err)
	}
	return text
}

// collect reads the artifacts of a run that won; those of a run that failed
// stay hidden, so that their bytes cannot be read.
func collect(t testing.TB, store *artifacts.Store, refs []artifacts.Ref, won bool) []Artifact {
	t.Helper()
	var out []Artifact
	ctx := context.WithoutCancel(t.Context())
	if won {
		if err := store.Publish(ctx, refs...); err != nil {
			t.Fatalf("publish artifacts: %v", err)
		}
	}
	for _, ref := range refs {
		a := Artifact{Ref: ref}
		if won {
			_, body, err := store.Open(ctx, ref.Key, artifacts.Range{})
			if err != nil {
				t.Fatalf("open artifact: %v", err)
			}
			if a.Bytes, err = io.ReadAll(body); err != nil {
				t.Fatalf("read artifact %s: %v", ref.Key, err)
			}
			if err := body.Close(); err != nil {
				t.Fatalf("close artifact %s: %v", ref.Key, err)
			}
		}
		out = append(out, a)
	}
	return out
}

// recorder keeps what the handler reports.
type recorder struct {
	settings *settings
	mu       sync.Mutex // guards the fields below
	seen     Result
}

func (r *recorder) result() Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

func (r *recorder) progress(percent float64, message string) {
	p := Progress{percent, message}
	r.mu.Lock()
	r.seen.Progress = append(r.seen.Progress, p)
	r.mu.Unlock()
	if r.settings.onProgress != nil {
		r.settings.onProgress(p)
	}
}

func (r *recorder) log(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Logs = append(r.seen.Logs, line)
}

func (r *recorder) begin(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen.Begun++; r.settings.begun || r.seen.Begun > 1 {
		return packs.Errorf(packs.OutcomeUnknown, "an earlier attempt began this effect and its outcome is not known; look before you run it again")
	}
	return nil
}
