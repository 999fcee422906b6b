package scheduler_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/scheduler"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

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
