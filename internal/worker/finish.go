package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// begin writes the marker of an effect that must not repeat.
func (a *attempt) begin(ctx context.Context) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	switch {
	case a.over || a.ctx.Err() != nil:
		return packs.Fail(packs.Cancelled, errRunOver, "the run was stopped before the effect was begun")
	case a.job.EffectBegun:
		return packs.Errorf(packs.OutcomeUnknown, "the effect was begun before; check whether it happened")
	}
	next := a.job
	next.EffectBegun = true
	_, err := a.write(ctx, next)
	switch {
	case errors.Is(err, errCancelled), errors.Is(err, errFenced):
		a.halt(err)
		return packs.Fail(packs.Cancelled, err, "the run was stopped before the effect was begun")
	case err != nil:
		return packs.Fail(packs.Internal, err, "the effect was not begun, because its marker could not be written")
	}
	return nil
}

// The pauses between two tries of one event: at once enough for a write in
// flight, later long enough for a bus that is away.
const firstPause, longestPause = 50 * time.Millisecond, 2 * time.Second

// write appends next after the attempt's last event, trying until ctx ends,
// and returns the record as it was stored. a.writing is held.
//
// When a request to cancel came between, it goes on from there: the job is
// cancelled rather than run again, and no effect begins (errCancelled). When
// the claim is not this attempt's any more it returns errFenced.
func (a *attempt) write(ctx context.Context, next jobs.Job) (jobs.Job, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := a.try(ctx, next)
		if err == nil {
			return a.job, nil
		}
		if errors.Is(err, jobs.ErrConflict) && failpoint.Planted(failpoint.BugConflictIsLost) {
			return next, errFenced
		}
		// A conflict, or an answer that was lost after the write: look.
		rec, rerr := a.w.last(ctx, next.Key())
		switch {
		case rerr != nil: // look again
		case rec.Job.Runs != next.Runs || rec.Job.Worker != next.Worker || rec.Job.Lost != next.Lost:
			return next, errFenced
		case rec.Job.State != jobs.Running && rec.Job.State != next.State:
			return next, errFenced
		case rec.Job.State != jobs.Running, rec.Job.EffectBegun && next.State == jobs.Running:
			a.job, a.expected = rec.Job, rec.Sequence // it was ours, only the answer was lost
			return a.job, nil
		default:
			a.expected = rec.Sequence
			// Whatever becomes of next, this request is known from now on.
			a.job.CancelRequested = a.job.CancelRequested || rec.Job.CancelRequested
			if next, err = obey(next, rec.Job); err != nil {
				return next, err
			}
		}
		select {
		case <-ctx.Done():
			return next, fmt.Errorf("append event of job %s: %w", next.ID, err)
		case <-time.After(pause):
		}
	}
}

func (a *attempt) try(ctx context.Context, next jobs.Job) error {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	seq, err := a.w.cfg.Ledger.Append(ctx, jobs.Move{Job: next, Expected: a.expected, TraceParent: a.sub.TraceParent})
	if err == nil {
		a.job, a.expected = next, seq
	}
	return err
}

// finish records how the run ended, then ends the delivery. It returns the
// record as stored. An error means that nothing was recorded.
func (a *attempt) finish(ctx context.Context, out packs.Outcome, o outcome) (jobs.Job, error) {
	if failpoint.Planted(failpoint.BugAckBeforeFinish) {
		_ = a.release().Ack(ctx) // the planted bug
		failpoint.Hit(failpoint.FinishAfterAck)
	}
	job, err := a.record(ctx, out, o)
	d := a.release()
	if err != nil {
		return job, err
	}
	if job.State == jobs.Retrying {
		failpoint.Hit(failpoint.RetryAfterEvent)
		sub := a.sub
		sub.Job = job
		if err := a.w.postpone(ctx, d, sub, job.RetryAt); err != nil {
			a.log.Warn().Err(err).Msg("retry not put off; the message comes again after the acknowledgement wait")
		}
		return job, nil
	}
	failpoint.Hit(failpoint.FinishAfterTerminal)
	a.publish(ctx, job.Artifacts)
	failpoint.Hit(failpoint.FinishAfterPublish)
	// The end is stored: a message whose acknowledgement is lost comes again
	// and is then acknowledged, so nobody need wait for the confirmation.
	if err := d.AckLater(ctx); err != nil {
		a.log.Warn().Err(err).Msg("ended job not acknowledged; its message comes again and is then")
	}
	failpoint.Hit(failpoint.FinishAfterAck)
	return job, nil
}

// record writes the event that ends the run.
func (a *attempt) record(ctx context.Context, out packs.Outcome, o outcome) (jobs.Job, error) {
	output, outputKey, err := a.storeOutput(ctx, out)
	if err != nil && o.err == nil {
		o.err = packs.Fail(packs.ArtifactFailed, err, "the output of the job could not be stored")
	}
	if o.err == nil && tooMany(out.Artifacts) {
		o.err = packs.Errorf(packs.InvalidOutput,
			"the pack made %d artifacts, more than the record of a job can name; ask for fewer, or for an archive", len(out.Artifacts))
	}
	a.writing.Lock()
	defer a.writing.Unlock()
	a.over = true
	v := judge(a.job, o, time.Now(), a.w.cfg.Backoff)
	if v.silent {
		return a.job, errFenced
	}
	if next, err := obey(v.next, a.job); err == nil { // only a begin of an effect is refused
		v.next = next
	}
	v.next.SessionID = out.SessionID
	if v.next.State == jobs.Succeeded {
		v.next.Output, v.next.OutputKey, v.next.Artifacts = output, outputKey, out.Artifacts
	}
	if v.next.State == jobs.Retrying && failpoint.Planted(failpoint.BugRetryAckFirst) {
		_ = a.release().Ack(ctx) // the planted bug
		failpoint.Hit(failpoint.RetryAfterAck)
	}
	return a.write(ctx, v.next)
}

// tooMany reports whether refs would not fit into an event beside an output.
func tooMany(refs []artifacts.Ref) bool {
	const few = 50 // never too large
	if len(refs) <= few {
		return false
	}
	b, err := json.Marshal(refs)
	return err != nil || len(b) > jobs.InlineLimit
}

// publish shows the artifacts of the winner at once. The consequence consumer
// does it again, should this process die before.
func (a *attempt) publish(ctx context.Context, refs []artifacts.Ref) {
	if len(refs) == 0 {
		return
	}
	if err := a.w.cfg.Artifacts.Publish(ctx, refs...); err != nil {
		a.log.Warn().Err(err).Msg("artifacts not indexed yet; the consequence consumer does it")
	}
}

func (a *attempt) storeOutput(ctx context.Context, out packs.Outcome) (output []byte, key string, err error) {
	if jobs.Inline(out.Output) {
		return out.Output, "", nil
	}
	key = artifacts.OutputKey(a.claimed.ID, a.claimed.Runs)
	return nil, key, a.w.cfg.Artifacts.Stash(ctx, key, bytes.NewReader(out.Output))
}

// postpone puts a job off until at: a short pause by giving the message back,
// a long one as a schedule, whose copy is safe before the message is
// acknowledged.
func (w *Worker) postpone(ctx context.Context, d Delivery, sub jobs.Submission, at time.Time) error {
	delay := max(time.Until(at), 0)
	if delay <= w.cfg.RetryInQueue {
		return d.Nak(ctx, delay)
	}
	if err := w.cfg.Queue.Schedule(ctx, sub, at); err != nil {
		return err
	}
	failpoint.Hit(failpoint.RetryAfterSchedule)
	err := d.Ack(ctx)
	failpoint.Hit(failpoint.RetryAfterAck)
	return err
}
