// Package gate is where a worker asks whether a job it is about to claim may
// run under the limits of the installation. A job that may not is put into
// hold, from where internal/hold releases it; the worker goes on to the next.
package gate

import (
	"context"
	"slices"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// Slots takes and frees slots; see limitstore.Slots.
type Slots interface {
	Take(ctx context.Context, h limits.Holder, want []limits.Slot, held bool) (full string, err error)
	Free(ctx context.Context, h limits.Holder, keys []string) error
}

// Holder puts jobs aside; see jobstore.Store.
type Holder interface {
	Hold(ctx context.Context, sub jobs.Submission, reason string, slots []string) error
}

// Gate implements worker.Gate. Jobs that no limit concerns pass without a
// look at the bus.
type Gate struct {
	Limits *limits.Source
	Slots  Slots
	Hold   Holder
}

// Enter implements worker.Gate.
func (g *Gate) Enter(ctx context.Context, sub jobs.Submission, next jobs.Job) (keys []string, pass bool, err error) {
	want := g.Limits.Policy().Slots(&next)
	if len(want) > 0 {
		keys = limits.Keys(want)
		full, err := g.Slots.Take(ctx, holder(next), want, false)
		if err != nil {
			return nil, false, err
		}
		if full != "" {
			return nil, false, g.Hold.Hold(ctx, sub, full, keys)
		}
	}
	// Slots of a limit that concerns the job no more are freed with the rest.
	for _, k := range next.LimitKeys {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys, true, nil
}

// Leave implements worker.Gate.
func (g *Gate) Leave(ctx context.Context, next jobs.Job) error {
	return g.Slots.Free(ctx, holder(next), next.LimitKeys)
}

func holder(j jobs.Job) limits.Holder { return limits.Holder{Job: j.Key(), Run: j.Runs} }
