package jobfeed

import (
	"context"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Load is the state of one pool.
type Load struct {
	Pool string
	// Waiting jobs were not handed out; Unacked were, and have not ended.
	Waiting, Unacked int
	Running, Workers int
	OldestAge        time.Duration // of the oldest waiting job
}

// Loads asks the leader of every lane what waits there.
func Loads(ctx context.Context, js bus.JetStream, shards int, live *Workers) ([]Load, error) {
	out := make([]Load, 0, len(packs.Pools))
	workers := live.Live()
	for _, p := range packs.Pools {
		l := Load{Pool: string(p)}
		for _, lane := range bus.PoolLanes(shards) {
			pending, unacked, err := js.ConsumerPending(ctx, bus.JobsStream(p), bus.LaneConsumer(lane.Priority, lane.Shard))
			if err != nil {
				return nil, fmt.Errorf("load of pool %s: %w", p, err)
			}
			l.Waiting += pending
			l.Unacked += unacked
		}
		for _, w := range workers {
			if w.Slots[l.Pool] > 0 {
				l.Workers++
			}
			l.Running += w.Running[l.Pool]
		}
		if l.Waiting > 0 {
			l.OldestAge = oldest(ctx, js, p)
		}
		out = append(out, l)
	}
	return out, nil
}

// errFound ends a scan at its first message.
var errFound = fmt.Errorf("found")

func oldest(ctx context.Context, js bus.JetStream, p packs.Pool) time.Duration {
	var age time.Duration
	_ = js.Scan(ctx, bus.JobsStream(p), []string{"job." + string(p) + ".>"}, 0, func(m bus.Message) error {
		age = time.Since(m.Time)
		return errFound
	})
	return age
}
