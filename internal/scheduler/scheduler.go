// Package scheduler grants leases on one host: it takes requests when it has a
// free slot, starts sidecars, offers them, and stops them when they are given
// back, not confirmed or no longer renewed. After a restart it adopts the
// sidecars that are still leased.
//
// How sidecars run is the Runtime's business, where requests and records live
// the Registry's and the Queue's. The rules are in docs/sessions.md.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

const (
	// startWithin bounds the start of a sidecar.
	startWithin = time.Minute
	// busWithin bounds one read or write of a record.
	busWithin = 5 * time.Second
	// stopWithin bounds the end of a sidecar, grace included.
	stopWithin = 30 * time.Second
	// abandoned is how long a request may wait unmoved before it counts as
	// forgotten: twice what a Leaser waits.
	abandoned = 2 * sessions.DefaultMaxWait
)

// Proxy opens the egress proxy of one lease: its URL for the sidecar, and what
// closes it.
type Proxy func(l sessions.Lease) (proxyURL string, release func(), err error)

// Config is what a Scheduler is made of.
type Config struct {
	Registry sessions.Registry
	Queue    sessions.Queue
	Runtime  sessions.Runtime
	// Slots is how many sidecars run at a time; by default twice the number
	// of processors.
	Slots int
	// Host names this scheduler in leases: the same after a restart, unique
	// among schedulers.
	Host string
	// Proxy may be nil: sidecars then connect directly.
	Proxy Proxy
	// StopSidecars ends all sidecars on a clean stop instead of leaving the
	// leased ones for adoption.
	StopSidecars bool
	// Observe is told of leases that were granted, adopted or ended here. It
	// must be quick and call nothing of the scheduler; may be nil.
	Observe func(sessions.Lease, LeaseEvent)
	Timing  sessions.Timing
	Log     zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.Slots == 0 {
		c.Slots = 2 * runtime.NumCPU()
	}
	if c.Proxy == nil {
		c.Proxy = func(sessions.Lease) (string, func(), error) { return "", func() {}, nil }
	}
	c.Timing = c.Timing.WithDefaults()
	return c
}

func (c Config) validate() error {
	var faults []error
	if c.Registry == nil || c.Queue == nil || c.Runtime == nil {
		faults = append(faults, errors.New("registry, queue and runtime are needed"))
	}
	if c.Host == "" {
		faults = append(faults, errors.New("no name of the host"))
	}
	if c.Slots < 0 {
		faults = append(faults, errors.New("slots must not be negative"))
	}
	return errors.Join(faults...)
}

// LeaseEvent is what became of a lease.
type LeaseEvent string

// The events of a lease.
const (
	Granted  LeaseEvent = "granted"  // its worker took it
	Adopted  LeaseEvent = "adopted"  // a restarted scheduler found it in use
	Released LeaseEvent = "released" // its worker gave it back
	Lost     LeaseEvent = "lost"     // it ended otherwise; Lease.Error says why
)

// Scheduler grants the leases of one host.
type Scheduler struct {
	cfg    Config
	images []string
	work   sync.WaitGroup // goroutines of single leases

	mu      sync.Mutex // guards the rest
	records map[string]*record
	hosted  map[string]*hosted
	freed   chan struct{}        // closed and replaced when a slot gets free
	wake    chan struct{}        // holds one token: something is to be swept
	synced  chan struct{}        // closed when the present records are known
	once    sync.Once            // closes synced
	offers  map[string]time.Time // when an offer was made, by lease

	strays map[string]bool // sidecars without a lease at the last sweep; the sweep's own
}

// record is a lease as the watch shows it. movedAt is when this process saw
// its revision move: never a time another machine wrote.
type record struct {
	sessions.Entry
	movedAt time.Time
}

// hosted is a lease that takes a slot here.
type hosted struct {
	release  func()    // of its proxy
	readyAt  time.Time // when its sidecar was there; zero while it starts
	stopping bool
}

// New returns a Scheduler; Run is its life.
func New(cfg Config) (*Scheduler, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	return &Scheduler{
		cfg: cfg, records: map[string]*record{}, hosted: map[string]*hosted{}, strays: map[string]bool{},
		freed: make(chan struct{}), wake: make(chan struct{}, 1), synced: make(chan struct{}),
		offers: map[string]time.Time{},
	}, nil
}

// Run grants leases until ctx ends and returns nil after a clean stop. Nothing
// is stopped because the bus cannot be reached.
func (s *Scheduler) Run(ctx context.Context) error {
	images, err := s.cfg.Runtime.Images(ctx)
	if err != nil {
		return fmt.Errorf("find images: %w", err)
	}
	s.images = images
	s.cfg.Log.Info().Str("host", s.cfg.Host).Strs("images", images).Int("slots", s.cfg.Slots).Msg("scheduler starts")
	var loops sync.WaitGroup
	loops.Go(func() {
		_ = sessions.Follow(ctx, s.cfg.Registry, s.cfg.Log, s.note, func() { s.once.Do(func() { close(s.synced) }) })
	})
	select {
	case <-s.synced:
		s.adopt(ctx)
		loops.Go(func() { s.take(ctx) })
		loops.Go(func() { s.sweepLoop(ctx) })
		loops.Go(func() { s.feedLoop(ctx) })
	case <-ctx.Done():
	}
	loops.Wait()
	s.work.Wait()
	s.leave(context.WithoutCancel(ctx))
	return nil
}

// note keeps what the watch shows and wakes the sweep for a lease that was
// given back.
func (s *Scheduler) note(e sessions.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[e.Lease.ID]
	if r != nil && e.Revision <= r.Revision {
		return
	}
	s.tell(r, e)
	switch {
	case e.Deleted:
		delete(s.records, e.Lease.ID)
		return // a sidecar it may have here is found by the sweep
	case r == nil:
		s.records[e.Lease.ID] = &record{Entry: e, movedAt: time.Now()}
	default:
		r.Entry, r.movedAt = e, time.Now()
	}
	if e.Lease.Host == s.cfg.Host && (e.Lease.State == sessions.StateDraining || e.Lease.State == sessions.StateGone) {
		s.wakeUp()
	}
}

// tell tells the observer of what changed of a lease of this host. What the
// first look at the registry finds is adopted, not granted.
func (s *Scheduler) tell(before *record, e sessions.Entry) {
	if s.cfg.Observe == nil {
		return
	}
	leased := before != nil && before.Lease.State == sessions.StateLeased
	known := before != nil
	select {
	case <-s.synced:
		known = true
	default:
	}
	switch {
	case leased && before.Lease.Host == s.cfg.Host && (e.Deleted || e.Lease.State != sessions.StateLeased):
		l, event := before.Lease, Released
		if !e.Deleted && e.Lease.State == sessions.StateGone {
			l.Error, event = e.Lease.Error, Lost
		}
		s.cfg.Observe(l, event)
	case !e.Deleted && known && !leased && e.Lease.State == sessions.StateLeased && e.Lease.Host == s.cfg.Host:
		s.cfg.Observe(e.Lease, Granted)
	}
}

func (s *Scheduler) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// reserve takes a slot for a lease that is not known yet; it waits for one.
func (s *Scheduler) reserve(ctx context.Context, key string) error {
	for {
		s.mu.Lock()
		if len(s.hosted) < s.cfg.Slots {
			s.hosted[key] = &hosted{release: func() {}}
			s.mu.Unlock()
			return nil
		}
		wait := s.freed
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// free gives a slot and the proxy behind it back.
func (s *Scheduler) free(key string) {
	s.mu.Lock()
	h := s.hosted[key]
	delete(s.hosted, key)
	delete(s.offers, key)
	close(s.freed)
	s.freed = make(chan struct{})
	s.mu.Unlock()
	if h != nil {
		h.release()
	}
}

// feedLoop keeps the agents of leases alive that no worker holds. It never
// feeds a leased one: that would hide a dead worker.
func (s *Scheduler) feedLoop(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Timing.RenewEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, l := range s.idle() {
			if err := sessions.NewAgent(l.Endpoint, l.Token, l.Generation).Renew(ctx); err != nil && ctx.Err() == nil {
				s.cfg.Log.Debug().Err(err).Str("lease", l.ID).Msg("agent did not take a renewal")
			}
		}
	}
}

func (s *Scheduler) idle() []sessions.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var idle []sessions.Lease
	for id := range s.hosted {
		if r := s.records[id]; r != nil && r.Lease.State == sessions.StateOffered {
			idle = append(idle, r.Lease)
		}
	}
	return idle
}

func (s *Scheduler) stop(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, stopWithin)
	defer cancel()
	return s.cfg.Runtime.Stop(ctx, id)
}

// Load returns how many sidecars are up here, and how many may be at once.
func (s *Scheduler) Load() (sidecars, slots int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.hosted {
		if !h.readyAt.IsZero() {
			sidecars++
		}
	}
	return sidecars, s.cfg.Slots
}
