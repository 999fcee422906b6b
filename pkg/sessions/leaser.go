package sessions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
)

// DefaultMaxWait is how long a request waits for a scheduler with room.
const DefaultMaxWait = 10 * time.Minute

const (
	// lookEvery is how often a waiting request asks for its place and reads
	// its record, in case the watcher missed something.
	lookEvery = 2 * time.Second
	// withdrawWithin bounds taking a request back; a scheduler would find out
	// by itself when its offer stays unconfirmed.
	withdrawWithin = 5 * time.Second
	// offers is how many offers one Lease may miss before it gives up.
	offers = 3
)

// LeaserConfig is what a Keeper is made of.
type LeaserConfig struct {
	Registry Registry
	Queue    Queue
	// Worker names this process in its leases; unique among workers.
	Worker string
	// MaxWait bounds the wait for a grant; DefaultMaxWait by default.
	MaxWait time.Duration
	Timing  Timing
	Log     zerolog.Logger
}

func (c LeaserConfig) validate() error {
	var faults []error
	if c.Registry == nil {
		faults = append(faults, errors.New("no registry"))
	}
	if c.Queue == nil {
		faults = append(faults, errors.New("no queue"))
	}
	if c.Worker == "" {
		faults = append(faults, errors.New("no name of the worker"))
	}
	return errors.Join(faults...)
}

// Keeper is the Leaser of one worker process: it asks for leases, confirms
// offers, renews what it holds and notices what it lost. One watcher of the
// registry serves all its leases; Run is that watcher.
type Keeper struct {
	cfg LeaserConfig

	mu    sync.Mutex // guards boxes
	boxes map[string]*box
}

var _ Leaser = (*Keeper)(nil)

// NewLeaser returns a Keeper; its Run must run while it is used.
func NewLeaser(cfg LeaserConfig) (*Keeper, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("leaser: %w", err)
	}
	cfg.MaxWait = cmp.Or(cfg.MaxWait, DefaultMaxWait)
	cfg.Timing = cfg.Timing.WithDefaults()
	return &Keeper{cfg: cfg, boxes: map[string]*box{}}, nil
}

// Run watches the registry until ctx ends, and returns nil. It watches again
// when the bus was away.
func (k *Keeper) Run(ctx context.Context) error {
	return Follow(ctx, k.cfg.Registry, k.cfg.Log, func(e Entry) {
		k.mu.Lock()
		b := k.boxes[e.Lease.ID]
		k.mu.Unlock()
		if b != nil {
			b.put(e)
		}
	}, nil)
}

// Lease asks for a sidecar; see Leaser. When ctx ends while the request waits,
// it is withdrawn.
func (k *Keeper) Lease(ctx context.Context, r Request) (Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, k.cfg.MaxWait,
		fmt.Errorf("%w: no scheduler had room within %s", ErrUnavailable, k.cfg.MaxWait))
	defer cancel()
	var err error
	for range offers {
		var s Session
		s, err = k.request(ctx, r)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errMissed) {
			break
		}
	}
	return nil, fmt.Errorf("lease %s session: %w", r.Spec.Image, err)
}

// errMissed: an offer was taken back before it could be confirmed.
var errMissed = fmt.Errorf("%w: offer missed", ErrUnavailable)

func (k *Keeper) request(ctx context.Context, r Request) (_ Session, err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	l := Lease{
		ID: id.String(), State: StateRequested, Spec: r.Spec, JobID: r.JobID, Attempt: r.Attempt,
		Fence: r.Fence, Worker: cmp.Or(r.Worker, k.cfg.Worker), Caller: r.Caller, CreatedAt: time.Now().UTC(),
	}
	b := k.open(l.ID)
	defer func() {
		if err != nil {
			k.close(l.ID)
		}
	}()
	// Even a creation that seems to have failed may have happened.
	defer func() {
		if err != nil {
			k.withdraw(context.WithoutCancel(ctx), l.ID)
		}
	}()
	revision, err := k.cfg.Registry.Create(ctx, l)
	if err != nil {
		return nil, unavailable(ctx, "record request", err)
	}
	if err := k.cfg.Queue.Offer(ctx, r.Spec.Image, l.ID); err != nil {
		return nil, unavailable(ctx, "queue request", err)
	}
	b.put(Entry{Lease: l, Revision: revision})
	granted, err := k.await(ctx, b, r)
	if err != nil {
		return nil, err
	}
	s := newHeld(k, b, granted)
	if err := s.agent.Renew(ctx); err != nil {
		return nil, unavailable(ctx, "reach sidecar", err)
	}
	s.work.Go(s.keep)
	return s, nil
}

// unavailable turns a fault of the bus or a sidecar into ErrUnavailable, and
// leaves the end of ctx what it is.
func unavailable(ctx context.Context, what string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, what, err)
}

// await follows the record until the lease is confirmed.
func (k *Keeper) await(ctx context.Context, b *box, r Request) (Entry, error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	position := -1
	offered := false
	tell := func(p int) {
		if p != position && r.Waiting != nil {
			r.Waiting(p)
		}
		position = p
	}
	for {
		e := b.last()
		switch e.Lease.State {
		case StateRequested:
			if p, err := k.cfg.Queue.Position(ctx, r.Spec.Image, b.id); err == nil {
				tell(p)
			}
		case StateOffered:
			offered = true
			confirmed, err := k.confirm(ctx, e)
			if err == nil {
				return confirmed, nil
			}
			k.cfg.Log.Debug().Err(err).Str("lease", b.id).Msg("offer not confirmed yet")
		case StateGone:
			if offered {
				return Entry{}, errMissed
			}
			return Entry{}, fmt.Errorf("%w: %s", ErrUnavailable, cmp.Or(e.Lease.Error, "request was dropped"))
		}
		select {
		case <-b.changed:
		case <-tick.C:
			k.look(ctx, b)
		case <-ctx.Done():
			return Entry{}, context.Cause(ctx)
		}
	}
}

// look reads the record itself.
func (k *Keeper) look(ctx context.Context, b *box) {
	e, err := k.cfg.Registry.Get(ctx, b.id)
	switch {
	case err == nil:
		b.put(e)
	case errors.Is(err, ErrNotFound):
		last := b.last()
		last.Lease.State = StateGone
		last.Revision++
		b.put(last)
	}
	// Any other error is the bus's: the next tick looks again.
}

// confirm takes an offer.
func (k *Keeper) confirm(ctx context.Context, e Entry) (Entry, error) {
	l := e.Lease
	l.State = StateLeased
	l.RenewedAt = time.Now().UTC()
	l.ExpiresAt = l.RenewedAt.Add(k.cfg.Timing.ExpireAfter)
	ctx, cancel := context.WithTimeout(ctx, k.cfg.Timing.ConfirmWithin)
	defer cancel()
	revision, err := k.cfg.Registry.Update(ctx, l, e.Revision)
	if err == nil {
		return Entry{Lease: l, Revision: revision}, nil
	}
	// The write may have happened although its answer was lost.
	now, gerr := k.cfg.Registry.Get(ctx, l.ID)
	if gerr == nil && now.Lease.State == StateLeased && now.Lease.Worker == l.Worker && now.Lease.Generation == l.Generation {
		return now, nil
	}
	return Entry{}, err
}

// withdraw takes a request back at whatever stage it is.
func (k *Keeper) withdraw(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, withdrawWithin)
	defer cancel()
	for {
		e, err := k.cfg.Registry.Get(ctx, id)
		if errors.Is(err, ErrNotFound) {
			return
		}
		if err != nil {
			break
		}
		l := e.Lease
		switch l.State {
		case StateGone, StateDraining:
			return
		case StateRequested:
			l.State, l.Error = StateGone, "withdrawn"
		default:
			l.State = StateDraining
		}
		_, err = k.cfg.Registry.Update(ctx, l, e.Revision)
		if err == nil {
			return
		}
		if !errors.Is(err, ErrConflict) {
			break
		}
	}
	k.cfg.Log.Warn().Str("lease", id).Msg("request could not be withdrawn, its offer will lapse")
}
