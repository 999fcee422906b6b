// Package limitstore keeps who holds which slot of a limit: one key of the
// bucket "limits" each, changed by compare-and-set only. What a slot is for
// and who needs which is the business of pkg/limits.
//
// Changes of one key that come together in a process are made by one write, so
// a busy key costs a write for many jobs. A key without holders goes away by
// itself. A holder is a run of a job: what became of it is read from the job's
// lifecycle, never from a clock.
package limitstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

const (
	// idleTTL is how long the state of a key without holders is kept.
	idleTTL = 5 * time.Minute
	// writeTimeout bounds the change of one key, its repetitions included.
	writeTimeout = 10 * time.Second
	// remembered is how many keys' states are kept in memory, so that the next
	// change need not read first.
	remembered = 4096
)

// Slots takes and frees slots. Safe for concurrent use.
type Slots struct {
	kv bus.KV

	mu   sync.Mutex // guards keys, and the queues in them
	keys map[string]*key
	work sync.WaitGroup // the goroutines that write
}

// key is what this process knows of one key. Its state is touched by the one
// goroutine that writes the key alone.
type key struct {
	name    string
	queue   []*change
	writing bool

	known    bool
	state    State
	revision uint64
}

// change is one wish; apply returns whether it alters s.
type change struct {
	apply func(s *State) (altered bool)
	done  chan error
}

// Open opens the bucket.
func Open(ctx context.Context, js bus.JetStream) (*Slots, error) {
	kv, err := js.KV(ctx, bus.BucketLimits)
	if err != nil {
		return nil, fmt.Errorf("open limits: %w", err)
	}
	return &Slots{kv: kv, keys: map[string]*key{}}, nil
}

// Close waits until no change is under way.
func (s *Slots) Close() { s.work.Wait() }

// Take takes a slot of every key in want for h, or none: then full is the key
// that has no room. What an earlier run of the job holds passes on to h. held
// says that the job waits in hold, and so may have a slot that is kept for
// those who do.
func (s *Slots) Take(ctx context.Context, h limits.Holder, want []limits.Slot, held bool) (full string, err error) {
	for i, w := range want {
		ok := false
		err := s.change(ctx, w.Key, func(st *State) (altered bool) {
			ok, altered = st.take(h, w.Limit, held)
			return altered
		})
		if err != nil {
			return "", fmt.Errorf("take slot of %s: %w", w.Key, err)
		}
		if ok {
			failpoint.Hit(failpoint.SlotAfterTake)
			continue
		}
		return w.Key, s.Free(ctx, h, limits.Keys(want[:i]))
	}
	return "", nil
}

func (s *State) take(h limits.Holder, limit int, held bool) (ok, altered bool) {
	if had, there := s.Holders[h.Job.ID]; there {
		if had.Run >= h.Run {
			return true, false
		}
		s.Holders[h.Job.ID] = h
		return true, true
	}
	if len(s.Holders) < limit && (held || !s.Queued) {
		s.Holders[h.Job.ID] = h
		return true, true
	}
	if held || s.Queued {
		return false, false
	}
	s.Queued = true
	return false, true
}

// Free gives back the slots that h, or an earlier run of its job, holds of
// keys. Freeing what is not held does nothing.
func (s *Slots) Free(ctx context.Context, h limits.Holder, keys []string) error {
	var errs []error
	for _, k := range keys {
		err := s.change(ctx, k, func(st *State) bool {
			had, there := st.Holders[h.Job.ID]
			if !there || had.Run > h.Run {
				return false
			}
			delete(st.Holders, h.Job.ID)
			return true
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("free slot of %s: %w", k, err))
			continue
		}
		failpoint.Hit(failpoint.SlotAfterFree)
	}
	return errors.Join(errs...)
}

// Unqueue tells that no job waits for key in hold any more.
func (s *Slots) Unqueue(ctx context.Context, k string) error {
	err := s.change(ctx, k, func(st *State) bool {
		was := st.Queued
		st.Queued = false
		return was
	})
	if err != nil {
		return fmt.Errorf("open %s: %w", k, err)
	}
	return nil
}

// State reads who holds slots of key now.
func (s *Slots) State(ctx context.Context, name string) (State, error) {
	e, err := s.kv.Get(ctx, name)
	if errors.Is(err, bus.ErrNoMessage) {
		return State{}, nil
	}
	if err != nil {
		return State{}, err
	}
	return decode(e.Value)
}

// All reads every key that is not idle.
func (s *Slots) All(ctx context.Context) (map[string]State, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	entries, err := s.kv.Watch(ctx, ">")
	if err != nil {
		return nil, err
	}
	all := map[string]State{}
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case e, ok := <-entries:
			switch {
			case !ok:
				return nil, bus.ErrUnavailable
			case e.Key == "":
				return all, nil
			case e.Deleted:
				delete(all, e.Key)
				continue
			}
			st, err := decode(e.Value)
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", e.Key, err)
			}
			if st.empty() {
				delete(all, e.Key)
				continue
			}
			all[strings.Clone(e.Key)] = st
		}
	}
}

// change queues a wish and waits until it is carried out.
func (s *Slots) change(ctx context.Context, name string, apply func(*State) bool) error {
	c := &change{apply: apply, done: make(chan error, 1)}
	s.mu.Lock()
	k := s.keys[name]
	if k == nil {
		s.trim()
		k = &key{name: name}
		s.keys[name] = k
	}
	k.queue = append(k.queue, c)
	if !k.writing {
		k.writing = true
		s.work.Go(func() { s.write(context.WithoutCancel(ctx), k) })
	}
	s.mu.Unlock()
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return ctx.Err() // it may be made all the same
	}
}

// trim forgets states; s.mu is held.
func (s *Slots) trim() {
	if len(s.keys) < remembered {
		return
	}
	for name, k := range s.keys {
		if !k.writing {
			delete(s.keys, name)
		}
	}
}

// write carries out what is queued at k until nothing is.
func (s *Slots) write(ctx context.Context, k *key) {
	for {
		s.mu.Lock()
		batch := k.queue
		k.queue = nil
		if len(batch) == 0 {
			k.writing = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		err := s.commit(ctx, k, batch)
		for _, c := range batch {
			c.done <- err
		}
	}
}

// commit makes the changes of a batch in one write. The answers count only if
// they were worked out on what the server holds: a write proves that, and so
// does a read.
func (s *Slots) commit(ctx context.Context, k *key, batch []*change) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var last error
	for pause := time.Millisecond; ; pause = min(2*pause, time.Second) {
		fresh := !k.known
		if fresh {
			if last = s.read(ctx, k); last != nil {
				if !rest(ctx, pause) {
					return last
				}
				continue
			}
		}
		next, altered := k.state.clone(), false
		for _, c := range batch {
			altered = c.apply(&next) || altered
		}
		if !altered {
			if fresh {
				return nil
			}
			k.known = false
			continue
		}
		last = s.store(ctx, k, next)
		if last == nil {
			return nil
		}
		k.known = false
		if errors.Is(last, bus.ErrWrongSequence) || errors.Is(last, bus.ErrExists) {
			if ctx.Err() != nil {
				return last
			}
			continue // another process was faster
		}
		if !rest(ctx, pause) {
			return last
		}
	}
}

func rest(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

func (s *Slots) read(ctx context.Context, k *key) error {
	e, err := s.kv.Get(ctx, k.name)
	switch {
	case errors.Is(err, bus.ErrNoMessage):
		k.state, k.revision = State{}, 0
	case err != nil:
		return err
	default:
		if k.state, err = decode(e.Value); err != nil {
			return err
		}
		k.revision = e.Revision
	}
	k.known = true
	return nil
}

func (s *Slots) store(ctx context.Context, k *key, next State) (err error) {
	var revision uint64
	switch {
	case next.empty() && k.revision == 0:
		revision, err = s.kv.Create(ctx, k.name, next.encode(), idleTTL)
	case next.empty():
		revision, err = s.kv.Expire(ctx, k.name, next.encode(), k.revision, idleTTL)
	case k.revision == 0:
		revision, err = s.kv.Create(ctx, k.name, next.encode(), 0)
	default:
		revision, err = s.kv.Update(ctx, k.name, next.encode(), k.revision)
	}
	if err != nil {
		return err
	}
	k.state, k.revision = next, revision
	return nil
}
