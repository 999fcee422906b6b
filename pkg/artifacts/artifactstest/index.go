package artifactstest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// TestIndex checks what artifacts.Index promises. open returns an empty
// index, its own for each call.
func TestIndex(t *testing.T, open func(t *testing.T) artifacts.Index) {
	for _, tt := range []struct {
		name string
		test func(t *testing.T, x artifacts.Index)
	}{
		{"what is put is read back", testIndexRoundTrip},
		{"recording again is no error", testIndexAgain},
		{"delete is idempotent", testIndexDelete},
		{"filters and owners", testIndexFilters},
		{"pages", testIndexPages},
		{"pages are stable under inserts and deletes", testIndexStable},
		{"bad cursors", testIndexBadCursor},
		{"many at once", testIndexConcurrent},
		{"a list ends with its context", testIndexContext},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.test(t, open(t))
		})
	}
}

// epoch is when the suite's artifacts begin.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)

// Record returns a complete record of owner number i, each a nanosecond
// younger than the one before.
func Record(owner string, i int) artifacts.Ref {
	at := epoch.Add(time.Duration(i))
	return artifacts.Ref{
		Key:         fmt.Sprintf("slides.render/%016x-deck 漢 %s.pdf", i, owner),
		Pack:        "slides.render",
		Name:        fmt.Sprintf("deck 漢 %s.pdf", owner),
		ContentType: "application/pdf",
		Size:        int64(i),
		SHA256:      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		CreatedAt:   at,
		ExpiresAt:   at.Add(time.Hour),
		JobID:       "0192d3a4-0000-7000-8000-000000000000",
		Attempt:     2,
		Tenant:      "default",
		Owner:       owner,
	}
}

func mustRecord(t *testing.T, x artifacts.Index, refs ...artifacts.Ref) {
	t.Helper()
	for _, ref := range refs {
		if err := x.Put(t.Context(), ref); err != nil {
			t.Fatalf("Put(%q): %v", ref.Key, err)
		}
	}
}

// list reads every page of q.
func list(t *testing.T, x artifacts.Index, q artifacts.Query) []artifacts.Ref {
	t.Helper()
	var all []artifacts.Ref
	for {
		refs, next, err := x.List(t.Context(), q)
		if err != nil {
			t.Fatalf("List(%+v): %v", q, err)
		}
		if q.Limit > 0 && len(refs) > q.Limit {
			t.Fatalf("List(%+v): %d records", q, len(refs))
		}
		all = append(all, refs...)
		if next == "" {
			return all
		}
		q.Cursor = next
	}
}

func testIndexRoundTrip(t *testing.T, x artifacts.Index) {
	full := Record("abc", 1)
	upload := artifacts.Ref{Key: "operator-uploads/0000000000000002-x", Pack: "operator-uploads", Name: "x", CreatedAt: epoch}
	mustRecord(t, x, full, upload)
	for _, want := range []artifacts.Ref{full, upload} {
		got, err := x.Get(t.Context(), want.Key)
		if err != nil {
			t.Fatalf("Get: %v", err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Get: (-want +got)\n%s", diff)
		}
	}
	if diff := cmp.Diff([]artifacts.Ref{full, upload}, list(t, x, artifacts.Query{})); diff != "" {
		t.Errorf("List: (-want +got)\n%s", diff)
	}
	if _, err := x.Get(t.Context(), "slides.render/absent"); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Get of an absent key: got %v, want ErrNotFound", err)
	}
}

func testIndexAgain(t *testing.T, x artifacts.Index) {
	ref := Record("abc", 1)
	shown := ref
	shown.URL = "https://example.com/not-to-be-kept"
	mustRecord(t, x, ref, ref, shown)
	if diff := cmp.Diff([]artifacts.Ref{ref}, list(t, x, artifacts.Query{Tenant: "default", Owner: "abc"})); diff != "" {
		t.Errorf("List: (-want +got)\n%s", diff)
	}
}

func testIndexDelete(t *testing.T, x artifacts.Index) {
	one, two := Record("abc", 1), Record("abc", 2)
	mustRecord(t, x, one, two)
	for range 2 {
		if err := x.Delete(t.Context(), one.Key); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
	if _, err := x.Get(t.Context(), one.Key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Get: got %v, want ErrNotFound", err)
	}
	if diff := cmp.Diff([]artifacts.Ref{two}, list(t, x, artifacts.Query{})); diff != "" {
		t.Errorf("List: (-want +got)\n%s", diff)
	}
	mustRecord(t, x, one)
	if got, err := x.Get(t.Context(), one.Key); err != nil || got.Key != one.Key {
		t.Errorf("Get after recording anew: got %+v, %v", got, err)
	}
}

func testIndexFilters(t *testing.T, x artifacts.Index) {
	a1, a2, b3 := Record("aaa", 1), Record("aaa", 2), Record("bbb", 3)
	other := Record("aaa", 4)
	other.Tenant = "acme"
	other.Key, other.Pack, other.Name = "http.fetch/0000000000000004-Übersicht.HTML", "http.fetch", "Übersicht.HTML"
	mustRecord(t, x, b3, a1, other, a2)
	for _, tt := range []struct {
		name string
		q    artifacts.Query
		want []artifacts.Ref
	}{
		{"everybody's", artifacts.Query{}, []artifacts.Ref{other, b3, a2, a1}},
		{"an owner's", artifacts.Query{Tenant: "default", Owner: "aaa"}, []artifacts.Ref{a2, a1}},
		{"the same owner token in another tenant", artifacts.Query{Tenant: "acme", Owner: "aaa"}, []artifacts.Ref{other}},
		{"a tenant's", artifacts.Query{Tenant: "default"}, []artifacts.Ref{b3, a2, a1}},
		{"an owner without any", artifacts.Query{Tenant: "acme", Owner: "bbb"}, nil},
		{"a prefix of an owner", artifacts.Query{Tenant: "default", Owner: "aa"}, nil},
		{"a pack", artifacts.Query{Pack: "slides.render"}, []artifacts.Ref{b3, a2, a1}},
		{"part of a pack", artifacts.Query{Pack: "slides"}, nil},
		{"part of a name, in another case", artifacts.Query{Name: "üBERSICHT.h"}, []artifacts.Ref{other}},
		{"pack and name", artifacts.Query{Tenant: "default", Owner: "aaa", Pack: "slides.render", Name: "DECK"}, []artifacts.Ref{a2, a1}},
	} {
		got := list(t, x, tt.q)
		if diff := cmp.Diff(tt.want, got); diff != "" && len(tt.want)+len(got) > 0 {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

func testIndexPages(t *testing.T, x artifacts.Index) {
	var want []artifacts.Ref
	for i := range 25 {
		ref := Record("abc", i)
		if i >= 10 { // the younger ones were made in one moment: the key decides
			ref.CreatedAt = epoch.Add(time.Minute)
		}
		want = append(want, ref)
		mustRecord(t, x, ref, Record("other", 100+i))
	}
	slices.Reverse(want)
	slices.Reverse(want[:15])
	for _, limit := range []int{0, 1, 7, 24, 25, 26} {
		got := list(t, x, artifacts.Query{Tenant: "default", Owner: "abc", Limit: limit})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pages of %d: (-want +got)\n%s", limit, diff)
		}
	}
}

func testIndexStable(t *testing.T, x artifacts.Index) {
	var want []string
	for i := range 10 {
		mustRecord(t, x, Record("abc", i))
		want = append([]string{Record("abc", i).Key}, want...)
	}
	q := artifacts.Query{Tenant: "default", Owner: "abc", Limit: 3}
	var got []string
	for page := 0; ; page++ {
		refs, next, err := x.List(t.Context(), q)
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		for _, ref := range refs {
			got = append(got, ref.Key)
		}
		if next == "" {
			break
		}
		q.Cursor = next
		mustRecord(t, x, Record("abc", 100+page))
		// The very artifact the cursor stands on may go, too.
		if err := x.Delete(t.Context(), refs[len(refs)-1].Key); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func testIndexBadCursor(t *testing.T, x artifacts.Index) {
	mustRecord(t, x, Record("abc", 1))
	for _, cursor := range []string{"x", "!", "AAAA", "bm90IGEgbnVtYmVyIGtleQ"} {
		if _, _, err := x.List(t.Context(), artifacts.Query{Cursor: cursor}); !errors.Is(err, artifacts.ErrBadCursor) {
			t.Errorf("cursor %q: got %v, want ErrBadCursor", cursor, err)
		}
	}
}

func testIndexConcurrent(t *testing.T, x artifacts.Index) {
	const writers, each = 8, 8
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := x.Put(t.Context(), Record("abc", w*each+i)); err != nil {
					t.Errorf("Put: %v", err)
				}
				if _, _, err := x.List(t.Context(), artifacts.Query{Tenant: "default", Owner: "abc", Limit: 5}); err != nil {
					t.Errorf("List: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if got := list(t, x, artifacts.Query{Limit: 50}); len(got) != writers*each {
		t.Errorf("got %d records, want %d", len(got), writers*each)
	}
}

func testIndexContext(t *testing.T, x artifacts.Index) {
	mustRecord(t, x, Record("abc", 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := x.List(ctx, artifacts.Query{}); !errors.Is(err, context.Canceled) {
		t.Errorf("List: got %v, want Canceled", err)
	}
}
