package bus_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

func seq(n uint64) *uint64 { return &n }

func job(id string) string { return "job.core.normal.0.default.alice." + id }

func TestQueuedJobHasOneMessagePerSubject(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	js := env.Conn(bus.RoleAPI).JetStream()
	stream := bus.JobsStream(packs.PoolCore)
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("j1"), Data: []byte("a"), MsgID: "j1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("j1"), Data: []byte("a"), MsgID: "j1"}); err != nil {
		t.Errorf("retry with the same message id: %v", err)
	}
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("j1"), Data: []byte("b"), MsgID: "other"}); !errors.Is(err, bus.ErrSubjectTaken) {
		t.Errorf("second message of a job: got %v, want ErrSubjectTaken", err)
	}
	got, err := js.Last(ctx, stream, "job.core.*.*.*.*.j1", false)
	if err != nil || string(got.Data) != "a" || got.Subject != job("j1") || got.Stream != stream {
		t.Errorf("queued job by wildcard: %+v, %v", got, err)
	}
	if err := js.Purge(ctx, stream, "job.core.*.*.*.*.j1", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Last(ctx, stream, job("j1"), true); !errors.Is(err, bus.ErrNoMessage) {
		t.Errorf("removed job: got %v, want ErrNoMessage", err)
	}
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("j1"), Data: []byte("b"), MsgID: "third"}); err != nil {
		t.Errorf("queue again after removal: %v", err)
	}
}

func TestFullQueueRefuses(t *testing.T) {
	t.Parallel()
	env := bustest.Start(t, bustest.WithProfile(func(p *bus.Profile) { p.QueueMaxMsgs = 2 }))
	ctx, js := bustest.Context(t), env.Conn(bus.RoleAPI).JetStream()
	for i := range 2 {
		if _, err := js.Publish(ctx, bus.Outgoing{Subject: job(fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("2")}); !errors.Is(err, bus.ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
}

func TestExpectedSequence(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	js := env.Conn(bus.RoleWorker).JetStream()
	const lc = "evt.default.alice.j1.lc"
	first, err := js.Publish(ctx, bus.Outgoing{Subject: lc, Data: []byte("1"), Expect: seq(0)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: lc, Data: []byte("x"), Expect: seq(0)}); !errors.Is(err, bus.ErrWrongSequence) {
		t.Errorf("second claim: got %v, want ErrWrongSequence", err)
	}
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: lc, Data: []byte("2"), Expect: &first}); err != nil {
		t.Errorf("next event: %v", err)
	}
	got, err := js.Last(ctx, bus.StreamEvents, lc, true)
	if err != nil || string(got.Data) != "2" {
		t.Errorf("last event: %q, %v", got.Data, err)
	}
}

func TestBatchIsAllOrNothing(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	js := env.Conn(bus.RoleWorker).JetStream()
	const lc, in, art = "evt.default.alice.j1.lc", "evt.default.alice.j1.in", "evt.default.alice.j1.art"
	last, err := js.PublishBatch(ctx, []bus.Outgoing{
		{Subject: in, Data: []byte("input"), Expect: seq(0)},
		{Subject: lc, Data: []byte("started"), Expect: seq(0), Header: map[string][]string{"ce-id": {"1"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := js.Last(ctx, bus.StreamEvents, lc, false)
	if err != nil {
		t.Fatal(err)
	}
	want := bus.Message{
		Stream: bus.StreamEvents, Subject: lc, Data: []byte("started"), Sequence: last, Time: got.Time,
		Header: map[string][]string{"ce-id": {"1"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stored event (-want +got):\n%s", diff)
	}
	_, err = js.PublishBatch(ctx, []bus.Outgoing{
		{Subject: art, Data: []byte("manifest")},
		{Subject: lc, Data: []byte("succeeded"), Expect: seq(last - 1)},
	})
	if !errors.Is(err, bus.ErrWrongSequence) {
		t.Errorf("stale finish: got %v, want ErrWrongSequence", err)
	}
	if _, err := js.Last(ctx, bus.StreamEvents, art, true); !errors.Is(err, bus.ErrNoMessage) {
		t.Errorf("manifest of the refused batch: got %v, want ErrNoMessage", err)
	}
	if _, err := js.PublishBatch(ctx, []bus.Outgoing{
		{Subject: art, Data: []byte("manifest")},
		{Subject: lc, Data: []byte("succeeded"), Expect: &last},
	}); err != nil {
		t.Errorf("finish: %v", err)
	}
	var subjects []string
	if err := js.Scan(ctx, bus.StreamEvents, []string{"evt.default.alice.j1.>"}, 0, func(m bus.Message) error {
		subjects = append(subjects, m.Subject)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{in, lc, art, lc}, subjects); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	in1, err := js.Last(ctx, bus.StreamEvents, "evt.*.*.j1.in", false)
	if err != nil || string(in1.Data) != "input" || in1.Subject != in {
		t.Errorf("input: %+v, %v", in1, err)
	}
}

func TestPullHandsOutWhatIsThere(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	js := env.Conn(bus.RoleWorker).JetStream()
	stream, consumer := bus.JobsStream(packs.PoolCore), bus.LaneConsumer("normal", 0)
	for i := range 3 {
		if _, err := js.Publish(ctx, bus.Outgoing{Subject: job(fmt.Sprint(i)), Header: map[string][]string{"ce-type": {"t"}}}); err != nil {
			t.Fatal(err)
		}
	}
	ds, err := js.Pull(ctx, stream, consumer, 10, 20*time.Second)
	if err != nil || len(ds) != 3 {
		t.Fatalf("pulled %d, %v", len(ds), err)
	}
	if got := ds[0].Message(); got.Sequence != 1 || got.Subject != job("0") || got.Time.IsZero() || got.Header["ce-type"][0] != "t" {
		t.Errorf("first delivery: %+v", got)
	}
	state, err := js.Consumer(ctx, stream, consumer)
	if want := (bus.ConsumerState{Unacked: 3, Delivered: 3}); err != nil || state != want {
		t.Errorf("got %+v, %v; want %+v", state, err, want)
	}
	if err := ds[0].Ack(ctx); err != nil {
		t.Error(err)
	}
	if err := ds[1].Term(ctx, "poison"); err != nil {
		t.Error(err)
	}
	if err := ds[2].Working(ctx); err != nil {
		t.Error(err)
	}
	if err := ds[2].Nak(ctx, 0); err != nil {
		t.Error(err)
	}
	again, err := js.Pull(ctx, stream, consumer, 10, 20*time.Second)
	if err != nil || len(again) != 1 || again[0].Delivered() != 2 || again[0].Message().Subject != job("2") {
		t.Fatalf("after nak: %v, %v", again, err)
	}
	if err := again[0].Ack(ctx); err != nil {
		t.Error(err)
	}
	none, err := js.Pull(ctx, stream, consumer, 10, 50*time.Millisecond)
	if err != nil || len(none) != 0 {
		t.Errorf("empty queue: %v, %v", none, err)
	}
}

func TestPullWaitsForTheFirstMessage(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	js := env.Conn(bus.RoleWorker).JetStream()
	type result struct {
		ds  []bus.Delivery
		err error
	}
	done := make(chan result, 1)
	go func() {
		ds, err := js.Pull(ctx, bus.JobsStream(packs.PoolCore), bus.LaneConsumer("normal", 0), 10, 20*time.Second)
		done <- result{ds, err}
	}()
	if _, err := env.Conn(bus.RoleAPI).JetStream().Publish(ctx, bus.Outgoing{Subject: job("1")}); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-done:
		if r.err != nil || len(r.ds) != 1 {
			t.Errorf("got %v, %v", r.ds, r.err)
		}
	case <-ctx.Done():
		t.Fatal("pull did not return with the first message")
	}
}

func TestPullGivenUpLosesNothing(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	js := env.Conn(bus.RoleWorker).JetStream()
	stream, consumer := bus.JobsStream(packs.PoolCore), bus.LaneConsumer("normal", 0)
	short, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := js.Pull(short, stream, consumer, 5, 20*time.Second)
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("1")}); err != nil {
		t.Fatal(err)
	}
	ds, err := js.Pull(ctx, stream, consumer, 5, 10*time.Second)
	if err != nil || len(ds) != 1 {
		t.Fatalf("got %v, %v", ds, err)
	}
}

func TestScheduleFiresToItsTarget(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	js := env.Conn(bus.RoleWorker).JetStream()
	const due = "sched.due.core.normal.0.default.alice.j1"
	for _, at := range []time.Duration{time.Hour, 300 * time.Millisecond} { // the second replaces the first
		if _, err := js.Publish(ctx, bus.Outgoing{
			Subject: "sched.at.j1", Data: []byte("job"), Header: map[string][]string{"ce-id": {"j1"}},
			At: time.Now().Add(at), Target: due,
		}); err != nil {
			t.Fatal(err)
		}
	}
	ds, err := js.Pull(ctx, bus.StreamSchedule, bus.ConsumerMover, 10, 20*time.Second)
	if err != nil || len(ds) != 1 {
		t.Fatalf("mover got %v, %v", ds, err)
	}
	m := ds[0].Message()
	if diff := cmp.Diff(map[string][]string{"ce-id": {"j1"}}, m.Header); m.Subject != due || string(m.Data) != "job" || diff != "" {
		t.Errorf("fired %+v", m)
	}
	if _, err := js.Last(ctx, bus.StreamSchedule, "sched.at.j1", true); !errors.Is(err, bus.ErrNoMessage) {
		t.Errorf("schedule after firing: got %v, want ErrNoMessage", err)
	}
	if err := ds[0].Ack(ctx); err != nil {
		t.Error(err)
	}
	if err := js.Purge(ctx, bus.StreamSchedule, "sched.due.>", m.Sequence+1); err != nil {
		t.Error(err)
	}
}

func TestScanMergesFiltersInOrder(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	js := env.Conn(bus.RoleWorker).JetStream()
	const n = 1300 // more than two pages
	var want []uint64
	for i := range n {
		kind := []string{"progress", "log"}[i%2]
		s, err := js.Publish(ctx, bus.Outgoing{Subject: fmt.Sprintf("prog.t.o.j%d.%s", i%7, kind)})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, s)
	}
	for name, tt := range map[string]struct {
		filters []string
		from    uint64
		want    []uint64
	}{
		"all":         {[]string{"prog.>"}, 0, want},
		"two filters": {[]string{"prog.*.*.*.log", "prog.*.*.*.progress"}, 0, want},
		"overlapping": {[]string{"prog.>", "prog.t.o.j1.log"}, 0, want},
		"from":        {[]string{"prog.>"}, want[n-2], want[n-2:]},
		"none":        {[]string{"prog.x.>"}, 0, nil},
		"past end":    {[]string{"prog.>"}, want[n-1] + 1, nil},
	} {
		var got []uint64
		if err := js.Scan(ctx, bus.StreamProgress, tt.filters, tt.from, func(m bus.Message) error {
			got = append(got, m.Sequence)
			return nil
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	stop := errors.New("stop")
	if err := js.Scan(ctx, bus.StreamProgress, []string{"prog.>"}, 0, func(bus.Message) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v, want the error of fn", err)
	}
}
