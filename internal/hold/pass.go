package hold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// passes looks at everything now and then: what a process that died left
// half-way, and what was not heard of.
func (k *Keeper) passes(ctx context.Context) {
	tick := time.NewTicker(k.cfg.Every)
	defer tick.Stop()
	for {
		if err := k.Pass(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.Warn().Err(err).Msg("pass over held jobs broke off, the next one goes on")
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Pass reads what lies in hold and who holds slots, frees the slots of runs
// that are over and has every key looked at.
func (k *Keeper) Pass(ctx context.Context) error {
	k.model.begin()
	err := k.cfg.Store.HeldJobs(ctx, func(h jobstore.Held) { k.model.add(h) })
	if err != nil {
		return fmt.Errorf("read held jobs: %w", err)
	}
	k.kick(k.model.finish()...)
	all, err := k.cfg.Slots.All(ctx)
	if err != nil {
		return fmt.Errorf("read slots: %w", err)
	}
	for key, st := range all {
		for _, h := range st.Holders {
			stale, err := k.stale(ctx, h)
			if err == nil && stale {
				err = k.cfg.Slots.Free(ctx, h, []string{key})
			}
			if err != nil {
				return fmt.Errorf("slot of %s held by job %s: %w", key, h.Job.ID, err)
			}
		}
		k.kick(key)
	}
	return nil
}

// stale reports whether a run that holds a slot needs it no more. Its
// lifecycle says so, or that it is about to run although no message is left
// that could start it.
func (k *Keeper) stale(ctx context.Context, h limits.Holder) (bool, error) {
	before, err := k.last(ctx, h.Job)
	switch {
	case err != nil:
		return false, err
	case before.Job.State.Terminal(), before.Job.Runs > h.Run:
		return true, nil
	case before.Job.Runs == h.Run:
		return before.Job.State != jobs.Running, nil
	}
	_, place, err := k.cfg.Store.Find(ctx, h.Job, true)
	switch {
	case err == nil:
		// Held back: it keeps what it has until it is released.
		return place == jobs.InSchedule, nil
	case !errors.Is(err, jobs.ErrNotFound):
		return false, err
	}
	after, err := k.last(ctx, h.Job)
	return err == nil && after.Sequence == before.Sequence, err
}

func (k *Keeper) last(ctx context.Context, key jobs.Key) (jobs.Record, error) {
	rec, err := k.cfg.Store.Last(ctx, key, true)
	if errors.Is(err, jobs.ErrNotFound) {
		return jobs.Record{}, nil
	}
	return rec, err
}
