package bus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

// synced is a server that syncs every write before it acknowledges it.
func synced(t *testing.T, change func(*bus.Profile)) *bustest.Env {
	t.Helper()
	return bustest.Start(t, bustest.WithProfile(func(p *bus.Profile) {
		p.SyncAlways = true
		if change != nil {
			change(p)
		}
	}))
}

func lifecycle(i int) string { return fmt.Sprintf("evt.default.alice.j%d.lc", i) }

type stored struct {
	sequence uint64
	err      error
}

// together makes all writes in such a way that they meet at the writer of
// their stream, and returns what each was answered.
func together(ctx context.Context, t *testing.T, c *bus.Conn, writes ...[]bus.Outgoing) []stored {
	t.Helper()
	waiting, release := bus.HoldWrites(c, writes[0][0].Subject)
	got := make([]stored, len(writes))
	var all sync.WaitGroup
	for i, ms := range writes {
		all.Go(func() { got[i].sequence, got[i].err = c.JetStream().PublishBatch(ctx, ms) })
		for waiting() <= i { // one after the other, so that their order is known
			if ctx.Err() != nil {
				t.Fatal("writes do not arrive")
			}
			runtime.Gosched()
		}
	}
	release()
	all.Wait()
	return got
}

func one(m bus.Outgoing) []bus.Outgoing { return []bus.Outgoing{m} }

func TestWritesThatMeetAreStoredTogether(t *testing.T) {
	t.Parallel()
	env, ctx := synced(t, nil), bustest.Context(t)
	c := env.Conn(bus.RoleWorker)
	const n = 50
	var writes [][]bus.Outgoing
	for i := range n {
		ms := one(bus.Outgoing{Subject: lifecycle(i), Data: fmt.Append(nil, i), Expect: seq(0)})
		if i%10 == 0 { // some callers want two messages stored at once
			ms = append(ms, bus.Outgoing{Subject: fmt.Sprintf("evt.default.alice.j%d.art", i), Data: fmt.Append(nil, i)})
		}
		writes = append(writes, ms)
	}
	want := uint64(0)
	for i, got := range together(ctx, t, c, writes...) {
		if want += uint64(len(writes[i])); got.err != nil || got.sequence != want {
			t.Fatalf("write %d: got %d, %v; want %d: they did not go together", i, got.sequence, got.err, want)
		}
		last := writes[i][len(writes[i])-1]
		m, err := c.JetStream().Last(ctx, bus.StreamEvents, last.Subject, true)
		if err != nil || m.Sequence != got.sequence || string(m.Data) != fmt.Sprint(i) {
			t.Errorf("write %d: stored %+v, %v", i, m, err)
		}
	}
	if !bus.Batched(c, lifecycle(0)) {
		t.Error("no batch was made of them")
	}
}

// TestBadExpectationHurtsItsCallerOnly: one bad message has the server refuse
// the batch.
func TestBadExpectationHurtsItsCallerOnly(t *testing.T) {
	t.Parallel()
	env, ctx := synced(t, nil), bustest.Context(t)
	c := env.Conn(bus.RoleWorker)
	taken := map[int]bool{0: true, 17: true, 59: true}
	for i := range taken {
		if _, err := c.JetStream().Publish(ctx, bus.Outgoing{Subject: lifecycle(i), Data: []byte("before"), Expect: seq(0)}); err != nil {
			t.Fatal(err)
		}
	}
	var writes [][]bus.Outgoing
	for i := range 60 {
		writes = append(writes, one(bus.Outgoing{Subject: lifecycle(i), Data: []byte("x"), Expect: seq(0)}))
	}
	for i, got := range together(ctx, t, c, writes...) {
		m, err := c.JetStream().Last(ctx, bus.StreamEvents, lifecycle(i), true)
		switch {
		case err != nil:
			t.Fatal(err)
		case taken[i] && (!errors.Is(got.err, bus.ErrWrongSequence) || string(m.Data) != "before"):
			t.Errorf("write %d: got %v and stored %q, want ErrWrongSequence", i, got.err, m.Data)
		case !taken[i] && (got.err != nil || m.Sequence != got.sequence || string(m.Data) != "x"):
			t.Errorf("write %d: got %d, %v; stored %d %q", i, got.sequence, got.err, m.Sequence, m.Data)
		}
	}
}

// TestTwoWritesToOneSubjectKeepTheirOrder: the second expects the first, which
// a batch could not check.
func TestTwoWritesToOneSubjectKeepTheirOrder(t *testing.T) {
	t.Parallel()
	env, ctx := synced(t, nil), bustest.Context(t)
	writes := [][]bus.Outgoing{one(bus.Outgoing{Subject: lifecycle(0), Data: []byte("1"), Expect: seq(0)})}
	for i := 1; i < 10; i++ {
		writes = append(writes, one(bus.Outgoing{Subject: lifecycle(i), Expect: seq(0)}))
	}
	writes = append(writes,
		one(bus.Outgoing{Subject: lifecycle(0), Data: []byte("2"), Expect: seq(1)}),
		one(bus.Outgoing{Subject: lifecycle(0), Data: []byte("3"), Expect: seq(1)}))
	got := together(ctx, t, env.Conn(bus.RoleWorker), writes...)
	for i, g := range got[:11] {
		if g.err != nil || g.sequence != uint64(i+1) {
			t.Errorf("write %d: got %d, %v", i, g.sequence, g.err)
		}
	}
	if !errors.Is(got[11].err, bus.ErrWrongSequence) {
		t.Errorf("late write: got %v, want ErrWrongSequence", got[11].err)
	}
}

// TestSubmitsThatMeet: repeated message ids and subjects that are taken are
// answered as without a group.
func TestSubmitsThatMeet(t *testing.T) {
	t.Parallel()
	env, ctx := synced(t, nil), bustest.Context(t)
	c := env.Conn(bus.RoleAPI)
	for _, id := range []string{"again", "taken"} {
		if _, err := c.JetStream().Publish(ctx, bus.Outgoing{Subject: job(id), MsgID: id}); err != nil {
			t.Fatal(err)
		}
	}
	writes := [][]bus.Outgoing{
		one(bus.Outgoing{Subject: job("again"), MsgID: "again"}),
		one(bus.Outgoing{Subject: job("taken"), MsgID: "other"}),
	}
	for i := range 20 {
		id := fmt.Sprint("j", i)
		writes = append(writes, one(bus.Outgoing{Subject: job(id), MsgID: id}))
	}
	for i, got := range together(ctx, t, c, writes...) {
		switch {
		case i == 1 && !errors.Is(got.err, bus.ErrSubjectTaken):
			t.Errorf("taken subject: got %v, want ErrSubjectTaken", got.err)
		case i != 1 && got.err != nil:
			t.Errorf("write %d: %v", i, got.err)
		}
	}
	// The ids of a batch count for the window of duplicates, too.
	if _, err := c.JetStream().Publish(ctx, bus.Outgoing{Subject: job("j7"), MsgID: "j7"}); err != nil {
		t.Errorf("submit repeated after the batch: %v", err)
	}
}

func TestFullQueueTakesWhatFits(t *testing.T) {
	t.Parallel()
	env := synced(t, func(p *bus.Profile) { p.QueueMaxMsgs = 12 })
	ctx := bustest.Context(t)
	var writes [][]bus.Outgoing
	for i := range 20 {
		writes = append(writes, one(bus.Outgoing{Subject: job(fmt.Sprint(i))}))
	}
	fit := 0
	for i, got := range together(ctx, t, env.Conn(bus.RoleAPI), writes...) {
		switch {
		case got.err == nil:
			fit++
		case !errors.Is(got.err, bus.ErrFull):
			t.Errorf("write %d: got %v, want ErrFull", i, got.err)
		}
	}
	if fit != 12 {
		t.Errorf("%d fit, want 12", fit)
	}
}

// TestMoreThanOneBatchHolds: 999 waiting writes and one of two messages are a
// message more than a batch may hold, and so is a batch of the full size
// among others.
func TestMoreThanOneBatchHolds(t *testing.T) {
	t.Parallel()
	env, ctx := synced(t, nil), bustest.Context(t)
	var writes [][]bus.Outgoing
	add := func(n int) {
		var ms []bus.Outgoing
		for range n {
			ms = append(ms, bus.Outgoing{Subject: fmt.Sprintf("evt.default.alice.j%d-%d.lc", len(writes), len(ms)), Expect: seq(0)})
		}
		writes = append(writes, ms)
	}
	for range bus.MaxBatch - 1 {
		add(1)
	}
	add(2)
	add(bus.MaxBatch)
	add(1)
	want := uint64(0)
	for i, got := range together(ctx, t, env.Conn(bus.RoleWorker), writes...) {
		if want += uint64(len(writes[i])); got.err != nil || got.sequence != want {
			t.Fatalf("write %d of %d messages: got %d, %v; want %d", i, len(writes[i]), got.sequence, got.err, want)
		}
	}
	if _, err := env.Conn(bus.RoleWorker).JetStream().PublishBatch(ctx, make([]bus.Outgoing, bus.MaxBatch+1)); err == nil {
		t.Error("a batch of more than the server takes was accepted")
	}
}

// TestGroupOutlivesRestart: nobody is told that his write is stored unless it
// is, and the writer goes on when the server is back.
func TestGroupOutlivesRestart(t *testing.T) {
	t.Parallel()
	env, ctx := synced(t, nil), bustest.Context(t)
	c := env.Conn(bus.RoleWorker)
	var mu sync.Mutex
	acked := map[int]uint64{}
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for caller := range 32 {
		callers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				i := caller*1_000_000 + n
				sequence, err := c.JetStream().Publish(ctx, bus.Outgoing{Subject: lifecycle(i), Expect: seq(0)})
				switch {
				case err == nil:
					mu.Lock()
					acked[i] = sequence
					mu.Unlock()
				case !errors.Is(err, bus.ErrUnavailable):
					t.Errorf("write %d: %v", i, err)
					return
				}
			}
		})
	}
	more := func(than int) {
		for {
			mu.Lock()
			n := len(acked)
			mu.Unlock()
			if n > than {
				return
			}
			if ctx.Err() != nil {
				t.Error("no write gets through")
				return
			}
			runtime.Gosched()
		}
	}
	more(100)
	if err := env.Server.Restart(ctx); err != nil {
		t.Error(err)
	}
	mu.Lock()
	before := len(acked)
	mu.Unlock()
	more(before + 100)
	close(stop)
	callers.Wait()
	for i, sequence := range acked {
		m, err := c.JetStream().Last(ctx, bus.StreamEvents, lifecycle(i), true)
		if err != nil || m.Sequence != sequence {
			t.Fatalf("acknowledged write %d: stored as %d, %v; want %d", i, m.Sequence, err, sequence)
		}
	}
}

// TestCallerMayGiveUp: a caller that waits behind a write leaves when its
// context ends, and what it wanted is not stored later.
func TestCallerMayGiveUp(t *testing.T) {
	t.Parallel()
	env, ctx := synced(t, nil), bustest.Context(t)
	c := env.Conn(bus.RoleWorker)
	waiting, release := bus.HoldWrites(c, lifecycle(0))
	short, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := c.JetStream().Publish(short, bus.Outgoing{Subject: lifecycle(0)})
		ended <- err
	}()
	for waiting() == 0 && ctx.Err() == nil {
		runtime.Gosched()
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	release()
	if n, err := c.JetStream().Publish(ctx, bus.Outgoing{Subject: lifecycle(1)}); err != nil || n != 1 {
		t.Errorf("next write: %d, %v; want sequence 1", n, err)
	}
}

func TestGroupsAreForServersThatSyncEachWrite(t *testing.T) {
	t.Parallel()
	subjects := map[string]bool{
		lifecycle(0): true, job("j"): true, "hold.core.k.t.o.j": true, "dlq.core.t.o.j": true,
		"prog.t.o.j.log": false, "sched.at.j": false,
	}
	env, ctx := synced(t, nil), bustest.Context(t)
	plain := bustest.Start(t, bustest.WithoutInit()).Conn(bus.RoleAdmin)
	for subject, want := range subjects {
		if got := bus.Groups(env.Conn(bus.RoleAdmin), subject); got != want {
			t.Errorf("%s with a sync per write: grouped %t, want %t", subject, got, want)
		}
		if bus.Groups(plain, subject) {
			t.Errorf("%s without a sync per write is grouped", subject)
		}
	}
	// The streams of the grouped subjects must take batches.
	for _, ms := range [][]bus.Outgoing{
		{{Subject: "hold.core.k.t.o.j1"}, {Subject: "hold.core.k.t.o.j2"}},
		{{Subject: "dlq.core.t.o.j1"}, {Subject: "dlq.core.t.o.j2"}},
		{{Subject: job("j1")}, {Subject: job("j2")}},
	} {
		if _, err := env.Conn(bus.RoleAdmin).JetStream().PublishBatch(ctx, ms); err != nil {
			t.Errorf("batch to %s: %v", ms[0].Subject, err)
		}
	}
}
