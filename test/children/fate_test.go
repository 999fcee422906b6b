package children

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/test/history"
	"github.com/helmdeck/helmdeck/test/rig"
)

// kids lists the children of a job, newest first.
func kids(r *rig.Rig, parent string) []jobs.Job {
	r.T.Helper()
	list, _, err := r.Jobs.List(r.Ctx(), rig.Ann, jobs.Query{Parent: parent, Limit: 200})
	if err != nil {
		r.T.Fatal(err)
	}
	return list
}

// atRest waits until the checker finds nothing to say against what is left.
func atRest(r *rig.Rig, l *history.Log) {
	r.T.Helper()
	var found []history.Violation
	defer func() {
		for _, v := range found {
			r.T.Error(v)
		}
	}()
	r.Until("at rest", func() bool {
		var err error
		found, err = history.Check(r.Ctx(), r.Env.Conn(bus.RoleAdmin).JetStream(), r.Store, l, history.Options{})
		return err == nil && len(found) == 0
	})
}

// TestAttemptOfAParentKeepsWhatWasDone: children that succeeded do not run
// again, whether the parent is tried again or handed back.
func TestAttemptOfAParentKeepsWhatWasDone(t *testing.T) {
	t.Parallel()
	for _, inTurn := range []bool{true, false} {
		t.Run(fmt.Sprintf("in turn %v", inTurn), func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			r.Worker("w", slots(1))
			// Two calls are the same: each has a child of its own.
			parent := r.Ends(r.Submit("test.parent", map[string]any{"count": 4, "times": 2, "in_turn": inTurn,
				"input": map[string]any{"message": "the same"}}).ID)
			out := decode(t, parent)
			if out.Attempt != 3 || len(slices.Compact(slices.Sorted(slices.Values(out.Jobs)))) != 4 {
				t.Errorf("attempt %d, children %v", out.Attempt, out.Jobs)
			}
			r.Until("listed", func() bool { return len(kids(r, parent.ID)) == 4 })
			for _, c := range kids(r, parent.ID) {
				if c.State != jobs.Succeeded || c.Runs != 1 || c.Call.Run != 1 {
					t.Errorf("child %s: %s, runs %d, call %+v", c.ID, c.State, c.Runs, c.Call)
				}
			}
			if got, err := r.Jobs.Get(r.Ctx(), rig.Ann, parent.ID); err != nil || got.Children[jobs.Succeeded] != 4 {
				t.Errorf("children %v, %v", got.Children, err)
			}
		})
	}
}

// TestParentThatIsHandedBackFindsItsChildren: one done, one under way.
func TestParentThatIsHandedBackFindsItsChildren(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	stop := r.Worker("w1", slots(1))
	l := history.NewLog()
	parent := r.Submit("test.parent", map[string]any{"pack": "test.sleep", "count": 2, "in_turn": true,
		"input": map[string]any{"ms": 1500}, "policy": "fail_fast"})
	l.Accepted(parent.ID, "")
	r.Until("second child runs", func() bool {
		list := kids(r, parent.ID)
		return len(list) == 2 && slices.ContainsFunc(list, func(j jobs.Job) bool { return j.State == jobs.Running })
	})
	stop()
	r.Worker("w2", slots(1))
	got := r.Ends(parent.ID)
	if out := decode(t, got); out.Attempt != 1 || got.Runs != 2 {
		t.Errorf("attempt %d, runs %d", out.Attempt, got.Runs)
	}
	list := kids(r, parent.ID)
	if len(list) != 2 {
		t.Errorf("%d children", len(list))
	}
	for _, c := range list {
		if c.State != jobs.Succeeded || c.Attempt != 1 {
			t.Errorf("child %s: %s after %d attempts, %+v", c.ID, c.State, c.Attempt, c.Error)
		}
	}
	atRest(r, l)
}

// TestFailedChildrenRunAgainWithTheirParent: at another attempt a child that
// failed is made anew, one that succeeded is kept.
func TestFailedChildrenRunAgainWithTheirParent(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w", slots(1))
	parent := r.Ends(r.Submit("test.parent", map[string]any{"pack": "test.fail", "times": 1, "policy": "collect_all", "in_turn": true,
		"input": map[string]any{"code": "handler_failed"}}).ID)
	if out := decode(t, parent); !slices.Equal(out.Errors, []string{"handler_failed"}) {
		t.Errorf("errors %v", out.Errors)
	}
	r.Until("both are listed", func() bool { return len(kids(r, parent.ID)) == 2 })
}

// TestPoliciesOfAMap with children of which some fail.
func TestPoliciesOfAMap(t *testing.T) {
	t.Parallel()
	flaky := packs.Define(packs.Spec[struct {
		N string `json:"n"`
	}, called]{Name: "t.flaky", Summary: "s", Run: func(ctx context.Context, _ *packs.Run, in struct {
		N string `json:"n"`
	}) (called, error) {
		switch in.N {
		case "1":
			return called{}, packs.Errorf(packs.CredentialInvalid, "one fails")
		case "5": // for ever
			<-ctx.Done()
			return called{}, context.Cause(ctx)
		}
		return called{in.N}, nil
	}})
	tests := []struct {
		name  string
		input map[string]any
		code  packs.Code
		want  []string
	}{
		{"fail fast", map[string]any{"count": 6}, packs.CredentialInvalid, nil},
		{"collect all", map[string]any{"count": 4, "policy": "collect_all"}, "", []string{"credential_invalid"}},
		{"enough", map[string]any{"count": 4, "policy": "min_success", "min": 3}, "", []string{"credential_invalid"}},
		{"not enough", map[string]any{"count": 6, "policy": "min_success", "min": 6}, packs.HandlerFailed, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, flaky)
			r.Worker("w", slots(4))
			tt.input["pack"], tt.input["input"] = "t.flaky", map[string]any{"n": "{i}"}
			l := history.NewLog()
			job := r.Submit("test.parent", tt.input)
			l.Accepted(job.ID, "")
			parent := r.Ends(job.ID)
			if tt.code != "" {
				if parent.State != jobs.Failed || parent.Error.Code != tt.code || parent.Attempt != 1 || !strings.Contains(parent.Error.Message, "one fails") {
					t.Errorf("got %s %+v", parent.State, parent.Error)
				}
			} else if out := decode(t, parent); !slices.Equal(out.Errors, tt.want) || len(out.Jobs) != 4 {
				t.Errorf("got %+v", out)
			}
			atRest(r, l) // the child that runs for ever is cancelled
		})
	}
}

// TestChildrenEndWithTheirParent however it ends.
func TestChildrenEndWithTheirParent(t *testing.T) {
	t.Parallel()
	sleeping := map[string]any{"pack": "test.sleep", "count": 3, "input": map[string]any{"ms": 600000}}
	// Two levels, so that the end goes on from child to child.
	chain := map[string]any{"pack": "test.parent", "input": sleeping}
	tests := []struct {
		name   string
		change func(*jobs.Request)
		end    func(t *testing.T, r *rig.Rig, id string, stop func())
		state  jobs.State
	}{
		{"cancelled", func(*jobs.Request) {}, func(t *testing.T, r *rig.Rig, id string, _ func()) {
			if _, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, id); err != nil {
				t.Fatal(err)
			}
		}, jobs.Cancelled},
		{"timed out", func(q *jobs.Request) { q.TimeoutS = 3 }, func(*testing.T, *rig.Rig, string, func()) {}, jobs.Failed},
		{"cancelled while no worker lives", func(*jobs.Request) {}, func(t *testing.T, r *rig.Rig, id string, stop func()) {
			stop()
			if _, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, id); err != nil {
				t.Fatal(err)
			}
		}, jobs.Cancelled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			stop := r.Worker("w", slots(2))
			l := history.NewLog()
			job := r.Submit("test.parent", chain, tt.change)
			l.Accepted(job.ID, "")
			var inner string
			r.Until("grandchildren run and wait", func() bool {
				list := kids(r, job.ID)
				if len(list) == 0 {
					return false
				}
				inner = list[0].ID
				list = kids(r, inner)
				return len(list) == 3 && slices.ContainsFunc(list, func(j jobs.Job) bool { return j.State == jobs.Running })
			})
			tt.end(t, r, job.ID, stop)
			if got := r.Ends(job.ID); got.State != tt.state {
				t.Errorf("got %s %+v", got.State, got.Error)
			}
			for _, c := range append(kids(r, job.ID), kids(r, inner)...) {
				if got := r.Ends(c.ID); got.State != jobs.Cancelled && got.State != jobs.Failed {
					t.Errorf("child %s ended %s", c.ID, got.State)
				}
			}
			atRest(r, l)
		})
	}
}

// TestChildGetsNoMoreTimeThanItsParentHas.
func TestChildGetsNoMoreTimeThanItsParentHas(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w", slots(2))
	long := map[string]any{"pack": "test.sleep", "in_turn": true, "count": 1, "input": map[string]any{"ms": 10}}
	for _, tt := range []struct {
		timeout, child, want int
	}{{30, 0, 29}, {30, 60, 29}, {30, 5, 5}} {
		long["timeout_s"] = tt.child
		parent := r.Ends(r.Submit("test.parent", long, func(q *jobs.Request) { q.TimeoutS = tt.timeout }).ID)
		child, err := r.Jobs.Get(r.Ctx(), rig.Ann, decode(t, parent).Jobs[0])
		if err != nil || child.TimeoutS > tt.want || child.TimeoutS < tt.want-10 && tt.child == 0 {
			t.Errorf("parent %d s, asked %d: child has %d s, %v", tt.timeout, tt.child, child.TimeoutS, err)
		}
	}
}

// TestSharedChildIsOneJob for two parents, and outlives the first.
func TestSharedChildIsOneJob(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w", slots(4))
	input := func(message string) map[string]any {
		return map[string]any{"pack": "test.sleep", "in_turn": true, "key": "a key ü.*>", "input": map[string]any{"ms": 3000}, "policy": message}
	}
	first := r.Submit("test.parent", input("fail_fast"))
	r.Until("child is there", func() bool { return len(kids(r, first.ID)) == 1 })
	second := r.Submit("test.parent", input("collect_all"))
	r.Until("both run", func() bool { return r.State(second.ID) == jobs.Running && r.State(first.ID) == jobs.Running })
	shared := kids(r, first.ID)[0]
	r.Until("child runs", func() bool { return r.State(shared.ID) == jobs.Running })
	if _, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, first.ID); err != nil {
		t.Fatal(err)
	}
	if got := r.Ends(first.ID); got.State != jobs.Cancelled {
		t.Errorf("first ended %s", got.State)
	}
	if out := decode(t, r.Ends(second.ID)); out.Jobs[0] != shared.ID {
		t.Errorf("second waited for %s, want %s", out.Jobs[0], shared.ID)
	}
	if got := r.Ends(shared.ID); got.State != jobs.Succeeded || got.Runs != 1 || !got.Call.Shared {
		t.Errorf("child %s after %d runs, %+v", got.State, got.Runs, got.Call)
	}
	other := input("fail_fast")
	other["input"] = map[string]any{"ms": 1}
	if got := r.Ends(r.Submit("test.parent", other).ID); got.State != jobs.Failed || got.Error.Code != packs.IdempotencyConflict {
		t.Errorf("other input: %s %+v", got.State, got.Error)
	}
	// Somebody else's key is another key.
	job, err := r.Jobs.Submit(r.Ctx(), identity.Caller{Subject: "Bob"}, jobs.Request{Pack: "test.parent",
		Input: []byte(`{"in_turn":true,"key":"a key ü.*>","input":{"message":"x"}}`)})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := r.Jobs.Await(r.Ctx(), identity.Caller{Subject: "Bob"}, job.ID); err != nil || got.State != jobs.Succeeded {
		t.Errorf("somebody else: %s %+v %v", got.State, got.Error, err)
	}
}

// TestParentTellsOfItsChildren in its progress and its log.
func TestParentTellsOfItsChildren(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w", slots(2))
	parent := r.Submit("test.parent", map[string]any{"pack": "test.sleep", "count": 2, "parallel": 1,
		"input": map[string]any{"ms": 2000, "progress_every_ms": 100}})
	r.Until("progress of a child is progress of the parent", func() bool {
		j, err := r.Jobs.Get(r.Ctx(), rig.Ann, parent.ID)
		return err == nil && j.Progress != nil && j.Progress.Percent > 5 && j.Progress.Percent < 50 && j.Progress.Message == "0 of 2 test.sleep done"
	})
	out := decode(t, r.Ends(parent.ID))
	var lines []string
	err := r.Env.Conn(bus.RoleAdmin).JetStream().Scan(r.Ctx(), bus.StreamProgress, []string{"prog.*.*." + parent.ID + ".log"}, 0,
		func(m bus.Message) error { lines = append(lines, string(m.Data)); return nil })
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(lines, "\n")
	for _, id := range out.Jobs {
		for _, want := range []string{id + " test.sleep started", id + " test.sleep ended: succeeded"} {
			if !strings.Contains(text, want) {
				t.Errorf("log lacks %q:\n%s", want, text)
			}
		}
	}
}

// oneSession grants one session and lets all others wait.
type oneSession struct{ taken chan struct{} }

type fakeSession struct{ sessions.Session }

func (fakeSession) ID() string                  { return "s" }
func (fakeSession) Lost() <-chan struct{}       { return nil }
func (fakeSession) Close(context.Context) error { return nil }

func (o oneSession) Lease(ctx context.Context, _ sessions.Request) (sessions.Session, error) {
	select {
	case o.taken <- struct{}{}:
		return fakeSession{}, nil
	case <-ctx.Done():
		return nil, errors.Join(sessions.ErrUnavailable, context.Cause(ctx))
	}
}

// TestParentWithTheLastSessionDoesNotWaitForEver: its child says why there is
// none.
func TestParentWithTheLastSessionDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	needs := packs.Needs{Session: &sessions.Spec{Image: "base"}, Calls: true}
	leaf := packs.Define(packs.Spec[struct{}, called]{Name: "t.leaf", Summary: "s", Needs: needs,
		Run: func(ctx context.Context, run *packs.Run, _ struct{}) (called, error) {
			_, err := run.Session(ctx)
			return called{}, err
		}})
	root := packs.Define(packs.Spec[struct{}, called]{Name: "t.root", Summary: "s", Needs: needs,
		Run: func(ctx context.Context, run *packs.Run, _ struct{}) (called, error) {
			if _, err := run.Session(ctx); err != nil {
				return called{}, err
			}
			// A pack in between that needs none changes nothing.
			c, err := run.Call(ctx, "test.parent", map[string]any{"pack": "t.leaf", "in_turn": true})
			return called{c.JobID}, err
		}})
	r := rig.New(t, leaf, root)
	r.Worker("w", func(c *worker.Config) {
		c.Leaser, c.HeldWait = oneSession{make(chan struct{}, 1)}, 100*time.Millisecond
	})
	got := r.Ends(r.Submit("t.root", struct{}{}).ID)
	if got.State != jobs.Failed || got.Error.Code != packs.SessionUnavailable || !strings.Contains(got.Error.Message, "keeps one itself") {
		t.Errorf("got %s %+v", got.State, got.Error)
	}
}
