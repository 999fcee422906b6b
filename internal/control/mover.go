// Package control holds the loops that keep the job system true without
// being part of any job: the mover takes fired schedules into the queues, the
// consequence consumer does what follows from lifecycle events, and the
// reconciler finds jobs that would wait for ever. Each may run in any number
// of processes at once.
package control

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/records"
)

const (
	pullBatch = 256
	pullWait  = 30 * time.Second
	retryIn   = time.Second
	linger    = 10 * time.Millisecond
)

// Mover publishes fired schedules into the queue of their pool.
type Mover struct {
	JS    bus.JetStream
	Store *jobstore.Store
	// Late observes how late jobs come to their queue; may be nil.
	Late func(time.Duration)
	Log  zerolog.Logger
}

// Run moves until ctx ends.
func (m *Mover) Run(ctx context.Context) error {
	return consume(ctx, m.JS, bus.StreamSchedule, bus.ConsumerMover, m.Log, m.move)
}

func (m *Mover) move(ctx context.Context, d bus.Delivery) error {
	sub, err := jobstore.DecodeSubmission(d.Message())
	if errors.Is(err, records.ErrNewer) {
		return err // for a newer replica
	}
	if err != nil {
		m.Log.Error().Err(err).Msg("fired schedule is no job, taken out")
		return d.Term(ctx, "not a job")
	}
	due := sub.Job.RetryAt
	if sub.Job.State == jobs.Scheduled {
		due = sub.Job.ScheduledFor
		sub.Job.State, sub.Encoded = jobs.Queued, nil
	}
	err = m.Store.Enqueue(ctx, sub)
	if errors.Is(err, jobs.ErrQueued) && !failpoint.Planted(failpoint.BugMoverDrops) {
		// The copy that is there may be the old one, not yet acknowledged. To
		// drop this one now could drop the last.
		over, lookErr := m.over(ctx, sub.Job)
		if lookErr != nil {
			return lookErr
		}
		if !over {
			return d.Nak(ctx, retryIn)
		}
		err = nil
	}
	if err != nil && !errors.Is(err, jobs.ErrQueued) {
		return err
	}
	if m.Late != nil && !due.IsZero() {
		m.Late(max(time.Since(due), 0))
	}
	failpoint.Hit(failpoint.MoverAfterPublish)
	// A fired message stays in the stream after its acknowledgement, for ever
	// if this process died in between: so it is removed first. A message that
	// is gone is not delivered again.
	if err := m.JS.Purge(ctx, bus.StreamSchedule, d.Message().Subject, d.Message().Sequence+1); err != nil {
		return err
	}
	failpoint.Hit(failpoint.MoverAfterPurge)
	return d.Ack(ctx)
}

// over reports whether the job needs this copy no more: it has ended, or it
// was started again after the copy was made.
func (m *Mover) over(ctx context.Context, job jobs.Job) (bool, error) {
	rec, err := m.Store.Last(ctx, job.Key(), true)
	if errors.Is(err, jobs.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return rec.Job.State.Terminal() || rec.Job.Runs > job.Runs, nil
}

// consume pulls a durable consumer and handles deliveries a batch at a time.
// A delivery whose handling fails comes again.
func consume(ctx context.Context, js bus.JetStream, stream, consumer string, log zerolog.Logger, handle func(context.Context, bus.Delivery) error) error {
	for ctx.Err() == nil {
		ds, err := js.Pull(ctx, stream, consumer, pullBatch, pullWait)
		if err != nil {
			if ctx.Err() == nil {
				log.Warn().Err(err).Str("consumer", consumer).Msg("pull failed, trying again")
			}
			select {
			case <-ctx.Done():
			case <-time.After(retryIn):
			}
			continue
		}
		handleAll(ctx, ds, consumer, log, handle)
		if len(ds) > 0 && len(ds) < pullBatch/4 {
			// Under load the next pull finds more in one go.
			select {
			case <-ctx.Done():
			case <-time.After(linger):
			}
		}
	}
	return nil
}

// parallel bounds the deliveries of a batch in hand at once.
const parallel = 32

// handleAll has few goroutines take turns: most deliveries are done at once,
// and a goroutine for each would cost more than they do.
func handleAll(ctx context.Context, ds []bus.Delivery, consumer string, log zerolog.Logger, handle func(context.Context, bus.Delivery) error) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(parallel, len(ds)) {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(ds)); i = next.Add(1) - 1 {
				if err := handle(ctx, ds[i]); err != nil && ctx.Err() == nil {
					log.Warn().Err(err).Str("consumer", consumer).Msg("delivery not handled, it comes again")
					_ = ds[i].Nak(ctx, retryIn) // lost: it comes again after the acknowledgement wait
				}
			}
		})
	}
	all.Wait()
}
