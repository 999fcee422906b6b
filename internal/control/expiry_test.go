package control_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

func minute(r *jobs.Request) { r.ResultTTLS = 60 }

// later runs an expirer that lives an hour ahead.
func later(r *rig.Rig) {
	expirer(r, func() time.Duration { return time.Hour })
}

// expirer runs one that lives ahead.
func expirer(r *rig.Rig, ahead func() time.Duration) {
	x := &control.Expirer{
		Store: r.Store, Artifacts: r.Arts, Every: 20 * time.Millisecond, Log: r.Log,
		Now: func() time.Time { return time.Now().Add(ahead()) },
	}
	r.Background("expirer", x.Run)
}

// left counts what the streams and buckets hold of a job, its tombstone aside.
func left(r *rig.Rig, id string) []string {
	r.T.Helper()
	js := r.Env.Conn(bus.RoleAdmin).JetStream()
	var out []string
	for stream, filter := range map[string]string{
		bus.StreamEvents: "evt.*.*." + id + ".*", bus.StreamProgress: "prog.*.*." + id + ".*", bus.StreamDead: "dlq.*.*.*." + id,
	} {
		err := js.Scan(r.Ctx(), stream, []string{filter}, 0, func(m bus.Message) error {
			if v := m.Header["ce-type"]; len(v) == 0 || v[0] != "dev.helmdeck.job.expired" {
				out = append(out, m.Subject)
			}
			return nil
		})
		if err != nil {
			r.T.Fatal(err)
		}
	}
	kv, err := js.KV(r.Ctx(), bus.BucketExpiries)
	if err != nil {
		r.T.Fatal(err)
	}
	if _, err := kv.Get(r.Ctx(), id); !errors.Is(err, bus.ErrNoMessage) {
		out = append(out, fmt.Sprintf("note of the expiry (%v)", err))
	}
	return out
}

func gone(r *rig.Rig, id string) {
	r.T.Helper()
	var what []string
	defer func() {
		if r.T.Failed() {
			r.T.Logf("left of %s: %v", id, what)
		}
	}()
	r.Until("job is gone", func() bool {
		rec, err := r.Store.Last(r.Ctx(), jobs.Key{ID: id}, true)
		if err != nil || !rec.Job.Expired {
			return false
		}
		what = left(r, id)
		return len(what) == 0
	})
	if _, err := r.Jobs.Get(r.Ctx(), rig.Ann, id); rig.Code(err) != packs.NotFound {
		r.T.Errorf("get: %v, want not_found", err)
	}
	if _, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, id); rig.Code(err) != packs.NotFound {
		r.T.Errorf("cancel: %v, want not_found", err)
	}
	if _, err := r.Jobs.Retry(r.Ctx(), rig.Ann, id, nil); rig.Code(err) != packs.NotFound {
		r.T.Errorf("retry: %v, want not_found", err)
	}
}

// TestResultsExpireWithAllTheyLeft: large input and output, artifacts, logs, a
// dead letter; jobs without a time of their own stay.
func TestResultsExpireWithAllTheyLeft(t *testing.T) {
	t.Parallel()
	r := rig.New(t, logging)
	r.Worker("a")
	big := r.Ends(r.Submit("test.echo", map[string]any{"message": strings.Repeat("x", jobs.InlineLimit)}, minute).ID)
	file := r.Ends(r.Submit("t.log", struct{}{}, minute).ID)
	dead := r.Ends(r.Submit("test.fail", map[string]any{"code": "handler_failed"}, minute).ID)
	stays := r.Ends(r.Submit("t.log", struct{}{}).ID)
	r.Until("dead letter", func() bool {
		_, err := r.Jobs.DeadLetter(r.Ctx(), rig.Ann, dead.ID)
		return err == nil
	})
	if want := file.FinishedAt.Add(time.Minute); !file.ExpiresAt.Equal(want) || !stays.ExpiresAt.IsZero() {
		t.Errorf("expires at %s, want %s; the other at %s", file.ExpiresAt, want, stays.ExpiresAt)
	}
	ref, err := r.Arts.Stat(r.Ctx(), file.Artifacts[0].Key)
	if err != nil || !ref.ExpiresAt.After(file.ExpiresAt) {
		t.Errorf("artifact kept until %s, %v; the job until %s", ref.ExpiresAt, err, file.ExpiresAt)
	}
	sub, err := r.Store.Input(r.Ctx(), big.Key())
	if err != nil || sub.InputKey == "" {
		t.Fatalf("input %+v, %v", sub, err)
	}
	later(r)
	for _, id := range []string{big.ID, file.ID, dead.ID} {
		gone(r, id)
	}
	for _, key := range []string{sub.InputKey, artifacts.OutputKey(big.ID, 1)} {
		if _, err := r.Arts.Unstash(r.Ctx(), key); !errors.Is(err, artifacts.ErrNotFound) {
			t.Errorf("%s: %v, want it gone", key, err)
		}
	}
	if _, err := r.Arts.Stat(r.Ctx(), file.Artifacts[0].Key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("artifact: %v, want it gone", err)
	}
	r.Until("list forgets them", func() bool {
		page, _, err := r.Jobs.List(r.Ctx(), rig.Ann, jobs.Query{})
		return err == nil && len(page) == 1 && page[0].ID == stays.ID
	})
	if _, err := r.Jobs.DeadLetter(r.Ctx(), rig.Ann, dead.ID); rig.Code(err) != packs.NotFound {
		t.Errorf("dead letter: %v", err)
	}
	if len(left(r, stays.ID)) == 0 {
		t.Error("the job without a time of its own is gone as well")
	}
	if used, err := r.Store.InUse(r.Ctx(), big.ID); used || err != nil {
		t.Errorf("the sweep takes an expired job for one in use: %t, %v", used, err)
	}
}

var logging = packs.Define(packs.Spec[struct{}, struct{}]{
	Name: "t.log", Summary: "s", Needs: packs.Needs{Artifacts: true},
	Run: func(ctx context.Context, run *packs.Run, _ struct{}) (struct{}, error) {
		run.Log("line")
		run.Progress(50, "half")
		_, err := run.SaveArtifact(ctx, "a.txt", "text/plain", strings.NewReader("bytes"))
		return struct{}{}, err
	},
})

// TestNothingExpiresEarly: not before its time, and not while it runs.
func TestNothingExpiresEarly(t *testing.T) {
	t.Parallel()
	r := rig.New(t, logging)
	x := &control.Expirer{Store: r.Store, Artifacts: r.Arts, Every: 10 * time.Millisecond, Log: r.Log}
	r.Background("expirer", x.Run)
	r.Worker("a")
	j := r.Ends(r.Submit("t.log", struct{}{}, minute).ID)
	r.Until("noted", func() bool {
		kv, err := r.Client.KV(r.Ctx(), bus.BucketExpiries)
		if err != nil {
			return false
		}
		_, err = kv.Get(r.Ctx(), j.ID)
		return err == nil
	})
	// A note that is wrong about the time removes nothing.
	early := j
	early.ExpiresAt = time.Now().Add(-time.Hour)
	if err := r.Store.NoteExpiry(r.Ctx(), early); err != nil {
		t.Fatal(err)
	}
	runs := r.Submit("test.sleep", map[string]any{"ms": 500}, minute)
	r.Until("running", func() bool { return r.State(runs.ID) == jobs.Running })
	if err := r.Store.NoteExpiry(r.Ctx(), jobs.Job{ID: runs.ID, Caller: runs.Caller, ExpiresAt: early.ExpiresAt}); err != nil {
		t.Fatal(err)
	}
	if got := r.Ends(runs.ID); got.State != jobs.Succeeded {
		t.Errorf("got %s", got.State)
	}
	if got := r.State(j.ID); got != jobs.Succeeded {
		t.Errorf("got %s", got)
	}
}

// TestExpiryIsCompletedWhateverFails: every call of it fails once, before or
// after it had its effect, or is made twice.
func TestExpiryIsCompletedWhateverFails(t *testing.T) {
	t.Parallel()
	rules := []bustest.Rule{
		{Op: bustest.OpKVPut, Subject: bus.BucketExpiries}, {Op: bustest.OpPublish, Subject: "evt."},
		{Op: bustest.OpScan, Subject: "evt."}, {Op: bustest.OpObjectDelete}, {Op: bustest.OpKVDelete, Subject: bus.BucketArtifacts},
		{Op: bustest.OpPurge, Subject: "prog."}, {Op: bustest.OpPurge, Subject: "dlq."},
		{Op: bustest.OpPurge, Subject: "evt.", Nth: 1}, {Op: bustest.OpPurge, Subject: "evt.", Nth: 2},
		{Op: bustest.OpPurge, Subject: "evt.", Nth: 3}, {Op: bustest.OpKVDelete, Subject: bus.BucketExpiries},
	}
	for _, kind := range []bustest.Kind{bustest.Before, bustest.After, bustest.Twice} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			r := rig.New(t, logging)
			r.Worker("a")
			var ahead atomic.Int64
			expirer(r, func() time.Duration { return time.Duration(ahead.Load()) })
			for i, rule := range rules {
				rule.Kind, rule.Nth = kind, max(rule.Nth, 1)
				r.Client.Add(rule)
				ahead.Store(0)
				j := r.Ends(r.Submit("t.log", struct{}{}, minute).ID)
				r.Until("its worker is done with it", func() bool { return r.Queued() == 0 })
				ahead.Store(int64(time.Hour))
				gone(r, j.ID)
				if n := len(r.Client.Injected()); n != i+1 {
					t.Errorf("%s %s %d: %d faults were made so far, want %d", rule.Op, rule.Subject, rule.Nth, n, i+1)
				}
				refs, _, err := r.Arts.List(r.Ctx(), artifacts.Query{})
				if err != nil || len(refs) != 0 {
					t.Errorf("%s %s: %d artifacts are left, %v", rule.Op, rule.Subject, len(refs), err)
				}
			}
		})
	}
}

// TestAnExpiredJobIsNotRunAgain: a copy of its message comes late.
func TestAnExpiredJobIsNotRunAgain(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	stop := r.Worker("a")
	j := r.Submit("test.echo", map[string]any{"message": "x"}, minute)
	sub, _, err := r.Store.Find(r.Ctx(), j.Key(), true)
	if err != nil {
		sub, err = r.Store.Input(r.Ctx(), j.Key()) // it was quick
	}
	if err != nil {
		t.Fatal(err)
	}
	r.Ends(j.ID)
	stop()
	later(r)
	gone(r, j.ID)
	sub.Job.Runs = 1 // past the server's window of duplicates
	if err := r.Store.Enqueue(r.Ctx(), sub); err != nil {
		t.Fatal(err)
	}
	r.Worker("b")
	r.Until("copy is taken out", func() bool { return r.Queued() == 0 })
	if what := left(r, j.ID); len(what) != 0 {
		t.Errorf("the job came back to life: %v", what)
	}
}

// TestAKeyStartsOverOnceItsResultHasExpired, whatever the call is.
func TestAKeyStartsOverOnceItsResultHasExpired(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("a")
	keyed := func(q *jobs.Request) { q.ResultTTLS, q.IdempotencyKey = 60, "k" }
	first := r.Submit("test.echo", map[string]any{"message": "x"}, keyed)
	r.Ends(first.ID)
	if again := r.Submit("test.echo", map[string]any{"message": "x"}, keyed); again.ID != first.ID {
		t.Errorf("before it expires the key gives %s, want %s", again.ID, first.ID)
	}
	later(r)
	gone(r, first.ID)
	results := make(chan jobs.Job, 4)
	for range cap(results) {
		go func() { results <- r.Submit("test.echo", map[string]any{"message": "y"}, keyed) }()
	}
	second := <-results
	for range cap(results) - 1 {
		if other := <-results; other.ID != second.ID {
			t.Errorf("one key, two jobs: %s and %s", other.ID, second.ID)
		}
	}
	if second.ID == first.ID {
		t.Error("the new job has the id of the old one")
	}
}
