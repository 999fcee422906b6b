package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

func TestLeaseAndClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.scheduler(nil)
	k, _ := w.keeper("w1")
	s := w.lease(k)
	l := w.get(s.ID())
	if l.State != sessions.StateLeased || l.Worker != "w1" || l.Host != "host-1" || l.Generation != 1 || l.JobID != "job" {
		t.Errorf("record: %+v", l)
	}
	w.works(s)
	first := l.RenewedAt
	w.until("the lease is renewed", func() bool { return w.get(s.ID()).RenewedAt.After(first) })
	for range 2 {
		if err := s.Close(w.ctx); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	w.until("sidecar and record are gone", func() bool { return w.running() == 0 && len(w.memory.All()) == 0 })
	select {
	case <-s.Lost():
		t.Error("a closed session counts as lost")
	default:
	}
}

func TestWaitingTellsThePlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.scheduler(func(c *scheduler.Config) { c.Slots = 1 })
	one, _ := w.keeper("w1")
	two, _ := w.keeper("w2")
	first := w.lease(one)
	told := make(chan int, 16)
	r := base
	r.Waiting = func(p int) { told <- p }
	got := make(chan sessions.Session, 1)
	go func() {
		s, err := two.Lease(w.ctx, r)
		if err != nil {
			t.Errorf("second lease: %v", err)
		}
		got <- s
	}()
	select {
	case p := <-told:
		if p != 0 {
			t.Errorf("place: got %d, want 0", p)
		}
	case <-w.ctx.Done():
		t.Fatal("no place told")
	}
	if n := w.running(); n != 1 {
		t.Errorf("%d sidecars with one slot", n)
	}
	if err := first.Close(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.works(<-got)
}

func TestWithdrawnWhileWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k, _ := w.keeper("w1")
	ctx, cancel := context.WithCancelCause(w.ctx)
	cause := errors.New("the caller went away")
	r := base
	r.Waiting = func(int) { cancel(cause) }
	if _, err := k.Lease(ctx, r); !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause", err)
	}
	for id, l := range w.memory.All() {
		if l.State != sessions.StateGone {
			t.Errorf("%s is %s", id, l.State)
		}
	}
	// A scheduler that comes later starts nothing for it and cleans up.
	w.scheduler(nil)
	w.until("the record is gone", func() bool { return len(w.memory.All()) == 0 })
	if n := w.running(); n != 0 {
		t.Errorf("%d sidecars for a withdrawn request", n)
	}
	w.works(w.lease(k)) // and the queue is not stuck behind it
}

func TestNobodyHasRoom(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k, err := sessions.NewLeaser(sessions.LeaserConfig{
		Registry: w.registry, Queue: w.queue, Worker: "w1", MaxWait: 50 * time.Millisecond, Log: w.log,
	})
	if err != nil {
		t.Fatal(err)
	}
	w.background(k.Run)
	if _, err := k.Lease(w.ctx, base); !errors.Is(err, sessions.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}

// TestUnconfirmedOffer: the worker died between its request and the offer.
func TestUnconfirmedOffer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.scheduler(nil)
	l := sessions.Lease{ID: "orphan", State: sessions.StateRequested, Spec: base.Spec, Worker: "dead"}
	if _, err := w.registry.Create(w.ctx, l); err != nil {
		t.Fatal(err)
	}
	if err := w.queue.Offer(w.ctx, l.Spec.Image, l.ID); err != nil {
		t.Fatal(err)
	}
	w.until("it is offered", func() bool { return w.get(l.ID).State == sessions.StateOffered })
	w.until("the offer is taken back", func() bool { return w.get(l.ID).State == sessions.StateGone })
	if e := w.get(l.ID).Error; !strings.Contains(e, "not confirmed") {
		t.Errorf("error: %q", e)
	}
	w.until("sidecar and record are gone", func() bool { return w.running() == 0 && len(w.memory.All()) == 0 })
}

// TestMissedOffer: the confirmation does not get through, the worker lives
// and is served by its next request.
func TestMissedOffer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.scheduler(nil)
	var missed atomic.Bool
	deaf := &deafRegistry{Registry: w.registry, fail: func(l sessions.Lease) bool {
		return l.State == sessions.StateLeased && missed.CompareAndSwap(false, true)
	}}
	k, err := sessions.NewLeaser(sessions.LeaserConfig{Registry: deaf, Queue: w.queue, Worker: "w1", Timing: w.timing, Log: w.log})
	if err != nil {
		t.Fatal(err)
	}
	w.background(k.Run)
	w.works(w.lease(k))
	if !missed.Load() {
		t.Error("no confirmation was lost")
	}
	w.until("one sidecar is left", func() bool { return w.running() == 1 })
}

// deafRegistry loses updates.
type deafRegistry struct {
	sessions.Registry
	fail func(sessions.Lease) bool
}

func (d *deafRegistry) Update(ctx context.Context, l sessions.Lease, revision uint64) (uint64, error) {
	if d.fail(l) {
		return 0, errors.New("no answer")
	}
	return d.Registry.Update(ctx, l, revision)
}

// TestLostAnswers: every update happens, and the answer to every second one is
// lost. That is no loss of the lease.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.scheduler(nil)
	mute := &muteRegistry{Registry: w.registry}
	k, err := sessions.NewLeaser(sessions.LeaserConfig{Registry: mute, Queue: w.queue, Worker: "w1", Timing: w.timing, Log: w.log})
	if err != nil {
		t.Fatal(err)
	}
	w.background(k.Run)
	s := w.lease(k)
	from := mute.updates.Load()
	w.until("several renewals were made", func() bool { return mute.updates.Load() > from+8 })
	select {
	case <-s.Lost():
		t.Fatal("the lease counts as lost")
	default:
	}
	w.works(s)
	if err := s.Close(w.ctx); err != nil {
		t.Logf("close: %v", err) // its answer may be the lost one
	}
	w.until("sidecar is gone", func() bool { return w.running() == 0 })
}

type muteRegistry struct {
	sessions.Registry
	updates atomic.Int64
}

func (m *muteRegistry) Update(ctx context.Context, l sessions.Lease, revision uint64) (uint64, error) {
	next, err := m.Registry.Update(ctx, l, revision)
	if err == nil && m.updates.Add(1)%2 == 0 {
		return 0, context.DeadlineExceeded
	}
	return next, err
}

// TestDeadWorker: a lease nobody renews ends with its sidecar.
func TestDeadWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.scheduler(nil)
	k, _ := w.keeper("w1")
	alive := w.lease(k)
	dying := &deafRegistry{Registry: w.registry}
	var dead atomic.Bool
	dying.fail = func(sessions.Lease) bool { return dead.Load() }
	k2, err := sessions.NewLeaser(sessions.LeaserConfig{Registry: dying, Queue: w.queue, Worker: "w2", Timing: w.timing, Log: w.log})
	if err != nil {
		t.Fatal(err)
	}
	w.background(k2.Run)
	s := w.lease(k2)
	dead.Store(true)
	select {
	case <-s.Lost(): // the watch tells a worker that is not quite dead
	case <-w.ctx.Done():
		t.Fatal("the worker does not learn that its lease is gone")
	}
	if _, err := s.Exec(w.ctx, sessions.Command{Argv: []string{"true"}}); !errors.Is(err, sessions.ErrLost) {
		t.Errorf("exec: got %v, want ErrLost", err)
	}
	w.until("its sidecar is gone", func() bool { return w.running() == 1 })
	w.works(alive)
}

// TestBusAway: nothing is stopped because the registry cannot be reached.
func TestBusAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.scheduler(nil)
	k, _ := w.keeper("w1")
	s := w.lease(k)
	var reads atomic.Int64
	w.memory.Fail(func(op string) error {
		if op == "get" {
			reads.Add(1)
		}
		return errors.New("bus is away")
	})
	w.memory.BreakWatches()
	// Each refused read of the sweep is one that would have ended the lease.
	w.until("the sweep wanted to end it more than once", func() bool { return reads.Load() >= 2 })
	w.works(s)
	w.memory.Fail(nil)
	before := w.get(s.ID()).RenewedAt
	w.until("it is renewed again", func() bool { return w.get(s.ID()).RenewedAt.After(before) })
	w.works(s)
	if err := s.Close(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.until("sidecar is gone", func() bool { return w.running() == 0 })
}

func TestAdoption(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.scheduler(func(c *scheduler.Config) { c.StopSidecars = false })
	k, _ := w.keeper("w1")
	s := w.lease(k)
	stop()
	w.works(s) // nobody schedules, the session goes on
	// A sidecar that belongs to nobody, as one whose record was lost.
	if _, err := w.runtime().Start(w.ctx, sessions.StartSpec{LeaseID: "stray", Generation: 1, Token: "t", Spec: base.Spec}); err != nil {
		t.Fatal(err)
	}
	w.scheduler(nil)
	w.until("the stray is gone", func() bool { return w.running() == 1 })
	w.works(s)
	if err := s.Close(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.until("the adopted one is gone", func() bool { return w.running() == 0 && len(w.memory.All()) == 0 })
}

// TestClosedWhileNobodyScheduled: what was given back in the meantime is
// cleaned up by the next scheduler, and its programs ended at once.
func TestClosedWhileNobodyScheduled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.scheduler(func(c *scheduler.Config) { c.StopSidecars = false })
	k, _ := w.keeper("w1")
	s := w.lease(k)
	l := w.get(s.ID())
	stop()
	if err := s.Close(w.ctx); err != nil {
		t.Fatal(err)
	}
	a := sessions.NewAgent(l.Endpoint, l.Token, l.Generation)
	w.until("the agent ended", func() bool { return errors.Is(a.Renew(w.ctx), sessions.ErrLost) })
	w.scheduler(nil)
	w.until("folder and record are gone", func() bool { return w.running() == 0 && len(w.memory.All()) == 0 })
}

func TestCleanStopEndsSidecars(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.scheduler(nil)
	k, _ := w.keeper("w1")
	s := w.lease(k)
	stop()
	if n := w.running(); n != 0 {
		t.Errorf("%d sidecars after a clean stop", n)
	}
	select {
	case <-s.Lost():
	case <-w.ctx.Done():
		t.Error("the worker does not learn of it")
	}
}

// TestKilledAgent: the worker learns that its sidecar died.
func TestKilledAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.scheduler(nil)
	k, _ := w.keeper("w1")
	s := w.lease(k)
	l := w.get(s.ID())
	if err := sessions.NewAgent(l.Endpoint, l.Token, l.Generation).Shutdown(w.ctx); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Lost():
	case <-w.ctx.Done():
		t.Fatal("the loss goes unnoticed")
	}
	w.until("nothing is left", func() bool { return w.running() == 0 })
	w.works(w.lease(k)) // the slot is free
}

// brokenRuntime cannot start anything.
type brokenRuntime struct{ sessions.Runtime }

func (brokenRuntime) Start(context.Context, sessions.StartSpec) (sessions.Sidecar, error) {
	return sessions.Sidecar{}, fmt.Errorf("no room on the disk: %w", syscall.ENOSPC)
}

func TestFailedStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var released atomic.Int64
	w.scheduler(func(c *scheduler.Config) {
		c.Runtime = brokenRuntime{c.Runtime}
		c.Slots = 1
		c.Proxy = func(sessions.Lease) (string, func(), error) {
			return "http://127.0.0.1:1", func() { released.Add(1) }, nil
		}
	})
	k, _ := w.keeper("w1")
	for range 2 { // the second needs the slot of the first
		_, err := k.Lease(w.ctx, base)
		if !errors.Is(err, sessions.ErrUnavailable) || !strings.Contains(err.Error(), "no room on the disk") {
			t.Errorf("got %v, want ErrUnavailable with the cause", err)
		}
	}
	w.until("the proxies are released", func() bool { return released.Load() == 2 })
}

// TestTwoSchedulersManyWorkers: every lease has one sidecar, on one host.
func TestTwoSchedulersManyWorkers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := newWorld(t)
	other.registry, other.memory, other.queue = w.registry, w.memory, w.queue
	w.scheduler(func(c *scheduler.Config) { c.Slots = 2 })
	other.scheduler(func(c *scheduler.Config) { c.Slots, c.Host = 2, "host-2" })
	var leases sync.WaitGroup
	var count atomic.Int64
	for i := range 3 {
		k, _ := w.keeper(fmt.Sprintf("w%d", i))
		for range 4 {
			leases.Go(func() {
				s, err := k.Lease(w.ctx, base)
				if err != nil {
					t.Errorf("lease: %v", err)
					return
				}
				if n := w.running() + other.running(); n > 4 {
					t.Errorf("%d sidecars in 4 slots", n)
				}
				if r, err := s.Exec(w.ctx, sessions.Command{Argv: []string{"true"}}); err != nil || r.ExitCode != 0 {
					t.Errorf("exec: %+v, %v", r, err)
				}
				count.Add(1)
				if err := s.Close(w.ctx); err != nil {
					t.Errorf("close: %v", err)
				}
			})
		}
	}
	leases.Wait()
	if count.Load() != 12 {
		t.Errorf("%d of 12 leases worked", count.Load())
	}
	w.until("nothing is left", func() bool { return w.running()+other.running() == 0 && len(w.memory.All()) == 0 })
}
