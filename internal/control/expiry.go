package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Expirer removes ended jobs whose time is over, with all they left: events,
// input, output, artifacts, log and dead letter. A tombstone stays as long as
// other events do, so that nothing takes the job for one that never was.
//
// The tombstone comes first, for from then on nobody sees the job; what is to
// be removed is read below it, and goes after everything else. The note of
// the expiry goes last. So whatever breaks off is done again from the start.
type Expirer struct {
	Store     *jobstore.Store
	Artifacts *artifacts.Store
	// Every is the time between two looks at what is due; default 15 s.
	Every time.Duration
	Now   func() time.Time // nil: time.Now
	// Expired observes every job that was removed; may be nil.
	Expired func()
	Log     zerolog.Logger
}

// Run removes until ctx ends. Every replica may run one.
func (x *Expirer) Run(ctx context.Context) error {
	if x.Now == nil {
		x.Now = time.Now
	}
	if x.Every == 0 {
		x.Every = 15 * time.Second
	}
	noted := map[string]jobstore.Expiry{}
	var changes <-chan jobstore.Expiry
	tick := time.NewTicker(x.Every)
	defer tick.Stop()
	for {
		if changes == nil {
			var err error
			if changes, err = x.Store.Expiries(ctx); err != nil && ctx.Err() == nil {
				x.Log.Warn().Err(err).Msg("expiries not followed, trying again")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-changes:
			switch {
			case !ok:
				changes = nil
				// Told again from the start.
				clear(noted)
			case e.At.IsZero():
				delete(noted, e.ID)
			default:
				noted[e.ID] = e
			}
		case <-tick.C:
			for _, id := range x.pass(ctx, noted) {
				delete(noted, id)
			}
		}
	}
}

// pass removes what is due and returns the ids of what is gone.
func (x *Expirer) pass(ctx context.Context, noted map[string]jobstore.Expiry) (gone []string) {
	now := x.Now()
	var due []jobstore.Expiry
	for _, e := range noted {
		if !e.At.After(now) {
			due = append(due, e)
		}
	}
	// Several replicas do this at once: in another order each, they seldom
	// meet.
	rand.Shuffle(len(due), func(i, j int) { due[i], due[j] = due[j], due[i] })
	var mu sync.Mutex // guards gone
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for _, e := range due {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := x.expire(ctx, e); err != nil {
				if ctx.Err() == nil && !errors.Is(err, jobs.ErrConflict) {
					x.Log.Warn().Err(err).Str("job", e.ID).Msg("expired job not removed, trying again")
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			gone = append(gone, e.ID)
		})
	}
	wg.Wait()
	return gone
}

// expire removes one job, or as much of it as is left.
func (x *Expirer) expire(ctx context.Context, e jobstore.Expiry) error {
	k := e.Key()
	rec, err := x.Store.Last(ctx, k, true)
	switch {
	case errors.Is(err, jobs.ErrNotFound): // older than the stream keeps
		return x.Store.DropExpiry(ctx, e.ID)
	case err != nil:
		return err
	case rec.Job.Expired:
	case !rec.Job.State.Terminal() || rec.Job.ExpiresAt.After(x.Now()):
		return fmt.Errorf("job %s is %s and expires at %s: %w", e.ID, rec.Job.State, rec.Job.ExpiresAt, jobs.ErrConflict)
	default:
		if rec.Sequence, err = x.Store.Entomb(ctx, k, rec); err != nil {
			return err
		}
	}
	if err := x.discard(ctx, k); err != nil {
		return err
	}
	if err := x.Store.Forget(ctx, k, rec.Sequence); err != nil {
		return err
	}
	if err := x.Store.DropExpiry(ctx, e.ID); err != nil {
		return err
	}
	if x.Expired != nil {
		x.Expired()
	}
	return nil
}

// discard removes the bytes that lie outside the streams. What a run stored
// that did not win is swept, as it always is.
func (x *Expirer) discard(ctx context.Context, k jobs.Key) error {
	job, err := x.Store.Terminal(ctx, k)
	if errors.Is(err, jobs.ErrNotFound) {
		return nil // the events are gone, and they go last
	}
	if err != nil {
		return err
	}
	for _, ref := range job.Artifacts {
		if err := x.Artifacts.Discard(ctx, ref.Key); err != nil {
			return err
		}
	}
	sub, err := x.Store.Input(ctx, k)
	if err != nil && !errors.Is(err, jobs.ErrNotFound) {
		return err
	}
	for _, key := range []string{sub.InputKey, job.OutputKey} {
		if key == "" {
			continue
		}
		if err := x.Artifacts.DropStash(ctx, key); err != nil {
			return err
		}
	}
	return nil
}
