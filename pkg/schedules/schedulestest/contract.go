package schedulestest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

// Backend is what the contract is about.
type Backend interface {
	schedules.Store
	schedules.Names
	schedules.Timers
}

const one, two = "00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002"

// limit bounds each part of the contract.
const limit = 30 * time.Second

// Run holds a fresh backend to the contract.
func Run(t *testing.T, fresh func(*testing.T) Backend) {
	for name, check := range map[string]func(*testing.T, context.Context, Backend){
		"records": records, "list": list, "names": names, "timers": timers,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			check(t, ctx, fresh(t))
		})
	}
}

func record(id string) schedules.Record {
	at := time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC)
	return schedules.Record{
		ID: id, Caller: identity.Caller{Subject: "Ann"}, CreatedAt: at, UpdatedAt: at, Anchor: at, NextAt: at.Add(time.Hour),
		Spec: schedules.Spec{Name: "täglich", Every: "1h", Overlap: schedules.Queue, CatchUp: schedules.CatchUpAll,
			Request: jobs.Request{Pack: "test.echo", Input: []byte(`{"message":"x"}`), Labels: map[string]string{"a": "b"}}},
		Begun:   &schedules.Begun{JobID: two, At: at, DecidedAt: at},
		Waiting: []schedules.Waiting{{At: at, Trigger: schedules.ByTime}},
		Runs:    []schedules.Run{{At: at, Trigger: schedules.ByTime, JobID: two, Outcome: schedules.RunActive}},
	}
}

func records(t *testing.T, ctx context.Context, b Backend) {
	want := record(one)
	if _, _, err := b.Get(ctx, one); !errors.Is(err, schedules.ErrNotFound) {
		t.Errorf("get before create: %v", err)
	}
	if err := b.Create(ctx, want); err != nil {
		t.Fatal(err)
	}
	if err := b.Create(ctx, want); !errors.Is(err, schedules.ErrExists) {
		t.Errorf("create again: %v", err)
	}
	got, revision, err := b.Get(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	got.Paused = true
	if err := b.Update(ctx, got, revision); err != nil {
		t.Fatal(err)
	}
	if err := b.Update(ctx, got, revision); !errors.Is(err, schedules.ErrConflict) {
		t.Errorf("update with an old revision: %v", err)
	}
	got, revision, err = b.Get(ctx, one)
	if err != nil || !got.Paused {
		t.Errorf("got %+v, %v", got, err)
	}
	for range 2 {
		if err := b.Delete(ctx, one); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Update(ctx, got, revision); !errors.Is(err, schedules.ErrConflict) {
		t.Errorf("update of a deleted one: %v", err)
	}
	if _, _, err := b.Get(ctx, one); !errors.Is(err, schedules.ErrNotFound) {
		t.Errorf("get after delete: %v", err)
	}
	if err := b.Create(ctx, want); err != nil {
		t.Errorf("create after delete: %v", err)
	}
}

// eventually waits for a condition that lags.
func eventually(t *testing.T, ctx context.Context, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within the time", what)
		}
	}
}

func list(t *testing.T, ctx context.Context, b Backend) {
	ids := func() []string {
		all, err := b.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ids := map[string]bool{}
		for _, r := range all {
			ids[r.ID] = !r.Paused
		}
		return slices.Sorted(maps.Keys(ids))
	}
	for _, id := range []string{one, two} {
		if err := b.Create(ctx, record(id)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, ctx, "both listed", func() bool { return slices.Equal(ids(), []string{one, two}) })
	if err := b.Delete(ctx, one); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "one gone", func() bool { return slices.Equal(ids(), []string{two}) })
	r, revision, err := b.Get(ctx, two)
	if err != nil {
		t.Fatal(err)
	}
	r.Paused = true
	if err := b.Update(ctx, r, revision); err != nil {
		t.Fatal(err)
	}
	eventually(t, ctx, "change seen", func() bool {
		all, err := b.List(ctx)
		return err == nil && len(all) == 1 && all[0].Paused
	})
}

func names(t *testing.T, ctx context.Context, b Backend) {
	if _, ok, err := b.Claim(ctx, "abc", one); err != nil || !ok {
		t.Fatalf("claim: %v, %v", ok, err)
	}
	held, ok, err := b.Claim(ctx, "abc", two)
	if err != nil || ok || held.ID != one || time.Since(held.Since) > limit {
		t.Errorf("second claim: %+v, %v, %v", held, ok, err)
	}
	if err := b.TakeOver(ctx, "abc", two, held); err != nil {
		t.Fatal(err)
	}
	if err := b.TakeOver(ctx, "abc", one, held); !errors.Is(err, schedules.ErrConflict) {
		t.Errorf("second take-over: %v", err)
	}
	if err := b.Free(ctx, "abc", one); err != nil {
		t.Errorf("free by another: %v", err)
	}
	if held, ok, err := b.Claim(ctx, "abc", one); err != nil || ok || held.ID != two {
		t.Errorf("claim after it: %+v, %v, %v", held, ok, err)
	}
	for range 2 {
		if err := b.Free(ctx, "abc", two); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok, err := b.Claim(ctx, "abc", one); err != nil || !ok {
		t.Errorf("claim of a free name: %v, %v", ok, err)
	}
}

func timers(t *testing.T, ctx context.Context, b Backend) {
	armed := func() map[string]time.Time {
		set := map[string]time.Time{}
		err := b.Armed(ctx, func(id string, at time.Time) error { set[id] = at; return nil })
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	far := time.Now().Add(time.Hour).UTC()
	for _, at := range []time.Time{far.Add(time.Hour), far} {
		if err := b.Arm(ctx, one, at, at.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Arm(ctx, two, far, far); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]time.Time{one: far, two: far}, armed()); diff != "" {
		t.Errorf("armed (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := b.Disarm(ctx, one); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]time.Time{two: far}, armed()); diff != "" {
		t.Errorf("after disarm (-want +got):\n%s", diff)
	}
}
