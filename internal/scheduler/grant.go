package scheduler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// take pulls requests while there is a free slot, one at a time: the others
// stay in the queue for schedulers with room.
func (s *Scheduler) take(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for ctx.Err() == nil {
		// The slot is reserved before the request is known, under a name no
		// lease has.
		const next = "next"
		if s.reserve(ctx, next) != nil {
			return
		}
		id, ack, nak, err := s.cfg.Queue.Take(ctx, s.images)
		if err != nil {
			s.free(next)
			if ctx.Err() != nil {
				return
			}
			s.cfg.Log.Warn().Err(err).Msg("no request taken")
			pause.Reset(time.Second)
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
			continue
		}
		if !s.rename(next, id) {
			// Delivered again while its start is under way.
			s.free(next)
			continue
		}
		s.work.Go(func() {
			done, err := s.grant(ctx, id)
			if err != nil {
				s.cfg.Log.Warn().Err(err).Str("lease", id).Msg("lease not granted")
			}
			if done {
				ack()
			} else {
				nak()
			}
		})
	}
}

// rename gives the reserved slot its lease; false when that has one already.
func (s *Scheduler) rename(from, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosted[id] != nil {
		return false
	}
	s.hosted[id] = s.hosted[from]
	delete(s.hosted, from)
	return true
}

// grant turns a request into an offer. done means that the request needs
// nobody's attention any more; else it is given back.
func (s *Scheduler) grant(ctx context.Context, id string) (done bool, err error) {
	offered := false
	defer func() {
		if !offered {
			s.free(id)
			s.wakeUp() // it may have been withdrawn meanwhile
		}
	}()
	e, err := s.get(ctx, id)
	if errors.Is(err, sessions.ErrNotFound) {
		return true, nil // withdrawn
	}
	if err != nil {
		return false, err
	}
	// A warming lease comes again when the scheduler that took it died; if it
	// did not, its own next write finds another revision and it lets go.
	if st := e.Lease.State; st != sessions.StateRequested && st != sessions.StateWarming {
		return true, nil
	}
	l := e.Lease
	l.State, l.Host, l.Error = sessions.StateWarming, s.cfg.Host, ""
	l.Generation++
	e, err = s.update(ctx, l, e.Revision)
	if errors.Is(err, sessions.ErrConflict) {
		return false, nil // withdrawn or taken: look at it again
	}
	if err != nil {
		return false, fmt.Errorf("claim request: %w", err)
	}
	e, err = s.start(ctx, e)
	if err == nil {
		offered = true
		s.work.Go(func() { s.lapse(ctx, e) })
		return true, nil
	}
	return s.giveUp(ctx, e, err)
}

// start runs the sidecar and offers it; nothing is left of a failure but the
// record.
func (s *Scheduler) start(ctx context.Context, e sessions.Entry) (sessions.Entry, error) {
	l := e.Lease
	proxyURL, release, err := s.cfg.Proxy(l)
	if err != nil {
		return e, fmt.Errorf("open egress proxy: %w", err)
	}
	if release == nil {
		release = func() {}
	}
	s.mu.Lock()
	s.hosted[l.ID].release = release
	s.mu.Unlock()
	l.Token = rand.Text()
	startCtx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	began := time.Now()
	sidecar, err := s.cfg.Runtime.Start(startCtx, sessions.StartSpec{
		LeaseID: l.ID, Generation: l.Generation, Token: l.Token, Spec: l.Spec, ProxyURL: proxyURL,
	})
	if err != nil {
		return e, err
	}
	l.State, l.Endpoint = sessions.StateOffered, sidecar.Endpoint
	offer, err := s.update(ctx, l, e.Revision)
	if err != nil {
		if serr := s.stop(context.WithoutCancel(ctx), l.ID); serr != nil {
			err = errors.Join(err, serr) // the sweep finds it as a stray
		}
		return e, fmt.Errorf("offer sidecar: %w", err)
	}
	s.mu.Lock()
	if h := s.hosted[l.ID]; h != nil {
		h.readyAt = time.Now()
	}
	s.offers[l.ID] = time.Now()
	s.mu.Unlock()
	s.cfg.Log.Info().Str("lease", l.ID).Str("job", l.JobID).Str("image", l.Spec.Image).Dur("took", time.Since(began)).Msg("sidecar offered")
	return offer, nil
}

// giveUp records why a lease could not be offered, or gives the request back
// when it is this process that ends.
func (s *Scheduler) giveUp(ctx context.Context, e sessions.Entry, cause error) (done bool, err error) {
	if errors.Is(cause, sessions.ErrConflict) {
		return true, nil // withdrawn, or another scheduler has it
	}
	stopping := ctx.Err() != nil
	ctx = context.WithoutCancel(ctx)
	l := e.Lease
	if stopping {
		l.State, l.Host = sessions.StateRequested, ""
	} else {
		l.State, l.Error = sessions.StateGone, "sidecar could not be started: "+cause.Error()
	}
	if _, err := s.update(ctx, l, e.Revision); err != nil && !errors.Is(err, sessions.ErrConflict) {
		return false, errors.Join(cause, err)
	}
	return !stopping, cause
}

// lapse takes an offer back that nobody confirmed.
func (s *Scheduler) lapse(ctx context.Context, e sessions.Entry) {
	t := time.NewTimer(s.cfg.Timing.ConfirmWithin)
	defer t.Stop()
	select {
	case <-t.C:
		s.takeBack(ctx, e)
	case <-ctx.Done():
	}
}

// takeBack ends an offer at the revision it was made with. A conflict means
// that it was confirmed; when the bus is away the sweep comes back to it.
func (s *Scheduler) takeBack(ctx context.Context, e sessions.Entry) {
	l := e.Lease
	l.State, l.Error = sessions.StateGone, "the offer was not confirmed in time"
	if _, err := s.update(ctx, l, e.Revision); err != nil {
		if !errors.Is(err, sessions.ErrConflict) {
			s.cfg.Log.Warn().Err(err).Str("lease", l.ID).Msg("offer not taken back yet")
		}
		return
	}
	s.cfg.Log.Warn().Str("lease", l.ID).Str("job", l.JobID).Msg("offer was not confirmed")
	s.wakeUp() // the sweep stops the sidecar of a lease that is gone
}

func (s *Scheduler) get(ctx context.Context, id string) (sessions.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, busWithin)
	defer cancel()
	e, err := s.cfg.Registry.Get(ctx, id)
	if err == nil {
		s.note(e)
	}
	return e, err
}

func (s *Scheduler) update(ctx context.Context, l sessions.Lease, revision uint64) (sessions.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, busWithin)
	defer cancel()
	revision, err := s.cfg.Registry.Update(ctx, l, revision)
	if errors.Is(err, sessions.ErrNotFound) {
		err = sessions.ErrConflict
	}
	e := sessions.Entry{Lease: l, Revision: revision}
	if err == nil {
		s.note(e)
	}
	return e, err
}
