// Package schedules tests what happens at a time: delayed jobs and schedules,
// on a real bus, with every step failing once.
package schedules_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

var hello = map[string]any{"message": "hello"}

func in(d time.Duration) func(*jobs.Request) {
	return func(r *jobs.Request) { r.RunAt = time.Now().Add(d) }
}

// listed waits until a job is in the list of a state.
func listed(r *rig.Rig, id string, state jobs.State) {
	r.T.Helper()
	r.Until("listed as "+string(state), func() bool {
		page, _, err := r.Jobs.List(r.Ctx(), rig.Ann, jobs.Query{State: state})
		if err != nil {
			r.T.Fatal(err)
		}
		return slices.ContainsFunc(page, func(j jobs.Job) bool { return j.ID == id && j.State == state })
	})
}

func TestDelayedJobRunsAtItsTime(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("a")
	at := time.Now().Add(3 * time.Second)
	far := r.Submit("test.echo", hello, in(24*time.Hour))
	job := r.Submit("test.echo", hello, func(q *jobs.Request) { q.RunAt = at })
	if job.State != jobs.Scheduled || !job.ScheduledFor.Equal(at) {
		t.Errorf("accepted as %s for %s, want scheduled for %s", job.State, job.ScheduledFor, at)
	}
	listed(r, job.ID, jobs.Scheduled)
	if got := r.State(job.ID); got != jobs.Scheduled && time.Now().Before(at) {
		t.Errorf("state %s, want scheduled", got)
	}
	got := r.Ends(job.ID)
	if got.State != jobs.Succeeded || got.StartedAt.Before(at) || got.Attempt != 1 || !got.ScheduledFor.Equal(at) {
		t.Errorf("got %s, attempt %d, started %s, for %s", got.State, got.Attempt, got.StartedAt, got.ScheduledFor)
	}
	if n := r.Index.Scheduled("default"); n != 1 {
		t.Errorf("%d jobs are scheduled, want the far one", n)
	}
	if got := r.State(far.ID); got != jobs.Scheduled {
		t.Errorf("far job is %s", got)
	}
	delayed := r.Submit("test.echo", hello, func(q *jobs.Request) { q.DelayS = 1 })
	if got := r.Ends(delayed.ID); got.StartedAt.Before(delayed.CreatedAt.Add(time.Second)) {
		t.Errorf("started %s after it was accepted, want a second", got.StartedAt.Sub(delayed.CreatedAt))
	}
}

func TestPastRunAtRunsNow(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("a")
	job := r.Submit("test.echo", hello, in(-24*365*time.Hour))
	if job.State != jobs.Queued || !job.ScheduledFor.IsZero() {
		t.Errorf("accepted as %s for %s, want queued", job.State, job.ScheduledFor)
	}
	if got := r.Ends(job.ID); got.State != jobs.Succeeded {
		t.Errorf("got %s", got.State)
	}
}

func TestDelayLimits(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	now := time.Now()
	cfg := r.Config()
	cfg.Now = func() time.Time { return now }
	svc := jobs.New(cfg)
	for _, tt := range []struct {
		name string
		set  func(*jobs.Request)
		want string // pointer of the fault
	}{
		{"a second", func(q *jobs.Request) { q.DelayS = 1 }, ""},
		{"366 days", func(q *jobs.Request) { q.DelayS = 366 * 86400 }, ""},
		{"a second more", func(q *jobs.Request) { q.DelayS = 366*86400 + 1 }, "/delay_s"},
		{"negative", func(q *jobs.Request) { q.DelayS = -1 }, "/delay_s"},
		{"until in 366 days", func(q *jobs.Request) { q.RunAt = now.Add(jobs.MaxDelay) }, ""},
		{"a nanosecond more", func(q *jobs.Request) { q.RunAt = now.Add(jobs.MaxDelay + 1) }, "/run_at"},
		{"both", func(q *jobs.Request) { q.RunAt, q.DelayS = now.Add(time.Hour), 5 }, "/delay_s"},
	} {
		req := jobs.Request{Pack: "test.echo", Input: []byte(`{"message":"x"}`)}
		tt.set(&req)
		_, err := svc.Submit(r.Ctx(), rig.Ann, req)
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		var pe *packs.Error
		if !errors.As(err, &pe) || pe.Code != packs.InvalidInput || len(pe.Details) != 1 || pe.Details[0].Pointer != tt.want {
			t.Errorf("%s: got %v, want a fault at %s", tt.name, err, tt.want)
		}
	}
}

func TestCancelledScheduledJobLeavesNothing(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	job := r.Submit("test.echo", hello, in(time.Hour))
	if _, err := r.Jobs.Retry(r.Ctx(), rig.Ann, job.ID, nil); rig.Code(err) != packs.SchemaMismatch {
		t.Errorf("retry of a scheduled job: %v", err)
	}
	got, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, job.ID)
	if err != nil || got.State != jobs.Cancelled {
		t.Fatalf("cancel: %s, %v", got.State, err)
	}
	if n := r.Queued(); n != 0 {
		t.Errorf("%d jobs wait", n)
	}
	listed(r, job.ID, jobs.Cancelled)
	again, err := r.Jobs.Retry(r.Ctx(), rig.Ann, job.ID, nil)
	if err != nil || again.State != jobs.Queued || again.ReplayOf != job.ID {
		t.Fatalf("retry: %+v, %v", again, err)
	}
	r.Worker("a")
	if got := r.Ends(again.ID); got.State != jobs.Succeeded {
		t.Errorf("retried job %s", got.State)
	}
}

// TestDueJobWaitsInItsQueue: no worker is there when the time comes.
func TestDueJobWaitsInItsQueue(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	job := r.Submit("test.echo", hello, in(500*time.Millisecond))
	r.Until("queued", func() bool { return r.State(job.ID) == jobs.Queued })
	listed(r, job.ID, jobs.Queued)
	got, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, job.ID)
	if err != nil || got.State != jobs.Cancelled || r.Queued() != 0 {
		t.Errorf("cancel: %s, %v, %d wait", got.State, err, r.Queued())
	}
}

func TestScheduledJobUnderAKey(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	// The schedule is stored, but its acknowledgement is lost.
	r.Client.Add(bustest.Rule{Op: bustest.OpPublish, Subject: "sched.at.", Nth: 1, Kind: bustest.After})
	req := jobs.Request{Pack: "test.echo", Input: []byte(`{"message":"x"}`), DelayS: 3600, IdempotencyKey: "k"}
	if _, err := r.Jobs.Submit(r.Ctx(), rig.Ann, req); rig.Code(err) != packs.SessionUnavailable {
		t.Fatalf("first submit: %v", err)
	}
	first, err := r.Jobs.Submit(r.Ctx(), rig.Ann, req)
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.Jobs.Submit(r.Ctx(), rig.Ann, req)
	if err != nil || second.ID != first.ID || second.State != jobs.Scheduled {
		t.Errorf("again: %+v, %v, want job %s", second, err, first.ID)
	}
	if n := r.Queued(); n != 1 {
		t.Errorf("%d jobs wait, want 1", n)
	}
	req.DelayS = 7200
	if _, err := r.Jobs.Submit(r.Ctx(), rig.Ann, req); rig.Code(err) != packs.IdempotencyConflict {
		t.Errorf("another delay: %v", err)
	}
}

// TestLostScheduleIsRestored: the message schedule is taken away behind the
// system's back, long before its time.
func TestLostScheduleIsRestored(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	job := r.Submit("test.echo", hello, in(time.Hour))
	listed(r, job.ID, jobs.Scheduled)
	if err := r.Env.Conn(bus.RoleAdmin).JetStream().Purge(r.Ctx(), bus.StreamSchedule, "sched.at.>", 0); err != nil {
		t.Fatal(err)
	}
	rec := &control.Reconciler{Store: r.Store, Jobs: r.Index, Grace: time.Nanosecond, Log: r.Log}
	n, err := rec.Pass(r.Ctx())
	if err != nil || n != 1 {
		t.Fatalf("put back %d, %v", n, err)
	}
	if _, place, err := r.Store.Find(r.Ctx(), job.Key(), true); err != nil || place != jobs.InSchedule {
		t.Errorf("found in %q, %v", place, err)
	}
}
