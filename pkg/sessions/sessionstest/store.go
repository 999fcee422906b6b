package sessionstest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// wait bounds every wait of the suites.
const wait = 30 * time.Second

// RunStore checks a Registry and a Queue against the contract; open returns a
// fresh pair for each case.
func RunStore(t *testing.T, open func(t *testing.T) (sessions.Registry, sessions.Queue)) {
	t.Helper()
	registry := map[string]func(*testing.T, context.Context, sessions.Registry){
		"CreateOnce":        createOnce,
		"UpdateByRevision":  updateByRevision,
		"DeleteAndMissing":  deleteAndMissing,
		"WatchMarkAndAfter": watchMarkAndAfter,
	}
	for name, run := range registry {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			r, _ := open(t)
			run(t, ctx, r)
		})
	}
	queue := map[string]func(*testing.T, context.Context, sessions.Queue){
		"TakeInOrderByImage": takeInOrderByImage,
		"NakComesAgain":      nakComesAgain,
		"TakeEndsWithCtx":    takeEndsWithCtx,
		"Position":           position,
	}
	for name, run := range queue {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			_, q := open(t)
			run(t, ctx, q)
		})
	}
}

func sample(id string) sessions.Lease {
	at := time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)
	return sessions.Lease{
		ID: id, Generation: 3, State: sessions.StateRequested, Spec: sessions.Spec{Image: "browser", Timeout: time.Minute},
		JobID: "job-" + id, Attempt: 2, Fence: 7, Worker: "w1", Caller: identity.Caller{Subject: "ann", Scopes: []string{"admin"}},
		CreatedAt: at, RenewedAt: at, ExpiresAt: at.Add(time.Minute),
	}
}

func createOnce(t *testing.T, ctx context.Context, r sessions.Registry) {
	want := sample("a")
	revision, err := r.Create(ctx, want)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	got, err := r.Get(ctx, "a")
	if err != nil {
		t.Fatalf("get: %v", err)
	}
	if diff := cmp.Diff(sessions.Entry{Lease: want, Revision: revision}, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if _, err := r.Create(ctx, want); !errors.Is(err, sessions.ErrConflict) {
		t.Errorf("second create: got %v, want ErrConflict", err)
	}
}

func updateByRevision(t *testing.T, ctx context.Context, r sessions.Registry) {
	l := sample("a")
	first, err := r.Create(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	l.State = sessions.StateWarming
	second, err := r.Update(ctx, l, first)
	if err != nil || second <= first {
		t.Fatalf("update: revision %d after %d, %v", second, first, err)
	}
	l.State = sessions.StateGone
	if _, err := r.Update(ctx, l, first); !errors.Is(err, sessions.ErrConflict) {
		t.Errorf("update at an old revision: got %v, want ErrConflict", err)
	}
	if _, err := r.Update(ctx, sample("none"), 1); !errors.Is(err, sessions.ErrConflict) {
		t.Errorf("update of a missing record: got %v, want ErrConflict", err)
	}
	got, err := r.Get(ctx, "a")
	if err != nil || got.Lease.State != sessions.StateWarming {
		t.Errorf("got %s, %v, want the first update's state", got.Lease.State, err)
	}
}

func deleteAndMissing(t *testing.T, ctx context.Context, r sessions.Registry) {
	if _, err := r.Get(ctx, "a"); !errors.Is(err, sessions.ErrNotFound) {
		t.Errorf("get of a missing record: got %v, want ErrNotFound", err)
	}
	if _, err := r.Create(ctx, sample("a")); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(ctx, "a"); err != nil {
		t.Fatalf("delete: %v", err)
	}
	if _, err := r.Get(ctx, "a"); !errors.Is(err, sessions.ErrNotFound) {
		t.Errorf("get of a deleted record: got %v, want ErrNotFound", err)
	}
	if err := r.Delete(ctx, "a"); err != nil {
		t.Errorf("second delete: %v", err)
	}
}

func watchMarkAndAfter(t *testing.T, ctx context.Context, r sessions.Registry) {
	for _, id := range []string{"a", "b"} {
		if _, err := r.Create(ctx, sample(id)); err != nil {
			t.Fatal(err)
		}
	}
	watchCtx, stop := context.WithCancel(ctx)
	entries, err := r.Watch(watchCtx)
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	next := func() string {
		t.Helper()
		select {
		case e, ok := <-entries:
			if !ok {
				t.Fatal("watch ended")
			}
			return fmt.Sprintf("%s %s %t", e.Lease.ID, e.Lease.State, e.Deleted)
		case <-ctx.Done():
			t.Fatal("no entry came")
		}
		return ""
	}
	got := []string{next(), next(), next()}
	c := sample("c")
	revision, err := r.Create(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	c.State = sessions.StateWarming
	if _, err := r.Update(ctx, c, revision); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	// What a record passed through on the way to its newest state may be left
	// out.
	last := next()
	if last == "c requested false" {
		last = next()
	}
	got = append(got, last, next())
	want := []string{"a requested false", "b requested false", "  false", "c warming false", "a gone true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	stop()
	for range entries { // ends when the channel is closed
	}
}

func takeInOrderByImage(t *testing.T, ctx context.Context, q sessions.Queue) {
	for _, r := range [][2]string{{"browser", "1"}, {"base", "2"}, {"browser", "3"}} {
		if err := q.Offer(ctx, r[0], r[1]); err != nil {
			t.Fatalf("offer: %v", err)
		}
	}
	var got []string
	for range 2 {
		id, ack, _, err := q.Take(ctx, []string{"browser"})
		if err != nil {
			t.Fatalf("take: %v", err)
		}
		ack()
		got = append(got, id)
	}
	id, ack, _, err := q.Take(ctx, []string{"browser", "base"})
	if err != nil {
		t.Fatalf("take: %v", err)
	}
	ack()
	if diff := cmp.Diff([]string{"1", "3", "2"}, append(got, id)); diff != "" {
		t.Errorf("taken (-want +got):\n%s", diff)
	}
}

func nakComesAgain(t *testing.T, ctx context.Context, q sessions.Queue) {
	if err := q.Offer(ctx, "base", "1"); err != nil {
		t.Fatal(err)
	}
	_, _, nak, err := q.Take(ctx, []string{"base"})
	if err != nil {
		t.Fatal(err)
	}
	nak()
	id, ack, _, err := q.Take(ctx, []string{"base"})
	if err != nil || id != "1" {
		t.Fatalf("after nak: got %q, %v", id, err)
	}
	ack()
}

func takeEndsWithCtx(t *testing.T, ctx context.Context, q sessions.Queue) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		_, _, _, err := q.Take(ctx, []string{"base"})
		done <- err
	}()
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
	case <-time.After(wait):
		t.Error("take does not end with its context")
	}
}

func position(t *testing.T, ctx context.Context, q sessions.Queue) {
	for _, id := range []string{"1", "2", "3"} {
		if err := q.Offer(ctx, "base", id); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := q.Position(ctx, "base", "3"); err != nil || n != 2 {
		t.Errorf("third: got %d, %v, want 2", n, err)
	}
	_, ack, _, err := q.Take(ctx, []string{"base"})
	if err != nil {
		t.Fatal(err)
	}
	ack()
	// A queue may be a moment behind.
	for {
		n, err := q.Position(ctx, "base", "3")
		if err == nil && n == 1 {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("after one was taken: got %d, %v, want 1", n, err)
		}
	}
}
