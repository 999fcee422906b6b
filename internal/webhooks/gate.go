package webhooks

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Pace bounds what one endpoint gets from one replica. Zero fields take the
// defaults.
type Pace struct {
	// Together is how many deliveries to an endpoint are under way at once; 4.
	Together int
	// Line is how many more wait for their turn in this process, and Wait how
	// long; 16 and 5 s. Others go back on the ladder, uncounted.
	Line int
	Wait time.Duration
	// Failures in a row open the breaker; 5. It stays open for Open, 30 s,
	// twice as long each time up to MaxOpen, 10 min; then one delivery probes.
	Failures      int
	Open, MaxOpen time.Duration
}

func (p Pace) withDefaults() Pace {
	set(&p.Together, 4)
	set(&p.Line, 16)
	set(&p.Wait, 5*time.Second)
	set(&p.Failures, 5)
	set(&p.Open, 30*time.Second)
	set(&p.MaxOpen, 10*time.Minute)
	return p
}

func set[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

const (
	// probeWait is when a delivery turned away during a probe comes again.
	probeWait = 2 * time.Second
	// maxSpread bounds how far those turned away are spread out.
	maxSpread = 10 * time.Minute
	// manyGates is how many endpoints are remembered before those not heard
	// of for gateAge are forgotten.
	manyGates = 1000
	gateAge   = time.Hour
)

// gates is the breaker and the line of every endpoint, judged by this replica
// alone: a replica learns of a bad endpoint by a few attempts of its own, and
// no attempt waits for a shared state.
type gates struct {
	pace Pace
	mu   sync.Mutex // guards all and the gates in it
	all  map[string]*gate
}

func newGates(p Pace) *gates { return &gates{pace: p.withDefaults(), all: map[string]*gate{}} }

type gate struct {
	inFlight  int
	line      []chan bool // true: it is your turn; false: turned away
	failures  int         // in a row
	openFor   time.Duration
	openUntil time.Time
	probing   bool
	took      time.Duration // moving average of an attempt
	spread    time.Time     // when the last one turned away comes again
	used      time.Time
}

// verdict is what an attempt says of its endpoint.
type verdict struct {
	ok bool
	// pause asks for no further attempts for so long.
	pause time.Duration
	took  time.Duration
	// void: the attempt says nothing, because this process ended it.
	void bool
}

// enter waits for the turn of a delivery to key. When it is not admitted,
// again is when it may come once more. leave must be called with the verdict
// once it was. anyway passes an open breaker, not the line.
func (g *gates) enter(ctx context.Context, key string, anyway bool) (leave func(verdict), again time.Time) {
	g.mu.Lock()
	now := time.Now()
	e := g.get(key, now)
	probe := false
	switch {
	case anyway || e.openFor == 0:
	case now.Before(e.openUntil):
		defer g.mu.Unlock()
		return nil, g.turnAway(e, e.openUntil)
	case e.probing:
		defer g.mu.Unlock()
		return nil, g.turnAway(e, now.Add(probeWait))
	default:
		e.probing, probe = true, true
	}
	if e.inFlight < g.pace.Together && len(e.line) == 0 {
		e.inFlight++
		g.mu.Unlock()
		return func(v verdict) { g.leave(key, e, v, probe) }, time.Time{}
	}
	if len(e.line) >= g.pace.Line {
		defer g.mu.Unlock()
		e.probing = e.probing && !probe
		return nil, g.turnAway(e, now)
	}
	turn := make(chan bool, 1)
	e.line = append(e.line, turn)
	g.mu.Unlock()
	if g.wait(ctx, e, turn) {
		return func(v verdict) { g.leave(key, e, v, probe) }, time.Time{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	e.probing = e.probing && !probe
	return nil, g.turnAway(e, time.Now())
}

// wait stands in line and reports whether it was admitted.
func (g *gates) wait(ctx context.Context, e *gate, turn chan bool) bool {
	timer := time.NewTimer(g.pace.Wait)
	defer timer.Stop()
	select {
	case admitted := <-turn:
		return admitted
	case <-timer.C:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(e.line, turn); i >= 0 {
		e.line = slices.Delete(e.line, i, i+1)
		return false
	}
	return <-turn // called meanwhile
}

// turnAway spreads those who come back over the time the endpoint needs for
// them.
func (g *gates) turnAway(e *gate, from time.Time) time.Time {
	if e.spread.Before(from) {
		e.spread = from
	}
	e.spread = e.spread.Add(max(e.took/time.Duration(g.pace.Together), 10*time.Millisecond))
	if last := from.Add(maxSpread); e.spread.After(last) {
		e.spread = from
	}
	return e.spread
}

func (g *gates) leave(key string, e *gate, v verdict, probe bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e.inFlight--
	e.probing = e.probing && !probe
	if !v.void {
		g.judge(e, v, probe)
	}
	shut := time.Now().Before(e.openUntil)
	for len(e.line) > 0 && (shut || e.inFlight < g.pace.Together) {
		if !shut {
			e.inFlight++
		}
		e.line[0] <- !shut // has room for one
		e.line = e.line[1:]
	}
	if e.inFlight == 0 && len(e.line) == 0 && e.failures == 0 && e.openFor == 0 {
		delete(g.all, key)
	}
}

func (g *gates) judge(e *gate, v verdict, probe bool) {
	now := time.Now()
	e.took = (3*e.took + v.took) / 4
	if v.ok {
		e.failures, e.openFor, e.openUntil = 0, 0, time.Time{}
		return
	}
	e.failures++
	if (probe || e.failures >= g.pace.Failures) && !now.Before(e.openUntil) {
		e.openFor = min(max(2*e.openFor, g.pace.Open), g.pace.MaxOpen)
		e.openUntil = now.Add(e.openFor)
	}
	if until := now.Add(v.pause); v.pause > 0 && until.After(e.openUntil) {
		e.openFor, e.openUntil = max(e.openFor, 1), until
	}
}

func (g *gates) get(key string, now time.Time) *gate {
	e := g.all[key]
	if e == nil {
		if len(g.all) >= manyGates {
			for k, old := range g.all {
				if old.inFlight == 0 && len(old.line) == 0 && now.Sub(old.used) > gateAge && now.After(old.openUntil) {
					delete(g.all, k)
				}
			}
		}
		e = &gate{}
		g.all[key] = e
	}
	e.used = now
	return e
}

// open counts the endpoints whose breaker is open or waits for its probe.
func (g *gates) open() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, e := range g.all {
		if e.openFor > 0 {
			n++
		}
	}
	return n
}
