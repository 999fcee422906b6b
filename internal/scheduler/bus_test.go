package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/leasestore"
	"github.com/helmdeck/helmdeck/internal/scheduler"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// store opens the leases as a role of the bus may see them.
func (w *world) store(conn *bus.Conn) *leasestore.Store {
	w.t.Helper()
	s, err := leasestore.Open(w.ctx, leasestore.Config{JetStream: conn.JetStream(), Ensure: conn.EnsureLeaseConsumer, Log: w.log})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// TestOnTheBus: worker and scheduler meet on a real bus, each with the rights
// of its role.
func TestOnTheBus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// Real writes to a busy disk take a while.
	w.timing = sessions.Timing{
		ConfirmWithin: 2 * time.Second, RenewEvery: 500 * time.Millisecond,
		SweepAfter: 5 * time.Second, SweepEvery: 500 * time.Millisecond,
	}
	env := bustest.Start(t)
	hosts, workers := w.store(env.TCP(bus.RoleScheduler)), w.store(env.TCP(bus.RoleWorker))
	on := func(s *leasestore.Store) { w.registry, w.queue = s, s }
	one := func(c *scheduler.Config) { c.Slots, c.StopSidecars = 1, false }

	on(hosts)
	stop := w.scheduler(one)
	on(workers)
	k1, _ := w.keeper("w1")
	k2, _ := w.keeper("w2")
	first := w.lease(k1)
	w.works(first)
	told := make(chan int, 64)
	r := base
	r.Waiting = func(p int) { told <- p }
	second := make(chan sessions.Session, 1)
	go func() {
		s, err := k2.Lease(w.ctx, r)
		if err != nil {
			t.Errorf("second lease: %v", err)
		}
		second <- s
	}()
	select {
	case <-told:
	case <-w.ctx.Done():
		t.Fatal("no place told")
	}
	// A withdrawn request does not come between them.
	ctx, cancel := context.WithCancel(w.ctx)
	r.Waiting = func(int) { cancel() }
	if _, err := k1.Lease(ctx, r); err == nil {
		t.Error("a withdrawn request was granted")
	}
	stop()
	w.works(first)
	on(hosts)
	w.scheduler(one)
	on(workers)
	if err := first.Close(w.ctx); err != nil {
		t.Fatalf("close: %v", err)
	}
	s := <-second
	if s == nil {
		t.FailNow()
	}
	w.works(s)
	if err := s.Close(w.ctx); err != nil {
		t.Fatalf("close: %v", err)
	}
	w.until("no sidecar and no record is left", func() bool { return w.running() == 0 && w.records(workers) == 0 })
}

// records counts what a fresh watch shows.
func (w *world) records(r sessions.Registry) int {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	entries, err := r.Watch(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	n := 0
	for e := range entries {
		if e.Lease.ID == "" {
			break
		}
		n++
	}
	return n
}
