package poolstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/poolstore"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// crew is a fixed set of workers.
type crew struct {
	live      []worker.Status
	unsettled bool
}

func (c *crew) Live() []worker.Status { return c.live }
func (c *crew) Settled() bool         { return !c.unsettled }

// core finds the pool core.
func core(t *testing.T, s *poolstore.Store, ctx context.Context) poolstore.Load {
	t.Helper()
	loads, err := s.Loads(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range loads {
		if l.Pool == "core" {
			return l
		}
	}
	t.Fatal("no pool core")
	return poolstore.Load{}
}

// open is a store that remembers no look of its own.
func open(r *rig.Rig, w poolstore.Workers) *poolstore.Store {
	return poolstore.New(r.Client, 1, w, r.Log)
}

// TestLoadWhileJobsRun: what runs is not demand, what waits and what a worker
// that is gone had is, also when nobody pulls any more.
func TestLoadWhileJobsRun(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	workers, err := jobfeed.WatchWorkers(r.Ctx(), r.Env.Conn(bus.RoleAPI).Core())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(workers.Close)
	stop := r.Worker("a", func(c *worker.Config) {
		c.BeatEvery = 20 * time.Millisecond
		c.Slots = map[string]int{"core": 2}
	})
	for range 5 {
		r.Submit("test.sleep", map[string]any{"ms": 600_000})
	}
	var l poolstore.Load
	r.Until("two run, three wait", func() bool {
		l = core(t, open(r, workers), r.Ctx())
		return l.Running == 2 && l.Waiting+l.Unacked == 5
	})
	if l.Autoscale() != 3 || l.Workers != 1 || l.Slots != 2 || l.OldestAge <= 0 || l.Paused != nil {
		t.Errorf("under load: %+v, scale %d", l, l.Autoscale())
	}
	stop() // hands back
	r.Until("nobody pulls", func() bool {
		l = core(t, open(r, workers), r.Ctx())
		return l.Workers == 0 && l.Running == 0
	})
	if l.Autoscale() != 5 || l.Unserved() != 5 {
		t.Errorf("with nobody pulling: %+v, scale %d, unserved %d", l, l.Autoscale(), l.Unserved())
	}
}

// TestLoadOfExpiredDeliveries: a delivery whose worker died stays
// unacknowledged after its time, and counts.
func TestLoadOfExpiredDeliveries(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Submit("test.echo", map[string]any{"message": "x"})
	ds, err := r.Store.Pull(r.Ctx(), worker.Lane{Pool: "core", Priority: jobs.Normal}, 1, 10*time.Second)
	if err != nil || len(ds) != 1 {
		t.Fatalf("pulled %d, %v", len(ds), err)
	}
	expired := time.NewTimer(2 * rig.AckWait)
	defer expired.Stop()
	select {
	case <-expired.C:
	case <-r.Ctx().Done():
		t.Fatal(r.Ctx().Err())
	}
	l := core(t, open(r, &crew{}), r.Ctx())
	if l.Waiting != 0 || l.Unacked != 1 || l.Autoscale() != 1 || l.OldestAge != 0 {
		t.Errorf("got %+v, scale %d; want one unacknowledged job to scale for", l, l.Autoscale())
	}
}

// TestOldestAgeIsThatOfAWaitingJob: a job that runs for long is older, and of
// no account.
func TestOldestAgeIsThatOfAWaitingJob(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	old := r.Submit("test.echo", map[string]any{"message": "old"})
	if ds, err := r.Store.Pull(r.Ctx(), worker.Lane{Pool: "core", Priority: jobs.Normal}, 1, 10*time.Second); err != nil || len(ds) != 1 {
		t.Fatalf("pulled %d, %v", len(ds), err)
	}
	if l := core(t, open(r, &crew{}), r.Ctx()); l.OldestAge != 0 {
		t.Errorf("nothing waits, yet the oldest is %s", l.OldestAge)
	}
	between := time.Now()
	r.Submit("test.echo", map[string]any{"message": "new"})
	l := core(t, open(r, &crew{}), r.Ctx())
	if l.OldestAge <= 0 || l.OldestAge > time.Since(between) || l.OldestAge >= time.Since(old.CreatedAt) {
		t.Errorf("oldest %s, the job that waits is %s old", l.OldestAge, time.Since(between))
	}
}

// counting counts the looks at consumers.
type counting struct {
	bus.JetStream
	looks atomic.Int32
}

func (c *counting) Consumer(ctx context.Context, stream, consumer string) (bus.ConsumerState, error) {
	c.looks.Add(1)
	return c.JetStream.Consumer(ctx, stream, consumer)
}

func TestManyViewersAreOneLook(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	js := &counting{JetStream: r.Client}
	s := poolstore.New(js, 1, &crew{}, r.Log)
	done := make(chan error, 50)
	for range cap(done) {
		go func() { _, err := s.Loads(r.Ctx()); done <- err }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	one := int32(len(packs.Pools) * len(bus.PoolLanes(1)))
	if got := js.looks.Load(); got%one != 0 || got > 3*one { // a slow machine may outlast the two seconds
		t.Errorf("%d looks at consumers for 50 viewers, want %d or few times that", got, one)
	}
	// What failed is not remembered.
	r.Client.Add(bustest.Rule{Op: bustest.OpConsumer, Kind: bustest.Before})
	broken := open(r, &crew{})
	if _, err := broken.Loads(r.Ctx()); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("got %v, want the bus's error", err)
	}
	r.Client.Heal()
	if _, err := broken.Loads(r.Ctx()); err != nil {
		t.Errorf("after the fault: %v", err)
	}
}

// TestPause: jobs are accepted and wait, what runs goes on, and nothing else
// starts until the pool is resumed, whatever restarts in between.
func TestPause(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("a")
	running := r.Submit("test.sleep", map[string]any{"ms": 300})
	r.Until("running", func() bool { return r.State(running.ID) == jobs.Running })
	s := open(r, &crew{live: []worker.Status{{ID: "a", Slots: map[string]int{"core": 4}}}})
	for range 2 { // may be repeated
		if err := s.Set(r.Ctx(), "core", poolstore.Pause{Paused: true, Reason: "new disk", By: "root"}); err != nil {
			t.Fatal(err)
		}
	}
	waits := r.Submit("test.echo", map[string]any{"message": "x"})
	if got := r.Ends(running.ID); got.State != jobs.Succeeded {
		t.Errorf("the running job is %s", got.State)
	}
	l := core(t, s, r.Ctx())
	if l.Paused == nil || l.Paused.Reason != "new disk" || !l.Paused.Until.IsZero() || l.Waiting != 1 {
		t.Errorf("paused: %+v, %+v", l, l.Paused)
	}
	if got := s.Waiting(waits); got != "the pool core is paused: new disk" {
		t.Errorf("reason %q", got)
	}
	if got := s.Waiting(jobs.Job{Pool: "media"}); !strings.Contains(got, "no worker serves the pool media") {
		t.Errorf("reason of another pool %q", got)
	}
	// A worker that comes now finds nothing to do either.
	r.Worker("b")
	other := open(r, &crew{})
	r.Background("pools", other.Run)
	r.Until("another replica knows", func() bool { return strings.Contains(other.Waiting(waits), "new disk") })
	if got := r.State(waits.ID); got != jobs.Queued {
		t.Errorf("the waiting job is %s", got)
	}
	if err := other.Set(r.Ctx(), "core", poolstore.Pause{}); err != nil {
		t.Fatal(err)
	}
	if got := r.Ends(waits.ID); got.State != jobs.Succeeded {
		t.Errorf("after resume the job is %s", got.State)
	}
	if err := s.Set(r.Ctx(), "nonsense", poolstore.Pause{Paused: true}); !errors.Is(err, poolstore.ErrUnknownPool) {
		t.Errorf("unknown pool: %v", err)
	}
}

// TestPauseEndsByItself at the time that was named.
func TestPauseEndsByItself(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	s := open(r, &crew{})
	until := time.Now().Add(1500 * time.Millisecond)
	if err := s.Set(r.Ctx(), "core", poolstore.Pause{Paused: true, Until: until}); err != nil {
		t.Fatal(err)
	}
	r.Worker("a")
	j := r.Submit("test.echo", map[string]any{"message": "x"})
	if got := s.Waiting(j); !strings.Contains(got, "is paused until ") {
		t.Errorf("reason %q", got)
	}
	if got := r.Ends(j.ID); got.State != jobs.Succeeded || got.StartedAt.Before(until.Add(-50*time.Millisecond)) {
		t.Errorf("%s at %s, paused until %s", got.State, got.StartedAt, until)
	}
}

// TestPauseThatBrokeOffIsCompleted by whichever replica looks next: the wish
// was stored, some of the consumers were not told.
func TestPauseThatBrokeOffIsCompleted(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]bustest.Kind{"before": bustest.Before, "after": bustest.After} {
		for _, paused := range []bool{true, false} {
			t.Run(name+" paused "+map[bool]string{true: "true", false: "false"}[paused], func(t *testing.T) {
				t.Parallel()
				r := rig.New(t)
				s := open(r, &crew{})
				if !paused {
					if err := s.Set(r.Ctx(), "core", poolstore.Pause{Paused: true}); err != nil {
						t.Fatal(err)
					}
				}
				r.Client.Add(bustest.Rule{Op: bustest.OpPause, Subject: "JOBS_core/normal", Kind: kind})
				if err := s.Set(r.Ctx(), "core", poolstore.Pause{Paused: paused}); !errors.Is(err, bus.ErrUnavailable) {
					t.Fatalf("got %v", err)
				}
				r.Client.Heal()
				replica := open(r, &crew{})
				replica.EnforceEvery = 20 * time.Millisecond
				r.Background("pools", replica.Run)
				r.Until("completed", func() bool {
					for _, lane := range bus.PoolLanes(1) {
						st, err := r.Client.Consumer(r.Ctx(), "JOBS_core", bus.LaneConsumer(lane.Priority, lane.Shard))
						if err != nil || st.PausedUntil.IsZero() == paused {
							return false
						}
					}
					return true
				})
			})
		}
	}
}

// TestPauseByTheOperatorOfTheServer shows, without a reason, and is left
// alone.
func TestPauseByTheOperatorOfTheServer(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	until := time.Now().Add(time.Hour)
	if err := r.Client.Pause(r.Ctx(), "JOBS_core", "normal-0", until); err != nil {
		t.Fatal(err)
	}
	s := open(r, &crew{})
	s.EnforceEvery = 20 * time.Millisecond
	r.Background("pools", s.Run)
	l := core(t, s, r.Ctx())
	if l.Paused == nil || l.Paused.Until.Sub(until).Abs() > 10*time.Second || l.Paused.By != "" {
		t.Errorf("got %+v", l.Paused)
	}
}

// TestNewestWishWins: a replica that carries out an old wish late looks again.
func TestNewestWishWins(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	other := poolstore.New(r.Env.Conn(bus.RoleAPI).JetStream(), 1, &crew{}, r.Log)
	s := open(r, &crew{})
	r.Client.Add(bustest.Rule{Op: bustest.OpPause, Nth: 1, Kind: bustest.Delayed, Do: func() {
		if err := other.Set(r.Ctx(), "core", poolstore.Pause{}); err != nil {
			t.Error(err)
		}
	}})
	if err := s.Set(r.Ctx(), "core", poolstore.Pause{Paused: true}); err != nil {
		t.Fatal(err)
	}
	if l := core(t, s, r.Ctx()); l.Paused != nil {
		b, _ := json.Marshal(l)
		t.Errorf("the pool was resumed last, and is paused: %s", b)
	}
}

func TestNoReasonBeforeWorkersCouldBeHeard(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	c := &crew{unsettled: true}
	s := open(r, c)
	if got := s.Waiting(jobs.Job{Pool: "core"}); got != "" {
		t.Errorf("got %q", got)
	}
	c.unsettled = false
	if got := s.Waiting(jobs.Job{Pool: "core"}); got == "" {
		t.Error("no worker, and no reason")
	}
	c.live = []worker.Status{{ID: "a", Slots: map[string]int{"core": 1}, Drain: true}}
	if got := s.Waiting(jobs.Job{Pool: "core"}); got == "" {
		t.Error("a worker that drains takes nothing")
	}
	c.live[0].Drain = false
	if got := s.Waiting(jobs.Job{Pool: "core"}); got != "" {
		t.Errorf("got %q", got)
	}
}
