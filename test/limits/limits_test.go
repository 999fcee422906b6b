package limits_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/history"
	"github.com/helmdeck/helmdeck/test/rig"
)

// counter is a pack that notes how many of its runs by name are in at once.
type counter struct {
	mu      sync.Mutex // guards the fields below
	now     map[string]int
	most    map[string]int
	order   []string
	started chan string
	release chan struct{} // one receive lets one run end; closed: all
}

func newCounter() *counter {
	return &counter{now: map[string]int{}, most: map[string]int{}, started: make(chan string, 10_000), release: make(chan struct{})}
}

type counted struct {
	Name string `json:"name"`
}

func (c *counter) pack(name string) packs.Pack {
	return packs.Define(packs.Spec[counted, counted]{Name: name, Summary: "s",
		Run: func(ctx context.Context, _ *packs.Run, in counted) (counted, error) {
			c.mu.Lock()
			c.order = append(c.order, in.Name)
			for _, k := range []string{in.Name, ""} {
				c.now[k]++
				c.most[k] = max(c.most[k], c.now[k])
			}
			c.mu.Unlock()
			defer func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.now[in.Name]--
				c.now[""]--
			}()
			c.started <- in.Name
			select {
			case <-c.release:
				return in, nil
			case <-ctx.Done():
				return in, context.Cause(ctx)
			}
		}})
}

// seen is what has started, in order.
func (c *counter) seen() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.order)
}

func (c *counter) mostOf(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most[name]
}

// atRest waits until the checker is content, no slot is held and no key kept
// for held jobs.
func atRest(t *testing.T, r *rig.Rig, l *history.Log) {
	t.Helper()
	left := ""
	defer func() {
		if t.Failed() {
			t.Log("left: ", left)
		}
	}()
	r.Until("at rest", func() bool {
		found, err := history.Check(r.Ctx(), r.Env.Conn(bus.RoleAdmin).JetStream(), r.Store, l, history.Options{})
		held, err2 := r.Slots.All(r.Ctx())
		left = fmt.Sprint(errors.Join(err, err2), found, held)
		return err == nil && err2 == nil && len(found) == 0 && len(held) == 0
	})
}

func keyed(key string, limit int) func(*jobs.Request) {
	return func(r *jobs.Request) { r.ConcurrencyKey, r.ConcurrencyLimit = key, limit }
}

// TestConcurrencyKeyBoundsRunningJobs, and every job runs in the end.
func TestConcurrencyKeyBoundsRunningJobs(t *testing.T) {
	t.Parallel()
	c := newCounter()
	r := rig.New(t, c.pack("t.count"))
	r.Worker("a")
	r.Worker("b")
	l := history.NewLog()
	for range 12 {
		l.Accepted(r.Submit("t.count", counted{"x"}, keyed("schlüssel 🔑.*>", 2)).ID, "")
		l.Accepted(r.Submit("t.count", counted{"free"}).ID, "")
	}
	for range l.IDs() {
		<-c.started
		c.release <- struct{}{}
	}
	for _, id := range l.IDs() {
		if got := r.Ends(id); got.State != jobs.Succeeded || got.Lost != 0 {
			t.Errorf("got %s, lost %d", got.State, got.Lost)
		}
	}
	if n := c.mostOf("x"); n > 2 {
		t.Errorf("%d jobs of the key at once, want at most 2", n)
	}
	atRest(t, r, l)
}

// TestKeyAndGlobalCapTogether: neither is exceeded while both have work
// waiting, whoever asks.
func TestKeyAndGlobalCapTogether(t *testing.T) {
	t.Parallel()
	c, free := newCounter(), newCounter()
	r := rig.NewLimited(t, "packs: {t.count: 3}\npools: {core: 4}", c.pack("t.count"), free.pack("t.free"))
	r.Worker("a")
	r.Worker("b")
	l := history.NewLog()
	for i := range 8 {
		l.Accepted(r.Submit("t.count", counted{"x"}, keyed("k", 1)).ID, "")
		l.Accepted(r.Submit("t.count", counted{fmt.Sprint(i)}).ID, "")
		l.Accepted(r.Submit("t.free", counted{"f"}).ID, "")
	}
	close(c.release)
	close(free.release)
	for _, id := range l.IDs() {
		if got := r.Ends(id); got.State != jobs.Succeeded {
			t.Errorf("got %s", got.State)
		}
	}
	if n := c.mostOf("x"); n != 1 {
		t.Errorf("%d jobs of the key at once", n)
	}
	if n := c.mostOf(""); n > 3 {
		t.Errorf("%d jobs of the pack at once, want at most 3", n)
	}
	atRest(t, r, l)
}

// TestCapsAtTheirEdge: as many as allowed do run at once, one more does not.
func TestCapsAtTheirEdge(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]string{
		"subject": "default: {subject: {concurrent: 3}}", "tenant": "tenants: {default: {tenant: {concurrent: 3}}}",
		"pack": "packs: {t.count: 3}", "pool": "pools: {core: 3}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCounter()
			r := rig.NewLimited(t, policy, c.pack("t.count"))
			r.Worker("a", func(c *worker.Config) { c.Slots = map[string]int{"core": 8} })
			l := history.NewLog()
			for range 5 {
				l.Accepted(r.Submit("t.count", counted{"x"}).ID, "")
			}
			for range 3 {
				<-c.started
			}
			held := 0
			r.Until("two are held", func() bool {
				held = 0
				err := r.Store.HeldJobs(r.Ctx(), func(jobstore.Held) { held++ })
				return err == nil && held == 2
			})
			close(c.release)
			for _, id := range l.IDs() {
				r.Ends(id)
			}
			if n := c.mostOf("x"); n != 3 {
				t.Errorf("%d at once, want 3", n)
			}
			atRest(t, r, l)
		})
	}
}

// TestHeldJobCanBeReadListedAndCancelled.
func TestHeldJobCanBeReadListedAndCancelled(t *testing.T) {
	t.Parallel()
	c := newCounter()
	r := rig.New(t, c.pack("t.count"))
	r.Worker("a")
	l := history.NewLog()
	first := r.Submit("t.count", counted{"x"}, keyed("k", 1))
	<-c.started
	held := r.Submit("t.count", counted{"x"}, keyed("k", 1))
	last := r.Submit("t.count", counted{"x"}, keyed("k", 1))
	r.Until("held", func() bool {
		n := 0
		err := r.Store.HeldJobs(r.Ctx(), func(jobstore.Held) { n++ })
		return err == nil && n == 2
	})
	if s := r.State(held.ID); s != jobs.Queued {
		t.Errorf("a held job is %s, want queued", s)
	}
	page, _, err := r.Jobs.List(r.Ctx(), rig.Ann, jobs.Query{State: jobs.Queued})
	if err != nil || len(page) != 2 {
		t.Errorf("listed %d, %v; want both", len(page), err)
	}
	got, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, held.ID)
	if err != nil || got.State != jobs.Cancelled {
		t.Errorf("cancel: %s, %v", got.State, err)
	}
	close(c.release)
	for _, id := range []string{first.ID, held.ID, last.ID} {
		l.Accepted(id, "")
		r.Ends(id)
	}
	if n := len(c.seen()); n != 2 {
		t.Errorf("%d jobs ran, want 2", n)
	}
	// Cancelled before it ran, it can be run again, under its key.
	again, err := r.Jobs.Retry(r.Ctx(), rig.Ann, held.ID, nil)
	if err != nil || again.ConcurrencyKey != "k" {
		t.Errorf("retry: %q, %v", again.ConcurrencyKey, err)
	}
	l.Accepted(again.ID, "")
	r.Ends(again.ID)
	atRest(t, r, l)
}

// TestRetryGivesItsSlotUp: while a job waits for its next attempt another one
// runs.
func TestRetryGivesItsSlotUp(t *testing.T) {
	t.Parallel()
	c := newCounter()
	r := rig.New(t, c.pack("t.count"))
	r.Worker("a", func(c *worker.Config) { c.Backoff = func(int) time.Duration { return 3 * time.Second } })
	l := history.NewLog()
	fails := r.Submit("test.fail", map[string]any{"code": "session_unavailable", "times": 1}, keyed("k", 1))
	l.Accepted(fails.ID, "")
	r.Until("it waits for its second attempt", func() bool { return r.State(fails.ID) == jobs.Retrying })
	other := r.Submit("t.count", counted{"x"}, keyed("k", 1))
	l.Accepted(other.ID, "")
	<-c.started
	r.Until("the second attempt is held back", func() bool {
		n := 0
		err := r.Store.HeldJobs(r.Ctx(), func(h jobstore.Held) { n++ })
		return err == nil && n == 1
	})
	close(c.release)
	if got := r.Ends(fails.ID); got.State != jobs.Succeeded || got.Attempt != 2 {
		t.Errorf("got %s, attempt %d", got.State, got.Attempt)
	}
	r.Ends(other.ID)
	atRest(t, r, l)
}

// TestLostWorkerKeepsNoSlot: its job runs again in the slot it has, and the
// slot is free after it.
func TestLostWorkerKeepsNoSlot(t *testing.T) {
	t.Parallel()
	c := newCounter()
	r := rig.New(t, c.pack("t.count"))
	stop, f := r.FaultyWorker("lost")
	l := history.NewLog()
	l.Accepted(r.Submit("t.count", counted{"x"}, keyed("k", 1)).ID, "")
	<-c.started
	l.Accepted(r.Submit("t.count", counted{"x"}, keyed("k", 1)).ID, "")
	// From now on it reaches nobody, and then it is gone.
	f.Add(bustest.Rule{Kind: bustest.Disconnect})
	stop()
	r.Worker("next")
	close(c.release)
	for _, id := range l.IDs() {
		if got := r.Ends(id); got.State != jobs.Succeeded {
			t.Errorf("got %s", got.State)
		}
	}
	atRest(t, r, l)
}

// TestSlotsLeftBehindAreFreed: by a process that died between taking a slot
// and claiming the job, of a job that has ended, or is nowhere.
func TestSlotsLeftBehindAreFreed(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("a")
	done := r.Ends(r.Submit("test.echo", map[string]any{"message": "x"}).ID)
	nowhere := done.Key()
	nowhere.ID = "00000000-0000-7000-8000-000000000001"
	slot := []limits.Slot{{Key: "cleftbehind", Limit: 5}}
	for _, h := range []limits.Holder{{Job: done.Key(), Run: 1}, {Job: nowhere, Run: 1}} {
		if full, err := r.Slots.Take(r.Ctx(), h, slot, false); full != "" || err != nil {
			t.Fatalf("take: %q, %v", full, err)
		}
	}
	l := history.NewLog()
	l.Accepted(done.ID, "")
	atRest(t, r, l)
}

// TestJobOfTwoKeysIsNotStarved: jobs that need one slot each wait for either
// of its keys, one of them ends at a time, and it needs both.
func TestJobOfTwoKeysIsNotStarved(t *testing.T) {
	t.Parallel()
	c, d := newCounter(), newCounter()
	r := rig.NewLimited(t, "packs: {t.cap: 1}", c.pack("t.cap"), d.pack("t.key"))
	r.Worker("a", func(c *worker.Config) { c.Slots = map[string]int{"core": 8} })
	l := history.NewLog()
	accept := func(j jobs.Job) string { l.Accepted(j.ID, ""); return j.ID }
	accept(r.Submit("t.cap", counted{"cap"}))
	accept(r.Submit("t.key", counted{"key"}, keyed("k", 1)))
	<-c.started
	<-d.started
	both := accept(r.Submit("t.cap", counted{"both"}, keyed("k", 1)))
	for range 25 {
		accept(r.Submit("t.cap", counted{"cap"}))
		accept(r.Submit("t.key", counted{"key"}, keyed("k", 1)))
	}
	r.Until("all are held", func() bool {
		n := 0
		err := r.Store.HeldJobs(r.Ctx(), func(jobstore.Held) { n++ })
		return err == nil && n == 51
	})
	for turn := 0; ; turn++ {
		if turn == 20 {
			t.Fatalf("passed over by %v and %v", c.seen(), d.seen())
		}
		c.release <- struct{}{}
		if <-c.started == "both" {
			break
		}
		d.release <- struct{}{}
		r.Until("the key is taken again", func() bool {
			select {
			case <-d.started:
				return true
			default:
			}
			all, err := r.Slots.All(r.Ctx())
			for _, st := range all {
				if _, keeps := st.Holders[both]; keeps && err == nil {
					return true
				}
			}
			return false
		})
	}
	close(c.release)
	close(d.release)
	r.Ends(both)
	for _, id := range l.IDs() {
		r.Ends(id)
	}
	atRest(t, r, l)
}

// TestParentsDoNotStarveTheirChildren: a cap that parents fill leaves room for
// the jobs they call.
func TestParentsDoNotStarveTheirChildren(t *testing.T) {
	t.Parallel()
	parent := packs.Define(packs.Spec[counted, counted]{Name: "t.parent", Summary: "s", Needs: packs.Needs{Calls: true},
		Run: func(ctx context.Context, run *packs.Run, in counted) (counted, error) {
			_, err := run.Call(ctx, "test.echo", map[string]any{"message": "child"})
			return in, err
		}})
	r := rig.NewLimited(t, "default: {tenant: {concurrent: 2}, subject: {concurrent: 1}}\npools: {core: 2}", parent)
	r.Worker("a", func(c *worker.Config) { c.Slots = map[string]int{"core": 1} })
	l := history.NewLog()
	for range 4 {
		l.Accepted(r.Submit("t.parent", counted{"p"}).ID, "")
	}
	for _, id := range l.IDs() {
		if got := r.Ends(id); got.State != jobs.Succeeded {
			t.Errorf("got %s %+v", got.State, got.Error)
		}
	}
	atRest(t, r, l)
}
