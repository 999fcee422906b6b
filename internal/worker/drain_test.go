package worker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/test/rig"
)

func fleet(t *testing.T, r *rig.Rig) *jobfeed.Workers {
	t.Helper()
	w, err := jobfeed.WatchWorkers(r.Ctx(), r.Env.Conn(bus.RoleAPI).Core())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// TestDrainOnRequest: nothing new starts, the job that runs ends
// where it is, and the worker says farewell.
func TestDrainOnRequest(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	workers := fleet(t, r)
	r.Worker("a", oneSlot)
	runs := r.Submit("test.sleep", map[string]any{"ms": 3000})
	r.Until("running", func() bool { return r.State(runs.ID) == jobs.Running })
	for range 2 { // may be repeated
		// The ledger says running a moment before the worker counts the job.
		r.Until("drain tells of the job", func() bool {
			s, err := workers.Drain(r.Ctx(), "a", time.Hour)
			if err != nil || !s.Drain || time.Until(s.DrainBy) < 59*time.Minute {
				t.Fatalf("got %+v, %v", s, err)
			}
			return s.Running["core"] == 1
		})
	}
	waits := r.Submit("test.echo", map[string]any{"message": "x"})
	if got := r.Ends(runs.ID); got.State != jobs.Succeeded || got.Runs != 1 {
		t.Errorf("the running job: %s after %d runs", got.State, got.Runs)
	}
	r.Until("farewell", func() bool { return len(workers.Live()) == 0 })
	if got := r.State(waits.ID); got != jobs.Queued {
		t.Errorf("the waiting job is %s", got)
	}
	if n := workers.Lost(); n != 0 {
		t.Errorf("%d workers count as lost", n)
	}
	r.Until("nobody of that name", func() bool {
		_, err := workers.Drain(r.Ctx(), "a", 0)
		return errors.Is(err, jobfeed.ErrNoWorker)
	})
	r.Worker("b")
	if got := r.Ends(waits.ID); got.State != jobs.Succeeded || got.Worker != "b" {
		t.Errorf("the waiting job: %s by %s", got.State, got.Worker)
	}
}

// TestDrainHandsBackAtItsEnd, uncharged: another worker runs the job again.
func TestDrainHandsBackAtItsEnd(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	workers := fleet(t, r)
	r.Worker("a", func(c *worker.Config) { c.Drain = time.Hour })
	j := r.Submit("test.sleep", map[string]any{"ms": 2000})
	r.Until("running", func() bool { return r.State(j.ID) == jobs.Running })
	if _, err := workers.Drain(r.Ctx(), "a", time.Hour); err != nil {
		t.Fatal(err)
	}
	// A request without a time changes nothing, one with a time does.
	if s, err := workers.Drain(r.Ctx(), "a", 0); err != nil || time.Until(s.DrainBy) < 59*time.Minute {
		t.Fatalf("got %+v, %v", s, err)
	}
	if _, err := workers.Drain(r.Ctx(), "a", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	r.Worker("b")
	if got := r.Ends(j.ID); got.State != jobs.Succeeded || got.Worker != "b" || got.Attempt != 1 || got.Returned != 1 {
		t.Errorf("got %s by %s, attempt %d, returned %d", got.State, got.Worker, got.Attempt, got.Returned)
	}
}

// TestStopDuringADrainIsBounded: the process is told to stop while it drains
// for long.
func TestStopDuringADrainIsBounded(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	workers := fleet(t, r)
	stop := r.Worker("a") // its own drain time is short
	j := r.Submit("test.sleep", map[string]any{"ms": 600_000})
	r.Until("running", func() bool { return r.State(j.ID) == jobs.Running })
	if _, err := workers.Drain(r.Ctx(), "a", time.Hour); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	wait(t, "worker stops", stopped)
	if got := r.State(j.ID); got != jobs.Retrying {
		t.Errorf("the job is %s, want it handed back", got)
	}
}

func TestNobodyToDrain(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	workers := fleet(t, r)
	for _, id := range []string{"nobody", "", "a.b", "*", ">"} {
		if _, err := workers.Drain(r.Ctx(), id, 0); !errors.Is(err, jobfeed.ErrNoWorker) {
			t.Errorf("drain %q: %v, want ErrNoWorker", id, err)
		}
	}
}
