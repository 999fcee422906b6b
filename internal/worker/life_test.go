package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/history"
	"github.com/helmdeck/helmdeck/test/rig"
)

// atRest waits until the checker finds nothing.
func atRest(t *testing.T, r *rig.Rig, l *history.Log) {
	t.Helper()
	js := r.Env.Conn(bus.RoleAdmin).JetStream()
	var found []history.Violation
	defer func() {
		if t.Failed() {
			t.Logf("last violations: %v", found)
		}
	}()
	r.Until("no violation", func() bool {
		var err error
		if found, err = history.Check(r.Ctx(), js, r.Store, l, history.Options{}); err != nil {
			t.Fatal(err)
		}
		return len(found) == 0
	})
}

// TestClaimCheckAtTheEdge: up to the limit input and output travel in the
// message, one byte more goes to the store.
func TestClaimCheckAtTheEdge(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	for _, over := range []int{0, 1} {
		in := r.Submit("test.echo", map[string]any{"message": strings.Repeat("x", jobs.InlineLimit-len(`{"message":""}`)+over)})
		sub, _, err := r.Store.Find(r.Ctx(), in.Key(), true)
		if err != nil || (sub.InputKey != "") != (over > 0) || (len(sub.Input) == 0) != (over > 0) {
			t.Errorf("%d over: input of %d bytes under %q, %v", over, len(sub.Input), sub.InputKey, err)
		}
	}
	r.Worker("a")
	for _, over := range []int{0, 1} {
		size := jobs.InlineLimit - len(`{"data":""}`) + over
		out := r.Ends(r.Submit("test.big_output", map[string]any{"bytes": size}).ID)
		rec, err := r.Store.Last(r.Ctx(), out.Key(), true)
		if err != nil || (rec.Job.OutputKey != "") != (over > 0) || len(out.Output) != jobs.InlineLimit+over {
			t.Errorf("%d over: output of %d bytes under %q, %v", over, len(out.Output), rec.Job.OutputKey, err)
		}
	}
}

// TestCancelWhereverAJobWaits: it is cancelled at once and leaves nothing in
// the place where it waited; its input is kept, so that it can be run.
func TestCancelWhereverAJobWaits(t *testing.T) {
	t.Parallel()
	backoff := func(d time.Duration) func(*worker.Config) {
		return func(c *worker.Config) { c.Backoff = func(int) time.Duration { return d } }
	}
	retrying := func(change func(*worker.Config)) func(*rig.Rig) jobs.Job {
		return func(r *rig.Rig) jobs.Job {
			r.Worker("a", change)
			j := r.Submit("test.fail", map[string]any{"code": "session_unavailable"})
			r.Until("retrying", func() bool { return r.State(j.ID) == jobs.Retrying })
			return j
		}
	}
	for name, tt := range map[string]struct {
		put  func(*rig.Rig) jobs.Job
		from jobs.State
	}{
		"queued": {func(r *rig.Rig) jobs.Job { return r.Submit("test.echo", map[string]any{"message": "x"}) }, jobs.Queued},
		"scheduled": {func(r *rig.Rig) jobs.Job {
			j := jobs.Job{ID: uuid.Must(uuid.NewV7()).String(), Pack: "test.echo", Version: "v1", Pool: "core",
				State: jobs.Queued, Priority: jobs.Normal, Caller: rig.Ann, CreatedAt: time.Now().UTC()}
			sub := jobs.Submission{Job: j, Input: []byte(`{"message":"x"}`)}
			if err := r.Store.Schedule(r.Ctx(), sub, time.Now().Add(time.Hour)); err != nil {
				r.T.Fatal(err)
			}
			return j
		}, jobs.Scheduled},
		"retrying in the queue":    {retrying(backoff(50 * time.Second)), jobs.Retrying},
		"retrying on the schedule": {retrying(backoff(time.Hour)), jobs.Retrying},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			j := tt.put(r)
			if got := r.State(j.ID); got != tt.from {
				t.Fatalf("before: %s, want %s", got, tt.from)
			}
			r.Until("waits", func() bool { return r.Queued() == 1 })
			if got, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, j.ID); err != nil || got.State != jobs.Cancelled {
				t.Fatalf("got %s, %v", got.State, err)
			}
			r.Until("nothing waits", func() bool { return r.Queued() == 0 })
			again, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, j.ID)
			if err != nil || again.State != jobs.Cancelled {
				t.Errorf("a second cancel: %s, %v", again.State, err)
			}
			if replay, err := r.Jobs.Retry(r.Ctx(), rig.Ann, j.ID, nil); err != nil || replay.ReplayOf != j.ID {
				t.Errorf("retry: %q, %v", replay.ReplayOf, err)
			}
		})
	}
}

// TestCancelRacesTheEnd: whoever is first, there is one end, and the caller
// is told the one that is stored.
func TestCancelRacesTheEnd(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("a")
	l := history.NewLog()
	var all sync.WaitGroup
	for range 40 {
		j := r.Submit("test.echo", map[string]any{"message": "x"})
		l.Accepted(j.ID, "")
		all.Go(func() {
			if _, err := r.Jobs.Cancel(context.Background(), rig.Ann, j.ID); err != nil {
				t.Errorf("cancel: %v", err)
			}
		})
	}
	all.Wait()
	for _, id := range l.IDs() {
		l.Ended(id, r.Ends(id).State)
	}
	atRest(t, r, l)
}

// TestOneKeyFromTwoReplicasIsOneJob, with an input for the store.
func TestOneKeyFromTwoReplicasIsOneJob(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	input, err := json.Marshal(map[string]any{"message": strings.Repeat("x", jobs.InlineLimit)})
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, 8)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			j, err := jobs.New(r.Config()).Submit(context.Background(), rig.Ann,
				jobs.Request{Pack: "test.echo", Input: input, IdempotencyKey: "k"})
			if err != nil {
				t.Errorf("submit: %v", err)
			}
			ids[i] = j.ID
		})
	}
	all.Wait()
	if len(slices.Compact(ids)) != 1 || r.Queued() != 1 {
		t.Fatalf("jobs %v, %d queued", ids, r.Queued())
	}
	r.Worker("a")
	if got := r.Ends(ids[0]); got.State != jobs.Succeeded || len(got.Output) < jobs.InlineLimit {
		t.Errorf("got %s with %d bytes", got.State, len(got.Output))
	}
}

// TestReservedKeyWhoseSubmitDied: the next call with the key publishes the
// job under the id that was reserved.
func TestReservedKeyWhoseSubmitDied(t *testing.T) {
	t.Parallel()
	for _, kind := range []bustest.Kind{bustest.Before, bustest.After} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			var made []string
			cfg := r.Config()
			cfg.NewID = func() string {
				made = append(made, uuid.Must(uuid.NewV7()).String())
				return made[len(made)-1]
			}
			s := jobs.New(cfg)
			q := jobs.Request{Pack: "test.echo", Input: []byte(`{"message":"x"}`), IdempotencyKey: "k"}
			r.Client.Add(bustest.Rule{Op: bustest.OpPublish, Subject: "job.", Nth: 1, Kind: kind})
			if _, err := s.Submit(r.Ctx(), rig.Ann, q); rig.Code(err) != packs.SessionUnavailable {
				t.Fatalf("got %v", err)
			}
			for range 2 {
				if j, err := s.Submit(r.Ctx(), rig.Ann, q); err != nil || j.ID != made[0] {
					t.Errorf("got %s, %v; reserved was %s", j.ID, err, made[0])
				}
			}
			if n := r.Queued(); n != 1 {
				t.Errorf("%d queued", n)
			}
		})
	}
}

// TestFullQueueAsksToComeBack and takes the job then, under the same key.
func TestFullQueueAsksToComeBack(t *testing.T) {
	t.Parallel()
	r := rig.NewProfile(t, func(p *bus.Profile) { p.QueueMaxMsgs = 2 })
	for range 2 {
		r.Submit("test.echo", map[string]any{"message": "x"})
	}
	q := jobs.Request{Pack: "test.echo", Input: []byte(`{"message":"late"}`), IdempotencyKey: "k"}
	_, err := r.Jobs.Submit(r.Ctx(), rig.Ann, q)
	var e *packs.Error
	if !errors.As(err, &e) || e.Code != packs.RateLimited || e.RetryAfter <= 0 {
		t.Fatalf("got %v, want rate_limited with a pause", err)
	}
	r.Worker("a")
	r.Until("accepted", func() bool {
		j, err := r.Jobs.Submit(r.Ctx(), rig.Ann, q)
		if err != nil && rig.Code(err) != packs.RateLimited {
			t.Fatal(err)
		}
		return err == nil && r.Ends(j.ID).State == jobs.Succeeded
	})
}

// TestReplayKeepsTheRulesOfItsJob: what the pack's defaults allowed does not
// become a wish of the caller.
func TestReplayKeepsTheRulesOfItsJob(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	for _, attempts := range []int{0, 2} {
		j := r.Submit("test.echo", map[string]any{"message": "x"}, func(q *jobs.Request) { q.MaxAttempts = attempts })
		if _, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, j.ID); err != nil {
			t.Fatal(err)
		}
		again, err := r.Jobs.Retry(r.Ctx(), rig.Ann, j.ID, nil)
		if err != nil || again.RetryTimeouts != j.RetryTimeouts || again.MaxAttempts != j.MaxAttempts {
			t.Errorf("%d attempts: got %v %d, want %v %d, %v", attempts,
				again.RetryTimeouts, again.MaxAttempts, j.RetryTimeouts, j.MaxAttempts, err)
		}
	}
}

// TestParentMustBeAJob: anything else would make the record as large as it.
func TestParentMustBeAJob(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	_, err := r.Jobs.Submit(r.Ctx(), rig.Ann, jobs.Request{Pack: "test.echo", ParentID: strings.Repeat("x", 2<<20)})
	if rig.Code(err) != packs.InvalidInput {
		t.Errorf("got %.200v", err)
	}
}

// TestOnlyTheWinnersArtifactsShow: that of a failed attempt stays hidden and
// is swept; that of the winner shows though nobody came to publish it.
func TestOnlyTheWinnersArtifactsShow(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 2)
	r := rig.New(t, handler(packs.EffectNone, func(ctx context.Context, run *packs.Run) (answer, error) {
		ref, err := run.SaveArtifact(ctx, "a.txt", "", strings.NewReader("x"))
		if err != nil {
			return answer{}, err
		}
		keys <- ref.Key
		if run.Attempt == 1 {
			return answer{}, packs.Errorf(packs.SessionUnavailable, "again")
		}
		return answer{Text: ref.Key}, nil
	}))
	// Neither the worker nor the consequences come to publish.
	_, f := r.FaultyWorker("a")
	for _, broken := range []*bustest.Faults{f, r.Client} {
		broken.Add(bustest.Rule{Op: bustest.OpKVPut, Kind: bustest.Before}, bustest.Rule{Op: bustest.OpKVCreate, Kind: bustest.Before})
	}
	got := r.Ends(r.Submit("t.t", struct{}{}).ID)
	loser, winner := <-keys, <-keys
	if len(got.Artifacts) != 1 || got.Artifacts[0].Key != winner {
		t.Fatalf("got %s with %v", got.State, got.Artifacts)
	}
	r.Client.Heal()
	if _, err := r.Arts.Stat(r.Ctx(), winner); err != nil {
		t.Errorf("the winner's: %v", err)
	}
	if _, err := r.Arts.Stat(r.Ctx(), loser); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("the loser's: %v", err)
	}
	report, err := r.Arts.Sweep(r.Ctx(), time.Now().Add(2*time.Hour), r.Store.InUse)
	if err != nil || report.Hidden != 1 {
		t.Errorf("swept %+v, %v; want one hidden", report, err)
	}
	if _, err := r.Arts.Stat(r.Ctx(), winner); err != nil {
		t.Errorf("the winner's after the sweep: %v", err)
	}
}

// TestFollowerSeesEveryAttempt, each event once and in order, and is told the
// end.
func TestFollowerSeesEveryAttempt(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	j := r.Submit("test.fail", map[string]any{"code": "session_unavailable", "times": 1})
	k := j.Key()
	sub, err := events.Over(r.Hub, events.Options{Tenant: k.Tenant, Owner: k.Owner})
	if err != nil {
		t.Fatal(err)
	}
	r.Worker("a")
	var seen []string
	for e, err := range sub.Follow(r.Ctx(), events.Filter{JobID: j.ID, Kinds: []string{events.KindLifecycle}}, nil) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, strings.TrimPrefix(e.Type(), events.Prefix+"job."))
	}
	if want := []string{"started", "retrying", "started", "succeeded"}; !slices.Equal(seen, want) {
		t.Errorf("saw %v, want %v", seen, want)
	}
}
