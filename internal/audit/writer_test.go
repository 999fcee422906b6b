package audit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/helmdeck/helmdeck/internal/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// memoryQueue stores batches once, as the real one does, unless it is away.
type memoryQueue struct {
	mu     sync.Mutex
	last   map[string]uint64
	paths  []string
	away   error         // what Put answers
	stored bool          // Put stores although it answers away
	hang   chan struct{} // Put waits until it is closed
	puts   int
}

var errAway = errors.New("the bus is away")

func (q *memoryQueue) Put(ctx context.Context, b audit.Batch) error {
	q.mu.Lock()
	hang := q.hang
	q.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.puts++
	if q.last == nil {
		q.last = map[string]uint64{}
	}
	if (q.away == nil || q.stored) && b.N > q.last[b.Source] {
		q.last[b.Source] = b.N
		for _, e := range b.Events {
			q.paths = append(q.paths, e.Path)
		}
	}
	return q.away
}

func (q *memoryQueue) set(away error, stored bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.away, q.stored = away, stored
}

func (q *memoryQueue) seen() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]string(nil), q.paths...)
}

// await polls for a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("no %s after %s", what, patience)
		case <-time.After(time.Millisecond):
		}
	}
}

func config(dir string, q audit.Queue) audit.Config {
	return audit.Config{Queue: q, Dir: dir, Name: "api", Flush: time.Millisecond, PutTimeout: time.Second, Log: zerolog.Nop()}
}

// running is a writer with its loop.
type running struct {
	*audit.Writer
	stop func()
}

func start(t *testing.T, cfg audit.Config) running {
	t.Helper()
	w, err := audit.NewWriter(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return running{w, stop}
}

func event(i int) audit.Event {
	return audit.Event{Kind: audit.Request, Path: fmt.Sprint("/", i), Status: 200}
}

func numbers(from, to int) (paths []string) {
	for i := from; i < to; i++ {
		paths = append(paths, fmt.Sprint("/", i))
	}
	return paths
}

func TestEventsReachTheQueueInOrder(t *testing.T) {
	t.Parallel()
	q := &memoryQueue{}
	w := start(t, config(t.TempDir(), q))
	for i := range 1000 {
		w.Record(event(i))
	}
	await(t, "1000 events", func() bool { return len(q.seen()) == 1000 })
	if diff := cmp.Diff(numbers(0, 1000), q.seen()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if s := w.Stats(); s.Lost != 0 || s.Written != 1000 || s.Spooled != 0 {
		t.Errorf("got %+v", s)
	}
}

// TestBusAwayLosesNothing: sixty thousand events, those of a minute at a
// thousand a second, wait in the spool and follow in order, whether the queue
// refused them or stored them and did not say so.
func TestBusAwayLosesNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		n      int
		stored bool
	}{"refused": {60_000, false}, "stored without an answer": {2000, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := &memoryQueue{}
			cfg := config(t.TempDir(), q)
			cfg.Memory = 100_000 // so that order is seen
			w := start(t, cfg)
			w.Record(event(0))
			await(t, "first event", func() bool { return len(q.seen()) == 1 })
			q.set(errAway, tt.stored)
			n := tt.n
			for i := 1; i < n; i++ {
				w.Record(event(i))
			}
			await(t, "spool", func() bool { s := w.Stats(); return s.Queued == 0 && s.Spooled > 0 })
			q.set(nil, false)
			await(t, "all events", func() bool { return len(q.seen()) == n && w.Stats().Spooled == 0 })
			if diff := cmp.Diff(numbers(0, n), q.seen()); diff != "" {
				t.Errorf("events (-want +got):\n%.2000s", diff)
			}
			if s := w.Stats(); s.Lost != 0 || s.SpoolBytes != 0 {
				t.Errorf("got %+v, want nothing lost and an empty spool", s)
			}
		})
	}
}

// TestStoppedWriterLosesNothing: while nothing carries events on, more than
// memory holds go to the spool by the hand of whoever records them.
func TestStoppedWriterLosesNothing(t *testing.T) {
	t.Parallel()
	q := &memoryQueue{hang: make(chan struct{})}
	cfg := config(t.TempDir(), q)
	cfg.Memory, cfg.PutTimeout = 64, patience
	w := start(t, cfg)
	const n = 4000
	for i := range n {
		w.Record(event(i))
	}
	if s := w.Stats(); s.Lost != 0 || s.Spooled < n-64-600 {
		t.Errorf("got %+v, want what is over memory in the spool", s)
	}
	close(q.hang)
	await(t, "all events", func() bool { return len(q.seen()) == n })
	seen := map[string]bool{}
	for _, p := range q.seen() {
		seen[p] = true
	}
	if len(seen) != n {
		t.Errorf("%d different events, want %d", len(seen), n)
	}
}

// TestSpoolOutlivesTheProcess: the next writer of the directory takes over,
// also what another role of the same directory left.
func TestSpoolOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	q := &memoryQueue{away: errAway}
	first := start(t, config(dir, q))
	second := start(t, config(dir, q)) // a second process of the role
	first.Record(event(1))
	second.Record(event(2))
	await(t, "both spooled", func() bool { return first.Stats().Spooled == 1 && second.Stats().Spooled == 1 })
	first.stop()
	second.stop()
	info, err := os.Stat(filepath.Join(dir, "api.spool"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("spool file: %v %v, want mode 600", info, err)
	}
	q.set(nil, false)
	third := start(t, config(dir, q))
	third.Record(event(3))
	await(t, "three events", func() bool { return len(q.seen()) == 3 })
	if diff := cmp.Diff(numbers(1, 4), q.seen()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestTornLineIsCutOff: what was being written when the process was killed is
// not there, what was whole is.
func TestTornLineIsCutOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	q := &memoryQueue{away: errAway}
	w := start(t, config(dir, q))
	for i := range 3 {
		done := make(chan error, 1)
		w.Store(event(i), func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	w.stop()
	path := filepath.Join(dir, "api.spool")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := append([]byte(nil), whole...)
	damaged[20] ^= 0xff // the first line; the third is cut in two
	if err := os.WriteFile(path, damaged[:len(damaged)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	q.set(nil, false)
	again := start(t, config(dir, q))
	again.Record(event(7))
	await(t, "two events", func() bool { return len(q.seen()) == 2 })
	if diff := cmp.Diff([]string{"/1", "/7"}, q.seen()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestFullSpoolCounts: beyond its bound events are lost, counted and confessed;
// who waits for his event is told.
func TestFullSpoolCounts(t *testing.T) {
	t.Parallel()
	q := &memoryQueue{away: errAway}
	cfg := config(t.TempDir(), q)
	cfg.SpoolBytes = 100 << 10
	w := start(t, cfg)
	const n = 500
	for i := range n {
		w.Record(event(i))
	}
	await(t, "empty memory", func() bool { return w.Stats().Queued == 0 })
	done := make(chan error, 1)
	w.Store(event(n), func(err error) { done <- err })
	if err := <-done; !errors.Is(err, audit.ErrSpoolFull) {
		t.Errorf("got %v, want %v", err, audit.ErrSpoolFull)
	}
	s := w.Stats()
	if s.Lost == 0 || s.SpoolBytes > cfg.SpoolBytes || int(s.Lost)+s.Spooled != n {
		t.Fatalf("got %+v, want a full spool and the rest of %d lost", s, n)
	}
	q.set(nil, false)
	await(t, "confession", func() bool { return len(q.seen()) == s.Spooled+1 })
}

// TestStoredMeansStored: an event is told to be safe only when it is.
func TestStoredMeansStored(t *testing.T) {
	t.Parallel()
	q := &memoryQueue{}
	dir := t.TempDir()
	w := start(t, config(dir, q))
	for i := range 50 {
		if i == 25 {
			q.set(errAway, false)
		}
		done := make(chan error, 1)
		w.Store(event(i), func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := len(q.seen()) + w.Stats().Spooled; got != i+1 {
			t.Fatalf("%d events are safe, want %d", got, i+1)
		}
	}
}

// TestStopCarriesMemoryAway: a clean stop leaves nothing in memory.
func TestStopCarriesMemoryAway(t *testing.T) {
	t.Parallel()
	q := &memoryQueue{}
	cfg := config(t.TempDir(), q)
	cfg.Flush = time.Hour
	w := start(t, cfg)
	for i := range 100 {
		w.Record(event(i))
	}
	w.stop()
	if diff := cmp.Diff(numbers(0, 100), q.seen()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
