package worker

import (
	"context"
	"slices"
	"sync"
)

// slot is the place of one attempt in its pool. An attempt that waits for
// child jobs lends it, so that the puller can run another job there, and
// takes one back before it goes on.
//
// Two bounds hold for each pool: no more attempts run than there are slots,
// and of each depth no more have been started, waiting ones included. So
// there is always room for a job deeper than all that wait, and as nesting
// ends at jobs.MaxDepth, whatever waits deepest is served, ends, and makes
// room for what waits above it. No more than slots times MaxDepth wait.
type slot struct {
	p     *puller
	depth int

	mu    sync.Mutex // guards the fields below; never held while waiting
	waits int        // calls of the attempt that wait
	held  bool
	ended bool
}

// occupy turns the token of a free slot, which the caller holds, into the
// slot of an attempt.
func (p *puller) occupy(depth int) *slot {
	p.mu.Lock()
	p.started[depth]++
	p.mu.Unlock()
	return &slot{p: p, depth: depth, held: true}
}

// lend gives the slot away while something of the attempt waits.
func (s *slot) lend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits++
	if s.held {
		s.held = false
		s.p.vacate()
	}
}

// back ends one lend. When it was the last it takes a slot before new jobs
// do; while others still wait the attempt goes on without. False when ctx
// ended first.
func (s *slot) back(ctx context.Context) bool {
	s.mu.Lock()
	s.waits--
	done := s.waits > 0 || s.held || s.ended
	s.mu.Unlock()
	if done {
		return true
	}
	if !s.p.take(ctx) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits > 0 || s.held || s.ended {
		s.p.vacate() // another call waits, or was faster
		return true
	}
	s.held = true
	return true
}

// end ends the use of the slot.
func (s *slot) end() {
	s.mu.Lock()
	held := s.held
	s.held, s.ended = false, true
	s.mu.Unlock()
	s.p.leave(s.depth)
	if held {
		s.p.vacate()
	}
}

// room is how many more jobs of a depth may be started.
func (p *puller) room(depth int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slots - p.started[depth]
}

// leave ends the count of an attempt of a depth.
func (p *puller) leave(depth int) {
	p.mu.Lock()
	full := p.started[depth] >= p.slots
	p.started[depth]--
	p.mu.Unlock()
	if full {
		notify(p.opened)
	}
}

// take waits for a slot, in front of all new jobs, until ctx ends.
func (p *puller) take(ctx context.Context) bool {
	p.mu.Lock()
	select {
	case <-p.free:
		p.mu.Unlock()
		return true
	default:
	}
	turn := make(chan struct{}, 1)
	p.resuming = append(p.resuming, turn)
	p.mu.Unlock()
	notify(p.wanted)
	select {
	case <-turn:
		return true
	case <-ctx.Done():
	}
	p.mu.Lock()
	n := len(p.resuming)
	p.resuming = slices.DeleteFunc(p.resuming, func(c chan struct{}) bool { return c == turn })
	served := len(p.resuming) == n
	p.mu.Unlock()
	if served {
		p.vacate()
	}
	return false
}

// vacate gives a slot back, to a parent that resumes if there is one. It never
// blocks: a pull that brought more than it asked for started jobs beyond the
// slots.
func (p *puller) vacate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.resuming) > 0 {
		p.resuming[0] <- struct{}{}
		p.resuming = p.resuming[1:]
		return
	}
	select {
	case p.free <- struct{}{}:
	default:
	}
}

// notify leaves word in a channel of one place.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
