package events

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

const (
	// queueSize is how far a reader may fall behind the live feed before the
	// rest is fetched from the history instead.
	queueSize = 1024
	// windowSize is how many live sequences are remembered one by one before
	// the history confirms that nothing lies between them.
	windowSize = 1024
	// askTimeout bounds one question; pauseMax the time between two.
	askTimeout = 10 * time.Second
	pauseMax   = 2 * time.Second
	// lastLook bounds the question for what came with the terminal event.
	lastLook = time.Second
)

// firstLooks are the pauses before the history is asked again after a start
// or a loss, when interest in the live feed may not have spread to every
// server yet. Options.Resync follows.
var firstLooks = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second}

// errStopped says that the reader wants no more.
var errStopped = errors.New("reader stopped")

// The headers that the server adds when it republishes a stored message.
const (
	headerStream   = "Nats-Stream"
	headerSequence = "Nats-Sequence"
	headerTime     = "Nats-Time-Stamp"
	headerLast     = "Nats-Last-Sequence" // the one before it on its subject
)

type liveMessage struct {
	subject string
	header  map[string][]string
	data    []byte
}

// follow is one running Follow. Only the reader's goroutine touches it, but
// for queue and lost.
type follow struct {
	feed   Feed
	opts   Options
	filter Filter
	yield  func(Event, error) bool
	// since is when a LiveOnly follow began; zero otherwise.
	since time.Time

	cursor  Cursor // of the last event yielded
	streams map[string]*track
	probed  bool   // it is known whether the terminal event lies behind
	final   *Event // the job's terminal event, held until all else is out
	ended   bool   // the terminal event was seen, wanted or not
	looks   int    // index of firstLooks

	queue chan liveMessage
	lost  atomic.Bool // set before anything later enters queue
	wake  chan struct{}
}

func newFollow(s *Subscriber, f Filter, from Cursor, yield func(Event, error) bool) *follow {
	fl := &follow{feed: s.feed, opts: s.opts, filter: f, yield: yield, cursor: from, probed: f.JobID == "",
		streams: map[string]*track{}, queue: make(chan liveMessage, queueSize), wake: make(chan struct{}, 1)}
	if f.LiveOnly {
		fl.since, fl.cursor = time.Now(), nil
	}
	for _, name := range []string{StreamEvents, StreamProgress} {
		fl.streams[name] = &track{floor: fl.cursor[name], known: !f.LiveOnly, window: map[uint64]struct{}{}}
	}
	return fl
}

func (fl *follow) run(ctx context.Context) error {
	err := fl.loop(ctx)
	if errors.Is(err, errStopped) {
		return nil
	}
	if err == nil && fl.final != nil {
		_ = fl.emit(*fl.final) // it is over whether or not the reader stops here
	}
	return err
}

func (fl *follow) loop(ctx context.Context) error {
	subject, err := fl.subject()
	if err != nil {
		return err
	}
	stop, err := fl.feed.Subscribe(subject, fl.receive, fl.lose)
	if err != nil {
		return err
	}
	defer stop()
	if !fl.filter.LiveOnly || fl.filter.JobID != "" {
		if err := fl.catchUp(ctx, fl.opts.Patience); err != nil {
			return err
		}
	}
	idle := time.NewTimer(fl.pause())
	defer idle.Stop()
	for !fl.ended {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-fl.wake:
			err = fl.mend(ctx)
		case m := <-fl.queue:
			if err = fl.mend(ctx); err == nil {
				err = fl.handle(ctx, m)
			}
			idle.Reset(fl.pause())
		case <-idle.C:
			err = fl.look(ctx)
			idle.Reset(fl.pause())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pause is how long to wait for a live message before the next look.
func (fl *follow) pause() time.Duration {
	if fl.looks < len(firstLooks) {
		return min(firstLooks[fl.looks], fl.opts.Resync)
	}
	return fl.opts.Resync/2 + rand.N(fl.opts.Resync) // spreads many followers
}

// look asks for what may have been missed. Nothing says that anything was, so
// no answer is no fault.
func (fl *follow) look(ctx context.Context) error {
	fl.looks++
	for _, t := range fl.streams {
		if t.known {
			return ignoreNoHistory(fl.catchUp(ctx, 0))
		}
	}
	return nil // not a message yet: it would mean to read all of the past
}

func (fl *follow) subject() (string, error) {
	k := jobs.Key{Tenant: fl.opts.Tenant, Owner: fl.opts.Owner, ID: fl.filter.JobID}
	kind := ""
	if len(fl.filter.Kinds) == 1 && k.ID == "" {
		kind = fl.filter.Kinds[0]
	}
	return LiveFilter(k, kind)
}

// receive runs on the feed's goroutine and never blocks it.
func (fl *follow) receive(subject string, header map[string][]string, data []byte) {
	select {
	case fl.queue <- liveMessage{subject, header, data}:
	default:
		fl.lose()
	}
}

func (fl *follow) lose() {
	fl.lost.Store(true)
	select {
	case fl.wake <- struct{}{}:
	default:
	}
}

// mend fetches what was lost, if anything was.
func (fl *follow) mend(ctx context.Context) error {
	if !fl.lost.Swap(false) {
		return nil
	}
	fl.looks = 0
	return fl.catchUp(ctx, fl.opts.Patience)
}

func (fl *follow) handle(ctx context.Context, m liveMessage) error {
	s, ok := followed(m.subject)
	if !ok || s.Family != FamilyLive {
		return nil
	}
	stream := fl.feed.Stream(first(m.header, headerStream))
	t, seq := fl.streams[stream], number(m.header, headerSequence)
	switch {
	case t == nil:
		return fl.notice(m, s)
	case seq == 0:
		return nil // not republished by a stream, so none of ours
	case !t.known:
		t.floor, t.known = seq-1, true
	}
	if fresh, err := fl.close(ctx, t, seq, number(m.header, headerLast)); err != nil || !fresh {
		return err
	}
	t.window[seq] = struct{}{}
	e := Event{Kind: s.Kind, Key: keyOf(s), Stream: stream, StreamSequence: seq}
	if e.Event, ok = readable(m.header, m.data); !ok {
		return nil
	}
	e.StoredAt, _ = time.Parse(time.RFC3339Nano, first(m.header, headerTime)) // zero if absent
	if err := fl.deliver(e); err != nil || !fl.ended {
		return err
	}
	// What was stored with or before the last event may be behind it.
	return ignoreNoHistory(fl.catchUp(ctx, lastLook))
}

// close sees to it that nothing is missing before the live message seq, whose
// predecessor on its subject is last, and reports whether seq is still new.
func (fl *follow) close(ctx context.Context, t *track, seq, last uint64) (fresh bool, err error) {
	if t.seen(seq) {
		return false, nil
	}
	if last > 0 && !t.seen(last) {
		// It never came. If it is gone from the stream as well, what came by
		// is all there is.
		if err := fl.catchUp(ctx, fl.opts.Patience); err != nil || t.seen(seq) {
			return false, err
		}
	}
	if len(t.window) >= windowSize {
		if err := ignoreNoHistory(fl.catchUp(ctx, 0)); err != nil || t.seen(seq) {
			return false, err
		}
		if len(t.window) >= windowSize { // no answer: trust the live feed
			t.raise(seq - 1)
		}
	}
	return true, nil
}

// notice hands on what has no history: a job entered its queue.
func (fl *follow) notice(m liveMessage, s Subject) error {
	if s.Kind != KindQueued || !fl.filter.wants(s.Kind) {
		return nil
	}
	ev, ok := readable(m.header, nil)
	if !ok {
		return nil
	}
	return fl.emit(Event{Event: ev, Kind: s.Kind, Key: keyOf(s)})
}

// deliver yields an event of a stream, or keeps it when it ends the job.
func (fl *follow) deliver(e Event) error {
	end := fl.filter.JobID != "" && e.Kind == KindLifecycle && e.Terminal()
	fl.ended = fl.ended || end
	switch {
	case !fl.filter.wants(e.Kind):
		return nil
	case end:
		fl.final = &e
		return nil
	}
	return fl.emit(e)
}

func (fl *follow) emit(e Event) error {
	if e.Stream != "" {
		fl.cursor = fl.cursor.after(e.Stream, e.StreamSequence)
	}
	e.Cursor = fl.cursor
	if !fl.yield(e, nil) {
		return errStopped
	}
	return nil
}
