package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

type answer struct {
	Text string `json:"text"`
}

// handler is a pack t.t that runs fn.
func handler(effect packs.Effect, fn func(context.Context, *packs.Run) (answer, error)) packs.Pack {
	return packs.Define(packs.Spec[struct{}, answer]{
		Name: "t.t", Summary: "s", Effect: effect, Needs: packs.Needs{Artifacts: true},
		Run: func(ctx context.Context, run *packs.Run, _ struct{}) (answer, error) { return fn(ctx, run) },
	})
}

// wait blocks until ch is closed or the test's patience is over.
func wait(t *testing.T, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-bustest.Context(t).Done():
		t.Fatalf("%s: not within the time", what)
	}
}

func oneSlot(c *worker.Config) { c.Slots = map[string]int{"core": 1} }

// lifecycle reads the events of a job.
func lifecycle(t *testing.T, r *rig.Rig, id string) []bus.Message {
	t.Helper()
	var all []bus.Message
	err := r.Env.Conn(bus.RoleAdmin).JetStream().Scan(r.Ctx(), bus.StreamEvents, []string{"evt.*.*." + id + ".lc"}, 0,
		func(m bus.Message) error { all = append(all, m); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestHandlerThatIsGivenUpOnChangesNothing: a handler that ignores its end
// loses its slot and counts as leaked; what it does later begins no effect,
// makes no folder and writes no event.
func TestHandlerThatIsGivenUpOnChangesNothing(t *testing.T) {
	t.Parallel()
	release, done := make(chan struct{}), make(chan struct{})
	var begin, folder error
	r := rig.New(t, handler(packs.EffectOnce, func(ctx context.Context, run *packs.Run) (answer, error) {
		defer close(done)
		<-release
		begin = run.Begin(context.WithoutCancel(ctx))
		_, folder = run.Scratch()
		return answer{}, nil
	}))
	workers, err := jobfeed.WatchWorkers(r.Ctx(), r.Env.Conn(bus.RoleAPI).Core())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(workers.Close)
	dir := t.TempDir()
	r.Worker("a", oneSlot, func(c *worker.Config) {
		c.CancelGrace, c.BeatEvery, c.ScratchDir = 20*time.Millisecond, 20*time.Millisecond, dir
	})
	job := r.Ends(r.Submit("t.t", struct{}{}, func(q *jobs.Request) { q.TimeoutS = 1 }).ID)
	if job.State != jobs.Failed || job.Error.Code != packs.Timeout {
		t.Fatalf("got %s %+v", job.State, job.Error)
	}
	r.Until("leak is reported", func() bool {
		live := workers.Live()
		return len(live) == 1 && live[0].Leaked == 1
	})
	r.Ends(r.Submit("test.echo", map[string]any{"message": "the slot is free"}).ID)
	close(release)
	wait(t, "handler returns", done)
	if begin == nil || folder == nil {
		t.Errorf("begin: %v, folder: %v; want both refused", begin, folder)
	}
	if n := len(lifecycle(t, r, job.ID)); n != 2 {
		t.Errorf("%d events, want started and failed", n)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the scratch folder: %v, %v", left, err)
	}
}

// requestCancel asks as the API does, but without telling the worker.
func requestCancel(t *testing.T, r *rig.Rig, id string) {
	t.Helper()
	rec, err := r.Store.Last(r.Ctx(), jobs.Key{ID: id}, true)
	if err != nil {
		t.Error(err)
		return
	}
	rec.Job.CancelRequested = true
	if _, err := r.Store.Append(r.Ctx(), jobs.Move{Job: rec.Job, Expected: rec.Sequence}); err != nil {
		t.Error(err)
	}
}

func rare(c *worker.Config) { c.Heartbeat = time.Hour } // the heartbeat reads of a cancel too

// TestCancelThatMeetsARetryWins: the attempt fails with a code that is
// retried while the cancel is on its way.
func TestCancelThatMeetsARetryWins(t *testing.T) {
	t.Parallel()
	var r *rig.Rig
	var runs atomic.Int32
	r = rig.New(t, handler(packs.EffectNone, func(_ context.Context, run *packs.Run) (answer, error) {
		runs.Add(1)
		requestCancel(t, r, run.JobID)
		return answer{}, packs.Errorf(packs.SessionUnavailable, "no room")
	}))
	r.Worker("a", rare)
	if got := r.Ends(r.Submit("t.t", struct{}{}).ID); got.State != jobs.Cancelled || runs.Load() != 1 {
		t.Errorf("got %s after %d runs", got.State, runs.Load())
	}
}

// TestNoEffectBeginsAfterACancel although the worker was not told yet.
func TestNoEffectBeginsAfterACancel(t *testing.T) {
	t.Parallel()
	var r *rig.Rig
	begun := make(chan error, 1)
	r = rig.New(t, handler(packs.EffectOnce, func(ctx context.Context, run *packs.Run) (answer, error) {
		requestCancel(t, r, run.JobID)
		err := run.Begin(ctx)
		begun <- err
		return answer{}, err
	}))
	r.Worker("a", rare)
	got := r.Ends(r.Submit("t.t", struct{}{}).ID)
	if err := <-begun; err == nil || got.State != jobs.Cancelled || got.EffectBegun {
		t.Errorf("begin: %v; job %s, effect begun %v", err, got.State, got.EffectBegun)
	}
}

// TestStalledHandlerIsStopped although its heartbeat lives.
func TestStalledHandlerIsStopped(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("a", func(c *worker.Config) { c.StallAfter, c.Heartbeat = time.Millisecond, 20*time.Millisecond })
	got := r.Ends(r.Submit("test.sleep", map[string]any{"ms": 900000}).ID)
	if got.State != jobs.Failed || got.Error.Code != packs.Timeout || !strings.Contains(got.Error.Message, "no progress") {
		t.Errorf("got %s %+v", got.State, got.Error)
	}
}

// TestAQuietPackIsNotStalled for as long as its Spec says.
func TestAQuietPackIsNotStalled(t *testing.T) {
	t.Parallel()
	beats := make(chan struct{}, 8)
	r := rig.New(t, packs.Define(packs.Spec[struct{}, answer]{
		Name: "t.quiet", Summary: "s", Quiet: time.Hour,
		Run: func(ctx context.Context, _ *packs.Run, _ struct{}) (answer, error) {
			for range cap(beats) {
				select {
				case <-beats:
				case <-ctx.Done():
					return answer{}, ctx.Err()
				}
			}
			return answer{}, nil
		},
	}))
	_, f := r.FaultyWorker("a", func(c *worker.Config) { c.StallAfter, c.Heartbeat = time.Millisecond, 20*time.Millisecond })
	f.Add(bustest.Rule{Op: bustest.OpWorking, Kind: bustest.Twice, Do: func() { beats <- struct{}{} }})
	if got := r.Ends(r.Submit("t.quiet", struct{}{}).ID); got.State != jobs.Succeeded {
		t.Errorf("got %s %+v", got.State, got.Error)
	}
}

// TestHeartbeatsGoOnWhileTheBusKeepsAnEventWaiting: the end of one job hangs,
// the delivery of another is kept alive all the same.
func TestHeartbeatsGoOnWhileTheBusKeepsAnEventWaiting(t *testing.T) {
	t.Parallel()
	ends := make(chan struct{})
	r := rig.New(t, handler(packs.EffectNone, func(context.Context, *packs.Run) (answer, error) {
		<-ends
		return answer{}, nil
	}))
	_, f := r.FaultyWorker("a")
	long := r.Submit("test.sleep", map[string]any{"ms": 900000})
	quick := r.Submit("t.t", struct{}{})
	for _, id := range []string{long.ID, quick.ID} {
		r.Until("running", func() bool { return r.State(id) == jobs.Running })
	}
	release, hangs := make(chan struct{}), make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	hang := sync.OnceFunc(func() { close(hangs) })
	k := quick.Key()
	f.Add(bustest.Rule{
		Op: bustest.OpPublish, Subject: fmt.Sprintf("evt.%s.%s.%s.lc", k.Tenant, k.Owner, k.ID), Kind: bustest.Delayed,
		Do: func() { hang(); <-release },
	})
	close(ends)
	wait(t, "the end hangs", hangs)
	beats := make(chan struct{}, 1)
	k = long.Key()
	f.Add(bustest.Rule{
		Op: bustest.OpWorking, Subject: fmt.Sprintf("job.core.normal.0.%s.%s.%s", k.Tenant, k.Owner, k.ID), Kind: bustest.Delayed,
		Do: func() {
			select {
			case beats <- struct{}{}:
			default:
			}
		},
	})
	ctx := r.Ctx()
	for range 3 {
		select {
		case <-beats:
		case <-ctx.Done():
			t.Fatal("the other job is not kept alive")
		}
	}
	free()
	if got := r.Ends(quick.ID); got.State != jobs.Succeeded {
		t.Errorf("the job whose end hung is %s", got.State)
	}
}

// TestOutputOfALosingRunIsNotShown: two runs store large outputs, the one
// that was fenced off last.
func TestOutputOfALosingRunIsNotShown(t *testing.T) {
	t.Parallel()
	release, first := make(chan struct{}), make(chan struct{})
	var runs atomic.Int32
	r := rig.New(t, handler(packs.EffectNone, func(_ context.Context, _ *packs.Run) (answer, error) {
		n := runs.Add(1)
		if n == 1 {
			close(first)
			<-release
		}
		return answer{Text: strings.Repeat(fmt.Sprint(n), jobs.InlineLimit)}, nil
	}))
	_, f := r.FaultyWorker("a", oneSlot)
	f.Add(bustest.Rule{Op: bustest.OpWorking, Kind: bustest.Before}, bustest.Rule{Op: bustest.OpLast, Subject: "evt.", Kind: bustest.Before})
	job := r.Submit("t.t", struct{}{})
	wait(t, "first run", first)
	r.Worker("b")
	r.Ends(job.ID)
	f.Heal()
	close(release)
	r.Until("the loser stored its output", func() bool {
		body, err := r.Arts.Unstash(r.Ctx(), artifacts.OutputKey(job.ID, 1))
		if err == nil {
			_ = body.Close() // read-only
		}
		return err == nil
	})
	got := r.Ends(job.ID)
	if got.State != jobs.Succeeded || got.Worker != "b" || strings.Contains(string(got.Output), "1") {
		t.Errorf("got %s by %s, output %.40s", got.State, got.Worker, got.Output)
	}
}

// TestDrainLetsRunningJobsFinish and starts no other.
func TestDrainLetsRunningJobsFinish(t *testing.T) {
	t.Parallel()
	release, running := make(chan struct{}), make(chan struct{})
	r := rig.New(t, handler(packs.EffectNone, func(context.Context, *packs.Run) (answer, error) {
		close(running)
		<-release
		return answer{Text: "done"}, nil
	}))
	draining := make(chan struct{})
	stop := r.Worker("a", func(c *worker.Config) {
		c.Drain, c.BeatEvery = time.Hour, 10*time.Millisecond
		c.Reports = drainWatch{Reports: c.Reports, draining: draining, once: new(sync.Once)}
	})
	job := r.Submit("t.t", struct{}{})
	wait(t, "running", running)
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	wait(t, "draining", draining)
	late := r.Submit("test.echo", map[string]any{"message": "late"})
	close(release)
	wait(t, "worker stops", stopped)
	if got := r.Ends(job.ID); got.State != jobs.Succeeded || got.Runs != 1 || got.Returned != 0 {
		t.Errorf("got %s after %d runs, returned %d", got.State, got.Runs, got.Returned)
	}
	if got := r.State(late.ID); got != jobs.Queued {
		t.Errorf("the later job is %s", got)
	}
}

// drainWatch tells when the worker says that it drains.
type drainWatch struct {
	worker.Reports
	draining chan struct{}
	once     *sync.Once
}

func (w drainWatch) Beat(ctx context.Context, s worker.Status) error {
	if s.Drain {
		w.once.Do(func() { close(w.draining) })
	}
	return w.Reports.Beat(ctx, s)
}

// TestSlotsBoundEachPool: no pool runs more jobs at once than it has slots.
func TestSlotsBoundEachPool(t *testing.T) {
	t.Parallel()
	slots := map[string]int{"core": 2, "llm": 1}
	var mu sync.Mutex
	now, most := map[string]int{}, map[string]int{}
	in := func(pool string) packs.Pack {
		return packs.Define(packs.Spec[struct{}, answer]{
			Name: "t." + pool, Summary: "s", Pool: packs.Pool(pool),
			Run: func(context.Context, *packs.Run, struct{}) (answer, error) {
				mu.Lock()
				now[pool]++
				most[pool] = max(most[pool], now[pool])
				mu.Unlock()
				defer func() { mu.Lock(); now[pool]--; mu.Unlock() }()
				<-time.After(5 * time.Millisecond) // long enough to overlap
				return answer{}, nil
			},
		})
	}
	r := rig.New(t, in("core"), in("llm"))
	r.Worker("a", func(c *worker.Config) { c.Slots = slots })
	var ids []string
	for range 10 {
		ids = append(ids, r.Submit("t.core", struct{}{}).ID, r.Submit("t.llm", struct{}{}).ID)
	}
	for _, id := range ids {
		r.Ends(id)
	}
	mu.Lock()
	defer mu.Unlock()
	for pool, n := range slots {
		if most[pool] == 0 || most[pool] > n {
			t.Errorf("pool %s ran %d at once, has %d slots", pool, most[pool], n)
		}
	}
}

// TestPullThatBringsTooMuchBlocksNoSlot: each delivery comes twice.
func TestPullThatBringsTooMuchBlocksNoSlot(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	stop, f := r.FaultyWorker("a", func(c *worker.Config) { c.Drain = time.Hour })
	f.Add(bustest.Rule{Op: bustest.OpPull, Kind: bustest.Twice})
	var ids []string
	for range 12 {
		ids = append(ids, r.Submit("test.echo", map[string]any{"message": "x"}).ID)
	}
	for _, id := range ids {
		if got := r.Ends(id); got.Runs != 1 {
			t.Errorf("ran %d times", got.Runs)
		}
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	wait(t, "worker stops", stopped)
}

// TestRecordFitsIntoAMessage whatever the pack says and makes.
func TestRecordFitsIntoAMessage(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("<", 2<<20)
	r := rig.New(t, handler(packs.EffectNone, func(context.Context, *packs.Run) (answer, error) {
		e := packs.Errorf(packs.HandlerFailed, "%s", huge)
		for range 200 {
			e.Details = append(e.Details, packs.Detail{Pointer: huge[:1<<14], Message: huge[:1<<14]})
		}
		return answer{}, errors.Join(errors.New("wrapped"), e)
	}))
	r.Worker("a")
	got := r.Ends(r.Submit("t.t", struct{}{}).ID)
	if got.State != jobs.Failed || got.Error.Code != packs.HandlerFailed || got.Runs != 1 || len(got.Error.Details) == 0 {
		t.Errorf("got %s %.80v after %d runs", got.State, got.Error.Code, got.Runs)
	}
}
