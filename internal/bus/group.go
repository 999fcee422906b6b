package bus

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Group commit. A server of one replica that syncs before it acknowledges
// syncs each message by itself, however many callers wait; an atomic batch is
// synced once. So the writes of one process to one stream go one at a time
// when they come one at a time, and together when they come while another is
// under way. Nobody has an answer before the server has stored his write.
//
// Without a sync per message a batch costs the server more than its messages
// do alone (it is staged in a store of its own first), and a Raft log groups
// by itself: groups form for that one kind of server only.
const (
	// minGroup is the least that may be a batch. Whether it is worth one is
	// measured, see pace.
	minGroup = 4
	// maxGroupBytes bounds what a batch holds in the memory of the server.
	maxGroupBytes = 4 << 20
	// groupLinger is how long a writer that has just committed a batch waits
	// for the callers it woke, so that they do not come in two halves.
	groupLinger = 2 * time.Millisecond
	// perMessage is about what a message adds to the time of a batch.
	perMessage = 40 * time.Microsecond
)

// pace is how long the server takes for a write by itself, and for a batch
// beside what its messages add. A batch is staged in files of its own, whose
// making and syncing costs as much as four syncs on one disk and forty on
// another, so which way is the shorter is measured as it goes.
type pace struct {
	alone, batch time.Duration // moving means; 0: not known
}

// groups says whether n messages are stored sooner as a batch. The mean of the
// way not taken is forgotten slowly, so that it is tried again some time.
func (p *pace) groups(n int) bool {
	switch {
	case n < minGroup:
		return false
	case p.batch == 0:
		return true
	case p.alone == 0:
		return n >= 4*minGroup
	}
	yes := time.Duration(n)*p.alone > p.batch+time.Duration(n)*perMessage
	if yes {
		p.alone -= p.alone / 64
	} else {
		p.batch -= p.batch / 64
	}
	return yes
}

// note takes a measurement into a mean.
func note(mean *time.Duration, took time.Duration) {
	if *mean == 0 {
		*mean = took
		return
	}
	*mean += (took - *mean) / 4
}

// groups holds the writer of each stream.
type groups struct {
	mu       sync.Mutex // guards the fields below
	byStream map[string]*group
	ended    bool           // no goroutine is started any more
	running  sync.WaitGroup // the goroutines; they end with their writes
}

// begin notes one more goroutine, unless the connection has ended.
func (s *groups) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.running.Add(1)
	return true
}

// end waits for the goroutines. The connection is closed, so they meet errors.
func (s *groups) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.running.Wait()
}

// groupOf returns the writer for the stream that subject belongs to, or nil
// when its writes go alone.
func (c *Conn) groupOf(subject string) *group {
	if !c.profile.SyncAlways || c.profile.Replicas != 1 {
		return nil
	}
	area, rest, _ := strings.Cut(subject, ".")
	switch area {
	case "evt", "dlq":
	case "job", "hold": // one stream a pool
		pool, _, _ := strings.Cut(rest, ".")
		area = subject[:len(area)+1+len(pool)]
	default:
		return nil
	}
	c.groups.mu.Lock()
	defer c.groups.mu.Unlock()
	g := c.groups.byStream[area]
	if g == nil {
		if c.groups.byStream == nil {
			c.groups.byStream = map[string]*group{}
		}
		g = &group{conn: c, enough: make(chan struct{}, 1)}
		c.groups.byStream[area] = g
	}
	return g
}

// group is the one writer of a stream in this process.
type group struct {
	conn *Conn
	// enough is signalled when as many wait as the writer lingers for.
	enough chan struct{}

	mu      sync.Mutex // guards the fields below
	busy    bool       // a write is under way: later ones wait
	waiting []*write
	want    int // how many the writer lingers for, 0: it does not

	pace pace // touched by whoever writes
}

// write is what one caller wants stored, all of it or nothing.
type write struct {
	ms       []Outgoing
	size     int
	deadline time.Time
	taken    bool // guarded by group.mu: the writer has it
	done     chan written
}

type written struct {
	sequence uint64 // of the last message
	err      error
}

// store stores ms and returns the sequence of the last of them.
func (g *group) store(ctx context.Context, ms []Outgoing) (uint64, error) {
	g.mu.Lock()
	if !g.busy { // nobody else writes: go at once
		g.busy = true
		g.mu.Unlock()
		defer g.next()
		began := time.Now()
		sequence, err := g.conn.storeAlone(ctx, ms)
		if err == nil && len(ms) == 1 {
			note(&g.pace.alone, time.Since(began))
		}
		return sequence, err
	}
	w := &write{ms: ms, done: make(chan written, 1)}
	var bounded bool
	if w.deadline, bounded = ctx.Deadline(); !bounded {
		w.deadline = time.Now().Add(g.conn.timeout)
	}
	for i := range ms {
		w.size += len(ms[i].Data) + len(ms[i].Subject)
	}
	g.waiting = append(g.waiting, w)
	if g.want > 0 && len(g.waiting) >= g.want {
		select {
		case g.enough <- struct{}{}:
		default:
		}
	}
	g.mu.Unlock()
	select {
	case r := <-w.done:
		return r.sequence, r.err
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !w.taken {
		for i := range g.waiting {
			if g.waiting[i] == w {
				g.waiting = append(g.waiting[:i:i], g.waiting[i+1:]...)
				break
			}
		}
	}
	return 0, g.conn.translate(ctx.Err())
}

// next hands the stream on after a write: to a goroutine that commits what
// waits, or to the next caller.
func (g *group) next() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) > 0 && g.conn.groups.begin() {
		go g.run()
		return
	}
	g.busy = false
	for _, w := range g.waiting {
		w.done <- written{err: ErrClosed}
	}
	g.waiting = nil
}

// run commits until nobody waits.
func (g *group) run() {
	defer g.conn.groups.running.Done()
	for last := 0; ; {
		g.linger(last)
		ws := g.take()
		if len(ws) == 0 {
			return
		}
		last = g.commit(ws)
	}
}

// linger waits until as many wait as the last batch held (0: there was none),
// or a moment has passed.
func (g *group) linger(last int) {
	g.mu.Lock()
	if last == 0 || len(g.waiting) >= last {
		g.mu.Unlock()
		return
	}
	g.want = last
	g.mu.Unlock()
	timer := time.NewTimer(groupLinger)
	defer timer.Stop()
	select {
	case <-g.enough:
	case <-timer.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.want = 0
	select {
	case <-g.enough:
	default:
	}
}

// take returns the writes of the next group, oldest first: no more than a
// batch may hold, and no two to one subject, for the second may expect the
// first. When nobody waits the stream is free.
func (g *group) take() []*write {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, messages, size := 0, 0, 0
	subjects := make(map[string]struct{}, len(g.waiting))
	for _, w := range g.waiting {
		messages, size = messages+len(w.ms), size+w.size
		if n > 0 && (messages > MaxBatch || size > maxGroupBytes || clashes(subjects, w)) {
			break
		}
		for i := range w.ms {
			subjects[w.ms[i].Subject] = struct{}{}
		}
		w.taken = true
		n++
	}
	ws := g.waiting[:n:n]
	if g.waiting = g.waiting[n:]; len(g.waiting) == 0 {
		g.waiting = nil
	}
	g.busy = n > 0
	return ws
}

func clashes(subjects map[string]struct{}, w *write) bool {
	for i := range w.ms {
		if _, ok := subjects[w.ms[i].Subject]; ok {
			return true
		}
	}
	return false
}

// commit stores ws, answers each and returns how many went as one batch, 0
// when they went one by one.
func (g *group) commit(ws []*write) int {
	var ms []Outgoing
	for _, w := range ws {
		ms = append(ms, w.ms...)
	}
	began := time.Now()
	if len(ws) > 1 && g.pace.groups(len(ms)) {
		if g.together(ws, ms) {
			note(&g.pace.batch, max(time.Since(began)-time.Duration(len(ms))*perMessage, 0))
		}
		return len(ws)
	}
	if g.each(ws) {
		note(&g.pace.alone, time.Since(began)/time.Duration(len(ms)))
	}
	return 0
}

// together stores ws as one batch of their messages and reports whether the
// server took it. It refuses a batch as a whole when it refuses any of its
// messages; the halves then find out which, so that one bad expectation among
// many costs a few batches and not a sync for each.
func (g *group) together(ws []*write, ms []Outgoing) bool {
	var deadline time.Time
	for _, w := range ws {
		if w.deadline.After(deadline) {
			deadline = w.deadline
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	last, err := g.conn.storeBatch(ctx, ms)
	switch {
	case err == nil:
		at := last - uint64(len(ms))
		for _, w := range ws {
			at += uint64(len(w.ms))
			w.done <- written{sequence: at}
		}
		return true
	case len(ws) < 2*minGroup && refused(err), errors.Is(err, ErrFull), errors.Is(err, ErrFrozen), errors.Is(err, errNoBatches):
		g.each(ws) // halves would be refused too; alone some may fit
	case refused(err):
		half, n := len(ws)/2, 0
		for _, w := range ws[:half] {
			n += len(w.ms)
		}
		g.together(ws[:half], ms[:n])
		g.together(ws[half:], ms[n:])
	default: // whether it was stored is not known
		for _, w := range ws {
			w.done <- written{err: err}
		}
	}
	return false
}

// each stores ws one after the other and reports whether all were stored. Not
// all at once: syncs that follow each other without a pause take longer.
func (g *group) each(ws []*write) bool {
	all := true
	for _, w := range ws {
		ctx, cancel := context.WithDeadline(context.Background(), w.deadline)
		sequence, err := g.conn.storeAlone(ctx, w.ms)
		cancel()
		all = all && err == nil
		w.done <- written{sequence, err}
	}
	return all
}

// refused reports whether the server answered and stored nothing.
func refused(err error) bool {
	_, answered := errors.AsType[*jetstream.APIError](err)
	return answered
}
