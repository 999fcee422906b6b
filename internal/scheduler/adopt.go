package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// adopt takes over the sidecars an earlier process of this host left.
func (s *Scheduler) adopt(ctx context.Context) {
	sidecars, err := s.cfg.Runtime.List(ctx)
	if err != nil {
		s.cfg.Log.Error().Err(err).Msg("sidecars not listed, none adopted")
		return // the sweep tries again; nothing is stopped unseen
	}
	for _, sc := range sidecars {
		s.mu.Lock()
		r := s.records[sc.LeaseID]
		s.mu.Unlock()
		if r != nil && s.owns(r.Lease) {
			s.host(ctx, r.Lease)
		}
	}
	s.wakeUp()
}

// host takes a slot for a sidecar that runs already.
func (s *Scheduler) host(ctx context.Context, l sessions.Lease) {
	s.mu.Lock()
	s.hosted[l.ID] = &hosted{release: func() {}, readyAt: time.Now()}
	if l.State == sessions.StateOffered {
		s.offers[l.ID] = time.Now()
	}
	s.mu.Unlock()
	s.reconnect(ctx, l)
}

// owns reports whether l is a lease whose sidecar should run here.
func (s *Scheduler) owns(l sessions.Lease) bool {
	return l.Host == s.cfg.Host &&
		(l.State == sessions.StateOffered || l.State == sessions.StateLeased || l.State == sessions.StateDraining)
}

// reconnect gives an adopted sidecar a proxy again: that of the earlier
// process ended with it.
func (s *Scheduler) reconnect(ctx context.Context, l sessions.Lease) {
	proxyURL, release, err := s.cfg.Proxy(l)
	if err == nil && proxyURL != "" {
		err = sessions.NewAgent(l.Endpoint, l.Token, l.Generation).SetUpstream(ctx, proxyURL)
	}
	if err != nil {
		// The session goes on without a way out, which is safe; its programs
		// see refused connections.
		s.cfg.Log.Warn().Err(err).Str("lease", l.ID).Msg("adopted sidecar has no egress")
	}
	if release != nil {
		s.mu.Lock()
		if h := s.hosted[l.ID]; h != nil {
			h.release = release
		}
		s.mu.Unlock()
	}
	s.cfg.Log.Info().Str("lease", l.ID).Str("job", l.JobID).Str("state", string(l.State)).Msg("sidecar adopted")
	if s.cfg.Observe != nil && l.State == sessions.StateLeased {
		s.cfg.Observe(l, Adopted)
	}
}

// leave ends the process's part: all sidecars, or none that is leased.
func (s *Scheduler) leave(ctx context.Context) {
	s.mu.Lock()
	ids := make([]string, 0, len(s.hosted))
	for id := range s.hosted {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	var stops sync.WaitGroup
	for _, id := range ids {
		if s.cfg.StopSidecars {
			stops.Go(func() { s.end(ctx, id, "the scheduler was stopped") })
		}
	}
	stops.Wait()
	if s.cfg.StopSidecars {
		s.stopStrays(ctx)
	}
	s.mu.Lock()
	left := len(s.hosted)
	for _, h := range s.hosted {
		h.release()
	}
	s.mu.Unlock()
	s.cfg.Log.Info().Int("left", left).Msg("scheduler stopped")
}

// stopStrays ends sidecars that belong to no lease known here.
func (s *Scheduler) stopStrays(ctx context.Context) {
	sidecars, err := s.cfg.Runtime.List(ctx)
	if err != nil {
		s.cfg.Log.Error().Err(err).Msg("sidecars not listed")
	}
	for _, sc := range sidecars {
		if err := s.stop(ctx, sc.LeaseID); err != nil {
			s.cfg.Log.Error().Err(err).Str("lease", sc.LeaseID).Msg("sidecar not stopped")
		}
	}
}
