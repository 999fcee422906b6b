// Package poolstore knows the pools of an installation: what waits in each,
// who works on it, and whether it is paused.
//
// Whether a pool is paused is decided in a bucket and carried out by the
// server, which holds the consumers of a paused pool back. Every replica
// compares the two from time to time, so that a pause or resume that broke
// off half-way is completed by whoever looks next.
package poolstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Workers tells which workers live.
type Workers interface {
	// Live returns the workers heard from lately.
	Live() []worker.Status
	// Settled reports whether every worker had the time to be heard.
	Settled() bool
}

// Store answers for the pools of one installation. Safe for concurrent use.
type Store struct {
	// EnforceEvery is how often pauses are compared with the consumers;
	// default 30 s. Set it before Run.
	EnforceEvery time.Duration
	// Queued calls fn for every job that waits for a worker, as far as this
	// replica knows. Set it before Run; nil: none are known.
	Queued func(fn func(jobs.Job))

	js      bus.JetStream
	shards  int
	workers Workers
	log     zerolog.Logger
	fetches sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	pauses map[string]Pause
	latest *fetch
}

// New returns a Store. shards is the number of consumers a lane is split into.
func New(js bus.JetStream, shards int, workers Workers, log zerolog.Logger) *Store {
	return &Store{js: js, shards: max(shards, 1), workers: workers, log: log, pauses: map[string]Pause{}}
}

// Pause is the wish of an administrator about a pool.
type Pause struct {
	Paused bool `json:"paused"`
	// Until is when jobs start again by themselves; zero: never.
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
	By     string    `json:"by,omitempty"` // subject of the administrator
	At     time.Time `json:"at"`
}

// active reports whether the pool is meant to be paused at now.
func (p Pause) active(now time.Time) bool {
	return p.Paused && (p.Until.IsZero() || p.Until.After(now))
}

// ErrUnknownPool is returned for a pool that no pack names.
var ErrUnknownPool = errors.New("unknown pool")

// Known reports whether there is such a pool.
func Known(pool string) bool {
	for _, p := range packs.Pools {
		if string(p) == pool {
			return true
		}
	}
	return false
}

// forever stands for "no end" on the server, which wants a time.
var forever = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// tolerance is how far the server's idea of the end of a pause may be from
// ours: it tells the time that is left, and that travels.
const tolerance = 10 * time.Second

// Set pauses a pool, or lets it go on. Jobs that run are not touched. It may
// be repeated; of two at the same time the later write wins. An error may
// leave it done in part: the next look of any replica completes it.
func (s *Store) Set(ctx context.Context, pool string, p Pause) error {
	if !Known(pool) {
		return fmt.Errorf("%w %q", ErrUnknownPool, pool)
	}
	kv, err := s.js.KV(ctx, bus.BucketPools)
	if err != nil {
		return fmt.Errorf("set pause of pool %s: %w", pool, err)
	}
	value, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode pause of pool %s: %w", pool, err)
	}
	if _, err := kv.Put(ctx, pool, value); err != nil {
		return fmt.Errorf("set pause of pool %s: %w", pool, err)
	}
	s.note(pool, p)
	return s.apply(ctx, pool)
}

// note keeps the newest wish for Waiting and forgets what was read before it.
func (s *Store) note(pool string, p Pause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pauses[pool] = p
	s.latest = nil
}

// applyTries bounds how often a pause that changes meanwhile is applied again.
const applyTries = 8

// apply brings the consumers of a pool in line with the bucket. It looks at
// the bucket again afterwards: another replica may have carried out a newer
// wish in between, and been overwritten.
func (s *Store) apply(ctx context.Context, pool string) error {
	kv, err := s.js.KV(ctx, bus.BucketPools)
	if err != nil {
		return fmt.Errorf("apply pause of pool %s: %w", pool, err)
	}
	for range applyTries {
		e, err := kv.Get(ctx, pool)
		if err != nil {
			return fmt.Errorf("apply pause of pool %s: %w", pool, err)
		}
		var p Pause
		if err := json.Unmarshal(e.Value, &p); err != nil {
			return fmt.Errorf("decode pause of pool %s: %w", pool, err)
		}
		s.note(pool, p)
		if err := s.hold(ctx, pool, p); err != nil {
			return err
		}
		again, err := kv.Get(ctx, pool)
		if err != nil {
			return fmt.Errorf("apply pause of pool %s: %w", pool, err)
		}
		if again.Revision == e.Revision {
			return nil
		}
	}
	return fmt.Errorf("apply pause of pool %s: %w: it keeps changing", pool, jobs.ErrConflict)
}

// hold tells the server which consumers to hold back. All of a pool's are
// tried even if one fails.
func (s *Store) hold(ctx context.Context, pool string, p Pause) error {
	now := time.Now()
	var until time.Time
	if p.active(now) {
		if until = p.Until; until.IsZero() {
			until = forever
		}
	}
	var faults []error
	for _, l := range s.lanes(pool) {
		state, err := s.js.Consumer(ctx, l.stream, l.consumer)
		if err == nil && alike(state.PausedUntil, until) {
			continue
		}
		if err == nil {
			err = s.js.Pause(ctx, l.stream, l.consumer, until)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func alike(a, b time.Time) bool {
	if a.IsZero() || b.IsZero() {
		return a.IsZero() && b.IsZero()
	}
	return a.Sub(b).Abs() <= tolerance
}

// lane is one consumer of a pool.
type lane struct{ stream, consumer, filter string }

func (s *Store) lanes(pool string) []lane {
	var all []lane
	for _, l := range bus.PoolLanes(s.shards) {
		all = append(all, lane{
			stream: bus.JobsStream(packs.Pool(pool)), consumer: bus.LaneConsumer(l.Priority, l.Shard),
			filter: fmt.Sprintf("job.%s.%s.%d.>", pool, l.Priority, l.Shard),
		})
	}
	return all
}

// Run follows the pauses until ctx ends and completes those that broke off.
func (s *Store) Run(ctx context.Context) error {
	defer s.fetches.Wait()
	every := s.EnforceEvery
	if every == 0 {
		every = 30 * time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var changes <-chan bus.KVEntry
	for {
		if changes == nil {
			var err error
			if changes, err = s.watch(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn().Err(err).Msg("pauses of pools not followed, trying again")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-changes:
			if !ok {
				changes = nil
				continue
			}
			s.changed(e)
		case <-tick.C:
			s.enforce(ctx)
		}
	}
}

func (s *Store) watch(ctx context.Context) (<-chan bus.KVEntry, error) {
	kv, err := s.js.KV(ctx, bus.BucketPools)
	if err != nil {
		return nil, err
	}
	return kv.Watch(ctx, ">")
}

func (s *Store) changed(e bus.KVEntry) {
	var p Pause
	if e.Key == "" || !e.Deleted && json.Unmarshal(e.Value, &p) != nil {
		return
	}
	s.note(e.Key, p)
}

// enforce looks at every pool that was ever paused here. A pool that never
// was belongs to the operator of the server alone.
func (s *Store) enforce(ctx context.Context) {
	s.mu.Lock()
	pools := make([]string, 0, len(s.pauses))
	for pool := range s.pauses {
		pools = append(pools, pool)
	}
	s.mu.Unlock()
	for _, pool := range pools {
		if !Known(pool) {
			continue
		}
		err := s.apply(ctx, pool)
		if err != nil && !errors.Is(err, bus.ErrNoMessage) && ctx.Err() == nil {
			s.log.Warn().Err(err).Str("pool", pool).Msg("pause of the pool not carried out yet, trying again")
		}
	}
}

// Waiting says in a few words why a job that is queued does not start,
// "" when nothing keeps it but its turn. It asks nobody.
func (s *Store) Waiting(job jobs.Job) string {
	now := time.Now()
	s.mu.Lock()
	p := s.pauses[job.Pool]
	s.mu.Unlock()
	if p.active(now) {
		text := "the pool " + job.Pool + " is paused"
		if !p.Until.IsZero() {
			text += " until " + p.Until.UTC().Format(time.RFC3339)
		}
		if p.Reason != "" {
			text += ": " + p.Reason
		}
		return text
	}
	served := false
	for _, w := range s.workers.Live() {
		if w.Runs(job.Pool, job.Pack, job.Version) {
			return ""
		}
		served = served || w.Slots[job.Pool] > 0 && !w.Drain
	}
	switch {
	case !s.workers.Settled():
		return ""
	case served:
		return fmt.Sprintf("no worker serves pack %s %s in the pool %s: those of the pool have other versions of helmdeck; start or upgrade one",
			job.Pack, job.Version, job.Pool)
	}
	return fmt.Sprintf("no worker serves the pool %[1]s; start one with helmdeck-worker --pools %[1]s", job.Pool)
}
