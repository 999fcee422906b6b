package worker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// busTimeout bounds every single call to the bus.
const busTimeout = 10 * time.Second

// attempt is one claimed run of a job in this worker.
type attempt struct {
	w       *Worker
	sub     jobs.Submission
	claimed jobs.Job // the record of the claim, never changed
	fence   uint64   // sequence of the claim
	log     zerolog.Logger
	slot    *slot

	ctx  context.Context         //nolint:containedctx // the run's own, so that a cancel can reach it from the claim on
	halt context.CancelCauseFunc // stops the run with a cause

	// writing guards the three fields below and is held while an event of
	// the attempt is written, however long the bus takes.
	writing  sync.Mutex
	job      jobs.Job // as of the last event
	expected uint64   // sequence the next event must follow
	over     bool     // the run has ended: its handler writes no more

	mu       sync.Mutex // guards the fields below; never held during a call
	delivery Delivery
	ended    bool // takes no further delivery
	// quiet is how long the pack may be silent, if longer than others.
	quiet time.Duration

	// begun is when the attempt was claimed; signAt is the last sign of life
	// after it, in nanoseconds. The clock of the wall may jump, this does not.
	begun  time.Time
	signAt atomic.Int64
}

// take makes d, a later delivery of the job, the one to acknowledge. An
// attempt that is over or fenced off has no use for it.
func (a *attempt) take(d Delivery) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended || a.fenced() {
		return false
	}
	a.delivery = d
	return true
}

// fenced reports whether another worker is known to hold the job.
func (a *attempt) fenced() bool { return errors.Is(context.Cause(a.ctx), errFenced) }

// release ends the use of deliveries and returns the newest.
func (a *attempt) release() Delivery {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	return a.delivery
}

// sign notes that the run shows life.
func (a *attempt) sign() { a.signAt.Store(int64(time.Since(a.begun))) }

// run executes the pack and finishes the attempt. ctx ends when the worker's
// drain time is over.
func (a *attempt) run(ctx context.Context) {
	defer a.halt(nil)

	began := time.Now()
	out, perr := a.execute(a.ctx)
	failpoint.Hit(failpoint.RunAfterHandler)
	var cause error
	if a.ctx.Err() != nil {
		cause = stopCause(context.Cause(a.ctx))
	}
	if perr != nil && errors.Is(perr, packs.ErrAbandoned) {
		a.w.mu.Lock()
		a.w.leaked++
		a.w.mu.Unlock()
	}
	// The result must be recorded although the worker stops meanwhile.
	endCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.w.cfg.RecordFor)
	defer cancel()
	job, err := a.finish(endCtx, out, outcome{err: perr, stop: cause})
	switch {
	case errors.Is(err, errFenced):
		a.log.Warn().Msg("another worker took the job over; this result is dropped")
		return
	case err != nil:
		a.log.Warn().Err(err).Msg("outcome not recorded; the job runs again after the acknowledgement wait")
		return
	}
	if perr != nil {
		a.log.Info().Err(perr).Str("state", string(job.State)).Msg("attempt ended with an error")
	}
	a.w.cfg.Observer.Ended(job, a.claimed, time.Since(began))
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
	ctx, span := otel.Tracer("helmdeck/worker").Start(ctx, "run "+a.claimed.Pack, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(attribute.String("job.id", a.claimed.ID), attribute.Int("job.attempt", a.claimed.Attempt)))
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
	w, job := a.w, a.claimed
	pack, err := w.cfg.Packs.Get(job.Pack, job.Version)
	if err != nil {
		return packs.Outcome{}, err
	}
	a.mu.Lock()
	a.quiet = pack.Info().Quiet
	a.mu.Unlock()
	input, err := jobs.LoadInput(ctx, w.cfg.Artifacts, a.sub)
	if err != nil {
		return packs.Outcome{}, packs.Fail(packs.ArtifactFailed, err, "the stored input of the job cannot be read")
	}
	rep := newReporter(ctx, w.cfg.Reports, job, a.sign)
	defer rep.close()
	folder := &scratch{path: filepath.Join(w.cfg.ScratchDir, fmt.Sprintf("%s-%d", job.ID, job.Runs))}
	defer func() {
		if err := folder.remove(); err != nil {
			a.log.Warn().Err(err).Msg("scratch folder not removed")
		}
	}()
	return w.engine.Execute(ctx, pack, packs.Invocation{
		JobID: job.ID, Attempt: job.Attempt, Fence: a.fence, Worker: w.cfg.ID, Caller: job.Caller,
		Input: input, Timeout: time.Duration(job.TimeoutS) * time.Second,
		Validated: true, // at the submit, by the same version of the pack
		Services: packs.Services{
			Leaser: a.leaser(), Calls: newCalls(a, rep.line), HTTP: w.cfg.HTTP, CheckURL: w.cfg.CheckURL, Artifacts: w.cfg.Artifacts,
			Begin: a.begin, Progress: rep.progress, Log: rep.line, Alive: a.sign, Scratch: folder.make,
			UserAgent: w.cfg.UserAgent, PublicURL: w.cfg.PublicURL, ArtifactTTL: artifactTTL(job),
		},
	})
}

func (a *attempt) leaser() sessions.Leaser {
	if l := a.w.cfg.Leaser; l != nil && a.claimed.Call != nil && a.claimed.Call.Held {
		return heldLeaser{l, a.w.cfg.HeldWait}
	}
	return a.w.cfg.Leaser
}

// artifactTTL is how long what the run saves is kept of a job that goes away
// at a time of its own: until then at least, and at the end of the job it is
// not known how long the run has taken. They go with the job.
func artifactTTL(job jobs.Job) time.Duration {
	if job.ResultTTLS == 0 {
		return 0
	}
	return time.Duration(job.ResultTTLS+job.TimeoutS+60) * time.Second
}

// keepAlive is one heartbeat of the attempt.
func (a *attempt) keepAlive(ctx context.Context) {
	if a.fenced() {
		return // the message is its new holder's to keep
	}
	a.mu.Lock()
	d, patience := a.delivery, max(a.w.cfg.StallAfter, a.quiet)
	a.mu.Unlock()
	silent := time.Since(a.begun) - time.Duration(a.signAt.Load())
	if err := d.Working(ctx); err != nil && ctx.Err() == nil {
		a.log.Warn().Err(err).Msg("delivery not extended")
	}
	if silent > patience {
		a.halt(errStalled)
		return
	}
	rec, err := a.w.cfg.Ledger.Last(ctx, a.claimed.Key(), true)
	switch {
	case err != nil:
		// Not being able to read is no reason to stop: the fence decides.
	case rec.Job.Runs != a.claimed.Runs || rec.Job.Worker != a.claimed.Worker:
		a.halt(errFenced)
	case rec.Job.CancelRequested:
		a.halt(errCancelled)
	}
}
