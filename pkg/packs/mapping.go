package packs

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Limits of Map.
const (
	// MaxMap is how many children one Map may make.
	MaxMap = 10_000
	// DefaultParallel and MaxParallel bound the children of one Map under way
	// at once. The default keeps a pool of some workers busy without filling
	// its queue.
	DefaultParallel, MaxParallel = 16, 256
	// MaxKept is how many bytes of outputs a Map without Each returns.
	MaxKept = 64 << 20
	// ahead bounds how far, in times of the parallel children, a Map with Each
	// runs ahead of the first child that has not ended.
	ahead = 4
)

// Inputs are what a Map runs on.
type Inputs struct {
	n  int
	at func(i int) any
}

// Slice makes Inputs of a slice.
func Slice[T any](s []T) Inputs { return Inputs{len(s), func(i int) any { return s[i] }} }

// Generate makes n Inputs that are made when their turn comes. at must give
// the same for the same i, also in a later attempt of the job.
func Generate(n int, at func(i int) any) Inputs { return Inputs{n, at} }

// Policy says what a Map makes of children that fail.
type Policy struct {
	collect bool
	min     int
}

// The policies.
var (
	// FailFast ends the Map with the first failure and cancels the rest.
	FailFast = Policy{}
	// CollectAll runs all; the failures stand in the results.
	CollectAll = Policy{collect: true}
)

// MinSuccess runs all, and fails unless at least n succeed: as soon as they
// cannot any more, the rest is cancelled.
func MinSuccess(n int) Policy { return Policy{min: n} }

// MapOptions are the wishes of a Map. The zero value fails fast.
type MapOptions struct {
	CallOptions // of every child; Key must be empty, see KeyOf
	// KeyOf gives the Key of child i; nil: not shared.
	KeyOf  func(i int) string
	Policy Policy
	// Parallel is how many children are under way at once: DefaultParallel
	// when 0, at most MaxParallel.
	Parallel int
	// From and To are the progress of the run at the begin and at the end of
	// the Map; 0 and 100 when both are 0.
	From, To float64
	// Each takes the children one by one in the order of the inputs, on one
	// goroutine, while others run; Map keeps none then. An error of Each ends
	// the Map.
	Each func(i int, c Child) error
}

// Map runs a pack on many inputs, each as a child job, see Call. It returns
// the children in the order of the inputs, also with an error; those that did
// not succeed have an Err. The progress of the run follows that of the
// children.
func (r *Run) Map(ctx context.Context, pack string, in Inputs, o MapOptions) ([]Child, error) {
	calls := r.calls()
	if o.Parallel == 0 {
		o.Parallel = DefaultParallel
	}
	if o.From == 0 && o.To == 0 {
		o.To = 100
	}
	if err := o.check(in.n); err != nil {
		return nil, err
	}
	if in.n == 0 {
		return nil, nil
	}
	m := &mapping{run: r, calls: calls, pack: pack, in: in, o: o, running: map[int]float64{}, waiting: map[int]Child{}}
	if o.Each == nil {
		m.kept = make([]Child, 0, in.n)
	}
	back := calls.Lend()
	err := m.do(ctx)
	if lost := back(ctx); err == nil {
		err = lost
	}
	return m.kept, err
}

// Mapped is a child whose output has a type.
type Mapped[Out any] struct {
	Out Out // the zero value when the child failed
	Child
}

// MapAs is Map for children whose output has a type. An output that does not
// decode is an error.
func MapAs[Out any](ctx context.Context, r *Run, pack string, in Inputs, o MapOptions) ([]Mapped[Out], error) {
	children, err := r.Map(ctx, pack, in, o)
	out := make([]Mapped[Out], len(children))
	for i, c := range children {
		if out[i].Child = c; c.Err != nil {
			continue
		}
		if derr := c.Decode(&out[i].Out); derr != nil {
			err = errors.Join(err, derr)
		}
	}
	return out, err
}

func (o MapOptions) check(n int) error {
	switch {
	case n > MaxMap:
		return Fatal(Errorf(InvalidInput, "one map runs at most %d children, not %d; split the work into several", MaxMap, n))
	case o.Parallel < 1 || o.Parallel > MaxParallel:
		return Fatal(Errorf(InvalidInput, "between 1 and %d children may be under way at once, not %d", MaxParallel, o.Parallel))
	case o.Policy.min < 0 || o.Policy.min > n:
		return Fatal(Errorf(InvalidInput, "%d children cannot give %d successes", n, o.Policy.min))
	case o.Key != "":
		return Fatal(Errorf(InvalidInput, "the children of a map cannot share one key; give each its own with KeyOf"))
	}
	return nil
}

// mapping is one Map under way.
type mapping struct {
	run   *Run
	calls Calls
	pack  string
	in    Inputs
	o     MapOptions

	// Touched by do only.
	kept      []Child
	bytes     int
	delivered int           // children handed on in order
	waiting   map[int]Child // ended before one that comes earlier

	mu       sync.Mutex // guards the fields below
	running  map[int]float64
	ended    int
	failures int
}

type mapped struct {
	i     int
	child Child
	err   error
}

// do feeds the inputs to goroutines and takes the children back, until all
// have ended or one thing ends the Map.
func (m *mapping) do(ctx context.Context) error {
	work, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	next, back := make(chan int), make(chan mapped)
	var workers sync.WaitGroup
	for range min(m.o.Parallel, m.in.n) {
		workers.Go(func() {
			for i := range next {
				child, err := m.one(work, i)
				back <- mapped{i, child, err}
			}
		})
	}
	fed, ended := 0, 0
	var failed error
	for ended < fed || fed < m.in.n && work.Err() == nil {
		var feed chan<- int
		if fed < m.in.n && work.Err() == nil && (m.o.Each == nil || fed < m.delivered+ahead*m.o.Parallel) {
			feed = next
		}
		select {
		case feed <- fed:
			fed++
		case c := <-back:
			ended++
			if err := m.take(c, work.Err() != nil); err != nil && failed == nil {
				failed = err
				stop(err)
			}
		}
	}
	close(next)
	workers.Wait()
	if failed == nil && ctx.Err() != nil {
		failed = fmt.Errorf("map %s: %w", m.pack, context.Cause(ctx))
	}
	if m.o.Each == nil {
		m.fill()
	}
	return failed
}

// one runs child i.
func (m *mapping) one(ctx context.Context, i int) (Child, error) {
	c := Call{Pack: m.pack, CallOptions: m.o.CallOptions, Progress: func(percent float64) {
		m.mu.Lock()
		m.running[i] = min(max(percent, 0), 100) / 100
		m.mu.Unlock()
		m.report()
	}}
	if m.o.KeyOf != nil {
		c.Key = m.o.KeyOf(i)
	}
	child, err := m.run.call(ctx, m.calls, c, m.in.at(i))
	m.mu.Lock()
	delete(m.running, i)
	m.ended++
	if err != nil {
		m.failures++
	}
	m.mu.Unlock()
	m.report()
	return child, err
}

// report tells the progress of all children as that of the run.
func (m *mapping) report() {
	m.mu.Lock()
	done := float64(m.ended)
	for _, part := range m.running {
		done += part
	}
	text := fmt.Sprintf("%d of %d %s done", m.ended, m.in.n, named(m.pack))
	if m.failures > 0 {
		text += fmt.Sprintf(", %d failed", m.failures)
	}
	m.mu.Unlock()
	m.run.Progress(m.o.From+(m.o.To-m.o.From)*min(done/float64(m.in.n), 1), text)
}

// take notes a child that has ended and hands on those whose turn it is. An
// error ends the Map.
func (m *mapping) take(c mapped, over bool) error {
	switch {
	case c.err == nil || c.child.Err != nil:
	case over: // the error is that of what ended the Map
		c.child.Err = givenUp(nil)
	default:
		c.child.Err = givenUp(c.err)
	}
	m.waiting[c.i] = c.child
	if over {
		return nil // its failure is a mere sign of the end
	}
	if m.bytes += len(c.child.Output); m.bytes > MaxKept && m.o.Each == nil {
		return Fatal(Errorf(ResourceExhausted, "the outputs of the children exceed %d MiB; take them one by one (Each)", MaxKept>>20))
	}
	if err := m.judge(c); err != nil {
		return err
	}
	return m.deliver()
}

func (m *mapping) judge(c mapped) error {
	if c.err == nil || m.o.Policy.collect {
		return nil
	}
	m.mu.Lock()
	failures := m.failures
	m.mu.Unlock()
	switch {
	case m.o.Policy.min == 0:
		return fmt.Errorf("child %d of %d: %w", c.i, m.in.n, c.err)
	case m.in.n-failures < m.o.Policy.min:
		e := c.child.Err
		return Fatal(Fail(HandlerFailed, c.err, fmt.Sprintf("%d of %d children failed, %d must succeed; the last failure: %s: %s",
			failures, m.in.n, m.o.Policy.min, e.Code, e.Message)))
	}
	return nil
}

// deliver hands on children in the order of the inputs.
func (m *mapping) deliver() error {
	for {
		c, ok := m.waiting[m.delivered]
		if !ok {
			return nil
		}
		delete(m.waiting, m.delivered)
		m.delivered++
		if m.o.Each != nil {
			if err := m.o.Each(m.delivered-1, c); err != nil {
				return err
			}
			continue
		}
		m.kept = append(m.kept, c)
	}
}

// fill completes the results of a Map that ended early.
func (m *mapping) fill() {
	for i := m.delivered; i < m.in.n; i++ {
		c, ok := m.waiting[i]
		if !ok {
			c = Child{Pack: named(m.pack), Err: givenUp(nil)}
		}
		m.kept = append(m.kept, c)
	}
}
