package control

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/schedulestore"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

// Schedules attends to schedules: whenever one of their timers fires or one of
// their jobs ends, and every few seconds to those whose timers should have
// fired. Any number of replicas may do so at once.
type Schedules struct {
	JS      bus.JetStream
	Service *schedules.Service
	// OverdueEvery is the time between two looks for schedules that are late;
	// default 10 s. PassEvery is the time between two comparisons of all
	// timers with the records; default one minute.
	OverdueEvery, PassEvery time.Duration
	// Late observes how late timers fire; may be nil.
	Late func(time.Duration)
	// Repaired observes what a pass has put right; may be nil.
	Repaired func(schedules.Repairs)
	Log      zerolog.Logger
}

// Run attends until ctx ends.
func (s *Schedules) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.repeat(ctx, orElse(s.OverdueEvery, 10*time.Second), s.Service.Overdue) })
	wg.Go(func() { s.repeat(ctx, orElse(s.PassEvery, time.Minute), s.Service.Pass) })
	err := consume(ctx, s.JS, bus.StreamSchedule, bus.ConsumerSchedules, s.Log, s.attend)
	wg.Wait()
	return err
}

func orElse(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// repeat looks at once, for what was due while nobody was there, and then
// again and again.
func (s *Schedules) repeat(ctx context.Context, every time.Duration, look func(context.Context) (schedules.Repairs, error)) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		r, err := look(ctx)
		if err != nil && ctx.Err() == nil {
			s.Log.Warn().Err(err).Msg("schedules not all looked after, the next pass goes on")
		}
		if r != (schedules.Repairs{}) {
			s.Log.Info().Int("overdue", r.Overdue).Int("timers", r.Timers).Msg("schedules put right")
			if s.Repaired != nil {
				s.Repaired(r)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// longest is the longest wait for a time that has not come or for a job that
// is refused for now.
const longest = time.Minute

func (s *Schedules) attend(ctx context.Context, d bus.Delivery) error {
	f, err := schedulestore.Decode(d.Message())
	if err != nil {
		s.Log.Error().Err(err).Msg("what fired is of no schedule, taken out")
		return d.Term(ctx, "of no schedule")
	}
	failpoint.Hit(failpoint.ScheduleBeforeFire)
	early, err := s.Service.Attend(ctx, f.ScheduleID, schedules.Word{At: f.At, Ended: f.Ended})
	if err != nil {
		var refused *packs.Error
		if !errors.As(err, &refused) {
			return err
		}
		s.Log.Warn().Err(err).Str("schedule", f.ScheduleID).Msg("run of a schedule not submitted yet, trying again")
		pause := max(retryIn<<min(d.Delivered()-1, 6), refused.RetryAfter)
		return d.Nak(ctx, min(pause, longest))
	}
	if early > 0 {
		// The clock of the server is ahead of ours.
		return d.Nak(ctx, min(early, longest))
	}
	if s.Late != nil && !f.Due.IsZero() {
		s.Late(max(time.Since(f.Due), 0))
	}
	failpoint.Hit(failpoint.ScheduleAfterAttend)
	return d.AckLater(ctx) // it does no harm a second time
}
