package schedules

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// overdue is how late a schedule is when Overdue no longer waits for its
	// timer: longer than many that are due at once take.
	overdue = 15 * time.Second
	// atOnce bounds the schedules a pass attends to at once.
	atOnce = 16
	// maxFaults bounds the failures after which a pass breaks off.
	maxFaults = 10
)

// Repairs is what a pass has put right.
type Repairs struct {
	Overdue int // attended to, because no timer had fired
	Timers  int // that were missing, wrong or of no use
}

// Overdue attends to the schedules that are due and whose timer has not fired
// yet: lost, or set on a clock that was put back or forward since. It looks at
// what the replica has in memory, so it may be called often.
func (s *Service) Overdue(ctx context.Context) (r Repairs, err error) {
	all, err := s.cfg.Store.List(ctx)
	if err != nil {
		return r, err
	}
	now := s.cfg.Now()
	var late []string
	for _, rec := range all {
		at := rec.FiresAt()
		if !at.IsZero() && now.Sub(at) > overdue || stalled(rec, now) {
			late = append(late, rec.ID)
		}
	}
	r.Overdue = len(late)
	return r, each(late, func(id string) error {
		_, err := s.Attend(ctx, id, Word{})
		return err
	})
}

// stalled reports whether runs wait for a job of which no news came for a
// while, or for nothing.
func stalled(rec *Record, now time.Time) bool {
	if rec.Paused || len(rec.Waiting) == 0 {
		return false
	}
	return rec.Begun == nil || now.Sub(rec.Begun.DecidedAt) > time.Minute
}

// Pass does what Overdue does, looks after the jobs of runs, in case word of
// their end was lost or they were never submitted, and compares the timers of
// the bus with the records: it sets those that are missing or wrong and removes
// those of schedules that are gone.
func (s *Service) Pass(ctx context.Context) (r Repairs, err error) {
	r, err = s.Overdue(ctx)
	if err != nil {
		return r, err
	}
	if err := s.lookAfter(ctx); err != nil {
		return r, err
	}
	all, err := s.cfg.Store.List(ctx)
	if err != nil {
		return r, err
	}
	soon := s.cfg.Now().Add(overdue)
	want := make(map[string]time.Time, len(all))
	busy := map[string]bool{} // about to fire, or firing
	for _, rec := range all {
		switch at := rec.FiresAt(); {
		case at.IsZero():
		case at.After(soon):
			want[rec.ID] = rec.NextAt
		default:
			busy[rec.ID] = true
		}
	}
	var wrong []string
	err = s.cfg.Timers.Armed(ctx, func(id string, at time.Time) error {
		if next, ok := want[id]; !busy[id] && (!ok || !next.Equal(at)) {
			wrong = append(wrong, id) // arm reads the record and decides
		}
		delete(want, id)
		return nil
	})
	if err != nil {
		return r, err
	}
	wrong = slices.AppendSeq(wrong, maps.Keys(want))
	r.Timers = len(wrong)
	return r, each(wrong, func(id string) error { return s.arm(ctx, id) })
}

// lookAfter attends to schedules whose runs have not ended as far as is known.
func (s *Service) lookAfter(ctx context.Context) error {
	all, err := s.cfg.Store.List(ctx)
	if err != nil {
		return err
	}
	var open []string
	for _, rec := range all {
		begun := rec.Begun != nil && s.cfg.Now().Sub(rec.Begun.DecidedAt) > time.Minute
		if begun || rec.Begun == nil && len(rec.unsettled()) > 0 {
			open = append(open, rec.ID)
		}
	}
	return each(open, func(id string) error {
		_, err := s.Attend(ctx, id, Word{})
		return err
	})
}

// each calls fn for ids, some at once. It breaks off after a few failures: the
// next pass goes on.
func each(ids []string, fn func(string) error) error {
	var mu sync.Mutex // guards faults
	var faults []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, id := range ids {
		slots <- struct{}{}
		mu.Lock()
		enough := len(faults) >= maxFaults
		mu.Unlock()
		if enough {
			<-slots
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := fn(id); err != nil {
				mu.Lock()
				defer mu.Unlock()
				faults = append(faults, fmt.Errorf("schedule %s: %w", id, err))
			}
		})
	}
	wg.Wait()
	return errors.Join(faults...)
}
