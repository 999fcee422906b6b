package worker_test

import (
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

func TestJobRunsToItsResult(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w1")
	job := r.Ends(r.Submit("test.echo", map[string]any{"message": "hello"}).ID)
	if job.State != jobs.Succeeded || job.Attempt != 1 || job.Worker != "w1" {
		t.Fatalf("got state %s attempt %d worker %s error %v", job.State, job.Attempt, job.Worker, job.Error)
	}
	r.Until("queue is empty", func() bool { return r.Queued() == 0 })
}

func TestRetryableCodeRunsAgain(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w1")
	job := r.Ends(r.Submit("test.fail", map[string]any{"code": "session_unavailable", "times": 1}).ID)
	if job.State != jobs.Succeeded || job.Attempt != 2 || len(job.History) != 1 {
		t.Fatalf("got %s after %d attempts, history %v, error %v", job.State, job.Attempt, job.History, job.Error)
	}
}

func TestExhaustedJobIsADeadLetterThatCanBeReplayed(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w1")
	job := r.Ends(r.Submit("test.fail", map[string]any{"code": "handler_failed"}).ID)
	if job.State != jobs.Failed || job.Error.Code != packs.HandlerFailed || job.Attempt != 1 {
		t.Fatalf("got %s %v after %d attempts", job.State, job.Error, job.Attempt)
	}
	r.Until("dead letter", func() bool {
		_, err := r.Jobs.DeadLetter(r.Ctx(), rig.Ann, job.ID)
		return err == nil
	})
	again, err := r.Jobs.Replay(r.Ctx(), rig.Ann, job.ID, []byte(`{"code":"handler_failed","times":0,"message":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Ends(again.ID); got.ReplayOf != job.ID {
		t.Fatalf("replay of %q, want %s", got.ReplayOf, job.ID)
	}
}

func TestCancelOfAQueuedJobLeavesTheQueue(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	job := r.Submit("test.sleep", map[string]any{"ms": 60000})
	if got, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, job.ID); err != nil || got.State != jobs.Cancelled {
		t.Fatalf("got %s, %v", got.State, err)
	}
	if n := r.Queued(); n != 0 {
		t.Fatalf("%d messages left", n)
	}
	r.Worker("w1")
	if got := r.Ends(r.Submit("test.echo", map[string]any{"message": "next"}).ID); got.State != jobs.Succeeded {
		t.Fatalf("got %s", got.State)
	}
	if got := r.State(job.ID); got != jobs.Cancelled {
		t.Fatalf("got %s", got)
	}
}

func TestCancelOfARunningJobEndsIt(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w1")
	job := r.Submit("test.sleep", map[string]any{"ms": 60000})
	r.Until("running", func() bool { return r.State(job.ID) == jobs.Running })
	if _, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, job.ID); err != nil {
		t.Fatal(err)
	}
	if got := r.Ends(job.ID); got.State != jobs.Cancelled || got.Error.Code != packs.Cancelled {
		t.Fatalf("got %s %v", got.State, got.Error)
	}
}

func TestStoppingWorkerHandsItsJobBackUncharged(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	stop := r.Worker("w1")
	job := r.Submit("test.sleep", map[string]any{"ms": 1500})
	r.Until("running", func() bool { return r.State(job.ID) == jobs.Running })
	stop()
	if got := r.State(job.ID); got != jobs.Retrying {
		t.Fatalf("after the stop: %s", got)
	}
	r.Worker("w2")
	got := r.Ends(job.ID)
	if got.State != jobs.Succeeded || got.Attempt != 1 || got.Worker != "w2" || got.Returned != 1 {
		t.Fatalf("got %s by %s, attempt %d, returned %d", got.State, got.Worker, got.Attempt, got.Returned)
	}
}

func TestIdempotencyKeyGivesTheSameJob(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	key := func(q *jobs.Request) { q.IdempotencyKey = "k ü.*>" }
	first := r.Submit("test.echo", map[string]any{"message": "a"}, key)
	if second := r.Submit("test.echo", map[string]any{"message": "a"}, key); second.ID != first.ID {
		t.Fatalf("got %s and %s", first.ID, second.ID)
	}
	_, err := r.Jobs.Submit(r.Ctx(), rig.Ann, jobs.Request{Pack: "test.echo", Input: []byte(`{"message":"b"}`), IdempotencyKey: "k ü.*>"})
	if rig.Code(err) != packs.IdempotencyConflict {
		t.Fatalf("got %v", err)
	}
	r.Worker("w1")
	r.Ends(first.ID)
	if again := r.Submit("test.echo", map[string]any{"message": "a"}, key); again.ID != first.ID || again.State != jobs.Succeeded {
		t.Fatalf("after the end: %s %s", again.ID, again.State)
	}
}

func TestLargeInputAndOutputGoThroughTheStash(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w1")
	big := make([]byte, jobs.InlineLimit+1)
	for i := range big {
		big[i] = 'x'
	}
	job := r.Ends(r.Submit("test.echo", map[string]any{"message": string(big)}).ID)
	if job.State != jobs.Succeeded || len(job.Output) < len(big) || job.OutputKey != "" {
		t.Fatalf("got %s, %d bytes of output, key %q, %v", job.State, len(job.Output), job.OutputKey, job.Error)
	}
}

func TestTimeoutEndsAnAttempt(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w1")
	job := r.Ends(r.Submit("test.sleep", map[string]any{"ms": 60000}, func(q *jobs.Request) { q.TimeoutS = 1 }).ID)
	if job.State != jobs.Failed || job.Error.Code != packs.Timeout {
		t.Fatalf("got %s %v", job.State, job.Error)
	}
}

func TestListShowsQueuedAndEndedJobsNewestFirst(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	a := r.Submit("test.echo", map[string]any{"message": "a"})
	b := r.Submit("test.sleep", map[string]any{"ms": 1})
	r.Until("both listed", func() bool {
		page, _, err := r.Jobs.List(r.Ctx(), rig.Ann, jobs.Query{})
		return err == nil && len(page) == 2 && page[0].ID == b.ID && page[1].ID == a.ID && page[0].Pack == "test.sleep"
	})
	r.Worker("w1")
	r.Ends(a.ID)
	r.Until("ended", func() bool {
		page, _, err := r.Jobs.List(r.Ctx(), rig.Ann, jobs.Query{State: jobs.Succeeded, Pack: "test.echo"})
		return err == nil && len(page) == 1
	})
}

func TestBackoffGrowsWithJitter(t *testing.T) {
	t.Parallel()
	for n, base := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 9: 256 * time.Second, 50: 5 * time.Minute} {
		for range 100 {
			if d := worker.Backoff(n); d < base/2 || d >= base/2*3 {
				t.Fatalf("attempt %d: got %s, want around %s", n, d, base)
			}
		}
	}
}
