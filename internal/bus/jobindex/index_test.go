package jobindex_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/jobindex"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/test/rig"
)

// page lists and returns the ids.
func page(t *testing.T, r *rig.Rig, x *jobindex.Index, q jobs.Query) ([]string, string) {
	t.Helper()
	all, next, err := x.List(r.Ctx(), q)
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, j := range all {
		ids = append(ids, j.ID)
	}
	return ids, next
}

// heard waits until the index knows n jobs.
func heard(t *testing.T, r *rig.Rig, n int) {
	t.Helper()
	r.Until("jobs are listed", func() bool { ids, _ := page(t, r, r.Index, jobs.Query{Limit: 200}); return len(ids) == n })
}

// ended stores a job that is over, created at the given time.
func ended(t *testing.T, r *rig.Rig, at time.Time, change func(*jobs.Job)) jobs.Job {
	t.Helper()
	j := jobs.Job{ID: uuid.Must(uuid.NewV7()).String(), Pack: "test.echo", Version: "v1", Pool: "core",
		State: jobs.Cancelled, Priority: jobs.Normal, Caller: rig.Ann, CreatedAt: at}
	if change != nil {
		change(&j)
	}
	if _, err := r.Store.Append(r.Ctx(), jobs.Move{Job: j}); err != nil {
		t.Fatal(err)
	}
	return j
}

// TestFiltersFindQueuedJobsToo: of those the index knows only the headers at
// first, which name neither labels nor parent.
func TestFiltersFindQueuedJobsToo(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	heard(t, r, 0) // it runs, so what follows is told live
	parent := uuid.NewString()
	a := r.Submit("test.echo", map[string]any{"message": "a"}, func(q *jobs.Request) { q.Labels = map[string]string{"deck": "q3"} })
	b := r.Submit("test.echo", map[string]any{"message": "b"}, func(q *jobs.Request) { q.ParentID = parent })
	c := r.Submit("test.sleep", map[string]any{"ms": 1}, func(q *jobs.Request) { q.Labels = map[string]string{"deck": "q4"} })
	// Told by the one way to ask that reads no record.
	last := jobs.Job{ID: "ffffffff-ffff-7fff-8fff-ffffffffffff", Pool: "core", Priority: jobs.Normal}
	r.Until("heard of", func() bool { return r.Index.Ahead(last) == 3 })
	for _, tt := range []struct {
		name string
		q    jobs.Query
		want []string
	}{
		{"label and value", jobs.Query{LabelKey: "deck", LabelValue: "q3"}, []string{a.ID}},
		{"label", jobs.Query{LabelKey: "deck"}, []string{c.ID, a.ID}},
		{"parent", jobs.Query{Parent: parent}, []string{b.ID}},
		{"pack", jobs.Query{Pack: "test.sleep"}, []string{c.ID}},
		{"state", jobs.Query{State: jobs.Queued}, []string{c.ID, b.ID, a.ID}},
		{"nobody's", jobs.Query{Tenant: "x", Owner: "x"}, []string{}},
	} {
		if got, _ := page(t, r, r.Index, tt.q); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	r.Worker("w")
	r.Ends(a.ID)
	r.Until("ended", func() bool {
		got, _ := page(t, r, r.Index, jobs.Query{LabelKey: "deck", State: jobs.Succeeded, LabelValue: "q3"})
		return slices.Equal(got, []string{a.ID})
	})
}

func TestSinceAndUntil(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var ids []string
	for i := range 3 {
		ids = append(ids, ended(t, r, noon.Add(time.Duration(i)*time.Hour), nil).ID)
	}
	heard(t, r, 3)
	for _, tt := range []struct {
		q    jobs.Query
		want []string
	}{
		{jobs.Query{Since: noon.Add(time.Hour)}, []string{ids[2], ids[1]}},
		{jobs.Query{Until: noon.Add(30 * time.Minute)}, []string{ids[0]}},
		{jobs.Query{Since: noon.Add(time.Minute), Until: noon.Add(90 * time.Minute)}, []string{ids[1]}},
	} {
		if got, _ := page(t, r, r.Index, tt.q); !slices.Equal(got, tt.want) {
			t.Errorf("since %s until %s: got %v, want %v", tt.q.Since, tt.q.Until, got, tt.want)
		}
	}
}

// TestCursorIsStable: jobs that come while somebody pages neither repeat nor
// hide others.
func TestCursorIsStable(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	var want []string
	for range 7 {
		want = append(want, ended(t, r, time.Now(), nil).ID)
	}
	slices.Reverse(want)
	heard(t, r, 7)
	var got []string
	q := jobs.Query{Limit: 3}
	for n := 8; ; n++ {
		ids, next := page(t, r, r.Index, q)
		got = append(got, ids...)
		if next == "" {
			break
		}
		q.Cursor = next
		ended(t, r, time.Now(), nil)
		heard(t, r, n)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, _, err := r.Index.List(r.Ctx(), jobs.Query{Cursor: "x"}); err == nil {
		t.Error("a cursor of somebody else's was taken")
	}
}

// TestOldestEndedJobsGoFirst when there are more than the limit; those that
// have not ended stay.
func TestOldestEndedJobsGoFirst(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	const limit = 8
	waits := r.Submit("test.echo", map[string]any{"message": "x"})
	var last string
	for range 3 * limit {
		last = ended(t, r, time.Now(), nil).ID
	}
	x := jobindex.New(r.Env.Conn(bus.RoleAPI).JetStream(), r.Store, r.Hub, limit, r.Log)
	r.Background("small index", x.Run)
	ids, _ := page(t, r, x, jobs.Query{Limit: 200})
	if len(ids) > limit+limit/8+1 || !slices.Contains(ids, waits.ID) || !slices.Contains(ids, last) {
		t.Errorf("%d jobs; the waiting one %v, the newest %v", len(ids), slices.Contains(ids, waits.ID), slices.Contains(ids, last))
	}
}

// TestQueuePosition counts what waits before a job in its own lane.
func TestQueuePosition(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	var list []jobs.Job
	for i := range 6 {
		p := []jobs.Priority{jobs.Normal, jobs.High}[i%2]
		list = append(list, r.Submit("test.echo", map[string]any{"message": "x"}, func(q *jobs.Request) { q.Priority = p }))
	}
	heard(t, r, 6)
	for i, j := range list {
		got, err := r.Jobs.Get(r.Ctx(), rig.Ann, j.ID)
		if err != nil || got.QueuePosition == nil || *got.QueuePosition != i/2 {
			t.Errorf("job %d: position %v, want %d, %v", i, got.QueuePosition, i/2, err)
		}
	}
}

// TestListsShowNoOutput, large or small.
func TestListsShowNoOutput(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	for _, n := range []int{10, 100_000} {
		output, err := json.Marshal(map[string]string{"data": fmt.Sprintf("%*s", n, "x")})
		if err != nil {
			t.Fatal(err)
		}
		ended(t, r, time.Now(), func(j *jobs.Job) { j.State, j.Output = jobs.Succeeded, output })
	}
	heard(t, r, 2)
	all, _, err := r.Index.List(r.Ctx(), jobs.Query{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range all {
		if j.Output != nil {
			t.Errorf("an output of %d bytes is shown", len(j.Output))
		}
	}
}

// feed is a live feed that loses messages while it is deaf.
type feed struct {
	bus.Core
	mu     sync.Mutex // guards the fields below
	deaf   bool
	losses uint64
}

func (f *feed) Subscribe(subject string, fn func(bus.CoreMessage)) (func(), error) {
	return f.Core.Subscribe(subject, func(m bus.CoreMessage) {
		f.mu.Lock()
		deaf := f.deaf
		f.mu.Unlock()
		if !deaf {
			fn(m)
		}
	})
}

func (f *feed) Losses() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.losses
}

// set makes the feed deaf, or ends that, as a connection that comes back.
func (f *feed) set(deaf bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deaf && !deaf {
		f.losses++
	}
	f.deaf = deaf
}

// TestWhatTheFeedLostIsRead: jobs that ended, and jobs that came and ended,
// while no live message arrived.
func TestWhatTheFeedLostIsRead(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	f := &feed{Core: r.Env.Conn(bus.RoleAPI).Core()}
	hub, err := jobfeed.New(f, r.Env.Conn(bus.RoleAPI).JetStream(), r.Log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hub.Close)
	x := jobindex.New(r.Env.Conn(bus.RoleAPI).JetStream(), r.Store, hub, 0, r.Log)
	x.RefreshEvery = 20 * time.Millisecond
	r.Background("deaf index", x.Run)
	state := func(want jobs.State, n int) {
		t.Helper()
		r.Until(fmt.Sprintf("%d jobs %s", n, want), func() bool { ids, _ := page(t, r, x, jobs.Query{State: want}); return len(ids) == n })
	}
	j := r.Submit("test.sleep", map[string]any{"ms": 900000})
	r.Worker("w")
	state(jobs.Running, 1)
	f.set(true)
	if _, err := r.Jobs.Cancel(context.Background(), rig.Ann, j.ID); err != nil {
		t.Fatal(err)
	}
	r.Ends(j.ID)
	r.Ends(r.Submit("test.echo", map[string]any{"message": "x"}).ID)
	f.set(false)
	state(jobs.Cancelled, 1)
	state(jobs.Succeeded, 1)
	state(jobs.Running, 0)
}
