package poolstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Load is the state of one pool.
type Load struct {
	Pool string
	// Waiting jobs were not handed out; Unacked were, and have not ended: they
	// run, wait for a retry, or were handed to a worker that is gone.
	Waiting, Unacked int
	// Running is what live workers say they run. They say so every few
	// seconds, so it lags a little behind Unacked.
	Running int
	// Workers take jobs, on Slots at once; Draining ones take none any more.
	Workers, Slots, Draining int
	OldestAge                time.Duration // of the oldest waiting job
	// Stuck jobs wait in a pool that has workers, none of which has their pack
	// in their version.
	Stuck int
	// Paused is set while the server holds jobs back. Its Until is zero when
	// nothing ends it; Reason, By and At are empty when somebody paused the
	// consumers directly.
	Paused *Pause
}

// Autoscale is how many jobs no live worker has: what to scale workers by.
// Unacknowledged jobs count, for with nobody pulling a delivery that expired
// stays unacknowledged for ever.
func (l Load) Autoscale() int { return max(l.Waiting+l.Unacked-l.Running, 0) }

// Unserved is how many jobs wait although nobody will take them.
func (l Load) Unserved() int {
	if l.Workers > 0 {
		return l.Stuck
	}
	return max(l.Autoscale(), l.Stuck)
}

// fresh is how long a look at the consumers serves whoever asks: a dashboard
// with many viewers asks the bus no more often.
const fresh = 2 * time.Second

// lookTimeout bounds one look at all consumers.
const lookTimeout = 5 * time.Second

// parallel bounds the consumers asked at once.
const parallel = 16

// fetch is one look at all pools. done is closed when it has ended.
type fetch struct {
	done  chan struct{}
	at    time.Time
	loads []Load
	err   error
}

func (f *fetch) usable() bool {
	select {
	case <-f.done:
		return f.err == nil && time.Since(f.at) < fresh
	default:
		return true
	}
}

// Loads returns the state of every pool, at most two seconds old: the numbers
// of the queues from the leader of every lane, those of the workers from
// their heartbeats. Those who ask at the same time share one look.
func (s *Store) Loads(ctx context.Context) ([]Load, error) {
	s.mu.Lock()
	f := s.latest
	if f == nil || !f.usable() {
		f = &fetch{done: make(chan struct{}), at: time.Now()}
		s.latest = f
		s.fetches.Go(func() {
			defer close(f.done)
			// Of all who wait for it, not of the one that came first.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
			defer cancel()
			f.loads, f.err = s.look(ctx)
		})
	}
	s.mu.Unlock()
	select {
	case <-f.done:
		return append([]Load(nil), f.loads...), f.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *Store) look(ctx context.Context) ([]Load, error) {
	out := make([]Load, len(packs.Pools))
	var mu sync.Mutex // guards out and faults
	var faults []error
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, p := range packs.Pools {
		out[i].Pool = string(p)
		for _, l := range s.lanes(string(p)) {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				state, oldest, err := s.lookAt(ctx, l)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					faults = append(faults, fmt.Errorf("load of pool %s: %w", p, err))
					return
				}
				s.add(&out[i], state, oldest)
			})
		}
	}
	wg.Wait()
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	live := s.workers.Live()
	s.addStuck(out, live)
	for _, w := range live {
		for i := range out {
			pool := out[i].Pool
			out[i].Running += w.Running[pool]
			switch {
			case w.Slots[pool] == 0:
			case w.Drain:
				out[i].Draining++
			default:
				out[i].Workers++
				out[i].Slots += w.Slots[pool]
			}
		}
	}
	return out, nil
}

// addStuck counts the jobs that none of the workers of their pool runs.
func (s *Store) addStuck(loads []Load, live []worker.Status) {
	if s.Queued == nil || !s.workers.Settled() {
		return
	}
	type kind struct{ pool, pack, version string }
	runs, stuck := map[kind]bool{}, map[string]int{}
	s.Queued(func(j jobs.Job) {
		k := kind{j.Pool, j.Pack, j.Version}
		served, known := runs[k]
		if !known {
			served = slices.ContainsFunc(live, func(w worker.Status) bool { return w.Runs(j.Pool, j.Pack, j.Version) })
			runs[k] = served
		}
		if !served {
			stuck[j.Pool]++
		}
	})
	for i := range loads {
		loads[i].Stuck = stuck[loads[i].Pool]
	}
}

// lookAt asks for one lane, and how old what waits longest in it is.
func (s *Store) lookAt(ctx context.Context, l lane) (bus.ConsumerState, time.Duration, error) {
	state, err := s.js.Consumer(ctx, l.stream, l.consumer)
	if err != nil || state.Pending == 0 {
		return state, 0, err
	}
	m, err := s.js.Next(ctx, l.stream, l.filter, state.Delivered+1)
	if errors.Is(err, bus.ErrNoMessage) { // taken meanwhile
		return state, 0, nil
	}
	if err != nil {
		return state, 0, err
	}
	return state, time.Since(m.Time), nil
}

// add adds a lane to its pool.
func (s *Store) add(l *Load, state bus.ConsumerState, oldest time.Duration) {
	l.Waiting += state.Pending
	l.Unacked += state.Unacked
	l.OldestAge = max(l.OldestAge, oldest)
	if state.PausedUntil.IsZero() || l.Paused != nil {
		return
	}
	s.mu.Lock()
	p := s.pauses[l.Pool]
	s.mu.Unlock()
	if !p.active(time.Now()) {
		p = Pause{Paused: true, Until: state.PausedUntil} // by somebody else
		if alike(p.Until, forever) {
			p.Until = time.Time{}
		}
	}
	l.Paused = &p
}
