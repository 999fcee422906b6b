package bustest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
)

// ErrInjected is in the chain of every error Faults makes up. It is a
// bus.ErrUnavailable, as a lost connection would be.
var ErrInjected = fmt.Errorf("injected fault: %w", bus.ErrUnavailable)

// Op is a call of the narrow interface.
type Op string

// The operations. The subject of a rule is matched against the one in
// brackets.
const (
	OpPublish  Op = "publish"  // subject
	OpBatch    Op = "batch"    // subject of the last message
	OpLast     Op = "last"     // filter
	OpScan     Op = "scan"     // first filter
	OpPurge    Op = "purge"    // filter
	OpPull     Op = "pull"     // stream/consumer
	OpConsumer Op = "consumer" // stream/consumer
	OpPause    Op = "pause"    // stream/consumer
	OpNext     Op = "next"     // filter
	OpStream   Op = "stream"   // stream
	OpAck      Op = "ack"      // subject of the message, as for the next three
	OpNak      Op = "nak"
	OpWorking  Op = "working"
	OpTerm     Op = "term"

	OpKVGet    Op = "kv.get" // bucket/key, as for the next five
	OpKVCreate Op = "kv.create"
	OpKVUpdate Op = "kv.update"
	OpKVPut    Op = "kv.put"
	OpKVDelete Op = "kv.delete"
	OpKVWatch  Op = "kv.watch"

	OpObjectPut    Op = "object.put" // bucket/name, as for the next three
	OpObjectGet    Op = "object.get"
	OpObjectInfo   Op = "object.info"
	OpObjectDelete Op = "object.delete"
)

// Kind is what goes wrong.
type Kind string

// The faults.
const (
	Before     Kind = "before"     // an error, nothing done
	After      Kind = "after"      // done, then an error: the nasty one
	Delayed    Kind = "delayed"    // done later, while ctx lasts
	Twice      Kind = "twice"      // done twice, or each delivery of a pull twice; the first result counts
	Disconnect Kind = "disconnect" // this call and all others fail undone, until Calls have
)

// Rule programs a fault.
type Rule struct {
	Op      Op     // empty: every operation
	Subject string // prefix of the subject; empty: every one
	// Nth is the matching call at which the rule fires, 1 for the first; 0
	// fires at every one.
	Nth  int
	Kind Kind
	// Delay is how late a Delayed call is.
	Delay time.Duration
	// Calls is how many calls fail in a Disconnect, this one included;
	// 0: until Heal.
	Calls int
	// Err replaces ErrInjected.
	Err error
	// Do runs when the rule fires, before anything else; for tests that let
	// something happen in between.
	Do func()
}

// Injection is a fault that was made.
type Injection struct {
	Op      Op
	Subject string
	Kind    Kind
}

// Faults stands in front of a JetStream and breaks it. Safe for concurrent
// use; rules may be added while it runs.
type Faults struct {
	inner bus.JetStream

	mu       sync.Mutex // guards what follows
	rules    []*armed
	random   *rand.Rand
	chance   map[Kind]float64
	delay    time.Duration
	offline  int // calls still to fail; -1: until Heal
	injected []Injection
}

type armed struct {
	Rule
	seen int
}

// NewFaults wraps js; without rules it only passes calls on.
func NewFaults(js bus.JetStream) *Faults { return &Faults{inner: js} }

// Add adds rules. The first that fires decides; all of them count the call.
func (f *Faults) Add(rules ...Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range rules {
		f.rules = append(f.rules, &armed{Rule: r})
	}
}

// Random makes faults of each kind with the chance given, 0 to 1, in an order
// that seed alone decides for the same sequence of calls. Delays last up to
// delay. A Disconnect lasts up to five calls.
func (f *Faults) Random(seed uint64, chance map[Kind]float64, delay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.random, f.chance, f.delay = rand.New(rand.NewPCG(seed, seed)), chance, delay
}

// Heal drops all rules and random faults and ends a Disconnect.
func (f *Faults) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.random, f.offline = nil, nil, 0
}

// Injected lists the faults made so far, in order.
func (f *Faults) Injected() []Injection {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Injection(nil), f.injected...)
}

// pick decides the fate of a call; nil: none.
func (f *Faults) pick(op Op, subject string) *Rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	var fired *Rule
	for _, r := range f.rules {
		if r.Op != "" && r.Op != op || !strings.HasPrefix(subject, r.Subject) {
			continue
		}
		r.seen++
		if fired == nil && (r.Nth == 0 || r.Nth == r.seen) {
			fired = &r.Rule
		}
	}
	if fired == nil {
		fired = f.roll()
	}
	if f.offline != 0 {
		f.offline = max(f.offline-1, -1)
		fired = &Rule{Kind: Before}
	} else if fired != nil && fired.Kind == Disconnect {
		f.offline = fired.Calls - 1
	}
	if fired != nil {
		f.injected = append(f.injected, Injection{op, subject, fired.Kind})
	}
	return fired
}

// kinds in a fixed order, so that a seed means the same everywhere.
var kinds = []Kind{Before, After, Delayed, Twice, Disconnect}

func (f *Faults) roll() *Rule {
	if f.random == nil {
		return nil
	}
	x := f.random.Float64()
	for _, k := range kinds {
		if x -= f.chance[k]; x < 0 {
			r := &Rule{Kind: k, Calls: 1 + f.random.IntN(5)}
			if f.delay > 0 {
				r.Delay = time.Duration(f.random.Int64N(int64(f.delay)))
			}
			return r
		}
	}
	return nil
}

// do makes a call under the rules. fn is the call; it is run once, twice or
// not at all.
func (f *Faults) do(ctx context.Context, op Op, subject string, fn func() error) error {
	r := f.pick(op, subject)
	if r == nil {
		return fn()
	}
	if r.Do != nil {
		r.Do()
	}
	failure := r.Err
	if failure == nil {
		failure = ErrInjected
	}
	switch r.Kind {
	case Before, Disconnect:
		return fmt.Errorf("%s %s: %w", op, subject, failure)
	case After:
		if err := fn(); err != nil {
			return err
		}
		return fmt.Errorf("%s %s: %w", op, subject, failure)
	case Twice:
		err := fn()
		_ = fn() // the duplicate's own outcome reaches nobody
		return err
	case Delayed:
		t := time.NewTimer(r.Delay)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w", op, subject, ctx.Err())
		case <-t.C:
		}
	}
	return fn()
}

// get is do for calls with a result: that of the first run.
func get[T any](ctx context.Context, f *Faults, op Op, subject string, fn func() (T, error)) (T, error) {
	var first *T
	err := f.do(ctx, op, subject, func() error {
		v, err := fn()
		if first == nil {
			first = &v
		}
		return err
	})
	if err != nil || first == nil {
		var zero T
		return zero, err
	}
	return *first, nil
}
