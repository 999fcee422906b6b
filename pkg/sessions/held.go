package sessions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// lapses is how many renewals in a row an agent may fail to answer before the
// sidecar counts as ended.
const lapses = 2

// held is a leased session.
type held struct {
	keeper *Keeper
	box    *box
	agent  *Agent
	lost   chan struct{} // closed by lose
	lose   func()
	done   chan struct{} // closed by Close
	work   sync.WaitGroup
	once   sync.Once

	mu    sync.Mutex // guards entry
	entry Entry      // as last written or read
}

func newHeld(k *Keeper, b *box, e Entry) *held {
	s := &held{
		keeper: k, box: b, entry: e, lost: make(chan struct{}), done: make(chan struct{}),
		agent: NewAgent(e.Lease.Endpoint, e.Lease.Token, e.Lease.Generation),
	}
	s.lose = sync.OnceFunc(func() {
		k.cfg.Log.Warn().Str("lease", e.Lease.ID).Str("job", e.Lease.JobID).Msg("session lost")
		close(s.lost)
	})
	return s
}

func (s *held) ID() string            { return s.box.id }
func (s *held) Lost() <-chan struct{} { return s.lost }

// keep renews until the session is closed or lost.
func (s *held) keep() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var stop sync.WaitGroup
	defer stop.Wait()
	stop.Go(func() {
		select {
		case <-s.done:
			cancel()
		case <-ctx.Done():
		}
	})
	defer cancel()
	tick := time.NewTicker(s.keeper.cfg.Timing.RenewEvery)
	defer tick.Stop()
	silent := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.box.changed:
			if s.taken(s.box.last()) {
				s.lose()
				return
			}
		case <-tick.C:
			if silent = s.feed(ctx, silent); silent >= lapses || s.renew(ctx) {
				if ctx.Err() == nil {
					s.lose()
				}
				return
			}
		}
	}
}

// feed renews at the agent itself; it returns how often in a row a sidecar
// that is gone did not answer.
func (s *held) feed(ctx context.Context, silent int) int {
	err := s.agent.Renew(ctx)
	if err == nil || ctx.Err() != nil {
		return 0
	}
	s.keeper.cfg.Log.Warn().Err(err).Str("lease", s.box.id).Msg("agent did not take a renewal")
	if errors.Is(err, ErrLost) {
		return silent + 1
	}
	return silent // slow is not gone
}

// taken reports whether e shows the lease in other hands.
func (s *held) taken(e Entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.entry.Lease
	if e.Revision <= s.entry.Revision {
		return false // older than what this process wrote
	}
	return e.Lease.State != StateLeased || e.Lease.Worker != mine.Worker || e.Lease.Generation != mine.Generation
}

// renew moves the record's revision and reports whether the lease is lost. A
// renewal that fails is none: only a record in other hands is.
func (s *held) renew(ctx context.Context) (lost bool) {
	ctx, cancel := context.WithTimeout(ctx, s.keeper.cfg.Timing.RenewEvery)
	defer cancel()
	now := time.Now().UTC()
	err := s.write(ctx, func(l *Lease) {
		l.RenewedAt, l.ExpiresAt = now, now.Add(s.keeper.cfg.Timing.ExpireAfter)
	})
	switch {
	case err == nil || ctx.Err() != nil:
		return false
	case errors.Is(err, ErrLost):
		return true
	}
	s.keeper.cfg.Log.Warn().Err(err).Str("lease", s.box.id).Msg("lease not renewed, will try again")
	return false
}

// write changes the record by compare-and-set as long as it is this
// process's: a write whose answer was lost moved the revision, too.
func (s *held) write(ctx context.Context, change func(*Lease)) error {
	s.mu.Lock()
	e := s.entry
	s.mu.Unlock()
	for {
		l := e.Lease
		change(&l)
		revision, err := s.keeper.cfg.Registry.Update(ctx, l, e.Revision)
		if err == nil {
			s.mu.Lock()
			s.entry = Entry{Lease: l, Revision: revision}
			s.mu.Unlock()
			return nil
		}
		if !errors.Is(err, ErrConflict) && !errors.Is(err, ErrNotFound) {
			return err
		}
		now, err := s.keeper.cfg.Registry.Get(ctx, l.ID)
		switch {
		case errors.Is(err, ErrNotFound):
			return ErrLost
		case err != nil:
			return err
		case now.Revision == e.Revision:
			// A replica behind the one that refused: ask again next time.
			return ErrConflict
		case s.taken(now):
			return ErrLost
		}
		e = now
	}
}

// bind ends ctx with ErrLost when the session is lost.
func (s *held) bind(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-s.lost:
			cancel(ErrLost)
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(nil); watch.Wait() }
}

func (s *held) Exec(ctx context.Context, c Command) (Result, error) {
	ctx, free := s.bind(ctx)
	defer free()
	return s.agent.Exec(ctx, c)
}

func (s *held) WriteFile(ctx context.Context, path string, r io.Reader) error {
	ctx, free := s.bind(ctx)
	defer free()
	return s.agent.WriteFile(ctx, path, r)
}

// ReadFile is not bound to the loss: a sidecar that ends breaks the stream.
func (s *held) ReadFile(ctx context.Context, path string) (io.ReadCloser, error) {
	return s.agent.ReadFile(ctx, path)
}

func (s *held) Browser(ctx context.Context) (Browser, error) {
	ctx, free := s.bind(ctx)
	defer free()
	return s.agent.Browser(ctx)
}

// Close gives the lease back and ends the sidecar's programs. A lost lease is
// nobody's to give.
func (s *held) Close(ctx context.Context) error {
	var err error
	s.once.Do(func() { err = s.close(ctx) })
	return err
}

func (s *held) close(ctx context.Context) error {
	close(s.done)
	s.work.Wait()
	defer s.keeper.close(s.box.id)
	select {
	case <-s.lost:
		return nil
	default:
	}
	err := s.write(ctx, func(l *Lease) { l.State = StateDraining })
	if errors.Is(err, ErrLost) {
		return nil
	}
	// The scheduler stops the sidecar; should it be away, the agent can end by
	// itself. It may be gone already.
	_ = s.agent.Shutdown(ctx)
	if err != nil {
		return fmt.Errorf("give lease %s back: %w", s.box.id, err)
	}
	return nil
}
