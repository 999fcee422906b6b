package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// DefaultInstallation is the first token of every subject of an installation
// that chose no other.
const DefaultInstallation = "hd"

// ErrNoHistory is wrapped by the error that ends a Follow when past events
// were needed and nobody answered for Options.Patience.
var ErrNoHistory = errors.New("no history of events")

// Options say whose events a Subscriber follows, and where.
type Options struct {
	// Prefix of the installation; empty means DefaultInstallation.
	Prefix string
	// Caller is whose jobs are followed. Tenant and Owner, its bus tokens,
	// can be given instead.
	Caller        identity.Caller
	Tenant, Owner string
	// Patience is how long past events that are needed are asked for, again
	// and again; 0 means 30 s.
	Patience time.Duration
	// Resync is how long nothing may arrive before the history is asked for
	// what was missed, since the bus may lose a live message; 0 means 30 s.
	Resync time.Duration
}

func (o Options) withDefaults() Options {
	if o.Prefix == "" {
		o.Prefix = DefaultInstallation
	}
	if o.Tenant == "" && o.Owner == "" && o.Caller.Subject != "" {
		o.Tenant, o.Owner = o.Caller.TenantToken(), o.Caller.Owner()
	}
	if o.Patience <= 0 {
		o.Patience = 30 * time.Second
	}
	if o.Resync <= 0 {
		o.Resync = 30 * time.Second
	}
	return o
}

func (o Options) validate() error {
	var faults []error
	for _, t := range []struct{ name, token string }{{"prefix", o.Prefix}, {"tenant", o.Tenant}, {"owner", o.Owner}} {
		if !ValidToken(t.token) {
			faults = append(faults, fmt.Errorf("%w: %s %q", ErrSubject, t.name, t.token))
		}
	}
	return errors.Join(faults...)
}

// InboxPrefix is the prefix an outside program gives to
// nats.CustomInboxPrefix: its permissions cover no other inbox.
func InboxPrefix(owner string) string { return "_INBOX." + owner }

// Subscriber follows the events of one owner. It needs no consumer on the
// server and is safe for concurrent use.
type Subscriber struct {
	feed Feed
	opts Options
}

// NewSubscriber follows over a NATS connection, which stays the caller's to
// close. Connect with nats.CustomInboxPrefix(InboxPrefix(owner)), since the
// user of an outside program may subscribe to that inbox only.
func NewSubscriber(nc *nats.Conn, o Options) (*Subscriber, error) {
	o = o.withDefaults()
	return Over(natsFeed{nc: nc, prefix: o.Prefix}, o)
}

// Over follows over any Feed. It errs when the options name no owner.
func Over(feed Feed, o Options) (*Subscriber, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("make subscriber: %w", err)
	}
	return &Subscriber{feed: feed, opts: o}, nil
}

// Filter selects events to follow.
type Filter struct {
	// JobID is the job to follow; empty means every job of the owner.
	JobID string
	// Kinds are the kinds wanted (KindLifecycle, KindArtifacts, KindProgress,
	// KindLog, KindQueued); empty means all.
	Kinds []string
	// LiveOnly leaves out what was stored before Follow began, by this
	// machine's clock, and ignores the cursor.
	LiveOnly bool
}

func (f *Filter) wants(kind string) bool { return len(f.Kinds) == 0 || slices.Contains(f.Kinds, kind) }

// Event is one event with its place on the bus.
type Event struct {
	event.Event
	Kind string
	Key  jobs.Key
	// Stream and StreamSequence say where it is stored; empty and 0 for a
	// notice of KindQueued, which has no history.
	Stream         string
	StreamSequence uint64
	StoredAt       time.Time
	// Cursor resumes after this event. It is the reader's to keep.
	Cursor Cursor
}

// Terminal reports whether it is the last event of its job.
func (e Event) Terminal() bool { return Terminal(e.Type()) }

// Data decodes the data of an event, for instance Data[jobs.Job](e.Event).
func Data[T any](ev event.Event) (T, error) {
	var v T
	if err := json.Unmarshal(ev.Data(), &v); err != nil {
		return v, fmt.Errorf("decode data of %s %s: %w", ev.Type(), ev.ID(), err)
	}
	return v, nil
}

// Follow yields the stored events after from, oldest first, then live ones as
// they happen. Events of one job and stream come once each and in order; a
// gap, a lost connection and a reader slower than the bus are made good from
// the history. An event that cannot be decoded is left out.
//
// When f names a job, the sequence ends after the job's terminal event, which
// is the last one yielded; from a cursor behind it the sequence is empty.
// Otherwise it ends when ctx ends or the reader stops. An error is the last
// thing yielded; the end of ctx is not reported as one.
//
// A job that does not exist yet is waited for.
func (s *Subscriber) Follow(ctx context.Context, f Filter, from Cursor) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		fl := newFollow(s, f, from, yield)
		if err := fl.run(ctx); err != nil && ctx.Err() == nil {
			yield(Event{}, fmt.Errorf("follow events of %s: %w", s.opts.Owner, err))
		}
	}
}

// History yields the stored events after from and ends at the present, or
// after an error, which is the last thing it yields.
func (s *Subscriber) History(ctx context.Context, f Filter, from Cursor) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		fl := newFollow(s, f, from, yield)
		err := fl.catchUp(ctx, s.opts.Patience)
		if err == nil && fl.final != nil {
			_ = fl.emit(*fl.final) // it is over whether or not the reader stops here
		}
		if err != nil && !errors.Is(err, errStopped) && ctx.Err() == nil {
			yield(Event{}, fmt.Errorf("read events of %s: %w", s.opts.Owner, err))
		}
	}
}

// Feed is what a Subscriber listens to. NewSubscriber makes one of a NATS
// connection; a process that has its own access to the bus can bring another
// to Over.
type Feed interface {
	// Subscribe calls fn for every message on subject (without prefix, may
	// hold wildcards), in order, from one goroutine, and lost when messages
	// may have been missed. Neither is called after stop has returned.
	Subscribe(subject string, fn func(subject string, header map[string][]string, data []byte), lost func()) (stop func(), err error)
	// History answers one request for past events.
	History(ctx context.Context, tenant, owner string, r HistoryRequest) (HistoryPage, error)
	// Stream is the name that the stream header has here, for instance "EVT"
	// for the "x_EVT" of an installation with the prefix x.
	Stream(wire string) string
}

// errRefused marks an answer that asking again will not change.
var errRefused = errors.New("history request refused")

// natsFeed is the Feed of an outside program.
type natsFeed struct {
	nc     *nats.Conn
	prefix string
}

func (f natsFeed) Stream(wire string) string {
	// Streams carry the prefix of every installation but the default one.
	if n := len(f.prefix); f.prefix != DefaultInstallation && len(wire) > n+1 && wire[:n] == f.prefix && wire[n] == '_' {
		return wire[n+1:]
	}
	return wire
}

func (f natsFeed) Subscribe(subject string, fn func(string, map[string][]string, []byte), lost func()) (func(), error) {
	// Listen for a change of state before the first message can be missed.
	status := f.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	skip := len(f.prefix) + 1
	// mu makes stop wait for a call that is under way.
	var mu sync.Mutex
	stopped := false
	guarded := func(call func()) {
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			call()
		}
	}
	sub, err := f.nc.Subscribe(f.prefix+"."+subject, func(m *nats.Msg) {
		if len(m.Subject) > skip {
			guarded(func() { fn(m.Subject[skip:], m.Header, m.Data) })
		}
	})
	if err != nil {
		f.nc.RemoveStatusListener(status)
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	slow := sub.StatusChanged(nats.SubscriptionSlowConsumer)
	var watch sync.WaitGroup
	watch.Go(func() {
		for status != nil {
			select {
			case _, ok := <-status:
				if !ok {
					return
				}
				guarded(lost)
			case _, ok := <-slow:
				if !ok {
					slow = nil // the subscription has ended
					continue
				}
				guarded(lost)
			}
		}
	})
	return func() {
		mu.Lock()
		stopped = true
		mu.Unlock()
		_ = sub.Unsubscribe() // fails only on a closed connection
		f.nc.RemoveStatusListener(status)
		watch.Wait()
	}, nil
}

func (f natsFeed) History(ctx context.Context, tenant, owner string, r HistoryRequest) (HistoryPage, error) {
	subject, err := HistorySubject(tenant, owner)
	if err != nil {
		return HistoryPage{}, err
	}
	body, err := json.Marshal(r)
	if err != nil {
		return HistoryPage{}, fmt.Errorf("ask for history: %w", err)
	}
	msg, err := f.nc.RequestWithContext(ctx, f.prefix+"."+subject, body)
	if err != nil {
		return HistoryPage{}, fmt.Errorf("ask for history: %w", err)
	}
	var page HistoryPage
	if err := json.Unmarshal(msg.Data, &page); err != nil {
		return HistoryPage{}, fmt.Errorf("read history: %w", err)
	}
	switch {
	case page.Error == "":
		return page, nil
	case page.Retry:
		return HistoryPage{}, fmt.Errorf("ask for history: %s", page.Error)
	default:
		return HistoryPage{}, fmt.Errorf("%w: %s", errRefused, page.Error)
	}
}
