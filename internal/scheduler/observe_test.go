package scheduler_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/scheduler"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// seen keeps what an observer is told.
type seen struct {
	mu     sync.Mutex
	events []scheduler.LeaseEvent
	leases []sessions.Lease
}

func (s *seen) observe(l sessions.Lease, e scheduler.LeaseEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events, s.leases = append(s.events, e), append(s.leases, l)
}

func (s *seen) all() []scheduler.LeaseEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// TestObserverHearsOfLeases: each lease is told of when it begins and when it
// ends, once, whether it is given back or lost; a restarted scheduler tells
// that it adopted one.
func TestObserverHearsOfLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var s seen
	stop := w.scheduler(func(c *scheduler.Config) { c.Observe, c.StopSidecars = s.observe, false })
	k, _ := w.keeper("w1")
	session := w.lease(k)
	if err := session.Close(w.ctx); err != nil {
		t.Fatal(err)
	}
	w.until("the sidecar is gone", func() bool { return w.running() == 0 && len(w.memory.All()) == 0 })
	if diff := cmp.Diff([]scheduler.LeaseEvent{scheduler.Granted, scheduler.Released}, s.all()); diff != "" {
		t.Fatalf("events (-want +got):\n%s", diff)
	}
	second := w.lease(k)
	w.until("the second is told of", func() bool { return len(s.all()) == 3 })
	stop()
	w.scheduler(func(c *scheduler.Config) { c.Observe = s.observe })
	w.until("the second is adopted", func() bool { return len(s.all()) == 4 })
	if err := second.Close(w.ctx); err != nil {
		t.Fatal(err)
	}
	want := []scheduler.LeaseEvent{scheduler.Granted, scheduler.Released, scheduler.Granted, scheduler.Adopted, scheduler.Released}
	w.until("five events", func() bool { return len(s.all()) == len(want) })
	if diff := cmp.Diff(want, s.all()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, id := range []string{session.ID(), session.ID(), second.ID(), second.ID(), second.ID()} {
		if l := s.leases[i]; l.ID != id || l.JobID != "job" {
			t.Errorf("event %d is of %+v, want lease %s", i, l, id)
		}
	}
}
