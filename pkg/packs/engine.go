package packs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// Engine runs packs: one attempt at a time per call, any number of calls at
// once. The zero value is ready.
type Engine struct {
	// Grace is the time a handler has to return after its context ended; then
	// its session is closed under it, and after as long again the engine
	// gives up waiting. 0 is DefaultGrace.
	Grace time.Duration
}

// DefaultGrace is enough for a handler to write what it knows and short
// enough for a cancelled job to end while somebody watches.
const DefaultGrace = 10 * time.Second

// closeTimeout bounds the return of a session whose run is over. The
// scheduler's sweep collects what it does not reach.
const closeTimeout = 15 * time.Second

// ErrAbandoned is in the error of a run whose handler did not return after
// its context ended. Its goroutine still runs; the host may want to exit.
var ErrAbandoned = errors.New("handler did not stop")

var errDeadline = errors.New("the attempt's time is over")

// result is how a handler ended.
type result struct {
	output json.RawMessage
	err    error
}

// Execute validates the input, runs p under its deadline and checks what it
// returns. A non-nil error is always an *Error with a known code. When ctx
// was cancelled, errors.Is finds the cause of ctx in it. The Outcome names
// session and artifacts of a failed run too.
func (e *Engine) Execute(ctx context.Context, p Pack, in Invocation) (Outcome, error) {
	info := p.Info()
	if !in.Validated {
		clean, _, err := p.Validate(in.Input)
		if err != nil {
			return Outcome{}, typed(err)
		}
		in.Input, in.Validated = clean, true
	}
	limit := in.Timeout
	if limit <= 0 {
		limit = info.Timeout
	}
	deadline, stop := context.WithTimeoutCause(identity.With(ctx, in.Caller), limit, errDeadline)
	defer stop()
	work, cancel := context.WithCancelCause(deadline)
	defer cancel(nil)
	run := &Run{
		JobID: in.JobID, Attempt: in.Attempt, Fence: in.Fence, Caller: in.Caller,
		info: info, trusted: in.Validated, worker: in.Worker, services: in.Services,
		cancel: cancel, done: make(chan struct{}),
	}

	r := e.run(work, p, run, in.Input)
	ended := context.Cause(work) // before the clean-up, which may take long
	run.close()
	run.watchers.Wait()
	closeSession(ctx, run)

	out := Outcome{Artifacts: run.artifacts(), SessionID: run.sessionID()}
	if r.err == nil {
		r.err = p.CheckOutput(r.output)
	}
	if r.err != nil {
		return out, classify(ctx, ended, limit, r.err)
	}
	out.Output = r.output
	return out, nil
}

// run calls the handler and waits for it, within the grace after ctx ended.
func (e *Engine) run(ctx context.Context, p Pack, run *Run, input json.RawMessage) result {
	done := make(chan result, 1)
	go func() {
		r := result{err: errors.New("handler ended its goroutine")}
		defer func() {
			if v := recover(); v != nil {
				r = result{err: recovered(v)}
			}
			done <- r
		}()
		r.output, r.err = p.Handle(ctx, run, input)
	}()
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
	}
	grace := e.Grace
	if grace <= 0 {
		grace = DefaultGrace
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case r := <-done:
		return r
	case <-timer.C:
	}
	closeSession(ctx, run)
	timer.Reset(grace)
	select {
	case r := <-done:
		return r
	case <-timer.C:
		return result{err: fmt.Errorf("%w %s after its time", ErrAbandoned, 2*grace)}
	}
}

// recovered types a panic; the stack is for the log alone.
func recovered(v any) error {
	if m, ok := v.(misuse); ok {
		return Fail(Internal, fmt.Errorf("%s\n%s", m, debug.Stack()), internalText)
	}
	return Fail(HandlerFailed, fmt.Errorf("panic: %v\n%s", v, debug.Stack()), "the pack crashed on this input; report it with the job id")
}

// closeSession gives the session back although ctx may be over.
func closeSession(ctx context.Context, run *Run) {
	s := run.leased()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	// A session that is not given back now expires and is swept, so the
	// outcome of the run stands.
	if err := s.Close(ctx); err != nil {
		run.Log("session " + s.ID() + " was not closed: " + err.Error())
	}
}

func (r *Run) artifacts() []artifacts.Ref {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.saved
}

func (r *Run) sessionID() string {
	if s := r.leased(); s != nil {
		return s.ID()
	}
	return ""
}

const internalText = "something went wrong inside the system; report this with the job id"

// classify makes the error of a run. ended is the cause of the end of the
// handler's context, nil if it had not ended.
func classify(ctx context.Context, ended error, limit time.Duration, err error) *Error {
	e, _ := errors.AsType[*Error](err)
	if ended == nil || (e != nil && final[e.Code]) {
		return typed(err)
	}
	switch {
	case errors.Is(ended, errDeadline), errors.Is(ended, context.DeadlineExceeded):
		return Fail(Timeout, err, fmt.Sprintf("the job did not finish within %s; allow more time (timeout_s) or ask for less work", limit))
	case errors.Is(ended, sessions.ErrLost):
		return Fail(SessionUnavailable, errors.Join(ended, err), "the session was lost while in use; try again")
	}
	return Fail(Cancelled, errors.Join(context.Cause(ctx), err), "the job was cancelled")
}

// final are the codes that stay true although the time was over when the
// handler returned. The others may be a mere sign of the end.
var final = map[Code]bool{
	InvalidInput: true, CredentialInvalid: true, SchemaMismatch: true, RateLimited: true,
	OutcomeUnknown: true, IdempotencyConflict: true, NotFound: true, Forbidden: true,
	PayloadTooLarge: true, InvalidOutput: true,
}

// typed returns err as an *Error with a known code.
func typed(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		if e.Code.Known() {
			return e
		}
		return Fail(Internal, fmt.Errorf("unknown code %q: %w", e.Code, err), internalText)
	}
	var refusal EgressRefusal
	switch {
	case errors.As(err, &refusal) && refusal.EgressDenied():
		return egressDenied(refusal)
	case errors.Is(err, sessions.ErrUnavailable):
		return Fail(SessionUnavailable, err, "no session is free now; try again later")
	case errors.Is(err, sessions.ErrLost):
		return Fail(SessionUnavailable, err, "the session was lost while in use; try again")
	case errors.Is(err, sessions.ErrKilled):
		return Fail(ResourceExhausted, err, "a program of the pack was killed, for want of memory as a rule; try a smaller input")
	case errors.Is(err, artifacts.ErrNoSpace), errors.Is(err, artifacts.ErrNotFound):
		if e, ok := errors.AsType[*Error](storeFailed(err)); ok {
			return e
		}
	case errors.Is(err, context.DeadlineExceeded):
		return Fail(Timeout, err, "a step of the job took too long; try again")
	}
	return Fail(Internal, err, internalText)
}

// egressDenied is the invalid_input of a URL the guard refuses.
func egressDenied(err error) *Error {
	const prefix = "egress denied: "
	return Fail(InvalidInput, err, prefix+strings.TrimPrefix(err.Error(), prefix))
}
