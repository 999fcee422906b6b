package worker

import (
	"context"
	"maps"
	"sync"
	"time"
)

// Drain makes the worker stop: it pulls no more from now on, lets running
// jobs finish for within (0: Config.Drain), hands the rest back uncharged, and
// Run returns. It does not wait for any of it and returns what the worker does
// now. A further call changes the time only when it names one.
func (w *Worker) Drain(within time.Duration) Status {
	w.mu.Lock()
	asked := !w.drainBy.IsZero()
	w.mu.Unlock()
	switch {
	case within > 0:
		w.setDrain(time.Now().Add(within))
	case !asked:
		w.setDrain(time.Now().Add(w.cfg.Drain))
	}
	if !asked {
		w.cfg.Log.Info().Int("jobs", w.count()).Msg("asked to drain: no more jobs are taken")
	}
	w.stopServing()
	return w.status()
}

// drainWithin makes the drain end in d at the latest.
func (w *Worker) drainWithin(d time.Duration) {
	by := time.Now().Add(d)
	w.mu.Lock()
	later := w.drainBy.IsZero() || w.drainBy.After(by)
	w.mu.Unlock()
	if later {
		w.setDrain(by)
	}
}

func (w *Worker) setDrain(by time.Time) {
	w.mu.Lock()
	w.drainBy = by
	w.mu.Unlock()
	select {
	case w.rethink <- struct{}{}:
	default:
	}
}

// drain waits for running jobs, then asks what is left to hand back. Once the
// process itself is to stop, the worker's own drain time is the limit.
func (w *Worker) drain(process context.Context, running *sync.WaitGroup, stopRuns context.CancelCauseFunc) {
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	if w.waitFor(process, done) {
		return
	}
	w.cfg.Log.Info().Int("jobs", w.count()).Msg("drain time over, handing jobs back")
	stopRuns(errStopping)
	select {
	case <-done:
	case <-time.After(2*w.cfg.CancelGrace + 5*time.Second):
		w.cfg.Log.Warn().Int("jobs", w.count()).Msg("jobs did not stop; their messages come back by themselves")
	}
}

// waitFor waits until done or the end of the drain time, which may move.
func (w *Worker) waitFor(process context.Context, done <-chan struct{}) bool {
	stopping := process.Done()
	for {
		w.mu.Lock()
		left := time.Until(w.drainBy)
		w.mu.Unlock()
		timer := time.NewTimer(left)
		select {
		case <-done:
			timer.Stop()
			return true
		case <-timer.C:
			return false
		case <-w.rethink:
		case <-stopping:
			stopping = nil
			w.drainWithin(w.cfg.Drain)
		}
		timer.Stop()
	}
}

// status is what the worker does now.
func (w *Worker) status() Status {
	s := Status{
		ID: w.cfg.ID, Host: w.cfg.Host, Version: w.cfg.Version, Slots: maps.Clone(w.cfg.Slots),
		Running: map[string]int{}, Packs: w.cfg.Serves, At: time.Now().UTC(),
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.Leaked = w.leaked
	s.Drain, s.DrainBy = !w.drainBy.IsZero(), w.drainBy.UTC()
	if !s.Drain {
		s.DrainBy = time.Time{}
	}
	for _, a := range w.active {
		s.Running[a.claimed.Pool]++
	}
	return s
}

// farewell tells the replicas not to wait for another beat.
func (w *Worker) farewell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	s := w.status()
	s.Gone = true
	if err := w.cfg.Reports.Beat(ctx, s); err != nil {
		w.cfg.Log.Debug().Err(err).Msg("last heartbeat not sent; the silence tells the same")
	}
}
