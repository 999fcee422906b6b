package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Unfinished names the jobs to look at.
type Unfinished interface {
	Unfinished(before time.Time) []jobs.Key
}

// Reconciler asserts that a job that has not ended is queued, scheduled or
// held: a running one too, for its message leaves the queue only after its
// terminal event. A job that is nowhere is put back into its queue and
// reported.
type Reconciler struct {
	Store *jobstore.Store
	Jobs  Unfinished
	// Every is the time between two passes; default one minute.
	Every time.Duration
	// Grace spares jobs younger than it; default one minute.
	Grace time.Duration
	// Repaired observes every job put back; may be nil.
	Repaired func(jobs.Key)
	Log      zerolog.Logger
}

// Run checks until ctx ends.
func (r *Reconciler) Run(ctx context.Context) error {
	every := r.Every
	if every == 0 {
		every = time.Minute
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if n, err := r.Pass(ctx); err != nil && ctx.Err() == nil {
			r.Log.Warn().Err(err).Int("repaired", n).Msg("reconciler pass broke off, the next one goes on")
		}
	}
}

// maxFaults bounds the jobs one pass fails to check before it breaks off.
const maxFaults = 10

// Pass checks once and returns how many jobs it put back.
func (r *Reconciler) Pass(ctx context.Context) (repaired int, err error) {
	grace := r.Grace
	if grace == 0 {
		grace = time.Minute
	}
	var faults []error
	for _, k := range r.Jobs.Unfinished(time.Now().Add(-grace)) {
		put, err := r.check(ctx, k)
		if put {
			repaired++
		}
		if err == nil {
			continue
		}
		faults = append(faults, fmt.Errorf("check job %s: %w", k.ID, err))
		// One bad job does not keep the others from being looked at, a bus
		// that is away does.
		if ctx.Err() != nil || errors.Is(err, jobs.ErrUnavailable) || len(faults) == maxFaults {
			break
		}
	}
	return repaired, errors.Join(faults...)
}

// check reads the lifecycle, then the queues, then the lifecycle again: a job
// that ends between the first two look-ups is not lost.
func (r *Reconciler) check(ctx context.Context, k jobs.Key) (repaired bool, err error) {
	before, err := r.Store.Last(ctx, k, true)
	if errors.Is(err, jobs.ErrNotFound) || err == nil && before.Job.State.Terminal() {
		// Without an event the queue itself is the only witness: there is
		// nothing to repair from.
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if _, _, err = r.Store.Find(ctx, k, true); !errors.Is(err, jobs.ErrNotFound) {
		return false, err
	}
	after, err := r.Store.Last(ctx, k, true)
	if err != nil || after.Job.State.Terminal() || after.Sequence != before.Sequence {
		return false, err
	}
	sub, err := r.Store.Input(ctx, k)
	if err != nil {
		if errors.Is(err, jobs.ErrNotFound) {
			r.Log.Error().Str("job", k.ID).Msg("job is in no queue and its input is gone: it cannot be repaired")
			return false, nil
		}
		return false, err
	}
	sub.Job, sub.Encoded = after.Job, nil
	if sub.Job.State == jobs.Scheduled {
		err = r.Store.Schedule(ctx, sub, sub.Job.ScheduledFor)
	} else {
		err = r.Store.Enqueue(ctx, sub)
	}
	if errors.Is(err, jobs.ErrQueued) {
		return false, nil // another replica's reconciler was faster
	}
	if err != nil {
		return false, err
	}
	r.Log.Warn().Str("job", k.ID).Str("state", string(after.Job.State)).Msg("job was in no queue, put back")
	if r.Repaired != nil {
		r.Repaired(k)
	}
	return true, nil
}
