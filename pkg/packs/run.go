package packs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// Run is what a handler works with: the identity of the attempt and what the
// pack declared it needs. Asking for more than was declared is a mistake of
// the programmer and panics. A Run is safe for concurrent use and of no use
// once the handler has returned.
type Run struct {
	// JobID names the job; an EffectKeyed pack sends it upstream as the
	// idempotency key.
	JobID   string
	Attempt int
	// Fence is the fencing token of the claim.
	Fence  uint64
	Caller identity.Caller

	info     Info
	worker   string
	services Services
	cancel   context.CancelCauseFunc // of the handler's context
	// trusted: the input is what Validate of this pack returned.
	trusted bool

	done     chan struct{}  // closed when the run is over
	watchers sync.WaitGroup // of the session; they end with done
	leasing  sync.Mutex     // held while the one session is leased
	mu       sync.Mutex     // guards the fields below
	session  sessions.Session
	saved    []artifacts.Ref
	closed   bool
}

// misuse is the panic of a pack that asks for what it did not declare.
type misuse string

func (r *Run) must(declared bool, need string) {
	if !declared {
		panic(misuse(fmt.Sprintf("pack %s uses %s without declaring it", r.info.Name, need)))
	}
}

// Progress tells followers how far the job is, 0 to 100, and what it does.
// It may be called at any rate.
func (r *Run) Progress(percent float64, message string) {
	if math.IsNaN(percent) {
		percent = 0
	}
	if r.services.Progress != nil && !r.isClosed() {
		r.services.Progress(min(max(percent, 0), 100), message)
	}
}

// Log shows followers one line. It must not hold a secret.
func (r *Run) Log(line string) {
	if r.services.Log != nil && !r.isClosed() {
		r.services.Log(line)
	}
}

// Session leases the declared sidecar at the first call, which may wait for
// room, and returns the same session at every later one. The engine closes
// it. The handler's context ends when the session is lost.
func (r *Run) Session(ctx context.Context) (sessions.Session, error) {
	r.must(r.info.Needs.Session != nil, "Needs.Session")
	r.leasing.Lock()
	defer r.leasing.Unlock()
	if s := r.leased(); s != nil {
		return s, nil
	}
	if r.services.Leaser == nil {
		return nil, Errorf(SessionUnavailable, "no scheduler is configured on this worker")
	}
	s, err := r.services.Leaser.Lease(ctx, sessions.Request{
		Spec: *r.info.Needs.Session, JobID: r.JobID, Attempt: r.Attempt, Fence: r.Fence,
		Worker: r.worker, Caller: r.Caller,
		Waiting: func(position int) {
			r.Progress(0, fmt.Sprintf("waiting for a session, place %d in the queue", position))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("lease %s session: %w", r.info.Needs.Session.Image, err)
	}
	s = &liveSession{s, r.alive}
	if !r.keep(s) {
		return nil, errors.Join(errRunOver, s.Close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// keep takes s as the session of the run and watches over it, unless the run
// is over.
func (r *Run) keep(s sessions.Session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session = s
	if r.closed {
		return false
	}
	r.watchers.Go(func() {
		select {
		case <-s.Lost():
			r.cancel(sessions.ErrLost)
		case <-r.done:
		}
	})
	return true
}

// errRunOver answers a handler's goroutine that outlived its handler.
var errRunOver = errors.New("the run is over")

func (r *Run) leased() sessions.Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session
}

func (r *Run) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed
}

// close ends the use of r: nothing is reported, saved or leased any more.
func (r *Run) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		close(r.done)
	}
}

// HTTP is the client behind the egress guard. Set a deadline by context; its
// redirects are guarded too. An error it returns may go out as it is: the
// engine knows a refusal.
func (r *Run) HTTP() *http.Client {
	r.must(r.info.Needs.Egress, "Needs.Egress")
	if r.services.HTTP == nil {
		panic(misuse("this worker has no guarded HTTP client"))
	}
	return liveClient(r.services.HTTP, r.alive)
}

// UserAgent names the product and its version, for requests whose caller
// names no program.
func (r *Run) UserAgent() string { return cmp.Or(r.services.UserAgent, "helmdeck/devel") }

// CheckURL judges a URL the caller chose before anything is begun. A refusal
// is invalid_input. The verdict counts for now only: HTTP judges again when
// it dials.
func (r *Run) CheckURL(ctx context.Context, url string) error {
	r.must(r.info.Needs.Egress, "Needs.Egress")
	if r.services.CheckURL == nil {
		panic(misuse("this worker has no egress guard"))
	}
	err := r.services.CheckURL(ctx, url)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if _, typed := errors.AsType[*Error](err); typed {
		return err
	}
	return egressDenied(err)
}

// Scratch returns a folder of the run's own, made at the first call and
// removed after the run.
func (r *Run) Scratch() (string, error) { return r.services.Scratch() }

// Begin marks that the effect of an EffectOnce pack starts now. When an
// earlier attempt has begun already, it fails with outcome_unknown, which the
// handler returns.
func (r *Run) Begin(ctx context.Context) error {
	r.must(r.info.Effect == EffectOnce, "EffectOnce")
	if r.services.Begin == nil {
		panic(misuse("this worker cannot mark effects"))
	}
	if err := r.services.Begin(ctx); err != nil {
		return fmt.Errorf("mark the effect of job %s as begun: %w", r.JobID, err)
	}
	return nil
}
