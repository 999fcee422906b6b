package bulk_test

import (
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

// TestACancelThatCannotKeepTheInputCancelsNothing: it is tried again, and
// then the job can be retried.
func TestACancelThatCannotKeepTheInputCancelsNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []bustest.Kind{bustest.Before, bustest.After} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			job := r.Submit("test.echo", map[string]any{"message": "kept"})
			subject, err := events.EvtSubject(job.Key(), events.KindInput)
			if err != nil {
				t.Fatal(err)
			}
			// At every try of the store, however many it makes.
			r.Client.Add(bustest.Rule{Op: bustest.OpPublish, Subject: subject, Kind: bustest.Before})
			if _, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, job.ID); rig.Code(err) != packs.SessionUnavailable {
				t.Errorf("got %v, want session_unavailable", err)
			}
			r.Client.Heal()
			if got := r.State(job.ID); got != jobs.Queued {
				t.Fatalf("got state %s after a cancel that failed, want queued", got)
			}
			r.Client.Add(bustest.Rule{Op: bustest.OpPublish, Subject: subject, Nth: 1, Kind: kind})
			if got, err := r.Jobs.Cancel(r.Ctx(), rig.Ann, job.ID); err != nil || got.State != jobs.Cancelled {
				t.Fatalf("got %s %v, want cancelled", got.State, err)
			}
			again, err := r.Jobs.Retry(r.Ctx(), rig.Ann, job.ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Worker("w")
			if got := r.Ends(again.ID); got.State != jobs.Succeeded || !strings.Contains(string(got.Output), "kept") {
				t.Errorf("got %s %s", got.State, got.Output)
			}
		})
	}
}

// stashed are the claim-check blobs there are.
func stashed(r *rig.Rig) []string {
	r.T.Helper()
	objects, err := r.Env.Conn(bus.RoleAPI).JetStream().Objects(r.Ctx(), bus.BucketArtifacts)
	if err != nil {
		r.T.Fatal(err)
	}
	var names []string
	err = objects.Walk(r.Ctx(), func(o bus.ObjectInfo) error { names = append(names, o.Name); return nil })
	if err != nil {
		r.T.Fatal(err)
	}
	return names
}

// TestARefusedLargeInputIsNotKept: a queue that is full does not fill the
// store as well; one that may have taken the job keeps its input.
func TestARefusedLargeInputIsNotKept(t *testing.T) {
	t.Parallel()
	r := rig.NewProfile(t, func(p *bus.Profile) { p.QueueMaxMsgs = 1 })
	large := map[string]any{"message": strings.Repeat("x", jobs.InlineLimit+1)}
	submit := func(key string) (jobs.Job, error) {
		return r.Jobs.Submit(r.Ctx(), rig.Ann, jobs.Request{Pack: "test.echo", Input: encode(t, large), IdempotencyKey: key})
	}
	first, err := submit("first")
	if err != nil {
		t.Fatal(err)
	}
	want := stashed(r)
	if len(want) != 1 {
		t.Fatalf("got blobs %v, want one", want)
	}
	for _, key := range []string{"", "second", "second"} {
		if _, err := submit(key); rig.Code(err) != packs.RateLimited {
			t.Fatalf("got %v, want rate_limited", err)
		}
	}
	if got := stashed(r); len(got) != 1 || got[0] != want[0] {
		t.Errorf("got blobs %v after refusals, want %v", got, want)
	}
	// The answer was lost: nobody knows whether the job is in the queue.
	r.Client.Add(bustest.Rule{Op: bustest.OpPublish, Subject: "job.", Nth: 1, Kind: bustest.Before, Err: bus.ErrUnavailable})
	if _, err := submit("third"); rig.Code(err) != packs.SessionUnavailable {
		t.Fatalf("got %v, want session_unavailable", err)
	}
	if got := stashed(r); len(got) != 2 {
		t.Errorf("got blobs %v, want that of the job nobody knows of too", got)
	}
	r.Worker("w")
	if got := r.Ends(first.ID); got.State != jobs.Succeeded {
		t.Errorf("got %s %+v", got.State, got.Error)
	}
	// The end is recorded before the message leaves the queue.
	r.Until("room in the queue", func() bool { return r.Queued() == 0 })
	third, err := submit("third")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Ends(third.ID); got.State != jobs.Succeeded {
		t.Errorf("got %s %+v", got.State, got.Error)
	}
}
