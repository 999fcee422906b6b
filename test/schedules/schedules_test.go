package schedules_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
	"github.com/helmdeck/helmdeck/test/rig"
)

func decode(m bus.Message) (j jobs.Job, err error) {
	return j, json.Unmarshal(m.Data, &j)
}

// check asserts that every time from the first on is one job that ran once.
func check(t *testing.T, r *rig.Rig, s schedules.Schedule, every time.Duration) {
	t.Helper()
	made, starts := jobsOf(t, r)
	for i, j := range made {
		want := s.CreatedAt.Add(time.Duration(i+1) * every)
		if !j.ScheduledFor.Equal(want) || j.ID != schedules.JobID(s.ID, want) || starts[j.ID] != 1 {
			t.Errorf("job %d: %s for %s, started %d times; want one for %s", i, j.ID, j.ScheduledFor, starts[j.ID], want)
		}
	}
}

// queued leaves no time out when a job, or a retry, takes long.
func queued(s *schedules.Spec) { s.Overlap = schedules.Queue }

// TestTwoReplicasAndEveryFireTwice: every delivery of every pull comes twice,
// at two replicas that race.
func TestTwoReplicasAndEveryFireTwice(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("a")
	a, b := newReplica(r, true), newReplica(r, true)
	for _, p := range []*replica{a, b} {
		p.faults.Add(bustest.Rule{Op: bustest.OpPull, Subject: "SCHED/schedules", Kind: bustest.Twice})
	}
	s := a.create(queued)
	r.Until("four runs have ended", func() bool {
		runs, ended := b.get(s.ID).LastRuns, 0
		for _, run := range runs {
			if run.Outcome == schedules.RunSucceeded {
				ended++
			}
		}
		return ended >= 4
	})
	if err := b.svc.Delete(r.Ctx(), rig.Ann, s.ID); err != nil {
		t.Fatal(err)
	}
	r.Until("nothing is left of it", func() bool { return left(r, "sched.cron.*") == 0 && settled(r) })
	check(t, r, s, time.Second)
}

// TestEveryBusCallFailsOnce fails one call of each kind a fire makes, before
// it is made and after it.
func TestEveryBusCallFailsOnce(t *testing.T) {
	t.Parallel()
	for _, kind := range []bustest.Kind{bustest.Before, bustest.After, bustest.Twice} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			r.Worker("a")
			p := newReplica(r, true)
			s := p.create(queued)
			for _, rule := range []bustest.Rule{
				{Op: bustest.OpKVGet, Subject: "schedules/s."}, {Op: bustest.OpKVUpdate, Subject: "schedules/s."},
				{Op: bustest.OpPublish, Subject: "job."}, {Op: bustest.OpPublish, Subject: "sched.cron."},
				{Op: bustest.OpAck, Subject: "sched.fire."},
				{Op: bustest.OpLast, Subject: "evt."},
			} {
				rule.Nth, rule.Kind = 2, kind
				p.faults.Add(rule)
			}
			r.Until("runs", func() bool { made, _ := jobsOf(t, r); return len(made) >= 6 })
			if n := len(p.faults.Injected()); n < 5 {
				t.Errorf("only %d calls failed: %v", n, p.faults.Injected())
			}
			if err := p.svc.Delete(r.Ctx(), rig.Ann, s.ID); err != nil {
				t.Fatal(err)
			}
			check(t, r, s, time.Second)
		})
	}
}

// TestDownTime: nobody attends for a while.
func TestDownTime(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("a")
	asleep := newReplica(r, false)
	s := asleep.create(queued)
	r.Until("its time has come", func() bool { return left(r, "sched.fire.*") == 1 })
	r.Until("and others have passed", func() bool { return time.Since(s.CreatedAt) > 4*time.Second })
	p := newReplica(r, true)
	r.Until("all are made up for", func() bool { made, _ := jobsOf(t, r); return len(made) >= 5 })
	if err := p.svc.Delete(r.Ctx(), rig.Ann, s.ID); err != nil {
		t.Fatal(err)
	}
	check(t, r, s, time.Second)
}

// TestLostTimer: the timer is taken away behind the system's back, as by a
// process that died between the record and the timer.
func TestLostTimer(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("a")
	p := newReplica(r, true)
	s := p.create(func(s *schedules.Spec) { s.Every = "8s" })
	p.faults.Add(bustest.Rule{Op: bustest.OpPublish, Subject: "sched.cron.", Nth: 1, Kind: bustest.Before})
	if err := r.Env.Conn(bus.RoleAdmin).JetStream().Purge(r.Ctx(), bus.StreamSchedule, "sched.cron.*", 0); err != nil {
		t.Fatal(err)
	}
	r.Until("it is set again", func() bool { return left(r, "sched.cron.*") == 1 })
	r.Until("it runs", func() bool { made, _ := jobsOf(t, r); return len(made) == 1 })
	check(t, r, s, 8*time.Second)
}

// TestOverlapOnTheBus runs jobs that take longer than the interval.
func TestOverlapOnTheBus(t *testing.T) {
	t.Parallel()
	for _, policy := range []schedules.Overlap{schedules.Skip, schedules.Queue, schedules.Replace} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			r.Worker("a", func(c *worker.Config) { c.Heartbeat = 200 * time.Millisecond })
			p := newReplica(r, true)
			s := p.create(func(s *schedules.Spec) {
				s.Overlap, s.Pack, s.Input = policy, "test.sleep", []byte(`{"ms":2500}`)
			})
			r.Until("three jobs have ended", func() bool {
				ended := 0
				made, _ := jobsOf(t, r)
				for _, j := range made {
					if j.State.Terminal() {
						ended++
					}
				}
				return ended >= 3
			})
			got := p.get(s.ID)
			if err := p.svc.Delete(r.Ctx(), rig.Ann, s.ID); err != nil {
				t.Fatal(err)
			}
			made, starts := jobsOf(t, r)
			for i, j := range made {
				if starts[j.ID] > 1 {
					t.Errorf("job %d started %d times", i, starts[j.ID])
				}
				if i == 0 || j.StartedAt.IsZero() {
					continue
				}
				before := made[i-1]
				if !before.State.Terminal() || before.FinishedAt.After(j.StartedAt) {
					t.Errorf("job %d started %s, the one before it ended %s", i, j.StartedAt, before.FinishedAt)
				}
				if gap := j.ScheduledFor.Sub(before.ScheduledFor); (policy == schedules.Queue) != (gap == time.Second) && policy != schedules.Replace {
					t.Errorf("job %d is due %s after the one before", i, gap)
				}
				if want := jobs.Cancelled; policy == schedules.Replace && before.State != want {
					t.Errorf("job %d was %s, want %s", i-1, before.State, want)
				}
			}
			if policy == schedules.Queue && got.WaitingRuns == 0 {
				t.Error("no run waits")
			}
		})
	}
}

// many is how many schedules fall due at one instant; HELMDECK_SOAK asks for
// the full figure, or for as many as it says.
func many() int {
	v := os.Getenv("HELMDECK_SOAK")
	if v == "" {
		return 1000
	}
	if n, err := strconv.Atoi(v); err == nil && n > 1 {
		return n
	}
	return 10_000
}

// eventually polls a condition for longer than a rig does.
func eventually(t *testing.T, end time.Time, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ; !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not within the time", what)
		}
	}
}

// TestManyAtOneInstant: each of many schedules runs once, with two replicas
// attending, and how late they were is reported.
func TestManyAtOneInstant(t *testing.T) {
	t.Parallel()
	n := many()
	r := rig.New(t)
	a, b := newReplica(r, true), newReplica(r, true)
	create := func(n int, due time.Time, name string) time.Duration {
		begun := time.Now()
		var wg sync.WaitGroup
		next := make(chan int)
		for _, p := range []*replica{a, b, a, b, a, b, a, b} {
			wg.Go(func() {
				for i := range next {
					who := identity.Caller{Subject: fmt.Sprint("caller ", i%10)}
					_, err := p.svc.Create(context.Background(), who, schedules.Spec{
						Name: fmt.Sprint(name, i), Every: "1h", StartAt: due,
						Request: jobs.Request{Pack: "test.echo", Input: []byte(`{"message":"tick"}`)},
					}, "")
					if err != nil {
						t.Errorf("create %d: %v", i, err)
					}
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		wg.Wait()
		return time.Since(begun)
	}
	// How long it takes here and now, so that all are there in time.
	const sample = 40
	took := create(sample, time.Now().Add(1000*time.Hour), "sample ")
	due := time.Now().Add(10*time.Second + 4*took*time.Duration(n)/sample).Truncate(time.Second).UTC()
	create(n, due, "at once ")
	if late := time.Since(due); late > 0 {
		t.Fatalf("creating them took %s longer than their time", late)
	}
	r.Worker("w", func(c *worker.Config) { c.Slots = map[string]int{"core": 64} })
	var made []jobs.Job
	var starts map[string]int
	eventually(t, due.Add(2*time.Minute+time.Duration(n)*30*time.Millisecond), "all have run", func() bool {
		made, starts = jobsOf(t, r)
		ended := 0
		for _, j := range made {
			if j.State == jobs.Succeeded {
				ended++
			}
		}
		return ended >= n
	})
	eventually(t, time.Now().Add(2*time.Minute), "all is settled", func() bool {
		return settled(r) && left(r, "sched.cron.*") == n+sample
	})
	if made, starts = jobsOf(t, r); len(made) != n {
		t.Errorf("%d jobs, want %d", len(made), n)
	}
	seen := map[string]bool{}
	var latest, last time.Duration
	for _, j := range made {
		if seen[j.ScheduleID] || starts[j.ID] != 1 || !j.ScheduledFor.Equal(due) {
			t.Errorf("job %s of schedule %s for %s started %d times", j.ID, j.ScheduleID, j.ScheduledFor, starts[j.ID])
		}
		seen[j.ScheduleID] = true
		latest, last = max(latest, j.CreatedAt.Sub(due)), max(last, j.FinishedAt.Sub(due))
	}
	t.Logf("%d schedules due at one instant: the last was submitted after %s and had run after %s",
		n, latest.Round(time.Millisecond), last.Round(time.Millisecond))
}
