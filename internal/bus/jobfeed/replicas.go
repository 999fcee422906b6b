package jobfeed

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/events"
)

// apiRole is the role in the heartbeats of API replicas.
const apiRole = "api"

// Three beats may be lost before a replica counts as gone.
const replicaBeat, replicaGone = 2 * time.Second, 7 * time.Second

// Replicas counts the API replicas that live, this one included, for what they
// share. It is always at least one.
type Replicas struct {
	id   string
	core bus.Core
	log  zerolog.Logger

	mu   sync.Mutex // guards seen
	seen map[string]time.Time
}

// NewReplicas returns a count for the replica named id; Run makes it true.
func NewReplicas(core bus.Core, id string, log zerolog.Logger) *Replicas {
	return &Replicas{id: id, core: core, log: log, seen: map[string]time.Time{}}
}

// Count returns how many replicas were heard from lately.
func (r *Replicas) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, at := range r.seen {
		if time.Since(at) > replicaGone {
			delete(r.seen, id)
		}
	}
	if _, ok := r.seen[r.id]; ok {
		return len(r.seen)
	}
	return len(r.seen) + 1
}

// Run tells the others of this replica and hears of them until ctx ends.
func (r *Replicas) Run(ctx context.Context) error {
	stop, err := r.core.Subscribe("hb."+apiRole+".*", func(m bus.CoreMessage) {
		s, err := events.Parse(m.Subject)
		if err != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen[s.ID] = time.Now()
	})
	if err != nil {
		return err
	}
	defer stop()
	subject, err := events.HeartbeatSubject(apiRole, r.id)
	if err != nil {
		return err
	}
	tick := time.NewTicker(replicaBeat)
	defer tick.Stop()
	for {
		if err := r.core.Publish(ctx, subject, nil, nil); err != nil && ctx.Err() == nil {
			r.log.Debug().Err(err).Msg("replica heartbeat not sent")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
