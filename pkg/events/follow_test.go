package events_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// label names an event in a few letters: "job-1 started", "job-1 40".
func label(t *testing.T, e events.Event) string {
	t.Helper()
	what := e.Type()[strings.LastIndexByte(e.Type(), '.')+1:]
	if e.Kind == events.KindProgress {
		p, err := events.Data[jobs.Progress](e.Event)
		if err != nil {
			t.Error(err)
		}
		what = fmt.Sprint(p.Percent)
	}
	return e.Key.ID + " " + what
}

// following runs a Follow and hands out its events one by one.
type following struct {
	t      *testing.T
	events chan events.Event
	err    error // after events is closed
	stop   context.CancelFunc
}

func follow(t *testing.T, s *events.Subscriber, f events.Filter, from events.Cursor) *following {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	fl := &following{t: t, events: make(chan events.Event, 4096), stop: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(fl.events)
		for e, err := range s.Follow(ctx, f, from) {
			if err != nil {
				fl.err = err
				return
			}
			fl.events <- e
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return fl
}

func (f *following) next() events.Event {
	f.t.Helper()
	select {
	case e, ok := <-f.events:
		if !ok {
			f.t.Fatalf("follow ended early: %v", f.err)
		}
		return e
	case <-time.After(deadline):
		f.t.Fatal("no event in time")
	}
	panic("unreachable")
}

func (f *following) expect(want ...string) (last events.Event) {
	f.t.Helper()
	for _, w := range want {
		last = f.next()
		if got := label(f.t, last); got != w {
			f.t.Fatalf("got %q, want %q", got, w)
		}
	}
	return last
}

func (f *following) expectEnd() {
	f.t.Helper()
	select {
	case e, ok := <-f.events:
		if ok {
			f.t.Fatalf("got %q, want the end", label(f.t, e))
		}
		if f.err != nil {
			f.t.Fatalf("got error %v, want a clean end", f.err)
		}
	case <-time.After(deadline):
		f.t.Fatal("follow did not end")
	}
}

func TestFollowJob(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"hd", "staging"} {
		t.Run(prefix, func(t *testing.T) {
			t.Parallel()
			b := newBus(t, prefix)
			s := b.subscriber(b.connect(b.srv.ClientURL()))
			j, other := job(1), job(2)
			b.lifecycle(j, jobs.Running)
			b.progress(j, 10)
			fl := follow(t, s, events.Filter{JobID: j.ID}, nil)
			fl.expect("job-1 started", "job-1 10")
			b.lifecycle(other, jobs.Running)
			b.progress(j, 50)
			fl.expect("job-1 50")
			b.progress(j, 90)
			b.lifecycle(j, jobs.Succeeded)
			e := fl.expect("job-1 90", "job-1 succeeded")
			fl.expectEnd()

			rec, err := events.Data[jobs.Job](e.Event)
			if err != nil {
				t.Fatal(err)
			}
			if rec.State != jobs.Succeeded || rec.Key() != e.Key || e.Key != j.Key() {
				t.Errorf("got state %s of %v under key %v, want succeeded of %v", rec.State, rec.Key(), e.Key, j.Key())
			}
			if e.Stream != "EVT" || !e.Terminal() {
				t.Errorf("got stream %s, terminal %t; want EVT, true", e.Stream, e.Terminal())
			}
			if want := (events.Cursor{"EVT": 3, "PROG": 3}); !cmp.Equal(e.Cursor, want) {
				t.Errorf("got cursor %s, want %s", e.Cursor, want)
			}
		})
	}
}

func TestFollowFinishedJobAndResume(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	s := b.subscriber(b.connect(b.srv.ClientURL()))
	j := job(1)
	b.lifecycle(j, jobs.Running)
	b.progress(j, 10)
	b.lifecycle(j, jobs.Retrying)
	b.lifecycle(j, jobs.Running)
	b.progress(j, 20)
	b.lifecycle(j, jobs.Failed)

	fl := follow(t, s, events.Filter{JobID: j.ID}, nil)
	fl.expect("job-1 started", "job-1 10")
	mid := fl.expect("job-1 retrying").Cursor
	end := fl.expect("job-1 started", "job-1 20", "job-1 failed").Cursor
	fl.expectEnd()

	parsed, err := events.ParseCursor(mid.String())
	if err != nil {
		t.Fatal(err)
	}
	fl = follow(t, s, events.Filter{JobID: j.ID}, parsed)
	fl.expect("job-1 started", "job-1 20", "job-1 failed")
	fl.expectEnd()

	fl = follow(t, s, events.Filter{JobID: j.ID}, end)
	fl.expectEnd()

	fl = follow(t, s, events.Filter{JobID: j.ID, Kinds: []string{events.KindProgress}}, nil)
	fl.expect("job-1 10", "job-1 20")
	fl.expectEnd()

	fl = follow(t, s, events.Filter{JobID: j.ID, LiveOnly: true}, nil)
	fl.expectEnd()

	var got []string
	for e, err := range s.History(t.Context(), events.Filter{}, mid) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, label(t, e))
	}
	if want := []string{"job-1 started", "job-1 20", "job-1 failed"}; !cmp.Equal(got, want) {
		t.Errorf("history: got %q, want %q", got, want)
	}
}

// The terminal event and the manifest are stored together; the terminal one
// must come last though it is stored first.
func TestTerminalEventIsLast(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	s := b.subscriber(b.connect(b.srv.ClientURL()))
	j := job(1)
	b.lifecycle(j, jobs.Running)
	fl := follow(t, s, events.Filter{JobID: j.ID}, nil)
	fl.expect("job-1 started")

	ev, err := b.src.New(events.JobArtifact, events.About{Key: j.Key()}, events.Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	header, data, err := events.Encode(ev)
	if err != nil {
		t.Fatal(err)
	}
	subject, err := events.EvtSubject(j.Key(), events.KindArtifacts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jetstreamext.PublishMsgBatch(t.Context(), b.js, []*nats.Msg{
		b.lifecycleMsg(j, jobs.Succeeded), {Subject: "hd." + subject, Header: header, Data: data},
	}); err != nil {
		t.Fatal(err)
	}
	fl.expect("job-1 artifact", "job-1 succeeded")
	fl.expectEnd()
}

func TestInputsAreNeverSeen(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	s := b.subscriber(b.connect(b.srv.ClientURL()))
	j := job(1)
	in := b.lifecycleMsg(j, jobs.Running)
	in.Subject = strings.TrimSuffix(in.Subject, "lc") + "in"
	b.store(in)
	b.lifecycle(j, jobs.Running)
	fl := follow(t, s, events.Filter{JobID: j.ID}, nil)
	fl.expect("job-1 started")
	b.store(in) // even if a server were set up to republish it
	b.lifecycle(j, jobs.Succeeded)
	fl.expect("job-1 succeeded")
	fl.expectEnd()
}

func TestFollowOwner(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	s := b.subscriber(b.connect(b.srv.ClientURL()))
	stranger := job(9)
	stranger.Caller.Subject = "eve@example.org"
	b.lifecycle(job(1), jobs.Running)
	fl := follow(t, s, events.Filter{}, nil)
	fl.expect("job-1 started")

	sub, err := b.src.Submitted(jobs.Submission{Job: job(2), Input: []byte(`{"secret":1}`)}, events.About{})
	if err != nil {
		t.Fatal(err)
	}
	header, data, err := events.Encode(sub)
	if err != nil {
		t.Fatal(err)
	}
	subject, err := events.JobSubject("core", jobs.Normal, 0, job(2).Key())
	if err != nil {
		t.Fatal(err)
	}
	b.store(&nats.Msg{Subject: "hd." + subject, Header: header, Data: data})
	if e := fl.expect("job-2 submitted"); len(e.Data()) > 0 || e.Stream != "" {
		t.Errorf("queued notice: got data %q of stream %q, want none", e.Data(), e.Stream)
	}
	b.lifecycle(stranger, jobs.Running)
	b.lifecycle(job(1), jobs.Succeeded)
	b.lifecycle(job(2), jobs.Running)
	fl.expect("job-1 succeeded", "job-2 started")
	fl.stop()
	fl.expectEnd()
}

func TestLiveOnly(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	p := newProxy(t, b.srv.ClientURL())
	s := b.subscriber(b.connect(p.url()))
	for i := range 5 {
		b.lifecycle(job(i), jobs.Running)
	}
	fl := follow(t, s, events.Filter{LiveOnly: true}, nil)
	b.awaitInterest("hd.live." + caller.TenantToken() + "." + caller.Owner() + ".job-1.lc")
	b.lifecycle(job(1), jobs.Succeeded)
	fl.expect("job-1 succeeded")
	p.cut(true)
	b.lifecycle(job(2), jobs.Succeeded)
	p.open()
	fl.expect("job-2 succeeded")
}

// awaitInterest waits until somebody outside subscribes to subject.
func (b *testBus) awaitInterest(subject string) {
	b.t.Helper()
	acc := b.srv.GlobalAccount()
	end := time.After(deadline)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for acc.Interest(subject) == 0 {
		select {
		case <-end:
			b.t.Fatalf("nobody subscribes to %s", subject)
		case <-tick.C:
		}
	}
}

// The connection dies while events go on; none is missed and none comes twice.
func TestConnectionLostMidFollow(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	p := newProxy(t, b.srv.ClientURL())
	s := b.subscriber(b.connect(p.url()))
	j := job(1)
	b.lifecycle(j, jobs.Running)
	fl := follow(t, s, events.Filter{JobID: j.ID}, nil)
	fl.expect("job-1 started")
	for round := range 3 {
		b.progress(j, 10*round+1)
		fl.expect(fmt.Sprintf("job-1 %d", 10*round+1))
		p.cut(true)
		b.progress(j, 10*round+2)
		b.progress(j, 10*round+3)
		p.open()
		fl.expect(fmt.Sprintf("job-1 %d", 10*round+2), fmt.Sprintf("job-1 %d", 10*round+3))
	}
	p.cut(true)
	b.progress(j, 99)
	b.lifecycle(j, jobs.Succeeded)
	p.open()
	fl.expect("job-1 99", "job-1 succeeded")
	fl.expectEnd()
}

// A live message that is lost on a healthy connection shows by the next one
// on its subject, whose header names a predecessor that never came.
func TestGapIsFilledFromHistory(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	lossy := &lossyFeed{testBus: b, drop: map[string]bool{"job-1 2": true, "job-1 3": true}}
	s, err := events.Over(lossy, events.Options{Caller: caller, Resync: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	b.lifecycle(job(1), jobs.Running)
	fl := follow(t, s, events.Filter{}, nil)
	fl.expect("job-1 started") // from the history, so that the rest is not
	for i := 1; i <= 5; i++ {
		b.progress(job(1), i)
	}
	fl.expect("job-1 1", "job-1 2", "job-1 3", "job-1 4", "job-1 5")
}

// The last message of all may be lost, and no later one shows it.
func TestQuietLossIsFoundByResync(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	lossy := &lossyFeed{testBus: b, drop: map[string]bool{"job-1 succeeded": true}}
	s, err := events.Over(lossy, events.Options{Caller: caller, Resync: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	b.lifecycle(job(1), jobs.Running)
	fl := follow(t, s, events.Filter{JobID: "job-1"}, nil)
	fl.expect("job-1 started")
	b.lifecycle(job(1), jobs.Succeeded)
	fl.expect("job-1 succeeded")
	fl.expectEnd()
}

// A long run of live events outgrows what is remembered of them; without an
// answer from the history the live feed is trusted.
func TestLongLiveRun(t *testing.T) {
	t.Parallel()
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprintf("history broken %t", broken), func(t *testing.T) {
			t.Parallel()
			b := newBus(t, "hd")
			feed := &lossyFeed{testBus: b}
			s, err := events.Over(feed, events.Options{Caller: caller, Resync: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			b.lifecycle(job(0), jobs.Running)
			fl := follow(t, s, events.Filter{}, nil)
			fl.expect("job-0 started")
			feed.broken.Store(broken)
			for i := range 1200 {
				b.lifecycle(job(i), jobs.Succeeded)
				fl.expect(fmt.Sprintf("job-%d succeeded", i))
			}
		})
	}
}

// What was lost and is gone from the stream cannot be made good; what follows
// is not held up by it.
func TestGapThatCannotBeFilled(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	feed := &lossyFeed{testBus: b, drop: map[string]bool{"job-1 2": true, "job-1 3": true}}
	s, err := events.Over(feed, events.Options{Caller: caller, Resync: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	b.progress(job(1), 1)
	fl := follow(t, s, events.Filter{}, nil)
	fl.expect("job-1 1") // from the history, so that the rest is not
	st, err := b.js.Stream(t.Context(), "PROG")
	if err != nil {
		t.Fatal(err)
	}
	if err := st.DeleteMsg(t.Context(), b.progress(job(1), 2)); err != nil {
		t.Fatal(err)
	}
	b.progress(job(1), 3)
	b.progress(job(1), 4)
	fl.expect("job-1 3", "job-1 4")
}

// lossyFeed is a feed over the test bus that loses chosen live messages.
type lossyFeed struct {
	*testBus
	drop   map[string]bool
	broken atomic.Bool // the history
}

func (f *lossyFeed) Stream(wire string) string { return wire }

func (f *lossyFeed) Subscribe(subject string, fn func(string, map[string][]string, []byte), _ func()) (func(), error) {
	sub, err := f.nc.Subscribe(f.prefix+"."+subject, func(m *nats.Msg) {
		ev, err := events.Decode(m.Header, m.Data)
		if err != nil {
			f.t.Error(err)
			return
		}
		e := events.Event{Event: ev, Kind: m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]}
		e.Key.ID = ev.Subject()
		if !f.drop[label(f.t, e)] {
			fn(strings.TrimPrefix(m.Subject, f.prefix+"."), m.Header, m.Data)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := f.nc.Flush(); err != nil {
		return nil, err
	}
	return func() { _ = sub.Unsubscribe() }, nil
}

func (f *lossyFeed) History(ctx context.Context, tenant, owner string, r events.HistoryRequest) (events.HistoryPage, error) {
	if f.broken.Load() {
		return events.HistoryPage{}, errors.New("broken")
	}
	return events.NewHistory(f.scan)(ctx, tenant, owner, r)
}

// A reader that does not keep up gets everything all the same.
func TestSlowReaderLosesNothing(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	s := b.subscriber(b.connect(b.srv.ClientURL()))
	const n = 1500 // well above what a follower queues
	fl := &following{t: t, events: make(chan events.Event), stop: func() {}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e, err := range s.Follow(ctx, events.Filter{Kinds: []string{events.KindLifecycle}}, nil) {
			if err != nil {
				t.Error(err)
				return
			}
			select {
			case fl.events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	b.lifecycle(job(0), jobs.Running)
	fl.expect("job-0 started")
	for i := 1; i <= n; i++ { // nobody reads meanwhile
		m := b.lifecycleMsg(job(i), jobs.Running)
		if _, err := b.js.PublishMsgAsync(m); err != nil {
			t.Fatal(err)
		}
		if i%200 == 0 {
			<-b.js.PublishAsyncComplete()
		}
	}
	for i := 1; i <= n; i++ {
		fl.expect(fmt.Sprintf("job-%d started", i))
	}
}

func TestManyFollowers(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	const followers, viewers = 100, 4
	var conns []*events.Subscriber
	for range viewers {
		conns = append(conns, b.subscriber(b.connect(b.srv.ClientURL())))
	}
	var all []*following
	for i := range followers {
		all = append(all, follow(t, conns[i%viewers], events.Filter{JobID: job(i % 10).ID}, nil))
	}
	for i := range 10 {
		b.lifecycle(job(i), jobs.Running)
		b.progress(job(i), 50)
		b.lifecycle(job(i), jobs.Succeeded)
	}
	for i, fl := range all {
		id := job(i % 10).ID
		// Between two streams the live feed keeps no order.
		got := []string{label(t, fl.next()), label(t, fl.next())}
		slices.Sort(got)
		if want := []string{id + " 50", id + " started"}; !cmp.Equal(got, want) {
			t.Errorf("follower %d: got %q, want %q", i, got, want)
		}
		fl.expect(id + " succeeded")
		fl.expectEnd()
	}
	for _, name := range []string{"EVT", "PROG"} {
		st, err := b.js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := st.CachedInfo().State.Consumers; got != 0 {
			t.Errorf("consumers of %s: got %d, want none", name, got)
		}
	}
}

func TestHistoryInPages(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	read := events.NewHistory(b.scan)
	var want []string
	for i := range 25 {
		b.progress(job(1), i)
		want = append(want, fmt.Sprintf("job-1 %d", i))
		if i%5 == 0 {
			b.lifecycle(job(1), jobs.Running)
			want = append(want, "job-1 started")
		}
	}
	garbage := &nats.Msg{Subject: "hd.prog." + caller.TenantToken() + "." + caller.Owner() + ".job-1.log", Data: []byte("no event")}
	b.store(garbage)
	for _, limit := range []int{1, 7, 30, 0} {
		var got []string
		r := events.HistoryRequest{Limit: limit}
		for {
			page, err := read(t.Context(), caller.TenantToken(), caller.Owner(), r)
			if err != nil {
				t.Fatal(err)
			}
			if limit > 0 && len(page.Events) > limit {
				t.Fatalf("page holds %d events, want at most %d", len(page.Events), limit)
			}
			for _, h := range page.Events {
				got = append(got, label(t, events.Event{Event: h.Event, Kind: h.Subject[strings.LastIndexByte(h.Subject, '.')+1:], Key: jobs.Key{ID: h.Event.Subject()}}))
			}
			if page.Done {
				break
			}
			r.After = page.Next
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("limit %d (-want +got):\n%s", limit, diff)
		}
	}
}

func TestPageBytesAreBounded(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	big := job(1)
	big.Output = []byte(`"` + strings.Repeat("x", 200<<10) + `"`)
	for range 6 {
		b.lifecycle(big, jobs.Running)
	}
	s := b.subscriber(b.connect(b.srv.ClientURL()))
	n := 0
	for _, err := range s.History(t.Context(), events.Filter{JobID: "job-1"}, nil) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 6 || b.questions() < 3 {
		t.Errorf("got %d events in %d pages, want 6 in 3 or more", n, b.questions())
	}
}

func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	b.fail(true)
	s, err := events.NewSubscriber(b.connect(b.srv.ClientURL()), events.Options{Caller: caller, Patience: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	fl := follow(t, s, events.Filter{}, nil)
	if _, ok := <-fl.events; ok || !errors.Is(fl.err, events.ErrNoHistory) {
		t.Errorf("got error %v, want ErrNoHistory", fl.err)
	}
}

func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	b := newBus(t, "hd")
	broken := func(context.Context, string, string, events.HistoryRequest) (events.HistoryPage, error) {
		return events.HistoryPage{}, errors.New("disk /var/lib is on fire")
	}
	for _, tt := range []struct {
		name, subject, body, want string
		read                      events.HistoryFunc
	}{
		{"not json", "req.acme.o.history", "nope", "bad history request: body", events.NewHistory(b.scan)},
		{"wildcard job", "req.acme.o.history", `{"job_id":"*"}`, "bad history request: limit", events.NewHistory(b.scan)},
		{"negative limit", "req.acme.o.history", `{"limit":-1}`, "bad history request: limit", events.NewHistory(b.scan)},
		{"other subject", "evt.acme.o.j.lc", `{}`, "bad history request: subject", events.NewHistory(b.scan)},
		{"broken store", "req.acme.o.history", `{}`, `"history is not available"`, broken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			reply, err := events.ServeHistory(t.Context(), tt.subject, []byte(tt.body), tt.read)
			if err == nil || !strings.Contains(string(reply), tt.want) || strings.Contains(string(reply), "fire") {
				t.Errorf("got reply %s, error %v; want %q in the reply and the cause in the error alone", reply, err, tt.want)
			}
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, o := range []events.Options{{}, {Tenant: "a"}, {Tenant: "a", Owner: "*"}, {Tenant: "a.b", Owner: "c"}, {Caller: caller, Prefix: "a.>"}} {
		if _, err := events.NewSubscriber(nil, o); !errors.Is(err, events.ErrSubject) {
			t.Errorf("options %+v: got %v, want ErrSubject", o, err)
		}
	}
}

func TestParseCursor(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]events.Cursor{
		"": nil, "EVT:12": {"EVT": 12}, "PROG:4,EVT:12": {"EVT": 12, "PROG": 4},
	} {
		got, err := events.ParseCursor(text)
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: got %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"12", "EVT", "EVT:", ":1", "EVT:-1", "EVT:1,EVT:2", "EVT:1,", "E VT:1", "EVT:99999999999999999999"} {
		if got, err := events.ParseCursor(text); !errors.Is(err, events.ErrCursor) {
			t.Errorf("%q: got %v, %v; want ErrCursor", text, got, err)
		}
	}
	if got := slices.Collect(strings.SplitSeq((events.Cursor{"PROG": 2, "EVT": 1}).String(), ",")); !cmp.Equal(got, []string{"EVT:1", "PROG:2"}) {
		t.Errorf("text: got %q", got)
	}
}
