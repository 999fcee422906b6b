package worker

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// longPoll is how long an idle lane is asked to wait for its next job.
const longPoll = 30 * time.Second

// maxPull bounds one pull, so that one worker cannot empty a queue that
// others are waiting at.
const maxPull = 256

// gather is how long a puller under load waits for more free slots, up to a
// quarter of all: asking for each slot by itself would cost the bus more than
// the jobs do. A worker of a few slots, or one with free slots, never waits.
const gather = 2 * time.Millisecond

// callWeight is that of a lane of called jobs, twice that of all others: what
// was begun ends before more is begun, and the others move all the same.
const callWeight = 24

func (l Lane) weight() int {
	if l.Depth > 0 {
		return callWeight
	}
	return jobs.LaneWeights[l.Priority]
}

// puller feeds the slots of one pool. An idle lane has one request for one
// job outstanding; all others are asked without waiting.
type puller struct {
	w        *Worker
	lanes    []Lane
	polling  []bool // by lane, touched by run only
	arrivals chan arrival
	slots    int
	free     chan struct{} // one token a free slot
	wanted   chan struct{} // a parent resumes: give back a token held idle
	opened   chan struct{} // a depth that was full has room again
	running  *sync.WaitGroup
	polls    sync.WaitGroup
	// work feeds goroutines that have run a job already: a new one has its
	// stack grown several times by the first. Closed by finish.
	work chan task
	idle atomic.Int64 // goroutines that wait for work, at most slots
	// loaded: the last sweep filled every slot it held. Touched by run only.
	loaded bool
	log    func(error, Lane)

	mu sync.Mutex // guards the fields below; never held during a call
	// started counts the attempts by depth, running or waiting for children.
	started  [jobs.MaxDepth + 1]int
	resuming []chan struct{} // parents that wait for a slot, first come first
}

type arrival struct {
	lane int
	ds   []Delivery
	err  error
}

func newPuller(w *Worker, pool string, slots int, running *sync.WaitGroup) *puller {
	p := &puller{w: w, lanes: w.cfg.Source.Lanes(pool), slots: slots, free: make(chan struct{}, slots), running: running, work: make(chan task)}
	p.wanted, p.opened = make(chan struct{}, 1), make(chan struct{}, 1)
	p.polling = make([]bool, len(p.lanes))
	p.arrivals = make(chan arrival, len(p.lanes))
	for range slots {
		p.free <- struct{}{}
	}
	p.log = func(err error, l Lane) {
		w.cfg.Log.Warn().Err(err).Str("pool", l.Pool).Str("lane", string(l.Priority)).Msg("pull failed, trying again")
	}
	return p
}

// run pulls until ctx ends. Jobs run under runCtx.
func (p *puller) run(ctx, runCtx context.Context) {
	pollCtx, stopPolls := context.WithCancel(ctx)
	defer p.finish(runCtx)
	defer stopPolls()
	for {
		select {
		case <-ctx.Done():
			return
		case a := <-p.arrivals: // no slot is free as far as we know
			p.arrived(ctx, runCtx, a)
			continue
		case <-p.wanted: // whoever ends next serves it
			continue
		case <-p.free:
		}
		if ctx.Err() != nil {
			p.vacate()
			return
		}
		if n := p.sweep(ctx, runCtx, pollCtx); n > 0 {
			continue
		}
		// Every lane that may be served is empty and has its long poll out:
		// wait for one.
		select {
		case <-ctx.Done():
		case <-p.opened:
		case <-p.wanted:
		case a := <-p.arrivals:
			p.vacate()
			p.arrived(ctx, runCtx, a)
			continue
		}
		p.vacate()
	}
}

// sweep asks every lane that is not polled for as many jobs as there are
// free slots, one of which the caller holds, and returns how many it started.
// When none was there the caller still holds its slot.
func (p *puller) sweep(ctx, runCtx, pollCtx context.Context) (started int) {
	held := p.hold(ctx)
	for _, i := range p.order() {
		most := min(held-started, p.room(p.lanes[i].Depth))
		if p.polling[i] || most <= 0 {
			continue
		}
		ds, err := p.w.cfg.Source.Pull(ctx, p.lanes[i], most, 0)
		if err != nil && ctx.Err() == nil {
			p.log(err, p.lanes[i])
		}
		for _, d := range ds {
			p.start(runCtx, d, p.lanes[i].Depth)
		}
		started += len(ds)
		if len(ds) == 0 {
			p.poll(pollCtx, i, err)
		}
	}
	p.loaded = started == held
	give := held - started
	if started == 0 {
		give-- // the caller's
	}
	for range give {
		p.vacate()
	}
	return started
}

// hold takes the slots that are free, beside the one the caller holds, and
// returns how many the sweep has.
func (p *puller) hold(ctx context.Context) int {
	held := 1
	var late <-chan time.Time
	if want := min(cap(p.free)/4, maxPull); p.loaded && want > len(p.free)+1 {
		late = time.After(gather)
		for held < want {
			select {
			case <-p.free:
				held++
				continue
			case <-late:
			case <-ctx.Done():
			}
			break
		}
	}
	for held < maxPull {
		select {
		case <-p.free:
			held++
			continue
		default:
		}
		break
	}
	return held
}

// poll sends the one long request of an idle lane.
func (p *puller) poll(ctx context.Context, i int, failed error) {
	p.polling[i] = true
	p.polls.Go(func() {
		if failed != nil { // the bus is away: do not spin
			select {
			case <-ctx.Done():
			case <-time.After(time.Second/2 + rand.N(time.Second)):
			}
		}
		ds, err := p.w.cfg.Source.Pull(ctx, p.lanes[i], 1, longPoll)
		p.arrivals <- arrival{lane: i, ds: ds, err: err}
	})
}

// arrived starts what a long poll brought, or gives it back when no slot is
// free, so that another worker takes it at once.
func (p *puller) arrived(ctx, runCtx context.Context, a arrival) {
	p.polling[a.lane] = false
	if a.err != nil && ctx.Err() == nil {
		p.log(a.err, p.lanes[a.lane])
	}
	depth := p.lanes[a.lane].Depth
	for _, d := range a.ds {
		select {
		case <-p.free:
			if ctx.Err() == nil && p.room(depth) > 0 {
				p.start(runCtx, d, depth)
				continue
			}
			p.vacate()
		default:
		}
		p.giveBack(runCtx, d)
	}
}

func (p *puller) giveBack(ctx context.Context, d Delivery) {
	if err := d.Nak(ctx, 0); err != nil {
		p.w.cfg.Log.Warn().Err(err).Msg("job not given back; it comes again after the acknowledgement wait")
	}
}

// start runs one delivery in a slot the puller holds.
func (p *puller) start(runCtx context.Context, d Delivery, depth int) {
	t := task{d, p.occupy(depth)}
	select {
	case p.work <- t:
		return
	default:
	}
	p.running.Go(func() {
		for ok := true; ok; t, ok = p.another() {
			p.w.handle(runCtx, t.d, t.s)
			t.s.end()
		}
	})
}

// task is a delivery with the slot it holds.
type task struct {
	d Delivery
	s *slot
}

// another waits for the next task of a goroutine that has run one, unless
// enough wait already.
func (p *puller) another() (task, bool) {
	defer p.idle.Add(-1)
	if p.idle.Add(1) > int64(p.slots) {
		return task{}, false
	}
	t, ok := <-p.work
	return t, ok
}

// finish waits for the long polls and gives back what they brought late.
func (p *puller) finish(runCtx context.Context) {
	close(p.work)
	p.polls.Wait()
	close(p.arrivals)
	for a := range p.arrivals {
		for _, d := range a.ds {
			p.giveBack(runCtx, d)
		}
	}
}

// order draws the order of the lanes for one round.
func (p *puller) order() []int {
	if p.w.cfg.StrictLanes != nil && p.w.cfg.StrictLanes() {
		return p.strict()
	}
	total := 0
	for i, l := range p.lanes {
		if !p.polling[i] { // the others are empty
			total += l.weight()
		}
	}
	order := make([]int, 0, len(p.lanes))
	if total > 0 {
		pick := rand.N(total)
		for i, l := range p.lanes {
			if p.polling[i] {
				continue
			}
			if pick -= l.weight(); pick < 0 {
				order = append(order, i)
				break
			}
		}
	}
	for i := range p.lanes {
		if len(order) == 0 || i != order[0] {
			order = append(order, i)
		}
	}
	return order
}

// strict is the order of preference, in which the shards of one lane take
// turns by chance.
func (p *puller) strict() []int {
	order := make([]int, len(p.lanes))
	for i := range order {
		order[i] = i
	}
	for from := 0; from < len(order); {
		to := from + 1
		for to < len(order) && p.lanes[to].Priority == p.lanes[from].Priority && p.lanes[to].Depth == p.lanes[from].Depth {
			to++
		}
		shards := order[from:to]
		rand.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
		from = to
	}
	return order
}
