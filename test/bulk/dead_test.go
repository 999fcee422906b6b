package bulk_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

// died stores a failed job, as a worker would, and waits for its dead letter.
func died(t *testing.T, r *rig.Rig, change func(*jobs.Job)) jobs.Job {
	t.Helper()
	j := jobs.Job{
		ID: uuid.Must(uuid.NewV7()).String(), Pack: "test.echo", Version: "v1", Pool: "core", State: jobs.Failed,
		Priority: jobs.Normal, Caller: rig.Ann, CreatedAt: time.Now().UTC(), Runs: 1, Attempt: 1,
		Error: &jobs.Failure{Code: packs.HandlerFailed, Message: "no"},
	}
	if change != nil {
		change(&j)
	}
	input := jobs.Submission{Job: j, Input: encode(t, map[string]any{"message": j.ID})}
	if _, err := r.Store.Append(r.Ctx(), jobs.Move{Job: j, Input: &input}); err != nil {
		t.Fatal(err)
	}
	r.Until("buried", func() bool { _, err := r.Store.Get(r.Ctx(), j.Key()); return err == nil })
	return j
}

func letters(t *testing.T, r *rig.Rig, c identity.Caller, q jobs.DeadQuery) []string {
	t.Helper()
	page, _, err := r.Jobs.DeadLetters(r.Ctx(), c, q)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, d := range page {
		got = append(got, d.Submission.Job.ID)
		if d.Submission.Input != nil {
			t.Error("an input is listed")
		}
	}
	return got
}

// TestQuarantineIsVisible: in lists, in the letter and in the counts.
func TestQuarantineIsVisible(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	plain := died(t, r, nil)
	poison := died(t, r, func(j *jobs.Job) { j.Poison = true })
	media := died(t, r, func(j *jobs.Job) { j.Poison, j.Pool = true, "media" })
	yes, no := true, false
	for _, tt := range []struct {
		name string
		q    jobs.DeadQuery
		want []string
	}{
		{"all", jobs.DeadQuery{}, []string{media.ID, poison.ID, plain.ID}},
		{"poison", jobs.DeadQuery{Poison: &yes}, []string{media.ID, poison.ID}},
		{"not poison", jobs.DeadQuery{Poison: &no}, []string{plain.ID}},
		{"poison of a pool", jobs.DeadQuery{Poison: &yes, Pool: "core"}, []string{poison.ID}},
		{"code", jobs.DeadQuery{Code: packs.Timeout}, []string{}},
	} {
		if diff := cmp.Diff(tt.want, letters(t, r, rig.Ann, tt.q)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	counts := func() map[string]jobstore.DeadCount {
		got, err := r.Store.CountDead(r.Ctx())
		if err != nil {
			t.Fatal(err)
		}
		for pool, n := range got {
			if n == (jobstore.DeadCount{}) {
				delete(got, pool)
			}
		}
		return got
	}
	want := map[string]jobstore.DeadCount{"core": {All: 2, Poison: 1}, "media": {All: 1, Poison: 1}}
	if diff := cmp.Diff(want, counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
	if err := r.Jobs.DropDead(r.Ctx(), rig.Ann, poison.ID); err != nil {
		t.Fatal(err)
	}
	want = map[string]jobstore.DeadCount{"core": {All: 1}, "media": {All: 1, Poison: 1}}
	if diff := cmp.Diff(want, counts()); diff != "" {
		t.Errorf("counts after a drop (-want +got):\n%s", diff)
	}
}

// TestADroppedLetterStaysAway although the last event of its job comes again,
// and although parts of the drop were lost.
func TestADroppedLetterStaysAway(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	j := died(t, r, func(j *jobs.Job) { j.Poison = true })
	d, err := r.Jobs.DeadLetter(r.Ctx(), rig.Ann, j.ID)
	if err != nil {
		t.Fatal(err)
	}
	for nth := 1; ; nth++ { // each call of the drop fails once, after it was done
		r.Client.Heal()
		r.Client.Add(bustest.Rule{Op: bustest.OpPurge, Subject: "dlq.", Nth: nth, Kind: bustest.Before})
		err := r.Jobs.DropDead(r.Ctx(), rig.Ann, j.ID)
		if err == nil {
			if nth < 3 {
				t.Errorf("the drop was made of %d removals, want several", nth)
			}
			break
		}
		if rig.Code(err) != packs.SessionUnavailable {
			t.Fatalf("drop %d: %v", nth, err)
		}
	}
	r.Client.Heal()
	if err := r.Store.Bury(r.Ctx(), d); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Jobs.DeadLetter(r.Ctx(), rig.Ann, j.ID); rig.Code(err) != packs.NotFound {
		t.Errorf("got %v, want it gone", err)
	}
	if counts, err := r.Store.CountDead(r.Ctx()); err != nil || counts["core"] != (jobstore.DeadCount{}) {
		t.Errorf("got %+v %v, want none", counts["core"], err)
	}
}

// TestAReplayCallRepeatedReplaysOnce: whatever was lost of the first one.
func TestAReplayCallRepeatedReplaysOnce(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	var ids []string
	for range 12 {
		ids = append(ids, died(t, r, nil).ID)
	}
	for nth := range 4 {
		r.Client.Add(
			bustest.Rule{Op: bustest.OpPublish, Subject: "job.", Nth: 3*nth + 1, Kind: bustest.Before},
			bustest.Rule{Op: bustest.OpPublish, Subject: "job.", Nth: 3*nth + 2, Kind: bustest.After},
			bustest.Rule{Op: bustest.OpPublish, Subject: "dlq.mark.", Nth: nth + 1, Kind: bustest.Twice},
		)
	}
	call := jobs.Replays{IDs: ids, Key: "k"}
	lost := 0
	for _, res := range r.Jobs.ReplayMany(r.Ctx(), rig.Ann, call) {
		if res.Err != nil {
			lost++
		}
	}
	if lost == 0 {
		t.Error("no fault was made")
	}
	r.Client.Heal()
	first := r.Jobs.ReplayMany(r.Ctx(), rig.Ann, call)
	again := r.Jobs.ReplayMany(r.Ctx(), rig.Ann, call)
	if got := r.Queued(); got != len(ids) {
		t.Errorf("got %d jobs in the queue, want %d", got, len(ids))
	}
	for i, id := range ids {
		if first[i].Err != nil || again[i].Err != nil || first[i].Job.ID != again[i].Job.ID || first[i].Job.ReplayOf != id {
			t.Fatalf("letter %d: got %+v, then %+v", i, first[i], again[i])
		}
		d, err := r.Jobs.DeadLetter(r.Ctx(), rig.Ann, id)
		if err != nil || len(d.ReplayedAs) != 1 || d.ReplayedAs[0].JobID != first[i].Job.ID {
			t.Errorf("letter %d: replayed as %+v %v, want %s once", i, d.ReplayedAs, err, first[i].Job.ID)
		}
	}
	yes := true
	if got := letters(t, r, rig.Ann, jobs.DeadQuery{Replayed: &yes}); len(got) != len(ids) {
		t.Errorf("got %d replayed letters, want %d", len(got), len(ids))
	}
	// Another call replays anew.
	if got := r.Jobs.ReplayMany(r.Ctx(), rig.Ann, jobs.Replays{IDs: ids[:1], Key: "other"}); got[0].Job.ID == first[0].Job.ID {
		t.Error("another call gave the old job")
	}
}

// TestReplaysAtARateNeedNoProcess: they wait in the schedule of the bus, each
// with its time, and run.
func TestReplaysAtARateNeedNoProcess(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	var ids []string
	for range 3 {
		ids = append(ids, died(t, r, nil).ID)
	}
	const rate = 2.0
	res := r.Jobs.ReplayMany(r.Ctx(), rig.Ann, jobs.Replays{IDs: ids, Rate: rate})
	for i, one := range res {
		want := jobs.Scheduled
		if i == 0 {
			want = jobs.Queued
		}
		if one.Err != nil || one.Job.State != want {
			t.Fatalf("replay %d: got %s %v, want %s", i, one.Job.State, one.Err, want)
		}
	}
	if gap := res[2].Job.ScheduledFor.Sub(res[1].Job.ScheduledFor); gap != time.Second/2 {
		t.Errorf("got %s between two, want half a second", gap)
	}
	r.Worker("w")
	for i, one := range res {
		got := r.Ends(one.Job.ID)
		if got.State != jobs.Succeeded || got.StartedAt.Before(one.Job.ScheduledFor) {
			t.Errorf("replay %d: got %s, started %s for %s", i, got.State, got.StartedAt, one.Job.ScheduledFor)
		}
	}
}

// TestReplayTimes are those of the rate, from the start that was asked for.
func TestReplayTimes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		r    jobs.Replays
		i    int
		want time.Duration
	}{
		{jobs.Replays{}, 999, 0},
		{jobs.Replays{Rate: 1}, 0, 0},
		{jobs.Replays{Rate: 1}, 3, 3 * time.Second},
		{jobs.Replays{Rate: jobs.MaxRate}, 999, 999 * time.Millisecond},
		{jobs.Replays{Rate: jobs.MinRate}, 999, 99900 * time.Second},
		{jobs.Replays{Rate: 2, StartAt: now.Add(time.Hour)}, 1, time.Hour + time.Second/2},
		{jobs.Replays{Rate: 2, StartAt: now.Add(-time.Hour)}, 1, time.Second / 2},
	} {
		if got := tt.r.RunAt(now, tt.i).Sub(now); got != tt.want {
			t.Errorf("%+v, letter %d: got %s, want %s", tt.r, tt.i, got, tt.want)
		}
	}
}

// TestDeadLettersPage goes through more than a page, while letters are dropped
// and come.
func TestDeadLettersPage(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	var want []string
	for range 5 {
		want = append(want, died(t, r, nil).ID)
	}
	slices.Reverse(want)
	var got []string
	q := jobs.DeadQuery{Limit: 2}
	for {
		page, next, err := r.Jobs.DeadLetters(r.Ctx(), rig.Ann, q)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page {
			got = append(got, d.Submission.Job.ID)
		}
		if next == "" {
			break
		}
		q.Cursor = next
		died(t, r, nil)
		if err := r.Jobs.DropDead(r.Ctx(), rig.Ann, page[len(page)-1].Submission.Job.ID); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("letters (-want +got):\n%s", diff)
	}
	for _, limit := range []int{-1, jobs.MaxBatch + 1} {
		if _, _, err := r.Jobs.DeadLetters(r.Ctx(), rig.Ann, jobs.DeadQuery{Limit: limit}); rig.Code(err) != packs.InvalidInput {
			t.Errorf("limit %d: got %v", limit, err)
		}
	}
	if got := letters(t, r, identity.Caller{Subject: "Bob"}, jobs.DeadQuery{}); len(got) != 0 {
		t.Errorf("Bob sees %v", got)
	}
	if got := letters(t, r, identity.Caller{Subject: "Root", Scopes: []string{identity.ScopeAdmin}}, jobs.DeadQuery{Limit: jobs.MaxBatch}); len(got) == 0 {
		t.Error("an administrator sees nothing")
	}
}

// TestCancelManyRacesWorkers: each job ends once, cancelled or as it would.
func TestCancelManyRacesWorkers(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	const n = 80
	var ids []string
	for _, res := range r.Jobs.SubmitBatch(r.Ctx(), rig.Ann, echoes(n, "")) {
		ids = append(ids, res.Job.ID)
	}
	r.Worker("a")
	r.Worker("b")
	counts := map[string]int{}
	for _, o := range r.Jobs.CancelMany(r.Ctx(), rig.Ann, ids, jobs.Unended) {
		switch {
		case o.Err != nil:
			t.Errorf("job %s: %v", o.ID, o.Err)
		case o.Skipped:
			counts["skipped"]++
		case o.Job.State == jobs.Cancelled:
			counts["cancelled"]++
		default:
			counts["requested"]++
		}
	}
	cancelled := 0
	for _, id := range ids {
		job := r.Ends(id)
		switch job.State {
		case jobs.Cancelled:
			cancelled++
		case jobs.Succeeded:
		default:
			t.Errorf("job %s is %s", id, job.State)
		}
	}
	if cancelled < counts["cancelled"] || cancelled > n-counts["skipped"] {
		t.Errorf("%d jobs are cancelled, though the call said %v", cancelled, counts)
	}
	r.Until("queue empty", func() bool { return r.Queued() == 0 })
}

// TestSelectFindsWhatFiltersSay, in pages of up to MaxBatch.
func TestSelectFindsWhatFiltersSay(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	var want []string
	for _, res := range r.Jobs.SubmitBatch(r.Ctx(), rig.Ann, echoes(230, "")) {
		want = append(want, res.Job.ID)
	}
	slices.Reverse(want)
	q := jobs.Query{States: jobs.Unended, LabelKey: "batch"}
	var got []string
	r.Until("listed", func() bool {
		var err error
		if got, _, err = r.Jobs.Select(r.Ctx(), rig.Ann, q); err != nil {
			t.Fatal(err)
		}
		return len(got) == len(want)
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("selected (-want +got):\n%s", diff)
	}
	q.States = jobs.Unsuccessful
	if got, next, err := r.Jobs.Select(r.Ctx(), rig.Ann, q); err != nil || len(got) != 0 || next != "" {
		t.Errorf("got %d, %q, %v; want none", len(got), next, err)
	}
	for _, limit := range []int{-1, jobs.MaxBatch + 1} {
		if _, _, err := r.Jobs.Select(r.Ctx(), rig.Ann, jobs.Query{Limit: limit}); rig.Code(err) != packs.InvalidInput {
			t.Errorf("limit %d: got %v", limit, fmt.Sprint(err))
		}
	}
}
