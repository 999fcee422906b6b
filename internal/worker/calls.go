package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// maxCalls bounds the calls of one run: two full maps.
const maxCalls = 2 * packs.MaxMap

// signEvery is how often a run that waits for its slot shows life, well below
// the time after which it counts as stalled.
const signEvery = 10 * time.Second

// calls runs the child jobs of one attempt.
type calls struct {
	a    *attempt
	line func(string) // to the log of the parent

	mu   sync.Mutex       // guards the fields below
	made map[[32]byte]int // equal calls so far, by sum
	all  int
}

var _ packs.Calls = (*calls)(nil)

func newCalls(a *attempt, line func(string)) packs.Calls {
	if a.w.cfg.Jobs == nil {
		return nil
	}
	return &calls{a: a, line: line, made: map[[32]byte]int{}}
}

// Lend implements packs.Calls.
func (c *calls) Lend() func(context.Context) error {
	c.a.slot.lend()
	return func(ctx context.Context) error {
		done := make(chan bool, 1)
		go func() { done <- c.a.slot.back(ctx) }()
		tick := time.NewTicker(signEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				c.a.sign()
			case ok := <-done:
				if !ok {
					return fmt.Errorf("wait for a slot: %w", context.Cause(ctx))
				}
				return nil
			}
		}
	}
}

// Call implements packs.Calls.
func (c *calls) Call(ctx context.Context, call packs.Call) (packs.Child, error) {
	carrier := propagation.MapCarrier{}
	otel.GetTextMapPropagator().Inject(ctx, carrier)
	in := jobs.ChildCall{Call: call, TraceParent: carrier["traceparent"]}
	if end, ok := ctx.Deadline(); ok {
		in.Left = max(time.Until(end), time.Millisecond)
	}
	child, err := c.a.w.cfg.Jobs.PlanChild(c.a.claimed, in)
	if err != nil {
		return packs.Child{Pack: call.Pack}, refused(call.Pack, err)
	}
	nth, err := c.count(child.Sum())
	if err != nil {
		return packs.Child{Pack: call.Pack}, err
	}
	// The slot is free before the child is in its queue, or the puller would
	// have to give it back.
	back := c.Lend()
	job, err := child.Result(ctx, nth, c.sees(call))
	if err != nil {
		c.abandon(ctx, child, job)
	} else {
		failpoint.Hit(failpoint.CallAfterEnded)
		c.line(fmt.Sprintf("child %s %s ended: %s", job.ID, job.Pack, job.State))
	}
	if lost := back(ctx); err == nil {
		err = lost
	}
	return result(job, err)
}

// count numbers equal calls in their order.
func (c *calls) count(sum [32]byte) (nth int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == maxCalls {
		return 0, packs.Fatal(packs.Errorf(packs.HandlerFailed, "one run makes at most %d calls; split the work into several jobs", maxCalls))
	}
	c.all++
	nth = c.made[sum]
	c.made[sum]++
	return nth, nil
}

// sees passes on what is seen of a child.
func (c *calls) sees(call packs.Call) func(jobs.Sight) {
	var mu sync.Mutex // guards run: sights come from two goroutines
	run := 0
	return func(s jobs.Sight) {
		c.a.sign()
		switch {
		case s.Progress != nil && call.Progress != nil:
			call.Progress(s.Progress.Percent)
		case s.Job != nil && s.Job.State == jobs.Running:
			mu.Lock()
			fresh := s.Job.Runs > run
			run = max(run, s.Job.Runs)
			mu.Unlock()
			if fresh {
				c.line(fmt.Sprintf("child %s %s started, run %d", s.Job.ID, s.Job.Pack, s.Job.Runs))
				failpoint.Hit(failpoint.CallAfterStarted)
			}
		}
	}
}

// abandon cancels a child whose parent waits for it no more. Not a shared one,
// and not when the parent runs again elsewhere: that run waits for it.
func (c *calls) abandon(ctx context.Context, child *jobs.Child, job jobs.Job) {
	cause := context.Cause(c.a.ctx)
	if child.Shared() || job.ID == "" || ctx.Err() == nil || errors.Is(cause, errFenced) || errors.Is(cause, errStopping) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), busTimeout)
	defer cancel()
	_, err := c.a.w.cfg.Jobs.Cancel(ctx, c.a.claimed.Caller, job.ID)
	failpoint.Hit(failpoint.CallAfterCancel)
	var pe *packs.Error
	if err != nil && (!errors.As(err, &pe) || pe.Code != packs.NotFound) {
		c.a.log.Warn().Err(err).Str("child", job.ID).Msg("child not cancelled; the control loop does it once the parent has ended")
	}
}

// result is what a handler gets of a child.
func result(job jobs.Job, err error) (packs.Child, error) {
	child := packs.Child{JobID: job.ID, Pack: job.Pack, Version: job.Version, Artifacts: job.Artifacts}
	switch {
	case err != nil:
		return child, err
	case job.State == jobs.Succeeded:
		child.Output = job.Output
		return child, nil
	}
	code, message := packs.Cancelled, "cancelled"
	if job.Error != nil {
		code, message = job.Error.Code, job.Error.Message
	}
	child.Err = packs.ChildFailed(job.ID, job.Pack, code, message)
	return child, child.Err
}

// refused is the error of a call that cannot become a job. The faults of its
// input are those of the pack, not of whoever called the parent.
func refused(pack string, err error) error {
	var pe *packs.Error
	if !errors.As(err, &pe) {
		return err
	}
	out := *pe
	out.Message, out.Details = fmt.Sprintf("child %s: %s", pack, pe.Message), nil
	return packs.Fatal(&out)
}

// heldLeaser bounds the wait of a child for a session while a parent of it
// keeps one: if that was the last, neither would ever go on.
type heldLeaser struct {
	sessions.Leaser
	wait time.Duration
}

// Lease implements sessions.Leaser.
func (l heldLeaser) Lease(ctx context.Context, r sessions.Request) (sessions.Session, error) {
	over := packs.Fatal(packs.Errorf(packs.SessionUnavailable,
		"no session became free within %s while a parent of this job keeps one itself; allow the scheduler more sessions, "+
			"or let the pack call others before it opens its session", l.wait))
	waiting, cancel := context.WithTimeoutCause(ctx, l.wait, over)
	defer cancel()
	s, err := l.Leaser.Lease(waiting, r)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(waiting), over) {
		return nil, over
	}
	return s, err
}
