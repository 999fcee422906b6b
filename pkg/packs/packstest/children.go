package packstest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// children runs child jobs in this process.
type children struct {
	settings *settings
	made     atomic.Int32
}

// Lend implements packs.Calls: there are no slots.
func (c *children) Lend() func(context.Context) error {
	return func(context.Context) error { return nil }
}

// Call implements packs.Calls.
func (c *children) Call(ctx context.Context, call packs.Call) (packs.Child, error) {
	child := packs.Child{JobID: fmt.Sprintf("019a0000-0000-7000-8000-%012d", 1000+c.made.Add(1)), Pack: call.Pack}
	p, err := c.settings.callable.Get(call.Pack, call.Version)
	if err != nil {
		return child, packs.Fatal(err)
	}
	child.Pack, child.Version = p.Info().Name, p.Info().Version
	in := c.settings.invocation
	in.JobID, in.Attempt, in.Input, in.Timeout = child.JobID, 1, call.Input, call.Timeout
	in.Services.Progress = func(percent float64, _ string) {
		if call.Progress != nil {
			call.Progress(percent)
		}
	}
	out, err := c.settings.engine.Execute(ctx, p, in)
	child.Output, child.Artifacts = out.Output, out.Artifacts
	if err == nil {
		return child, c.settings.store.Publish(context.WithoutCancel(ctx), out.Artifacts...)
	}
	if ctx.Err() != nil {
		return child, fmt.Errorf("wait for child job %s: %w", child.JobID, context.Cause(ctx))
	}
	var pe *packs.Error
	if !errors.As(err, &pe) {
		return child, err
	}
	child.Err = packs.ChildFailed(child.JobID, child.Pack, pe.Code, pe.Message)
	return child, child.Err
}
