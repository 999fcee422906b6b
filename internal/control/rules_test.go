package control_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/history"
	"github.com/helmdeck/helmdeck/test/rig"
)

type answer struct {
	Text string `json:"text"`
}

// TestRunningJobThatLostItsMessageRunsToItsEnd: its worker lives and knows
// nothing of it.
func TestRunningJobThatLostItsMessageRunsToItsEnd(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	r := rig.New(t, packs.Define(packs.Spec[struct{}, answer]{Name: "t.t", Summary: "s",
		Run: func(context.Context, *packs.Run, struct{}) (answer, error) { <-release; return answer{}, nil }}))
	r.Worker("a")
	j := r.Submit("t.t", struct{}{})
	r.Until("running", func() bool { return r.State(j.ID) == jobs.Running })
	if err := r.Env.Conn(bus.RoleAdmin).JetStream().Purge(r.Ctx(), bus.JobsStream(packs.PoolCore), "job.core.>", 0); err != nil {
		t.Fatal(err)
	}
	pass(t, r, 1)
	close(release)
	if got := r.Ends(j.ID); got.State != jobs.Succeeded {
		t.Errorf("got %s %+v", got.State, got.Error)
	}
	l := history.NewLog()
	l.Accepted(j.ID, "")
	r.Until("at rest", func() bool {
		found, err := history.Check(r.Ctx(), r.Env.Conn(bus.RoleAdmin).JetStream(), r.Store, l, history.Options{})
		return err == nil && len(found) == 0
	})
}

// listed gives the reconciler a fixed list, in its order.
type listed []jobs.Key

func (l listed) Unfinished(time.Time) []jobs.Key { return l }

// TestOneBadJobDoesNotStopTheReconciler: the record of the first cannot be
// read, the second is put back.
func TestOneBadJobDoesNotStopTheReconciler(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	stop := r.Worker("a")
	j := r.Submit("test.sleep", map[string]any{"ms": 900000})
	r.Until("running", func() bool { return r.State(j.ID) == jobs.Running })
	stop()
	bad := j.Key()
	bad.ID = "00000000-0000-7000-8000-000000000000"
	subject, err := events.EvtSubject(bad, events.KindLifecycle)
	if err != nil {
		t.Fatal(err)
	}
	admin := r.Env.Conn(bus.RoleAdmin).JetStream()
	if _, err := admin.Publish(r.Ctx(), bus.Outgoing{Subject: subject, Data: []byte("no record")}); err != nil {
		t.Fatal(err)
	}
	if err := admin.Purge(r.Ctx(), bus.JobsStream(packs.PoolCore), "job.core.>", 0); err != nil {
		t.Fatal(err)
	}
	rec := reconciler(r)
	rec.Jobs = listed{bad, j.Key()}
	if n, err := rec.Pass(r.Ctx()); n != 1 || err == nil {
		t.Errorf("put back %d, %v; want one and the fault of the other", n, err)
	}
}

// TestFiredScheduleMovedTwiceIsOneRetry: every delivery to the movers comes
// twice, and there are two movers.
func TestFiredScheduleMovedTwiceIsOneRetry(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Client.Add(bustest.Rule{Op: bustest.OpPull, Subject: bus.StreamSchedule, Kind: bustest.Twice})
	r.Background("second mover", (&control.Mover{JS: r.Client, Store: r.Store, Log: r.Log}).Run)
	r.Worker("a", func(c *worker.Config) { c.RetryInQueue = -1 })
	l := history.NewLog()
	for range 5 {
		l.Accepted(r.Submit("test.fail", map[string]any{"code": "session_unavailable", "times": 1}).ID, "")
	}
	for _, id := range l.IDs() {
		if got := r.Ends(id); got.State != jobs.Succeeded || got.Runs != 2 {
			t.Errorf("got %s after %d runs", got.State, got.Runs)
		}
	}
	r.Until("at rest", func() bool {
		found, err := history.Check(r.Ctx(), r.Env.Conn(bus.RoleAdmin).JetStream(), r.Store, l, history.Options{})
		return err == nil && len(found) == 0
	})
}

// TestConsequencesComeAgainAfterALostAcknowledgement and change nothing.
func TestConsequencesComeAgainAfterALostAcknowledgement(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	again := make(chan struct{}, 10)
	r.Client.Add(bustest.Rule{Op: bustest.OpAck, Subject: "evt.", Nth: 2, Kind: bustest.Before},
		bustest.Rule{Op: bustest.OpPublish, Subject: "dlq.", Kind: bustest.Delayed, Do: func() { again <- struct{}{} }})
	r.Worker("a")
	j := r.Ends(r.Submit("test.fail", map[string]any{"code": "handler_failed"}).ID)
	for range 2 {
		select {
		case <-again:
		case <-r.Ctx().Done():
			t.Fatal("the event did not come again")
		}
	}
	page, _, err := r.Jobs.DeadLetters(r.Ctx(), rig.Ann, jobs.DeadQuery{})
	if err != nil || len(page) != 1 || page[0].Submission.Job.ID != j.ID {
		t.Errorf("got %d dead letters, %v", len(page), err)
	}
}

// TestDeadLettersArePagedAndFiltered, and one that cannot be read spoils no
// page.
func TestDeadLettersArePagedAndFiltered(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	k := rig.Ann
	var want []string
	for i := range 7 {
		j := jobs.Job{ID: fmt.Sprintf("00000000-0000-7000-8000-%012d", i), Pack: []string{"test.echo", "test.fail"}[i%2],
			Pool: "core", State: jobs.Failed, Caller: k}
		if err := r.Store.Bury(r.Ctx(), jobs.DeadLetter{Submission: jobs.Submission{Job: j, Input: []byte("{}")}}); err != nil {
			t.Fatal(err)
		}
		want = append(want, j.ID)
	}
	subject, err := events.DLQSubject("core", jobs.Key{Tenant: k.TenantToken(), Owner: k.Owner(), ID: "bad"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Env.Conn(bus.RoleAdmin).JetStream().Publish(r.Ctx(), bus.Outgoing{Subject: subject, Data: []byte("no letter")}); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(want)
	list := func(q jobs.DeadQuery) (got []string) {
		for {
			page, next, err := r.Jobs.DeadLetters(r.Ctx(), k, q)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range page {
				got = append(got, d.Submission.Job.ID)
			}
			if q.Cursor = next; next == "" {
				return got
			}
		}
	}
	if got := list(jobs.DeadQuery{Limit: 3}); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := list(jobs.DeadQuery{Limit: 1, Pack: "test.fail", Pool: "core"}); !slices.Equal(got, []string{want[1], want[3], want[5]}) {
		t.Errorf("by pack: %v", got)
	}
	if got := list(jobs.DeadQuery{Pool: "llm"}); len(got) != 0 {
		t.Errorf("by pool: %v", got)
	}
	if _, _, err := r.Jobs.DeadLetters(r.Ctx(), k, jobs.DeadQuery{Cursor: "x"}); rig.Code(err) != packs.InvalidInput {
		t.Errorf("bad cursor: %v", err)
	}
	if _, err := r.Jobs.DeadLetter(r.Ctx(), identity.Caller{Subject: "Bob"}, want[0]); rig.Code(err) != packs.NotFound {
		t.Errorf("somebody else's: %v", err)
	}
}
