package scheduler

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// sweepLoop compares what is with what should be: regularly, and at once when
// something was given back.
func (s *Scheduler) sweepLoop(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Timing.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			s.endReturned(ctx)
		case <-tick.C:
			s.endReturned(ctx)
			s.sweep(ctx)
		}
	}
}

// endReturned ends the sidecars of leases that were given back or are gone.
func (s *Scheduler) endReturned(ctx context.Context) {
	for _, e := range s.list() {
		_, here := s.state(e.Lease.ID)
		switch {
		case e.Lease.Host != s.cfg.Host:
		case e.Lease.State == sessions.StateDraining, e.Lease.State == sessions.StateGone && here:
			s.work.Go(func() { s.end(ctx, e.Lease.ID, "") })
		}
	}
}

// state copies what is known of a hosted lease.
func (s *Scheduler) state(id string) (hosted, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hosted[id]; h != nil {
		return *h, true
	}
	return hosted{}, false
}

func (s *Scheduler) list() []record {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]record, 0, len(s.records))
	for _, r := range s.records {
		list = append(list, *r)
	}
	return list
}

// sweep finds what no event told: leases nobody renews, sidecars that died,
// sidecars without a lease, records nobody needs.
func (s *Scheduler) sweep(ctx context.Context) {
	seen := listing{at: time.Now()}
	sidecars, err := s.cfg.Runtime.List(ctx)
	if err == nil {
		seen.running = map[string]bool{}
		for _, sc := range sidecars {
			seen.running[sc.LeaseID] = true
		}
	} else {
		s.cfg.Log.Warn().Err(err).Msg("sidecars not listed")
	}
	for _, r := range s.list() {
		if ctx.Err() != nil {
			return
		}
		s.judge(ctx, r, seen)
	}
	if err == nil {
		s.endStrays(ctx, sidecars)
	}
}

// listing is what the runtime showed; running is nil when it could not.
type listing struct {
	at      time.Time
	running map[string]bool
}

// misses reports whether a sidecar that was there before the listing is not
// in it.
func (l listing) misses(id string, readyAt time.Time) bool {
	return l.running != nil && !l.running[id] && readyAt.Before(l.at)
}

// judge applies the rules to one record.
func (s *Scheduler) judge(ctx context.Context, r record, seen listing) {
	l, still := r.Lease, time.Since(r.movedAt)
	t := s.cfg.Timing
	h, here := s.state(l.ID)
	if here && (h.readyAt.IsZero() || h.stopping) {
		return
	}
	mine := l.Host == s.cfg.Host
	switch {
	case l.State == sessions.StateGone:
		if still >= t.SweepAfter && !here {
			s.forget(ctx, r)
		}
	case mine && l.State == sessions.StateOffered && s.overdue(l.ID):
		s.takeBack(ctx, r.Entry)
	case mine && l.State == sessions.StateLeased && seen.misses(l.ID, h.readyAt):
		s.declareGone(ctx, r, "the sidecar ended by itself")
	case mine && l.State == sessions.StateLeased && still >= t.SweepAfter:
		s.declareGone(ctx, r, "nobody renewed the lease")
	case mine && l.State == sessions.StateWarming && still >= 2*t.SweepAfter:
		s.declareGone(ctx, r, "the scheduler died while it started the sidecar")
	case !mine && l.State == sessions.StateRequested && still >= abandoned,
		!mine && l.State != sessions.StateRequested && still >= 2*t.DeadManAfter:
		// Its scheduler is gone, and so is its sidecar by the agent's own timer.
		s.declareGone(ctx, r, "abandoned")
	}
}

func (s *Scheduler) overdue(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.offers[id]
	return !ok || time.Since(at) >= s.cfg.Timing.ConfirmWithin
}

// declareGone ends a lease whose revision did not move, after asking the
// registry itself: silence of the bus is no reason to end anything.
func (s *Scheduler) declareGone(ctx context.Context, r record, why string) {
	e, err := s.get(ctx, r.Lease.ID)
	switch {
	case errors.Is(err, sessions.ErrNotFound):
		return // the watch will tell
	case err != nil:
		// The worker could not renew either: its time starts again.
		s.touch()
		s.cfg.Log.Warn().Err(err).Msg("registry cannot be read, nothing is stopped")
		return
	case e.Revision != r.Revision:
		return // it moved
	}
	l := e.Lease
	l.State, l.Error = sessions.StateGone, why
	// The compare-and-set decides against a renewal under way.
	if _, err := s.update(ctx, l, e.Revision); err != nil {
		return
	}
	s.cfg.Log.Warn().Str("lease", l.ID).Str("job", l.JobID).Str("worker", l.Worker).Str("why", why).Msg("lease ended")
	s.wakeUp()
}

// touch restarts the clocks of all records.
func (s *Scheduler) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, r := range s.records {
		r.movedAt = now
	}
}

// forget deletes a record that is gone for a while.
func (s *Scheduler) forget(ctx context.Context, r record) {
	ctx, cancel := context.WithTimeout(ctx, busWithin)
	defer cancel()
	// It may have been deleted and be known here from the watch alone.
	if err := s.cfg.Registry.Delete(ctx, r.Lease.ID); err != nil && !errors.Is(err, sessions.ErrNotFound) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, r.Lease.ID)
}

// end stops a sidecar, frees its slot and settles its record: deleted, or gone
// with why. What fails is tried again by the next sweep.
func (s *Scheduler) end(ctx context.Context, id, why string) {
	s.mu.Lock()
	h := s.hosted[id]
	if h != nil && (h.readyAt.IsZero() || h.stopping) {
		s.mu.Unlock()
		return
	}
	if h == nil {
		h = &hosted{release: func() {}, readyAt: time.Now()}
		s.hosted[id] = h
	}
	h.stopping = true
	s.mu.Unlock()
	// A stop under way is finished even when the scheduler ends.
	ctx = context.WithoutCancel(ctx)
	if err := s.stop(ctx, id); err != nil {
		s.cfg.Log.Error().Err(err).Str("lease", id).Msg("sidecar not stopped, will try again")
		s.mu.Lock()
		h.stopping = false
		s.mu.Unlock()
		return
	}
	s.settle(ctx, id, why)
	s.free(id)
	s.cfg.Log.Info().Str("lease", id).Msg("sidecar stopped")
}

// settle leaves a record in StateGone for a waiting worker to read, and
// removes one that was given back.
func (s *Scheduler) settle(ctx context.Context, id, why string) {
	e, err := s.get(ctx, id)
	if err != nil || e.Lease.State == sessions.StateGone || e.Lease.Host != s.cfg.Host {
		return
	}
	if e.Lease.State == sessions.StateDraining {
		s.forget(ctx, record{Entry: e})
		return
	}
	l := e.Lease
	l.State, l.Error = sessions.StateGone, why
	if _, err := s.update(ctx, l, e.Revision); err != nil {
		s.cfg.Log.Warn().Err(err).Str("lease", id).Msg("record of a stopped sidecar not updated")
	}
}

// endStrays stops sidecars no lease of this host needs. A sidecar younger than
// the records known here gets the benefit of the doubt until the next sweep,
// and the registry itself is asked.
func (s *Scheduler) endStrays(ctx context.Context, sidecars []sessions.Sidecar) {
	strays := map[string]bool{}
	for _, id := range s.unaccounted(sidecars) {
		e, err := s.get(ctx, id)
		if err != nil && !errors.Is(err, sessions.ErrNotFound) {
			s.touch()
			return
		}
		if err == nil && s.owns(e.Lease) {
			if _, here := s.state(id); !here {
				s.host(ctx, e.Lease)
			}
			continue
		}
		if !s.strays[id] {
			strays[id] = true
			continue
		}
		s.cfg.Log.Warn().Str("lease", id).Msg("sidecar without a lease")
		s.work.Go(func() { s.end(ctx, id, "") })
	}
	s.strays = strays
}

// unaccounted lists the sidecars, running or believed to, that are neither
// starting nor stopping nor leased here.
func (s *Scheduler) unaccounted(sidecars []sessions.Sidecar) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := map[string]bool{}
	for _, sc := range sidecars {
		ids[sc.LeaseID] = s.hosted[sc.LeaseID] == nil
	}
	for id, h := range s.hosted {
		ids[id] = !h.readyAt.IsZero() && !h.stopping && s.records[id] == nil
	}
	maps.DeleteFunc(ids, func(_ string, stray bool) bool { return !stray })
	return slices.Sorted(maps.Keys(ids))
}
