package artifacts_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

func sweep(t *testing.T, b *bundle, inUse artifacts.InUse) artifacts.SweepReport {
	t.Helper()
	report, err := b.Sweep(t.Context(), b.advance(0), inUse)
	if err != nil {
		t.Fatalf("Sweep: %v", err)
	}
	return report
}

func blobKeys(t *testing.T, b *bundle) []string {
	t.Helper()
	keys := []string{}
	if err := b.blobs.Walk(t.Context(), "", func(n artifacts.Blob) error {
		keys = append(keys, n.Key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestSweepExpired(t *testing.T) {
	t.Parallel()
	b := setup(t)
	short, long, forever := draft(), draft(), draft()
	short.TTL, forever.TTL = time.Hour, -1
	shortRef, longRef, foreverRef := put(t, b, short, "s"), put(t, b, long, "l"), put(t, b, forever, "f")
	publish(t, b, shortRef, longRef, foreverRef)
	if got := sweep(t, b, nil); got != (artifacts.SweepReport{}) {
		t.Errorf("nothing is due: got %+v", got)
	}
	b.advance(2 * time.Hour)
	wantContent(t, b, shortRef.Key, "s") // until the sweep
	if got, want := sweep(t, b, nil), (artifacts.SweepReport{Expired: 1}); got != want {
		t.Errorf("after 2 h: got %+v, want %+v", got, want)
	}
	wantHidden(t, b, shortRef.Key)
	wantContent(t, b, longRef.Key, "l")
	b.advance(8 * 24 * time.Hour)
	if got, want := sweep(t, b, nil), (artifacts.SweepReport{Expired: 1}); got != want {
		t.Errorf("after 8 d: got %+v, want %+v", got, want)
	}
	if diff := cmp.Diff([]string{foreverRef.Key}, blobKeys(t, b)); diff != "" {
		t.Errorf("blobs left: (-want +got)\n%s", diff)
	}
}

func TestSweepHidden(t *testing.T) {
	t.Parallel()
	b := setup(t)
	keys := map[string]string{}
	for job, verdict := range map[string]artifacts.Verdict{
		"won": artifacts.Won, "lost": artifacts.Lost, "running": artifacts.Undecided, "unknown": -1, "": -1, "expired": artifacts.Won,
	} {
		if verdict >= 0 {
			b.judge(job, verdict)
		}
		d := draft()
		d.JobID = job
		if job == "expired" {
			d.TTL = time.Minute
		}
		keys[job] = put(t, b, d, job).Key
	}
	if got := sweep(t, b, nil); got != (artifacts.SweepReport{}) {
		t.Errorf("within the hour: got %+v", got)
	}
	if n := len(blobKeys(t, b)); n != len(keys) {
		t.Errorf("%d blobs left, want all %d", n, len(keys))
	}
	b.advance(61 * time.Minute)
	if got, want := sweep(t, b, nil), (artifacts.SweepReport{Hidden: 4, Repaired: 1}); got != want {
		t.Errorf("after the hour: got %+v, want %+v", got, want)
	}
	want := []string{keys["won"], keys["running"]}
	slices.Sort(want)
	if diff := cmp.Diff(want, blobKeys(t, b)); diff != "" {
		t.Errorf("blobs left: (-want +got)\n%s", diff)
	}
	refs, _, err := b.List(t.Context(), artifacts.Query{})
	if err != nil || len(refs) != 1 || refs[0].Key != keys["won"] {
		t.Errorf("List: got %+v, %v, want the winner's", refs, err)
	}
}

func TestSweepStash(t *testing.T) {
	t.Parallel()
	b := setup(t)
	used := map[string]bool{"live": true, "flaky": false, "gone": false}
	inUse := func(_ context.Context, jobID string) (bool, error) { return used[jobID], nil }
	for job := range used {
		if err := b.Stash(t.Context(), artifacts.InputKey(job), strings.NewReader(job)); err != nil {
			t.Fatal(err)
		}
	}
	step := func(after time.Duration, use artifacts.InUse, removed int) {
		t.Helper()
		b.advance(after)
		if got, want := sweep(t, b, use), (artifacts.SweepReport{Stashed: removed}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	step(0, inUse, 0)              // too young
	step(61*time.Minute, nil, 0)   // nobody to ask
	step(0, inUse, 0)              // gone and flaky seen unused for the first time
	step(30*time.Minute, inUse, 0) // not yet an hour
	used["flaky"] = true           // was on its way
	step(20*time.Minute, inUse, 0) // forgets flaky
	used["flaky"] = false          // for the first time again
	step(11*time.Minute, inUse, 1) // gone goes
	used["flaky"] = true
	step(24*time.Hour, inUse, 0)
	want := []string{artifacts.InputKey("flaky"), artifacts.InputKey("live")}
	if diff := cmp.Diff(want, blobKeys(t, b)); diff != "" {
		t.Errorf("blobs left: (-want +got)\n%s", diff)
	}
}

func TestSweepGhosts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ref := put(t, b, draft(), "x")
	publish(t, b, ref)
	if err := b.blobs.Delete(t.Context(), ref.Key); err != nil {
		t.Fatal(err)
	}
	if got := sweep(t, b, nil); got != (artifacts.SweepReport{}) {
		t.Errorf("within the hour: got %+v", got)
	}
	b.advance(61 * time.Minute)
	if got, want := sweep(t, b, nil), (artifacts.SweepReport{Ghosts: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	wantHidden(t, b, ref.Key)
}

func TestSweepGoesOnAfterAFault(t *testing.T) {
	t.Parallel()
	b := setup(t)
	hidden, short := draft(), draft()
	short.TTL = time.Minute
	hiddenRef, shortRef := put(t, b, hidden, "h"), put(t, b, short, "s")
	publish(t, b, shortRef)
	b.advance(2 * time.Hour)
	b.judgeErr = errors.New("bus is away")
	report, err := b.Sweep(t.Context(), b.advance(0), nil)
	if !errors.Is(err, b.judgeErr) || report != (artifacts.SweepReport{Expired: 1}) {
		t.Errorf("got %+v, %v, want one expired and the fault", report, err)
	}
	if diff := cmp.Diff([]string{hiddenRef.Key}, blobKeys(t, b)); diff != "" {
		t.Errorf("blobs left: (-want +got)\n%s", diff)
	}
}

func TestRunSweeper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		d := draft()
		d.TTL = 90 * time.Minute
		publish(t, b, put(t, b, d, "x"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.RunSweeper(ctx, 0, nil) }()
		for hour, want := range []int{1, 1, 0} {
			synctest.Wait()
			if n := len(blobKeys(t, b)); n != want {
				t.Errorf("after %d h: %d blobs, want %d", hour, n, want)
			}
			b.advance(time.Hour)
			<-time.After(time.Hour) // of the bubble's clock
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("RunSweeper: got %v, want nil", err)
		}
	})
}
