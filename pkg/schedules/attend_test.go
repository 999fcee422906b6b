package schedules_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestEachTimeIsOneJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(nil)
	for range 4 {
		w.step(time.Minute)
		w.finish(w.running(), jobs.Succeeded)
	}
	same(t, "jobs", w.ran(), []string{"12:01:00", "12:02:00", "12:03:00", "12:04:00"})
	same(t, "runs", w.runs(s.ID), []string{
		"12:01:00 time succeeded", "12:02:00 time succeeded", "12:03:00 time succeeded", "12:04:00 time succeeded"})
	w.armed(s.ID)
	if len(w.jobs[w.order[0]].ID) != 36 || w.order[0] != schedules.JobID(s.ID, noon.Add(time.Minute)) || !slices.IsSorted(w.order) {
		t.Errorf("job ids %v", w.order)
	}
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy     schedules.Overlap
		jobs, runs []string
	}{
		{schedules.Skip, []string{"12:01:00", "12:04:00"},
			[]string{"12:01:00 time succeeded", "12:03:00 time skipped 2", "12:04:00 time active"}},
		{schedules.Queue, []string{"12:01:00", "12:02:00"},
			[]string{"12:01:00 time succeeded", "12:02:00 time active"}},
		{schedules.Replace, []string{"12:01:00", "12:03:00"},
			[]string{"12:01:00 time cancelled", "12:02:00 time replaced 1", "12:03:00 time active"}},
	} {
		t.Run(string(tt.policy), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.create(func(s *schedules.Spec) { s.Overlap = tt.policy })
			w.step(time.Minute)
			first := w.begin()
			w.step(time.Minute)
			w.step(time.Minute)
			if got := w.running(); got != first {
				t.Fatalf("%s runs, want %s alone", got, first)
			}
			state := jobs.Succeeded
			if w.jobs[first].CancelRequested != (tt.policy == schedules.Replace) {
				t.Errorf("cancel requested: %v", w.jobs[first].CancelRequested)
			} else if tt.policy == schedules.Replace {
				state = jobs.Cancelled
			}
			w.finish(first, state)
			if tt.policy == schedules.Skip {
				w.step(time.Minute)
			}
			w.running()
			same(t, "jobs", w.ran(), tt.jobs)
			same(t, "runs", w.runs(s.ID), tt.runs)
			w.armed(s.ID)
		})
	}
}

// TestReplaceOfAQueuedJob: the old job had not begun, so the new one takes its
// place at once.
func TestReplaceOfAQueuedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(func(s *schedules.Spec) { s.Overlap = schedules.Replace })
	w.step(time.Minute)
	w.step(time.Minute)
	w.running()
	same(t, "runs", w.runs(s.ID), []string{"12:01:00 time cancelled", "12:02:00 time active"})
}

func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(func(s *schedules.Spec) { s.Overlap = schedules.Queue })
	w.steps(time.Minute, noon.Add((schedules.MaxWaiting+3)*time.Minute))
	got, err := w.svc.Get(w.ctx(), ann, s.ID)
	if err != nil || got.WaitingRuns != schedules.MaxWaiting || got.ActiveJobID != w.running() {
		t.Fatalf("%d wait for %q, %v", got.WaitingRuns, got.ActiveJobID, err)
	}
	same(t, "runs", w.runs(s.ID), []string{"12:01:00 time active", "13:43:00 time skipped 2"})
	for range schedules.MaxWaiting + 1 {
		w.finish(w.running(), jobs.Succeeded)
	}
	if len(w.order) != schedules.MaxWaiting+1 {
		t.Errorf("%d jobs", len(w.order))
	}
}

// TestCatchUp: nobody is there for 40 minutes, of which the last 15 count as
// on time.
func TestCatchUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy schedules.CatchUp
		every  string
		down   time.Duration
		jobs   []string
		runs   []string
	}{
		{schedules.CatchUpNone, "10m", 40 * time.Minute, []string{"12:30:00", "12:40:00"},
			[]string{"12:20:00 time missed 2", "12:30:00 time succeeded", "12:40:00 time succeeded"}},
		{schedules.CatchUpNone, "30m", 46 * time.Minute, []string{}, []string{"12:30:00 time missed 1"}},
		{schedules.CatchUpLast, "10m", 40 * time.Minute, []string{"12:30:00", "12:40:00"},
			[]string{"12:20:00 time missed 2", "12:30:00 time succeeded", "12:40:00 time succeeded"}},
		{schedules.CatchUpLast, "20m", 59 * time.Minute, []string{"12:40:00"},
			[]string{"12:20:00 time missed 1", "12:40:00 catch_up succeeded"}},
		{schedules.CatchUpAll, "10m", 40 * time.Minute, []string{"12:10:00", "12:20:00", "12:30:00", "12:40:00"},
			[]string{"12:10:00 catch_up succeeded", "12:20:00 catch_up succeeded", "12:30:00 time succeeded", "12:40:00 time succeeded"}},
		{schedules.CatchUpNone, "5m", 10 * time.Minute, []string{"12:05:00", "12:10:00"},
			[]string{"12:05:00 time succeeded", "12:10:00 time succeeded"}},
	} {
		t.Run(fmt.Sprint(tt.policy, tt.every, tt.down), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.create(func(s *schedules.Spec) { s.Cron, s.Every, s.CatchUp = "", tt.every, tt.policy })
			w.set(noon.Add(tt.down))
			w.ring()
			for range tt.jobs {
				w.finish(w.running(), jobs.Succeeded)
			}
			same(t, "jobs", w.ran(), tt.jobs)
			same(t, "runs", w.runs(s.ID), tt.runs)
			w.armed(s.ID)
		})
	}
}

// TestBacklogIsBounded: far more times have passed than can be made up for.
func TestBacklogIsBounded(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]time.Duration{"an hour": time.Hour, "a year": 365 * 24 * time.Hour} {
		for _, expr := range []string{"* * * * * *", "*/5 * * * * *"} {
			w := newWorld(t)
			s := w.create(func(s *schedules.Spec) { s.Cron, s.CatchUp = expr, schedules.CatchUpAll })
			w.set(noon.Add(down))
			w.ring()
			for range schedules.MaxBacklog {
				w.finish(w.running(), jobs.Succeeded)
			}
			if n := len(w.order); n != schedules.MaxBacklog {
				t.Errorf("%s: %d jobs", name, n)
			}
			if last := w.jobs[w.order[len(w.order)-1]].ScheduledFor; !last.Equal(noon.Add(down)) {
				t.Errorf("%s: the last is for %s", name, last)
			}
			w.armed(s.ID)
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy schedules.CatchUp
		jobs   []string
	}{
		{schedules.CatchUpNone, []string{"12:01:00", "12:06:00"}},
		{schedules.CatchUpLast, []string{"12:01:00", "12:05:00", "12:06:00"}},
		{schedules.CatchUpAll, []string{"12:01:00", "12:02:00", "12:03:00", "12:04:00", "12:05:00", "12:06:00"}},
	} {
		t.Run(string(tt.policy), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.create(func(s *schedules.Spec) { s.CatchUp = tt.policy })
			w.step(time.Minute)
			for range 2 {
				if got, err := w.svc.Pause(w.ctx(), ann, s.ID); err != nil || got.State != schedules.Paused || len(got.NextRuns) != 5 {
					t.Fatalf("pause: %+v, %v", got, err)
				}
			}
			w.armed(s.ID)
			w.finish(w.running(), jobs.Succeeded)
			w.set(noon.Add(5*time.Minute + time.Second))
			w.ring()
			same(t, "jobs before", w.ran(), []string{"12:01:00"})
			if got, err := w.svc.Resume(w.ctx(), ann, s.ID); err != nil || got.State != schedules.Active {
				t.Fatalf("resume: %+v, %v", got, err)
			}
			for len(w.order) < len(tt.jobs)-1 {
				w.finish(w.running(), jobs.Succeeded)
			}
			if tt.policy != schedules.CatchUpNone {
				w.finish(w.running(), jobs.Succeeded)
			}
			w.step(time.Minute)
			same(t, "jobs", w.ran(), tt.jobs)
			w.armed(s.ID)
		})
	}
}

// TestClockJumps sets the clock forward and back by up to ten minutes, again
// and again, with lost timers in between: no time is lost and none runs twice.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	for _, expr := range []string{"* * * * *", "*/7 * * * *", "5 13 * * *"} {
		t.Run(expr, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(10) {
				w, random := newWorld(t), rand.New(rand.NewPCG(seed, 1))
				s := w.create(func(s *schedules.Spec) { s.Cron, s.CatchUp = expr, schedules.CatchUpNone })
				latest := noon
				for range 60 {
					switch random.IntN(4) {
					case 0:
						w.set(w.clock().Add(time.Duration(random.IntN(1200)-600) * time.Second))
					case 1:
						w.step(90 * time.Second)
					case 2: // the timer is lost, or fires late on a clock set back
						w.Due(w.clock().Add(time.Hour))
						w.step(time.Minute)
					default:
						w.step(20 * time.Second)
					}
					if _, err := w.svc.Overdue(w.ctx()); err != nil {
						t.Fatal(err)
					}
					if w.clock().After(latest) {
						latest = w.clock()
					}
					for w.busy() {
						w.finish(w.running(), jobs.Succeeded)
					}
				}
				w.set(latest.Add(time.Hour)) // what is due by now is found
				if _, err := w.svc.Pass(w.ctx()); err != nil {
					t.Fatal(err)
				}
				for w.busy() {
					w.finish(w.running(), jobs.Succeeded)
				}
				// Up to the jump to the end, which is longer than the grace.
				cal, want := calendar(t, s.Spec, noon), []string{}
				for at := cal.Next(noon); !at.After(latest.Add(-time.Minute)); at = cal.Next(at) {
					want = append(want, short(at))
				}
				got := w.ran()
				same(t, fmt.Sprintf("seed %d", seed), got[:min(len(got), len(want))], want)
				if all := slices.Compact(slices.Sorted(slices.Values(got))); len(all) != len(got) {
					t.Errorf("seed %d: a time ran twice: %v", seed, got)
				}
			}
		})
	}
}

func (w *world) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.jobs {
		if !j.State.Terminal() {
			return true
		}
	}
	return false
}

// TestEarlyTimerIsKept: the clock of the server is ahead.
func TestEarlyTimerIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(nil)
	fired := w.Due(noon.Add(time.Minute))[s.ID]
	w.set(noon.Add(50 * time.Second))
	early, err := w.svc.Attend(w.ctx(), s.ID, schedules.Word{At: fired})
	if err != nil || early != 10*time.Second || len(w.ran()) != 0 {
		t.Errorf("early by %s, %v, jobs %v", early, err, w.ran())
	}
	// A timer of a time that was dealt with sets the next one anew.
	if early, err = w.svc.Attend(w.ctx(), s.ID, schedules.Word{At: noon.Add(-time.Hour)}); early != 0 || err != nil {
		t.Errorf("old timer: early by %s, %v", early, err)
	}
	w.armed(s.ID)
}

// TestEveryCallFailsOnce fails each call of a fire in turn, before it is made
// and after it, and lets another replica go on.
func TestEveryCallFailsOnce(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for _, policy := range []schedules.Overlap{schedules.Skip, schedules.Queue, schedules.Replace} {
			for n := 1; ; n++ {
				w := newWorld(t)
				s := w.create(func(s *schedules.Spec) { s.Overlap = policy })
				w.step(time.Minute)
				w.begin()
				w.calls, w.fail, w.after = 0, n, after
				reached := false
				script := []func(){
					func() { w.set(noon.Add(2 * time.Minute)) },
					func() { w.set(noon.Add(3 * time.Minute)) },
					func() {
						w.mu.Lock()
						defer w.mu.Unlock()
						job := w.jobs[w.order[0]]
						job.State = jobs.Succeeded
						w.jobs[job.ID] = job
					},
				}
				for _, do := range script {
					do()
					fired := w.Due(w.clock())[s.ID]
					_, err := w.svc.Attend(w.ctx(), s.ID, schedules.Word{At: fired})
					if reached = reached || err != nil; err == nil {
						continue
					}
					// It comes again, elsewhere.
					if _, err := w.replica().Attend(w.ctx(), s.ID, schedules.Word{At: fired}); err != nil {
						t.Fatalf("call %d: %v", n, err)
					}
				}
				if w.calls < n {
					break
				}
				if !reached {
					t.Errorf("call %d did not fail", n)
				}
				want := map[schedules.Overlap][]string{
					schedules.Skip: {"12:01:00"}, schedules.Queue: {"12:01:00", "12:02:00"}, schedules.Replace: {"12:01:00", "12:03:00"},
				}[policy]
				same(t, fmt.Sprintf("%s, call %d fails, after %v: jobs", policy, n, after), w.ran(), want)
				w.armed(s.ID)
			}
		}
	}
}

func TestPassSetsTimersRight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lost, wrong, paused := w.create(nil), w.create(nil), w.create(nil)
	if _, err := w.svc.Pause(w.ctx(), ann, paused.ID); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		w.Disarm(w.ctx(), lost.ID), w.Memory.Arm(w.ctx(), wrong.ID, noon.Add(time.Hour), noon.Add(time.Hour)),
		w.Memory.Arm(w.ctx(), paused.ID, noon.Add(time.Hour), noon.Add(time.Hour)),
		w.Memory.Arm(w.ctx(), "00000000-0000-7000-8000-000000000009", noon.Add(time.Hour), noon.Add(time.Hour)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r, err := w.svc.Pass(w.ctx())
	if err != nil || r != (schedules.Repairs{Timers: 4}) {
		t.Errorf("put right %+v, %v", r, err)
	}
	for _, id := range []string{lost.ID, wrong.ID, paused.ID, "00000000-0000-7000-8000-000000000009"} {
		w.armed(id)
	}
	if r, err = w.svc.Pass(w.ctx()); err != nil || r != (schedules.Repairs{}) {
		t.Errorf("second pass put right %+v, %v", r, err)
	}
}

// TestRefusedRun: a run whose job is refused for good is a failed run; one
// refused for now is tried again.
func TestRefusedRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(nil)
	w.refuse = packs.Errorf(packs.NotFound, "there is no pack named test.echo")
	w.step(time.Minute)
	same(t, "runs", w.runs(s.ID), []string{"12:01:00 time failed"})
	w.armed(s.ID)

	w.refuse = packs.Errorf(packs.RateLimited, "queue full")
	w.set(noon.Add(2 * time.Minute))
	fired := w.Due(w.clock())[s.ID]
	for range 2 {
		if _, err := w.svc.Attend(w.ctx(), s.ID, schedules.Word{At: fired}); code(err) != packs.RateLimited {
			t.Errorf("refused for now: %v", err)
		}
	}
	w.armed(s.ID) // the next time comes whatever happens to this one
	w.refuse = nil
	if _, err := w.svc.Attend(w.ctx(), s.ID, schedules.Word{At: fired}); err != nil {
		t.Fatal(err)
	}
	same(t, "jobs", w.ran(), []string{"12:02:00"})
	same(t, "runs", w.runs(s.ID), []string{"12:01:00 time failed", "12:02:00 time active"})

	w.finish(w.running(), jobs.Succeeded)
	w.refuse = packs.Errorf(packs.RateLimited, "queue full")
	w.set(noon.Add(3 * time.Minute))
	fired = w.Due(w.clock())[s.ID]
	if _, err := w.svc.Attend(w.ctx(), s.ID, schedules.Word{At: fired}); code(err) != packs.RateLimited {
		t.Errorf("refused for now: %v", err)
	}
	w.set(noon.Add(25 * time.Hour))
	if _, err := w.svc.Attend(w.ctx(), s.ID, schedules.Word{At: fired}); err != nil && code(err) != packs.RateLimited {
		t.Errorf("given up: %v", err)
	}
	if got := w.runs(s.ID); !slices.Contains(got, "12:03:00 time failed") {
		t.Errorf("runs %v", got)
	}
}

// TestShortLivedJobIsNotRunAgain: word of the end of a job was lost, and the
// job is no longer kept.
func TestShortLivedJobIsNotRunAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(func(s *schedules.Spec) { s.Every, s.Cron, s.ResultTTLS = "1h", "", 60 })
	w.step(time.Hour)
	delete(w.jobs, w.running())
	w.step(time.Hour)
	same(t, "jobs", w.ran(), []string{"00:00:00", "14:00:00"}) // the first is gone
	same(t, "runs", w.runs(s.ID), []string{"13:00:00 time unknown", "14:00:00 time active"})
}
