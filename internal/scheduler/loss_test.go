package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/scheduler"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

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
	w.timing.SweepAfter = 3 * time.Second
	w.scheduler(nil)
	var away atomic.Bool
	var failed atomic.Int64
	worker := &deafRegistry{Registry: w.registry, fail: func(sessions.Lease) bool {
		failed.Add(1)
		return away.Load()
	}}
	k, err := sessions.NewLeaser(sessions.LeaserConfig{Registry: worker, Queue: w.queue, Worker: "w1", Timing: w.timing, Log: w.log})
	if err != nil {
		t.Fatal(err)
	}
	w.background(k.Run)
	s := w.lease(k)
	// The worker cannot renew and the scheduler cannot read. It could write,
	// which shows that it does not try.
	var reads atomic.Int64
	away.Store(true)
	w.memory.Fail(func(op string) error {
		switch op {
		case "get":
			reads.Add(1)
			return errors.New("bus is away")
		case "watch":
			return errors.New("bus is away")
		}
		return nil
	})
	w.memory.BreakWatches()
	// Each refused read of the sweep is one that would have ended the lease.
	w.until("the sweep wanted to end it more than once", func() bool { return reads.Load() >= 2 })
	w.works(s)
	// The scheduler is back first: the worker gets its time again.
	w.memory.Fail(nil)
	from := failed.Load()
	w.until("more renewals failed", func() bool { return failed.Load() >= from+4 })
	away.Store(false)
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
