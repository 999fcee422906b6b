// Package hold releases the jobs that were put aside because a limit had no
// room for them: when a slot is freed it is taken for the job whose turn it is
// before that job goes back into its queue, so nobody overtakes it.
//
// Every API replica runs a Keeper; what two of them do at once is done once.
// Each step may be the last of its process: a job leaves hold only after its
// copy is in the queue again, and a pass over everything finds what was left
// half-way.
package hold

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/bus/limitstore"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// Config is what a Keeper is built from.
type Config struct {
	Store  *jobstore.Store
	Slots  *limitstore.Slots
	Limits *limits.Source
	Core   bus.Core
	// Hub tells of jobs that went back into their queues; may be nil.
	Hub *jobfeed.Hub
	// Every is the time between two passes over everything; default 30 s.
	Every time.Duration
	Log   zerolog.Logger
}

// Keeper frees slots and releases held jobs.
type Keeper struct {
	cfg   Config
	model *model

	wake chan struct{}
	work chan struct{} // one token a key being looked at

	mu    sync.Mutex // guards the fields below
	dirty map[string]bool
	busy  map[string]bool
	due   map[string]time.Time // keys to look at again
}

// atOnce bounds the keys looked at at once.
const atOnce = 16

// New returns a Keeper. Run makes it work.
func New(c Config) *Keeper {
	if c.Every == 0 {
		c.Every = 30 * time.Second
	}
	k := &Keeper{
		cfg: c, model: newModel(), wake: make(chan struct{}, 1), work: make(chan struct{}, atOnce),
		dirty: map[string]bool{}, busy: map[string]bool{}, due: map[string]time.Time{},
	}
	if c.Hub != nil {
		c.Hub.Tap(func(m jobfeed.Message) {
			if m.Kind == events.KindQueued {
				k.model.queued(m.JobID)
			}
		})
	}
	if c.Limits != nil {
		c.Limits.OnChange(func() { k.kick(k.model.finish()...) })
	}
	return k
}

// Run releases until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	stop, err := jobstore.WatchHeld(k.cfg.Core, func(h jobstore.Held) { k.kick(k.model.add(h)...) })
	if err != nil {
		return fmt.Errorf("watch held jobs: %w", err)
	}
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { k.passes(ctx) })
	later := time.NewTicker(lookAgain)
	defer later.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		case <-later.C:
			k.recall()
		}
		for _, key := range k.take() {
			select {
			case k.work <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			all.Go(func() {
				defer func() { <-k.work }()
				k.release(ctx, key)
				k.done(key)
			})
		}
	}
}

// lookAgain is how soon a job that could not be put back yet is tried again:
// its old message is about to be acknowledged.
const lookAgain = 50 * time.Millisecond

// kick has keys looked at.
func (k *Keeper) kick(keys ...string) {
	if len(keys) == 0 {
		return
	}
	k.mu.Lock()
	for _, key := range keys {
		k.dirty[key] = true
	}
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// recall kicks the keys that are due again.
func (k *Keeper) recall() {
	now := time.Now()
	var keys []string
	k.mu.Lock()
	for key, at := range k.due {
		if now.After(at) {
			delete(k.due, key)
			keys = append(keys, key)
		}
	}
	k.mu.Unlock()
	k.kick(keys...)
}

func (k *Keeper) again(key string, after time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.due[key] = time.Now().Add(after)
}

// take returns the dirty keys nobody looks at, and marks them as busy.
func (k *Keeper) take() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var keys []string
	for key := range k.dirty {
		if !k.busy[key] {
			delete(k.dirty, key)
			k.busy[key] = true
			keys = append(keys, key)
		}
	}
	return keys
}

func (k *Keeper) done(key string) {
	k.mu.Lock()
	delete(k.busy, key)
	again := k.dirty[key]
	k.mu.Unlock()
	if again {
		k.kick(key)
	}
}

// Ended frees the slots of a run that is over and looks who is next: what
// follows from a terminal or retrying event. An error means that it is to be
// called again.
func (k *Keeper) Ended(ctx context.Context, job jobs.Job) error {
	keys := job.LimitKeys
	if job.State == jobs.Cancelled && len(keys) == 0 {
		// It may have been about to run.
		keys = limits.Keys(k.cfg.Limits.Policy().Slots(&job))
	}
	if len(keys) == 0 {
		return nil
	}
	h := limits.Holder{Job: job.Key(), Run: job.Runs}
	if job.State.Terminal() {
		h.Run = anyRun
	}
	if err := k.cfg.Slots.Free(ctx, h, keys); err != nil {
		return err
	}
	k.kick(keys...)
	return nil
}

// anyRun is later than every run.
const anyRun = int(^uint(0) >> 1)

// outcome of a try to release a job.
type outcome int

const (
	released outcome = iota // it is in its queue, or needs to be nowhere
	full                    // the key has no room
	other                   // another of its keys has none
	later                   // it cannot be put back yet
	failed                  // the bus is away
)

// maxBatch bounds the jobs released for one key at once.
const maxBatch = 32

// release gives the free slots of key to those whose turn it is.
func (k *Keeper) release(ctx context.Context, key string) {
	limit := 0 // as of the last job tried
	for ctx.Err() == nil {
		st, err := k.cfg.Slots.State(ctx, key)
		if err != nil {
			k.cfg.Log.Debug().Err(err).Str("key", key).Msg("limit not read, trying again")
			k.again(key, time.Second)
			return
		}
		if !k.model.waits(key) {
			if st.Queued {
				if err := k.cfg.Slots.Unqueue(ctx, key); err != nil {
					k.again(key, time.Second)
				} else if k.model.waits(key) { // came in between
					continue
				}
			}
			return
		}
		if limit > 0 && len(st.Holders) >= limit {
			return
		}
		policy := k.cfg.Limits.Policy()
		first := k.model.pick(key, 1, policy)
		if len(first) == 0 {
			return
		}
		var out outcome
		out, limit = k.try(ctx, first[0], key)
		if out == full || out == failed {
			return
		}
		room := limit - len(st.Holders) - 1
		rest := k.model.pick(key, min(max(room, 0), maxBatch), policy)
		var batch sync.WaitGroup
		for _, e := range rest {
			batch.Go(func() { k.try(ctx, e, key) })
		}
		batch.Wait()
	}
}

// try releases one job that is in hand, and returns how many slots its key
// has for it.
func (k *Keeper) try(ctx context.Context, e *entry, key string) (outcome, int) {
	out, limit, blocked, err := k.put(ctx, e, key)
	switch {
	case err != nil:
		k.cfg.Log.Warn().Err(err).Str("job", e.Job.ID).Msg("held job not released, trying again")
		out = failed
		k.model.putBack(e, func(e *entry) { e.notBefore = time.Now().Add(time.Second) })
		k.again(key, time.Second)
	case out == released:
		k.model.drop(e)
	case out == later:
		k.model.putBack(e, func(e *entry) { e.notBefore = time.Now().Add(lookAgain) })
		k.again(key, lookAgain)
	default:
		k.model.putBack(e, func(e *entry) {
			e.blocked = blocked
			if out == other {
				e.passed++
			}
		})
	}
	return out, limit
}

// put takes the slots of a held job and puts it back into its queue.
func (k *Keeper) put(ctx context.Context, e *entry, key string) (out outcome, limit int, blocked string, err error) {
	sub, seq, err := k.cfg.Store.HeldCopy(ctx, e.Held)
	if errors.Is(err, jobs.ErrNotFound) {
		return released, maxBatch, "", nil // another replica did it, or it was cancelled
	}
	if err != nil {
		return failed, 0, "", err
	}
	run, over, err := k.nextRun(ctx, sub.Job)
	if err != nil {
		return failed, 0, "", err
	}
	if over {
		return released, maxBatch, "", k.cfg.Store.Unhold(ctx, e.Held, seq)
	}
	want := k.cfg.Limits.Policy().Slots(&sub.Job)
	limit = limitOf(want, key)
	h := limits.Holder{Job: sub.Job.Key(), Run: run}
	fullKey, err := k.slots(ctx, e, h, want)
	switch {
	case err != nil:
		return failed, limit, "", err
	case fullKey == key:
		return full, limit, "", nil
	case fullKey != "":
		return other, limit, fullKey, nil
	}
	failpoint.Hit(failpoint.ReleaseAfterTake)
	sub.Job.LimitKeys, sub.Encoded = limits.Keys(want), nil
	err = k.cfg.Store.Requeue(ctx, sub)
	if errors.Is(err, jobs.ErrQueued) {
		// The copy that is there may be the old one, not yet acknowledged. To
		// drop this one now could drop the last. The slots stay taken: the old
		// one may be started as well, by the same right.
		return later, limit, "", nil
	}
	if err != nil {
		return failed, limit, "", err
	}
	failpoint.Hit(failpoint.ReleaseAfterQueue)
	if err := k.cfg.Store.Unhold(ctx, e.Held, seq); err != nil {
		return failed, limit, "", err
	}
	failpoint.Hit(failpoint.ReleaseAfterPurge)
	return released, limit, "", nil
}

// passedOver is how often a job that needs slots of several keys is passed
// over before it keeps what it can get: it would otherwise wait for ever
// behind jobs that need one of them each. All keep slots in the same order of
// keys, so two never wait for each other.
const passedOver = 8

func (k *Keeper) slots(ctx context.Context, e *entry, h limits.Holder, want []limits.Slot) (fullKey string, err error) {
	if e.passed < passedOver {
		return k.cfg.Slots.Take(ctx, h, want, true)
	}
	for _, w := range want {
		if fullKey, err = k.cfg.Slots.Take(ctx, h, []limits.Slot{w}, true); fullKey != "" || err != nil {
			return fullKey, err
		}
	}
	return "", nil
}

func limitOf(want []limits.Slot, key string) int {
	for _, w := range want {
		if w.Key == key {
			return w.Limit
		}
	}
	return maxBatch // the limit is gone
}

// nextRun is the run a held copy would be, unless the job has ended or was
// started again after the copy was made.
func (k *Keeper) nextRun(ctx context.Context, job jobs.Job) (run int, over bool, err error) {
	rec, err := k.cfg.Store.Last(ctx, job.Key(), true)
	switch {
	case errors.Is(err, jobs.ErrNotFound):
		return job.Runs + 1, false, nil
	case err != nil:
		return 0, false, err
	}
	return rec.Job.Runs + 1, rec.Job.State.Terminal() || rec.Job.Runs > job.Runs, nil
}
