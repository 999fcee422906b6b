package control_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

func reconciler(r *rig.Rig) *control.Reconciler {
	return &control.Reconciler{Store: r.Store, Jobs: r.Index, Grace: time.Nanosecond, Log: r.Log}
}

// pass runs the reconciler until it has put n jobs back: the index hears of
// jobs a little later than their callers.
func pass(t *testing.T, r *rig.Rig, n int) {
	t.Helper()
	total := 0
	r.Until("jobs put back", func() bool {
		repaired, err := reconciler(r).Pass(r.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		total += repaired
		return total >= n
	})
	if total != n {
		t.Errorf("put back %d jobs, want %d", total, n)
	}
}

// TestReconcilerPutsLostJobsBack: the message of a job that has not ended is
// taken out of the queue behind the system's back.
func TestReconcilerPutsLostJobsBack(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	stop := r.Worker("a")
	j := r.Submit("test.sleep", map[string]any{"ms": 1000})
	done := r.Ends(r.Submit("test.echo", map[string]any{"message": "x"}).ID)
	r.Until("running", func() bool { return r.State(j.ID) == jobs.Running })
	stop() // handed back: the job is retrying
	if err := r.Env.Conn(bus.RoleAdmin).JetStream().Purge(r.Ctx(), bus.JobsStream(packs.PoolCore), "job.core.>", 0); err != nil {
		t.Fatal(err)
	}
	pass(t, r, 1)
	if n, err := reconciler(r).Pass(r.Ctx()); err != nil || n != 0 {
		t.Errorf("a second pass put back %d jobs, %v", n, err)
	}
	r.Worker("b")
	if got := r.Ends(j.ID); got.State != jobs.Succeeded || got.Worker != "b" {
		t.Errorf("got %s by %s", got.State, got.Worker)
	}
	if got := r.State(done.ID); got != jobs.Succeeded {
		t.Errorf("the ended job is %s", got)
	}
}

// TestDeadLetterIsStoredOnceWhateverFails: the consequence consumer meets an
// error after its write and does the same again.
func TestDeadLetterIsStoredOnceWhateverFails(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Client.Add(bustest.Rule{Op: bustest.OpPublish, Subject: "dlq.", Nth: 1, Kind: bustest.After})
	r.Worker("a")
	j := r.Ends(r.Submit("test.fail", map[string]any{"code": "handler_failed"}).ID)
	r.Until("dead letter", func() bool {
		_, err := r.Jobs.DeadLetter(r.Ctx(), rig.Ann, j.ID)
		return err == nil
	})
	page, _, err := r.Jobs.DeadLetters(r.Ctx(), rig.Ann, jobs.DeadQuery{})
	if err != nil || len(page) != 1 {
		t.Errorf("got %d dead letters, %v", len(page), err)
	}
}

// TestEffectIsNotRepeated: the worker is lost after the effect of a pack that
// must not act twice.
func TestEffectIsNotRepeated(t *testing.T) {
	t.Parallel()
	var effects atomic.Int32
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		effects.Add(1)
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	r := rig.New(t)
	_, f := r.FaultyWorker("a", func(c *worker.Config) {
		c.Slots = map[string]int{"core": 1} // or it would be handed its own job again
	})
	f.Add(bustest.Rule{Op: bustest.OpWorking, Kind: bustest.Before})
	j := r.Submit("test.effect", map[string]any{"url": server.URL})
	r.Until("effect", func() bool { return effects.Load() == 1 })
	r.Worker("b")
	got := r.Ends(j.ID)
	if got.State != jobs.Failed || got.Error.Code != packs.OutcomeUnknown {
		t.Errorf("got %s %+v, want failed with outcome_unknown", got.State, got.Error)
	}
	if n := effects.Load(); n != 1 {
		t.Errorf("the effect happened %d times", n)
	}
}
