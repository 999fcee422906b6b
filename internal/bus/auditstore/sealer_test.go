package auditstore_test

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/identity"
)

func TestEventsBecomeAChain(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.put("a", 1, "/1", "/2")
	r.put("b", 1, "/3")
	r.sealer(r.js)
	if diff := cmp.Diff([]string{"/1", "/2", "/3"}, r.records(3)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	r.sound()
	prev, id := audit.NoHash, uint64(0)
	err := r.trail.Export(r.ctx, audit.Query{}, func(stored []byte) error {
		rec, err := audit.Open(stored)
		if id++; rec.ID != id || rec.PrevHash != prev {
			t.Errorf("record %d has id %d and follows %s, want %s", id, rec.ID, rec.PrevHash, prev)
		}
		prev = rec.Hash
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// What is sealed leaves the queue.
	r.await("empty queue", func() bool {
		st, err := r.js.Stream(r.ctx, bus.StreamTrailIn, "")
		return err == nil && st.Messages == 0
	})
}

// TestBatchesAreSealedOnce: whatever is stored again, under its old number, is
// not sealed again, by this sealer or by the next one.
func TestBatchesAreSealedOnce(t *testing.T) {
	t.Parallel()
	r := setup(t)
	stop := r.sealer(r.js)
	r.put("a", 1, "/1")
	r.put("a", 2, "/2")
	r.records(2)
	again := func() {
		t.Helper()
		for n, p := range []string{"/1", "/2"} {
			// Past the window in which the server itself drops duplicates.
			b := batch("a", uint64(n+1), r.now(), p)
			if _, err := r.js.Publish(r.ctx, bus.Outgoing{Subject: "trailin.a", Data: encode(t, b)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	again()
	r.put("a", 3, "/3")
	r.records(3)
	stop()
	again()
	r.put("a", 4, "/4")
	r.sealer(r.js)
	if diff := cmp.Diff([]string{"/1", "/2", "/3", "/4"}, r.records(4)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	r.sound()
}

// TestSealersShareAChain: several sealers at once, each failing now and then
// with what it wrote stored or not, make one chain with every event once.
func TestSealersShareAChain(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const sealers, writers, batches = 3, 4, 40
	for i := range sealers {
		f := bustest.NewFaults(r.env.Dial(bus.Config{Server: r.env.Server, User: bus.RoleAPI, Name: fmt.Sprint("sealer", i)}).JetStream())
		f.Random(uint64(i), map[bustest.Kind]float64{bustest.Before: 0.02, bustest.After: 0.04}, 0)
		r.sealer(f)
	}
	var want []string
	var wg sync.WaitGroup
	for w := range writers {
		for n := range batches {
			want = append(want, fmt.Sprintf("/%d/%d", w, n))
		}
		wg.Go(func() {
			for n := range batches {
				r.put("w"+strconv.Itoa(w), uint64(n+1), fmt.Sprintf("/%d/%d", w, n))
			}
		})
	}
	wg.Wait()
	got := r.records(len(want))
	last := map[byte]int{}
	for _, p := range got { // of one writer in order
		n, err := strconv.Atoi(p[3:])
		if err != nil {
			t.Fatal(err)
		}
		if was, ok := last[p[1]]; ok && n != was+1 {
			t.Errorf("writer %c: %d follows %d", p[1], n, was)
		}
		last[p[1]] = n
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	r.sound()
}

// TestAnotherSealerTakesOver: when the sealer that won goes, the one that lost
// goes on.
func TestAnotherSealerTakesOver(t *testing.T) {
	t.Parallel()
	r := setup(t)
	stops := []func(){r.sealer(r.js), r.sealer(r.env.Dial(bus.Config{Server: r.env.Server, User: bus.RoleAPI}).JetStream())}
	n := 0
	for range 20 {
		n++
		r.put("a", uint64(n), "/x")
	}
	r.records(n)
	stops[0]()
	n++
	r.put("a", uint64(n), "/x")
	r.records(n)
	r.sealer(r.js)
	stops[1]()
	n++
	r.put("a", uint64(n), "/x")
	if got := len(r.records(n)); got != n {
		t.Errorf("%d records, want %d", got, n)
	}
	r.sound()
}

// TestEndOfAJobIsOneRecord however often and by whichever way it is told.
func TestEndOfAJobIsOneRecord(t *testing.T) {
	t.Parallel()
	r := setup(t)
	end := func(seq uint64, repeated bool) audit.Pending {
		return pending(audit.Event{
			At: r.now(), Kind: audit.JobEnd, Actor: identity.Caller{Subject: "ann"}, Path: fmt.Sprint("/", seq),
			Payload: map[string]any{"sequence": seq}, Once: seq, Repeated: repeated,
		})
	}
	put := func(source string, n uint64, events ...audit.Pending) {
		t.Helper()
		if err := r.queue.Put(r.ctx, audit.Batch{Source: source, N: n, Events: events}); err != nil {
			t.Fatal(err)
		}
	}
	stop := r.sealer(r.js)
	put("a", 1, end(7, false), end(8, false), end(7, true))
	put("b", 1, end(7, true), end(9, false))
	r.records(3)
	stop()
	// The next sealer remembers nothing.
	put("b", 2, end(8, true), end(9, true), end(10, true), end(11, false))
	r.sealer(r.js)
	if diff := cmp.Diff([]string{"/7", "/8", "/9", "/10", "/11"}, r.records(5)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	r.sound()
}

// TestBadBatchesAreNoObstacle: what is no batch, or of no known kind, is passed
// over.
func TestBadBatchesAreNoObstacle(t *testing.T) {
	t.Parallel()
	r := setup(t)
	many := audit.Batch{Source: "evil", N: 1}
	for range 600 {
		many.Events = append(many.Events, pending(audit.Event{At: r.now(), Kind: audit.Request}))
	}
	odd := batch("odd", 1, r.now(), "/odd")
	odd.Events[0].TenantToken, odd.Events[0].Owner = "a.b", "*"
	unknown := batch("unknown", 1, r.now(), "/unknown")
	unknown.Events[0].EventType = "coffee.break"
	for _, data := range [][]byte{[]byte("{"), []byte("{}"), encode(t, many), encode(t, odd), encode(t, unknown)} {
		if _, err := r.js.Publish(r.ctx, bus.Outgoing{Subject: "trailin.x", Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	r.put("a", 1, "/1")
	r.sealer(r.js)
	if diff := cmp.Diff([]string{"/odd", "/1"}, r.records(2)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// TestQueueMadeAnew: sequences of the queue that begin again lose nothing.
func TestQueueMadeAnew(t *testing.T) {
	t.Parallel()
	r := setup(t)
	stop := r.sealer(r.js)
	r.put("a", 1, "/1")
	r.put("a", 2, "/2")
	r.records(2)
	stop()
	if err := r.admin().DeleteStream(r.ctx, bus.StreamTrailIn); err != nil {
		t.Fatal(err)
	}
	if _, err := r.env.Conn(bus.RoleAdmin).Init(r.ctx); err != nil {
		t.Fatal(err)
	}
	r.put("a", 3, "/3")
	r.sealer(r.js)
	if diff := cmp.Diff([]string{"/1", "/2", "/3"}, r.records(3)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	r.sound()
}

// TestDaysAreAnchored: each day that is over has an anchor, also those on
// which nothing happened for long.
func TestDaysAreAnchored(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.sealer(r.js)
	for day := range 3 {
		r.clock.Store(int64(day) * int64(36*time.Hour))
		r.put("a", uint64(day+1), fmt.Sprint("/", day))
		r.records(day + 1)
	}
	rep, err := r.trail.Verify(r.ctx, time.Time{}, time.Time{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !rep.OK || len(rep.Days) != 3 || !rep.Days[0].Anchored || !rep.Days[1].Anchored || rep.Days[2].Anchored {
		t.Errorf("got %+v, want three days, two of them anchored", rep)
	}
	// One day alone.
	from := r.now().UTC().Truncate(24 * time.Hour)
	if rep, err = r.trail.Verify(r.ctx, from, time.Time{}, 0); err != nil || !rep.OK || rep.Checked != 1 || len(rep.Days) != 1 {
		t.Errorf("got %+v, %v, want one record of the last day", rep, err)
	}
}
