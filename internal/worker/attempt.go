package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// busTimeout bounds every single call to the bus.
const busTimeout = 10 * time.Second

// attempt is one claimed run of a job in this worker.
type attempt struct {
	w     *Worker
	sub   jobs.Submission
	pool  string
	fence uint64 // sequence of the claim
	log   zerolog.Logger

	ctx  context.Context         //nolint:containedctx // the run's own, so that a cancel can reach it from the claim on
	halt context.CancelCauseFunc // stops the run with a cause

	mu       sync.Mutex // guards the fields below
	delivery Delivery
	job      jobs.Job
	expected uint64 // sequence the next event must follow
	signAt   time.Time
}

// handle deals with one delivery from decode to acknowledgement.
func (w *Worker) handle(ctx context.Context, d Delivery) {
	sub, err := d.Submission()
	if err != nil {
		w.cfg.Log.Error().Err(err).Msg("message in the queue is no job, taken out")
		if err := d.Term(ctx, "not a job"); err != nil {
			w.cfg.Log.Warn().Err(err).Msg("message not taken out, it comes again")
		}
		return
	}
	log := w.cfg.Log.With().Str("job", sub.Job.ID).Str("pack", sub.Job.Pack).Logger()
	if w.adopt(sub.Job.ID, d) {
		return
	}
	a, err := w.claim(ctx, d, sub, log)
	if err != nil {
		// Nothing is lost: the message comes again after the
		// acknowledgement wait.
		log.Warn().Err(err).Msg("delivery not handled, it comes again")
		return
	}
	if a == nil {
		return
	}
	defer w.forget(a)
	a.run(ctx)
}

// adopt hands a second delivery of a job that still runs here to its attempt.
func (w *Worker) adopt(id string, d Delivery) bool {
	w.mu.Lock()
	a := w.active[id]
	w.mu.Unlock()
	if a == nil {
		return false
	}
	a.mu.Lock()
	a.delivery = d
	a.mu.Unlock()
	return true
}

func (w *Worker) forget(a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active[a.job.ID] == a {
		delete(w.active, a.job.ID)
	}
}

// claim decides about d and carries the decision out. It returns an attempt
// only when this worker won the job.
func (w *Worker) claim(ctx context.Context, d Delivery, sub jobs.Submission, log zerolog.Logger) (*attempt, error) {
	k := sub.Job.Key()
	var rec jobs.Record
	// A first delivery is claimed without reading: the expectation that there
	// is no event yet does the reading.
	read := d.Delivered() > 1
	for try := 0; ; try++ {
		if read {
			seen := rec.Sequence
			var err error
			if rec, err = w.last(ctx, k); err != nil {
				return nil, err
			}
			if try > 1 && rec.Sequence != seen || try > claimTries {
				return nil, nil // lost the race: silent
			}
		}
		dec := decide(sub, rec, d.Delivered(), w.cfg.ID, w.cfg.MaxLost, time.Now())
		switch dec.action {
		case leave:
			if failpoint.Planted(failpoint.BugLoserAcks) {
				return nil, d.Ack(ctx)
			}
			return nil, nil
		case finished:
			return nil, d.Ack(ctx)
		case wait:
			return nil, w.postpone(ctx, d, jobs.Submission{
				Job: rec.Job, Input: sub.Input, InputKey: sub.InputKey, TraceParent: sub.TraceParent}, dec.until)
		}
		failpoint.Hit(failpoint.ClaimBeforeStarted)
		move := jobs.Move{Job: dec.next, Expected: rec.Sequence, TraceParent: sub.TraceParent}
		if rec.Sequence == 0 {
			move.Input = &sub
		}
		seq, err := w.cfg.Ledger.Append(ctx, move)
		if errors.Is(err, jobs.ErrConflict) {
			if failpoint.Planted(failpoint.BugLoserAcks) {
				return nil, d.Ack(ctx)
			}
			// Either somebody was faster, which the next look shows, or a
			// write to the subject was still in flight.
			read = true
			continue
		}
		if err != nil {
			if seq, err = w.confirm(ctx, dec.next, err); err != nil {
				return nil, err
			}
		}
		failpoint.Hit(failpoint.ClaimAfterStarted)
		if dec.action == settle {
			log.Warn().Str("state", string(dec.next.State)).Msg(dec.next.Error.Message)
			w.cfg.Ended(dec.next.Pack, dec.next.Pool, dec.next.State, dec.next.Error.Code, 0)
			if dec.next.Poison {
				return nil, d.Term(ctx, "poison: "+dec.next.Error.Message)
			}
			return nil, d.Ack(ctx)
		}
		return w.hold(ctx, d, sub, dec.next, seq, log), nil
	}
}

// claimTries bounds how often a claim is tried while nobody else moves.
const claimTries = 5

// confirm looks whether a claim whose answer was lost was stored after all.
func (w *Worker) confirm(ctx context.Context, next jobs.Job, lost error) (uint64, error) {
	rec, err := w.last(ctx, next.Key())
	if err == nil && rec.Job.Runs == next.Runs && rec.Job.Worker == next.Worker && rec.Job.State == next.State &&
		rec.Job.StartedAt.Equal(next.StartedAt) {
		return rec.Sequence, nil
	}
	return 0, lost
}

func (w *Worker) last(ctx context.Context, k jobs.Key) (jobs.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	rec, err := w.cfg.Ledger.Last(ctx, k, true)
	if errors.Is(err, jobs.ErrNotFound) {
		return jobs.Record{}, nil
	}
	return rec, err
}

// hold registers a won claim, so that heartbeats and cancels reach it.
func (w *Worker) hold(ctx context.Context, d Delivery, sub jobs.Submission, job jobs.Job, seq uint64, log zerolog.Logger) *attempt {
	a := &attempt{
		w: w, sub: sub, pool: job.Pool, fence: seq,
		delivery: d, job: job, expected: seq, signAt: time.Now(),
		log: log.With().Int("attempt", job.Attempt).Logger(),
	}
	a.ctx, a.halt = context.WithCancelCause(ctx)
	w.mu.Lock()
	w.active[job.ID] = a
	w.mu.Unlock()
	return a
}

// run executes the pack and finishes the attempt. ctx ends when the worker's
// drain time is over.
func (a *attempt) run(ctx context.Context) {
	runCtx := a.ctx
	defer a.halt(nil)

	began := time.Now()
	out, perr := a.execute(runCtx)
	failpoint.Hit(failpoint.RunAfterHandler)
	var cause error
	if runCtx.Err() != nil {
		cause = stopCause(context.Cause(runCtx))
	}
	if perr != nil && errors.Is(perr, packs.ErrAbandoned) {
		a.w.mu.Lock()
		a.w.leaked++
		a.w.mu.Unlock()
	}
	// The result must be recorded although the worker stops meanwhile.
	endCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	state, err := a.finish(endCtx, out, outcome{err: perr, stop: cause})
	if err != nil {
		a.log.Warn().Err(err).Msg("outcome not recorded; the job runs again after the acknowledgement wait")
		return
	}
	var code packs.Code
	if perr != nil {
		code = perr.Code
		a.log.Info().Err(perr).Str("state", string(state)).Msg("attempt ended with an error")
	}
	a.w.cfg.Ended(a.sub.Job.Pack, a.pool, state, code, time.Since(began))
}

func stopCause(cause error) error {
	for _, known := range []error{errFenced, errCancelled, errStopping, errStalled} {
		if errors.Is(cause, known) {
			return known
		}
	}
	return errStopping // the parent ended: the worker stops
}

// execute runs the pack in a scratch folder of its own.
func (a *attempt) execute(ctx context.Context) (packs.Outcome, *packs.Error) {
	ctx = otel.GetTextMapPropagator().Extract(ctx, propagation.MapCarrier{"traceparent": a.sub.TraceParent})
	ctx, span := otel.Tracer("helmdeck/worker").Start(ctx, "run "+a.sub.Job.Pack, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attribute.String("job.id", a.sub.Job.ID), attribute.Int("job.attempt", a.job.Attempt)))
	defer span.End()
	out, err := a.invoke(ctx)
	if err == nil {
		return out, nil
	}
	span.SetStatus(codes.Error, err.Error())
	var pe *packs.Error
	if !errors.As(err, &pe) {
		pe = packs.Fail(packs.Internal, err, "internal error; the worker's log has the details")
	}
	return out, pe
}

func (a *attempt) invoke(ctx context.Context) (packs.Outcome, error) {
	w, job := a.w, a.job
	pack, err := w.cfg.Packs.Get(job.Pack, job.Version)
	if err != nil {
		return packs.Outcome{}, err
	}
	input, err := jobs.LoadInput(ctx, w.cfg.Artifacts, a.sub)
	if err != nil {
		return packs.Outcome{}, packs.Fail(packs.ArtifactFailed, err, "the stored input of the job cannot be read")
	}
	scratch := filepath.Join(w.cfg.ScratchDir, fmt.Sprintf("%s-%d", job.ID, job.Runs))
	rep := newReporter(ctx, w.cfg.Reports, job, a.sign)
	defer rep.close()
	made := false
	makeScratch := sync.OnceValues(func() (string, error) {
		made = true
		return scratch, os.MkdirAll(scratch, 0o700)
	})
	defer func() {
		if !made {
			return
		}
		if err := os.RemoveAll(scratch); err != nil {
			a.log.Warn().Err(err).Msg("scratch folder not removed")
		}
	}()
	return w.engine.Execute(ctx, pack, packs.Invocation{
		JobID: job.ID, Attempt: job.Attempt, Fence: a.fence, Worker: w.cfg.ID, Caller: job.Caller,
		Input: input, Timeout: time.Duration(job.TimeoutS) * time.Second,
		Validated: true, // at the submit, by the same version of the pack
		Services: packs.Services{
			Leaser: w.cfg.Leaser, HTTP: w.cfg.HTTP, CheckURL: w.cfg.CheckURL, Artifacts: w.cfg.Artifacts,
			Begin: a.begin, Progress: rep.progress, Log: rep.line, Scratch: makeScratch,
			UserAgent: w.cfg.UserAgent, PublicURL: w.cfg.PublicURL,
		},
	})
}

// sign notes that the run shows life.
func (a *attempt) sign() {
	a.mu.Lock()
	a.signAt = time.Now()
	a.mu.Unlock()
}

// begin writes the marker of an effect that must not repeat.
func (a *attempt) begin(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.job.EffectBegun {
		return packs.Errorf(packs.OutcomeUnknown, "the effect was begun before; check whether it happened")
	}
	next := a.job
	next.EffectBegun = true
	seq, err := a.appendLocked(ctx, next)
	if err != nil {
		return packs.Fail(packs.Internal, err, "the effect was not begun, because its marker could not be written")
	}
	a.job, a.expected = next, seq
	return nil
}

// AppendTries bounds how often one event is tried while the bus refuses it.
// After that the job runs again, which is safe: nothing was recorded.
const AppendTries = 10

// appendLocked appends next after the attempt's last event. When a request to
// cancel came between it goes on from there; when the claim is not this
// attempt's any more it returns errFenced. a.mu is held.
func (a *attempt) appendLocked(ctx context.Context, next jobs.Job) (uint64, error) {
	for range AppendTries {
		callCtx, cancel := context.WithTimeout(ctx, busTimeout)
		seq, err := a.w.cfg.Ledger.Append(callCtx, jobs.Move{Job: next, Expected: a.expected, TraceParent: a.sub.TraceParent})
		cancel()
		if err == nil {
			return seq, nil
		}
		if ctx.Err() != nil {
			return 0, err
		}
		if errors.Is(err, jobs.ErrConflict) && failpoint.Planted(failpoint.BugConflictIsLost) {
			return 0, errFenced
		}
		// A conflict, or an answer that was lost after the write: look.
		rec, rerr := a.w.last(ctx, next.Key())
		switch {
		case rerr != nil:
			if errors.Is(err, jobs.ErrConflict) {
				return 0, rerr
			}
		case rec.Job.Runs != next.Runs || rec.Job.Worker != next.Worker:
			return 0, errFenced
		case rec.Job.State != jobs.Running:
			if rec.Job.State == next.State {
				return rec.Sequence, nil // it was ours, only the answer was lost
			}
			return 0, errFenced
		default:
			a.expected = rec.Sequence
			next.CancelRequested = rec.Job.CancelRequested
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return 0, fmt.Errorf("append event of job %s: %w", next.ID, jobs.ErrUnavailable)
}

// finish records how the run ended, then ends the delivery.
func (a *attempt) finish(ctx context.Context, out packs.Outcome, o outcome) (jobs.State, error) {
	if failpoint.Planted(failpoint.BugAckBeforeFinish) {
		if err := a.currentDelivery().Ack(ctx); err != nil {
			return "", err
		}
		failpoint.Hit(failpoint.FinishAfterAck)
	}
	output, outputKey, err := a.storeOutput(ctx, out)
	if err != nil && o.err == nil {
		o.err = packs.Fail(packs.ArtifactFailed, err, "the output of the job could not be stored")
	}
	a.mu.Lock()
	v := judge(a.job, o, time.Now(), a.w.cfg.Backoff)
	if v.silent {
		a.mu.Unlock()
		return "", nil
	}
	v.next.SessionID = out.SessionID
	if v.next.State == jobs.Succeeded {
		v.next.Output, v.next.OutputKey, v.next.Artifacts = output, outputKey, out.Artifacts
	}
	if v.next.State == jobs.Retrying && failpoint.Planted(failpoint.BugRetryAckFirst) {
		_ = a.delivery.Ack(ctx) // the planted bug
		failpoint.Hit(failpoint.RetryAfterAck)
	}
	seq, err := a.appendLocked(ctx, v.next)
	if err == nil {
		a.job, a.expected = v.next, seq
	}
	d := a.delivery
	a.mu.Unlock()
	switch {
	case errors.Is(err, errFenced):
		a.log.Warn().Msg("another worker took the job over; this result is dropped")
		return "", nil
	case err != nil:
		return "", err
	}
	if v.next.State == jobs.Retrying {
		failpoint.Hit(failpoint.RetryAfterEvent)
		return v.next.State, a.w.postpone(ctx, d, a.resubmission(), v.next.RetryAt)
	}
	failpoint.Hit(failpoint.FinishAfterTerminal)
	a.publish(ctx, v.next.Artifacts)
	failpoint.Hit(failpoint.FinishAfterPublish)
	err = d.Ack(ctx)
	failpoint.Hit(failpoint.FinishAfterAck)
	return v.next.State, err
}

// resubmission is the job as it goes back into the queue.
func (a *attempt) resubmission() jobs.Submission {
	s := a.sub
	s.Job, s.Encoded = a.job, nil
	return s
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
	if len(out.Output) <= jobs.InlineLimit {
		return out.Output, "", nil
	}
	key = artifacts.OutputKey(a.job.ID, a.job.Runs)
	return nil, key, a.w.cfg.Artifacts.Stash(ctx, key, bytes.NewReader(out.Output))
}

func (a *attempt) currentDelivery() Delivery {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.delivery
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

// keepAlive is one heartbeat of the attempt.
func (a *attempt) keepAlive(ctx context.Context) {
	if err := a.currentDelivery().Working(ctx); err != nil && ctx.Err() == nil {
		a.log.Warn().Err(err).Msg("delivery not extended")
	}
	a.mu.Lock()
	silent := time.Since(a.signAt)
	a.mu.Unlock()
	if silent > a.w.cfg.StallAfter {
		a.halt(errStalled)
		return
	}
	rec, err := a.w.cfg.Ledger.Last(ctx, a.sub.Job.Key(), true)
	switch {
	case err != nil:
		// Not being able to read is no reason to stop: the fence decides.
	case rec.Job.Runs != a.job.Runs || rec.Job.Worker != a.job.Worker:
		a.halt(errFenced)
	case rec.Job.CancelRequested:
		a.halt(errCancelled)
	}
}
