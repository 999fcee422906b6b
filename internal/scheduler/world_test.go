package scheduler_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/agent"
	"github.com/helmdeck/helmdeck/internal/scheduler"
	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/process"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

func TestMain(m *testing.M) { sessionstest.Main(m, agent.Main) }

// wait bounds every wait of these tests.
const wait = 60 * time.Second

// quick is the rhythm of these tests. The agents keep theirs.
var quick = sessions.Timing{
	ConfirmWithin: 500 * time.Millisecond, RenewEvery: 100 * time.Millisecond,
	SweepAfter: time.Second, SweepEvery: 100 * time.Millisecond,
}

// world is a registry, a queue and one host's data directory.
type world struct {
	t        *testing.T
	ctx      context.Context
	log      zerolog.Logger
	registry sessions.Registry
	memory   *sessionstest.Registry // the same, when in memory
	queue    sessions.Queue
	config   process.Config
	timing   sessions.Timing
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	t.Cleanup(cancel)
	r := sessionstest.NewRegistry()
	return &world{
		t: t, ctx: ctx, log: zerolog.New(zerolog.NewTestWriter(t)), timing: quick,
		registry: r, memory: r, queue: &sessionstest.Queue{}, config: sessionstest.Config(t),
	}
}

// runtime is a process runtime on the host's data directory.
func (w *world) runtime() *process.Runtime {
	w.t.Helper()
	rt, err := process.New(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	return rt
}

// scheduler runs one until stop is called or the test ends.
func (w *world) scheduler(change func(*scheduler.Config)) (stop func()) {
	w.t.Helper()
	cfg := scheduler.Config{
		Registry: w.registry, Queue: w.queue, Runtime: w.runtime(), Slots: 4, Host: "host-1",
		StopSidecars: true, Timing: w.timing, Log: w.log,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := scheduler.New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.background(s.Run)
}

// keeper runs the leaser of one worker until stop is called or the test ends.
func (w *world) keeper(name string) (leaser *sessions.Keeper, stop func()) {
	w.t.Helper()
	k, err := sessions.NewLeaser(sessions.LeaserConfig{
		Registry: w.registry, Queue: w.queue, Worker: name, Timing: w.timing, Log: w.log,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return k, w.background(k.Run)
}

func (w *world) background(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("run: %v", err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.t.Fatalf("never came true: %s", what)
		}
	}
}

var base = sessions.Request{Spec: sessions.Spec{Image: process.ImageBase}, JobID: "job", Attempt: 1}

func (w *world) lease(l sessions.Leaser) sessions.Session {
	w.t.Helper()
	s, err := l.Lease(w.ctx, base)
	if err != nil {
		w.t.Fatalf("lease: %v", err)
	}
	return s
}

func (w *world) works(s sessions.Session) {
	w.t.Helper()
	r, err := s.Exec(w.ctx, sessions.Command{Argv: []string{"echo", "works"}})
	if err != nil || string(r.Stdout) != "works\n" {
		w.t.Fatalf("exec: got %+v, %v", r, err)
	}
}

// running counts the folders of sidecars, which outlive their processes.
func (w *world) running() int {
	found, err := filepath.Glob(filepath.Join(w.config.Dir, "sidecars", "*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(found)
}

func (w *world) get(id string) sessions.Lease {
	e, err := w.registry.Get(w.ctx, id)
	if err != nil {
		return sessions.Lease{}
	}
	return e.Lease
}
