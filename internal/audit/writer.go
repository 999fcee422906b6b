package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/failpoint"
)

// Queue stores batches for the sealer.
type Queue interface {
	// Put returns once b is stored. Whether it is when an error comes back is
	// not known; storing it again does no harm.
	Put(ctx context.Context, b Batch) error
}

// Config is what a Writer is made of. Queue and Dir are required.
type Config struct {
	Queue Queue
	// Dir is the folder of spool files, Name what the process is ("api").
	Dir, Name string
	// Memory is how many events may wait in memory; 8,192. More go to the spool
	// by the hand of whoever records them.
	Memory int
	// SpoolBytes bounds the spool file; 256 MiB.
	SpoolBytes int64
	// Flush is how long an event waits for others; 100 ms.
	Flush time.Duration
	// PutTimeout bounds one attempt to reach the queue; 5 s.
	PutTimeout time.Duration
	Secrets    *Secrets // may be nil
	Log        zerolog.Logger
}

const (
	// batchEvents is the most that goes to the queue at once, for the sealer
	// to chain as one.
	batchEvents = 256
	// replayPause is the least and greatest pause after a failed replay.
	replayPause, replayPauseMax = 200 * time.Millisecond, 5 * time.Second
	// complainEvery is how often a lasting trouble is logged.
	complainEvery = time.Minute
)

func (c Config) withDefaults() Config {
	if c.Memory == 0 {
		c.Memory = 8192
	}
	if c.SpoolBytes == 0 {
		c.SpoolBytes = 256 << 20
	}
	if c.Flush == 0 {
		c.Flush = 100 * time.Millisecond
	}
	if c.PutTimeout == 0 {
		c.PutTimeout = 5 * time.Second
	}
	if c.Name == "" {
		c.Name = "helmdeck"
	}
	return c
}

// Stats is what a Writer did and what waits in it, in events.
type Stats struct {
	Queued     int   // in memory
	Spooled    int   // in the spool file
	SpoolBytes int64 // of it
	Written    uint64
	// Lost were neither stored nor spooled. It is zero unless the spool is full
	// or its disk fails while the queue refuses.
	Lost uint64
}

// Writer carries the events of a process to the queue. It is safe for
// concurrent use; Run must be running for anything to arrive.
type Writer struct {
	cfg    Config
	redact Redactor
	spool  *spool
	in     chan entry
	wake   chan struct{} // something is in the spool

	// Two sources of batches, each numbered in the order in which its batches
	// reach queue or spool: the collector's own, and that of events which did
	// not fit into memory.
	source, extra string
	n             uint64 // the collector's
	extraN        uint64 // guarded by the lock of the spool

	written, lost, told atomic.Uint64
	complained          atomic.Int64 // Unix seconds

	life sync.RWMutex // guards over
	over bool         // nobody reads in any more
}

// entry is an event in memory.
type entry struct {
	event Event
	// stored is told that it is safe, or why not; nil: nobody waits.
	stored func(error)
}

// NewWriter opens the spool and takes over what ended processes left in dir.
func NewWriter(cfg Config) (*Writer, error) {
	cfg = cfg.withDefaults()
	s, err := openSpool(cfg.Dir, cfg.Name, cfg.SpoolBytes)
	if err != nil {
		return nil, err
	}
	id := uuid.NewString()
	w := &Writer{
		cfg: cfg, redact: Redactor{cfg.Secrets}, spool: s, in: make(chan entry, cfg.Memory), wake: make(chan struct{}, 1),
		source: id, extra: id + "+",
	}
	if events, _ := s.state(); events > 0 {
		cfg.Log.Info().Int("events", events).Msg("audit events of an ended process are in the spool, they follow")
	}
	return w, nil
}

// Record implements Recorder.
func (w *Writer) Record(e Event) {
	w.put(entry{event: e})
}

// Store records e and calls stored once it is in the queue or on disk in the
// spool, or with the reason why it is in neither. stored must be quick; it may
// be called before Store returns.
func (w *Writer) Store(e Event, stored func(error)) { w.put(entry{e, stored}) }

// put takes an entry into memory, or straight into the spool when memory is
// full.
func (w *Writer) put(e entry) {
	if e.event.At.IsZero() {
		e.event.At = time.Now()
	}
	w.life.RLock()
	defer w.life.RUnlock()
	if !w.over {
		select {
		case w.in <- e:
			return
		default:
		}
	}
	b := Batch{Source: w.extra, Events: []Pending{w.redact.Pending(e.event)}}
	if err := w.spool.add(&b, func() uint64 { w.extraN++; return w.extraN }, e.stored != nil); err != nil {
		w.loseAll([]entry{e}, err)
		return
	}
	w.nudge()
	tell([]entry{e}, nil)
}

func (w *Writer) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Stats tells what was done and what waits.
func (w *Writer) Stats() Stats {
	events, size := w.spool.state()
	return Stats{Queued: len(w.in), Spooled: events, SpoolBytes: size, Written: w.written.Load(), Lost: w.lost.Load()}
}

func (w *Writer) lose(n int, err error) {
	w.lost.Add(uint64(n))
	w.complain(err, "audit events lost: neither bus nor spool takes them")
}

// complain logs a trouble, not for each event.
func (w *Writer) complain(err error, text string) {
	now, last := time.Now().Unix(), w.complained.Load()
	if now-last < int64(complainEvery/time.Second) || !w.complained.CompareAndSwap(last, now) {
		return
	}
	s := w.Stats()
	w.cfg.Log.Error().Err(err).Int("spooled", s.Spooled).Uint64("lost", s.Lost).Msg(text)
}

// Run carries until ctx ends; what is in memory then goes to the queue, or to
// the spool for the next process.
func (w *Writer) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	replay, stop := context.WithCancel(ctx)
	defer stop()
	loops.Go(func() { w.replay(replay) })
	for {
		batch, ended := w.collect(ctx)
		if len(batch) > 0 {
			w.hand(ctx, batch)
		}
		if ended {
			break
		}
	}
	stop()
	loops.Wait()
	w.finish(context.WithoutCancel(ctx))
	return nil
}

// Close gives the spool file up after Run has ended. What is recorded from
// then on is lost.
func (w *Writer) Close() error { return w.spool.close() }

// finish empties memory; later events go straight to the spool.
func (w *Writer) finish(ctx context.Context) {
	w.life.Lock()
	w.over = true
	w.life.Unlock()
	for {
		batch := w.present(nil)
		if len(batch) == 0 {
			return
		}
		w.hand(ctx, batch)
	}
}

// collect waits for an event and for those that follow it closely.
func (w *Writer) collect(ctx context.Context) (batch []entry, ended bool) {
	select {
	case e := <-w.in:
		batch = append(batch, e)
	case <-ctx.Done():
		return nil, true
	}
	timer := time.NewTimer(w.cfg.Flush)
	defer timer.Stop()
	hurried := false
	for {
		if batch = w.present(batch); len(batch) >= batchEvents {
			return batch, false
		}
		if !hurried && slices.ContainsFunc(batch, func(e entry) bool { return e.stored != nil }) {
			// Somebody waits: a moment for those beside it.
			hurried = true
			timer.Reset(min(w.cfg.Flush, durableLinger))
		}
		select {
		case e := <-w.in:
			batch = append(batch, e)
		case <-timer.C:
			return batch, false
		case <-ctx.Done():
			return batch, true
		}
	}
}

// durableLinger is how long an event that somebody waits for waits for others.
const durableLinger = 5 * time.Millisecond

// present adds what is in memory now.
func (w *Writer) present(batch []entry) []entry {
	for len(batch) < batchEvents {
		select {
		case e := <-w.in:
			batch = append(batch, e)
		default:
			return batch
		}
	}
	return batch
}

// batchBytes is about the most that goes to the queue at once; a message of
// the bus holds a mebibyte.
const batchBytes = 256 << 10

// hand brings entries to the queue or into the spool, as many at a time as a
// message holds.
func (w *Writer) hand(ctx context.Context, batch []entry) {
	b, size, from := Batch{Source: w.source}, 0, 0
	for i := range batch {
		p := w.redact.Pending(batch[i].event)
		b.Events = append(b.Events, p)
		// Beside payload and path an event has fields of 256 bytes at most.
		if size += len(p.Payload) + len(p.Path) + 1<<10; size >= batchBytes || i == len(batch)-1 {
			w.pass(ctx, b, batch[from:i+1])
			b, size, from = Batch{Source: w.source}, 0, i+1
		}
	}
}

// pass brings a batch to the queue, or into the spool while earlier ones are
// there or the queue fails. A stop does not break it off.
func (w *Writer) pass(ctx context.Context, b Batch, batch []entry) {
	ctx = context.WithoutCancel(ctx)
	if w.spool.empty() {
		w.n++
		b.N = w.n
		putCtx, cancel := context.WithTimeout(ctx, w.cfg.PutTimeout)
		err := w.cfg.Queue.Put(putCtx, b)
		cancel()
		if err == nil {
			failpoint.Hit(failpoint.AuditAfterPublish)
			w.written.Add(uint64(len(batch)))
			tell(batch, nil)
			return
		}
		w.complain(err, "audit events go to the spool: the bus does not take them")
	}
	w.keep(b, batch)
}

// keep spools a batch, or as much of it as there is room for.
func (w *Writer) keep(b Batch, batch []entry) {
	// A batch that the queue may have goes under its number, whole.
	whole := b.N > 0 || len(batch) == 1
	err := w.spool.add(&b, func() uint64 { w.n++; return w.n }, true)
	switch {
	case err == nil:
		failpoint.Hit(failpoint.AuditAfterSpool)
		w.nudge()
		tell(batch, nil)
	case errors.Is(err, ErrSpoolFull) && !whole:
		half := len(batch) / 2
		w.keep(Batch{Source: b.Source, Events: b.Events[:half]}, batch[:half])
		w.keep(Batch{Source: b.Source, Events: b.Events[half:]}, batch[half:])
	default:
		w.loseAll(batch, err)
	}
}

func tell(batch []entry, err error) {
	for _, e := range batch {
		if e.stored != nil {
			e.stored(err)
		}
	}
}

// loseAll counts what is lost; who waits is told instead, and comes again.
func (w *Writer) loseAll(batch []entry, err error) {
	n := 0
	for _, e := range batch {
		if e.stored == nil {
			n++
		}
	}
	if n > 0 {
		w.lose(n, err)
	}
	tell(batch, fmt.Errorf("store audit event: %w", err))
}

// replay brings what is in the spool to the queue, oldest first.
func (w *Writer) replay(ctx context.Context) {
	pause := replayPause
	for ctx.Err() == nil {
		progress, err := w.replayOne(ctx)
		wait := time.NewTimer(pause)
		switch {
		case progress:
			wait.Stop()
			pause = replayPause
			continue
		case err == nil:
			wait.Stop()
			select {
			case <-w.wake:
			case <-ctx.Done():
			}
			continue
		}
		if ctx.Err() == nil {
			w.complain(err, "audit events stay in the spool: the bus does not take them")
		}
		select {
		case <-wait.C:
		case <-ctx.Done():
		}
		wait.Stop()
		pause = min(2*pause, replayPauseMax)
	}
}

// replayOne brings one batch over; progress is false when there was none.
func (w *Writer) replayOne(ctx context.Context) (progress bool, err error) {
	b, length, ok, err := w.spool.next()
	if err != nil || !ok {
		return false, err
	}
	for i := range b.Events {
		// While it lay here the same may have come another way.
		b.Events[i].Repeated = b.Events[i].Once > 0
	}
	putCtx, cancel := context.WithTimeout(ctx, w.cfg.PutTimeout)
	defer cancel()
	if err := w.cfg.Queue.Put(putCtx, b); err != nil {
		return false, err
	}
	failpoint.Hit(failpoint.AuditAfterReplay)
	w.written.Add(uint64(len(b.Events)))
	if err := w.spool.done(b, length); err != nil {
		return false, err
	}
	if w.spool.empty() {
		w.confess()
	}
	return true, nil
}

// confess records how many events were lost, once there is room again.
func (w *Writer) confess() {
	lost, told := w.lost.Load(), w.told.Load()
	if lost <= told || !w.told.CompareAndSwap(told, lost) {
		return
	}
	w.Record(Event{Kind: Policy, Severity: Error, Payload: map[string]any{"action": "audit_events_lost", "count": lost - told}})
}
