package webhookstest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// Ports are one implementation.
type Ports struct {
	Registry webhooks.Registry
	// Other is the registry of another replica; the same as Registry when
	// there is none.
	Other webhooks.Registry
	Queue webhooks.Queue
	Log   webhooks.Log
}

// ann and bob own what the suite makes.
var (
	ann = identity.Caller{Subject: "Ann"}
	bob = identity.Caller{Subject: "Bob", Tenant: "acme"}
)

// Run checks an implementation; open returns a fresh one.
func Run(t *testing.T, open func(t *testing.T) Ports) {
	for name, check := range map[string]func(*testing.T, Ports){
		"records":  records,
		"conflict": conflict,
		"places":   places,
		"queue":    queue,
		"log":      logged,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, open(t))
		})
	}
}

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func record(id string, owner identity.Caller, at int) webhooks.Record {
	when := time.Unix(int64(at), 0).UTC()
	return webhooks.Record{
		Endpoint: webhooks.Endpoint{
			ID: id, URL: "https://example.com/" + id, Events: webhooks.Terminal, Format: webhooks.CloudEvent, Enabled: true,
			Caller: owner, CreatedAt: when, UpdatedAt: when,
		},
		Secrets: []webhooks.SealedSecret{{Sealed: "s1.x." + id}},
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ids(rs []webhooks.Record) (out []string) {
	for _, r := range rs {
		out = append(out, r.ID)
	}
	return out
}

// records: what one replica has answered, the other reads.
func records(t *testing.T, p Ports) {
	ctx := bounded(t)
	one, many := must[webhooks.Record](t), must[[]webhooks.Record](t)
	a := one(p.Registry.Create(ctx, record("wh_a", ann, 2)))
	one(p.Other.Create(ctx, record("wh_b", bob, 1)))
	one(p.Registry.Create(ctx, record("wh_c", ann, 1)))
	for _, r := range []webhooks.Registry{p.Registry, p.Other} {
		if diff := cmp.Diff([]string{"wh_c", "wh_a"}, ids(many(r.Of(ctx, ann.TenantToken(), ann.Owner())))); diff != "" {
			t.Errorf("Ann's (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"wh_b", "wh_c", "wh_a"}, ids(many(r.Of(ctx, "", "")))); diff != "" {
			t.Errorf("all (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(a, one(r.Find(ctx, "wh_a"))); diff != "" {
			t.Errorf("found (-made +found):\n%s", diff)
		}
	}
	a.Enabled = false
	a = one(p.Registry.Update(ctx, a))
	if got := one(p.Other.Find(ctx, "wh_a")); got.Enabled || got.Revision != a.Revision {
		t.Errorf("after the update: %+v", got)
	}
	if err := p.Other.Delete(ctx, a); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Registry.Find(ctx, "wh_a"); !errors.Is(err, webhooks.ErrNotFound) {
		t.Errorf("after the deletion: %v", err)
	}
	if got := ids(many(p.Registry.Of(ctx, ann.TenantToken(), ann.Owner()))); len(got) != 1 {
		t.Errorf("Ann has %v", got)
	}
}

// conflict: who holds an old record changes nothing.
func conflict(t *testing.T, p Ports) {
	ctx, one := bounded(t), must[webhooks.Record](t)
	old := one(p.Registry.Create(ctx, record("wh_a", ann, 1)))
	changed := old
	changed.URL = "https://example.com/other"
	changed = one(p.Other.Update(ctx, changed))
	if _, err := p.Registry.Update(ctx, old); !errors.Is(err, webhooks.ErrConflict) {
		t.Errorf("update of an old record: %v", err)
	}
	if err := p.Registry.Delete(ctx, old); !errors.Is(err, webhooks.ErrConflict) {
		t.Errorf("deletion of an old record: %v", err)
	}
	if err := p.Registry.Delete(ctx, changed); err != nil {
		t.Fatal(err)
	}
	// Another one may stand in its place now.
	next := one(p.Registry.Create(ctx, record("wh_n", ann, 2)))
	if err := p.Other.Delete(ctx, changed); !errors.Is(err, webhooks.ErrConflict) {
		t.Errorf("second deletion: %v", err)
	}
	if diff := cmp.Diff(next, one(p.Other.Find(ctx, "wh_n"))); diff != "" {
		t.Errorf("the next one (-made +found):\n%s", diff)
	}
}

// places: whatever the race, an owner has no more than the most.
func places(t *testing.T, p Ports) {
	ctx := bounded(t)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex // guards made and full
		made []webhooks.Record
		full int
	)
	for i := range webhooks.MaxPerOwner + 10 {
		wg.Go(func() {
			r := []webhooks.Registry{p.Registry, p.Other}[i%2]
			got, err := r.Create(ctx, record(fmt.Sprintf("wh_%02d", i), ann, i))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made = append(made, got)
			case errors.Is(err, webhooks.ErrTooMany):
				full++
			default:
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	if len(made) != webhooks.MaxPerOwner || full != 10 {
		t.Fatalf("made %d, refused %d", len(made), full)
	}
	if _, err := p.Registry.Create(ctx, record("wh_bob", bob, 1)); err != nil {
		t.Errorf("another owner: %v", err)
	}
	if err := p.Registry.Delete(ctx, made[3]); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Other.Create(ctx, record("wh_new", ann, 99)); err != nil {
		t.Errorf("in the place of a deleted one: %v", err)
	}
	if _, err := p.Registry.Create(ctx, record("wh_more", ann, 100)); !errors.Is(err, webhooks.ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
}

func queue(t *testing.T, p Ports) {
	ctx := bounded(t)
	d := webhooks.Delivery{ID: "e1", Endpoint: "wh_a", Tenant: "default", Owner: "o", Event: webhooks.EventFailed, Body: []byte("{}")}
	if err := p.Queue.Enqueue(ctx, d, false); err != nil {
		t.Fatal(err)
	}
	if err := p.Queue.Enqueue(ctx, d, false); !errors.Is(err, webhooks.ErrPending) {
		t.Errorf("twice: %v", err)
	}
	d.Endpoint = "wh_b"
	if err := p.Queue.Enqueue(ctx, d, true); err != nil {
		t.Errorf("to another endpoint: %v", err)
	}
	if err := p.Queue.Recall(ctx, d); err != nil {
		t.Errorf("recall what is not on the ladder: %v", err)
	}
}

func logged(t *testing.T, p Ports) {
	ctx := bounded(t)
	var want []string
	for i := range 5 {
		a := webhooks.Attempt{
			Delivery: fmt.Sprintf("e%d", i%2), Event: webhooks.EventFailed, Attempt: i + 1, Outcome: webhooks.Retrying,
			Status: 500, At: time.Unix(int64(i), 0).UTC(), Response: "no", NextAt: time.Unix(9, 0).UTC(),
		}
		if err := p.Log.Append(ctx, "default", "wh_a", a); err != nil {
			t.Fatal(err)
		}
		want = append([]string{fmt.Sprint(i + 1)}, want...)
	}
	if err := p.Log.Append(ctx, "default", "wh_b", webhooks.Attempt{Attempt: 9}); err != nil {
		t.Fatal(err)
	}
	read := func(q webhooks.LogQuery) (got []string) {
		for {
			page, next, err := p.Log.List(ctx, "default", "wh_a", q)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range page {
				got = append(got, fmt.Sprint(a.Attempt))
			}
			if q.Cursor = next; next == "" {
				return got
			}
		}
	}
	if diff := cmp.Diff(want, read(webhooks.LogQuery{Limit: 2})); diff != "" {
		t.Errorf("pages of two (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"4", "2"}, read(webhooks.LogQuery{Limit: 50, Delivery: "e1"})); diff != "" {
		t.Errorf("one delivery (-want +got):\n%s", diff)
	}
	if _, _, err := p.Log.List(ctx, "default", "wh_a", webhooks.LogQuery{Limit: 2, Cursor: "x"}); err == nil {
		t.Error("a bad cursor is taken")
	}
}
