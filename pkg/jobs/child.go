package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Sight is what a follower of one job sees: its record at a move of its
// lifecycle, or its progress.
type Sight struct {
	Job      *Job
	Progress *Progress
}

// Follower follows single jobs closely. Messages may be lost: who waits for
// the end reads as well.
type Follower interface {
	// Follow calls fn, which must be quick, for what comes after the call.
	Follow(k Key, fn func(Sight)) (stop func(), err error)
}

// ChildCall is a call of a pack by a pack that runs.
type ChildCall struct {
	packs.Call
	// Left is what the parent has left of its time, 0 for no bound.
	Left        time.Duration
	TraceParent string
}

// Child is a call on its way to a job. The id of that job follows from the
// parent and the call, so that a later run of the parent, or the same one
// whose answer was lost, meets the job that is there.
type Child struct {
	s      *Service
	parent Job
	call   ChildCall
	sub    Submission
	sum    [sha256.Size]byte
}

// PlanChild checks a call of the pack that runs as parent, whose record is
// that of its claim. Errors are *packs.Error.
func (s *Service) PlanChild(parent Job, c ChildCall) (*Child, error) {
	depth := parent.Depth() + 1
	if depth > MaxDepth {
		return nil, packs.Fatal(packs.Errorf(packs.HandlerFailed,
			"calls of packs nest at most %d deep, and %s would be one deeper; look for packs that call each other in a circle", MaxDepth, c.Pack))
	}
	timeout := c.Timeout
	if c.Key == "" && c.Left > 0 {
		pack, err := s.cfg.Packs.Get(c.Pack, c.Version)
		if err != nil {
			return nil, asError(err)
		}
		if timeout <= 0 {
			timeout = pack.Info().Timeout
		}
		timeout = min(timeout, c.Left)
	}
	r := Request{
		Pack: c.Pack, Version: c.Version, Input: c.Input, MaxAttempts: c.MaxAttempts, Priority: parent.Priority,
		ParentID: parent.ID, TraceParent: c.TraceParent, IdempotencyKey: c.Key,
	}
	if timeout > 0 { // rounded down, so that the child's time does not exceed the parent's
		r.TimeoutS = max(int(timeout/time.Second), 1)
	}
	sub, err := s.prepare(parent.Caller, r)
	if err != nil {
		return nil, err
	}
	held := c.Held || parent.Call != nil && parent.Call.Held
	sub.Job.Call = &Called{Depth: depth, Run: parent.Runs, Attempt: parent.Attempt, Shared: c.Key != "", Held: held}
	child := &Child{s: s, parent: parent, call: c, sub: sub}
	h := sha256.New()
	for _, part := range []string{"child", parent.ID, sub.Job.Pack, sub.Job.Version, string(sub.Input)} {
		addPart(h, part)
	}
	h.Sum(child.sum[:0])
	return child, nil
}

// addPart adds a part with its length, which keeps ("a","bc") and ("ab","c") apart.
func addPart(h hash.Hash, s string) { fmt.Fprintf(h, "%d:%s", len(s), s) }

// Sum tells calls of one parent apart: equal ones have the same sum.
func (c *Child) Sum() [sha256.Size]byte { return c.sum }

// Shared reports whether the child may have other parents.
func (c *Child) Shared() bool { return c.call.Key != "" }

// Result runs the child, or finds it, and returns its record once it has
// ended. nth counts the equal calls the run made before this one. see hears of
// the child meanwhile, and of nothing every few seconds as a sign of life.
//
// A child of an earlier run of the parent is taken as it is when it succeeded
// or is under way. One that failed is made anew when that may help: the parent
// is at another attempt, or the code of the failure says so; never when an
// effect that must not repeat has begun.
//
// When ctx ends first the job names the child as far as it is known and the
// error wraps the cause.
func (c *Child) Result(ctx context.Context, nth int, see func(Sight)) (Job, error) {
	for try := 0; ; try++ {
		job, err := c.result(ctx, nth, try, see)
		if err != nil || job.State == Succeeded || !c.again(job) || try+1 >= c.parent.Runs {
			return job, err
		}
	}
}

func (c *Child) again(job Job) bool {
	if c.Shared() || job.EffectBegun || job.Call == nil || job.Call.Run >= c.parent.Runs {
		return false
	}
	return job.Call.Attempt < c.parent.Attempt || job.State == Cancelled || job.Error != nil && job.Error.Code.Retryable()
}

func (c *Child) result(ctx context.Context, nth, try int, see func(Sight)) (Job, error) {
	sub := c.sub
	if c.Shared() {
		id, err := c.reserve(ctx)
		if err != nil {
			return Job{}, err
		}
		sub.Job.ID = id
	} else {
		sub.Job.ID = c.id(nth, try)
	}
	k := sub.Job.Key()
	ended := make(chan Job, 1)
	stop, err := c.s.cfg.Follow.Follow(k, func(s Sight) {
		see(s)
		if s.Job != nil && s.Job.State.Terminal() {
			select {
			case ended <- *s.Job:
			default:
			}
		}
	})
	if err != nil {
		return sub.Job, submitError(err)
	}
	defer stop()
	job, err := c.start(ctx, sub, c.Shared() || c.parent.Runs > 1)
	if err != nil {
		return sub.Job, err
	}
	return c.await(ctx, job, ended, see)
}

// id derives the id of the job: the time of the parent's, and a digest.
func (c *Child) id(nth, try int) string {
	sum := sha256.Sum256(fmt.Appendf(c.sum[:len(c.sum):len(c.sum)], "%d:%d", nth, try))
	var id uuid.UUID
	copy(id[:], sum[:])
	if parent, err := uuid.Parse(c.parent.ID); err == nil {
		copy(id[:6], parent[:6]) // milliseconds of a UUID version 7 (RFC 9562)
	}
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return id.String()
}

// reserve returns the job of a shared call.
func (c *Child) reserve(ctx context.Context) (string, error) {
	h := sha256.New()
	addPart(h, c.sub.Job.Pack)
	addPart(h, c.sub.Job.Version)
	addPart(h, string(c.sub.Input))
	want := Reservation{JobID: c.sub.Job.ID, InputHash: hex.EncodeToString(h.Sum(nil)), CreatedAt: c.sub.Job.CreatedAt}
	var held Reservation
	err := c.insist(ctx, func() (err error) {
		held, _, err = c.s.cfg.Keys.Reserve(ctx, c.s.keyHash(c.parent.Caller, derived("call", c.call.Key)), want)
		return submitError(err)
	})
	if err != nil {
		return "", err
	}
	if held.InputHash != want.InputHash {
		return "", packs.Fatal(packs.Errorf(packs.IdempotencyConflict,
			"another call of %s, or with another input, used the key of this child before; use another key", c.sub.Job.Pack))
	}
	return held.JobID, nil
}

// start finds the job if look is set, else puts it into its queue. To put one
// there twice does no harm: the queue holds a job once, and a worker that
// meets one that has ended takes it out.
func (c *Child) start(ctx context.Context, sub Submission, look bool) (job Job, err error) {
	err = c.insist(ctx, func() error {
		if look {
			rec, err := c.s.cfg.Ledger.Last(ctx, sub.Job.Key(), true)
			if err == nil {
				job = rec.Job
				return nil
			}
			if !errors.Is(err, ErrNotFound) {
				return submitError(err)
			}
		}
		look = true // what seemed to fail may have happened
		job, err = c.s.enqueue(ctx, sub)
		return err
	})
	return job, err
}

// insist repeats do while the bus is away or the queue full, until ctx ends.
func (c *Child) insist(ctx context.Context, do func() error) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := do()
		var pe *packs.Error
		if err == nil || ctx.Err() == nil && errors.As(err, &pe) && !pe.Code.Automatic() {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("call %s: %w", c.sub.Job.Pack, context.Cause(ctx))
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// await waits for the end of the child. The ledger alone is read: a job that
// has no event yet waits in a queue.
func (c *Child) await(ctx context.Context, job Job, ended <-chan Job, see func(Sight)) (Job, error) {
	timer := time.NewTimer(rereads[0])
	defer timer.Stop()
	for n := 1; !job.State.Terminal(); n++ {
		select {
		case job = <-ended:
			continue
		case <-ctx.Done():
			return job, fmt.Errorf("wait for child job %s: %w", job.ID, context.Cause(ctx))
		case <-timer.C:
		}
		see(Sight{})
		timer.Reset(rereads[min(n, len(rereads)-1)])
		// Not being able to read is no reason to stop waiting.
		if rec, err := c.s.cfg.Ledger.Last(ctx, job.Key(), false); err == nil {
			job = rec.Job
			see(Sight{Job: &rec.Job})
		}
	}
	return c.s.complete(ctx, job)
}

// CancelOrphan cancels a called job whose parent has ended or is being
// cancelled, unless the job is shared. It reports whether there was something
// to do. To wait for the end of a parent that is being cancelled would not do:
// when its worker is lost, its children may sit in the only slot in which
// another one could end it.
func (s *Service) CancelOrphan(ctx context.Context, k Key) (bool, error) {
	job, err := s.read(ctx, k)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if job.State.Terminal() || job.CancelRequested || job.Call == nil || job.Call.Shared {
		return false, nil
	}
	parent, err := s.cfg.Ledger.Last(ctx, Key{Tenant: k.Tenant, Owner: k.Owner, ID: job.ParentID}, true)
	switch {
	case errors.Is(err, ErrNotFound): // it had events, and they are gone
	case err != nil:
		return false, err
	case !parent.Job.State.Terminal() && !parent.Job.CancelRequested:
		return false, nil
	}
	_, err = s.Cancel(ctx, job.Caller, job.ID)
	return err == nil, err
}
