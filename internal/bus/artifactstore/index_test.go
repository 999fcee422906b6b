package artifactstore_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/artifactstore"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/artifactstest"
)

func wantNoRecord(t *testing.T, x *artifactstore.Index, key string) {
	t.Helper()
	if ref, err := x.Get(t.Context(), key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Get: got %+v, %v, want ErrNotFound", ref, err)
	}
	if refs, _, err := x.List(t.Context(), artifacts.Query{}); err != nil || len(refs) != 0 {
		t.Errorf("List: got %+v, %v, want none", refs, err)
	}
}

// TestIndexBetweenTwoWrites breaks off between the two entries of an
// artifact: Get and List must agree, and doing it again must mend it.
func TestIndexBetweenTwoWrites(t *testing.T) {
	t.Parallel()
	ref := artifactstest.Record("abc", 1)
	for _, tt := range []struct {
		name string
		rule bustest.Rule
		do   func(x *artifactstore.Index) error
	}{
		{"put", bustest.Rule{Op: bustest.OpKVPut, Nth: 1, Kind: bustest.After},
			func(x *artifactstore.Index) error { return x.Put(t.Context(), ref) }},
		{"delete", bustest.Rule{Op: bustest.OpKVDelete, Nth: 1, Kind: bustest.After},
			func(x *artifactstore.Index) error { return x.Delete(t.Context(), ref.Key) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			js := bustest.Start(t).Conn(bus.RoleAPI).JetStream()
			x := newIndex(t, js)
			if tt.name == "delete" {
				if err := x.Put(t.Context(), ref); err != nil {
					t.Fatalf("Put: %v", err)
				}
			}
			faults := bustest.NewFaults(js)
			faults.Add(tt.rule)
			if err := tt.do(newIndex(t, faults)); !errors.Is(err, bustest.ErrInjected) {
				t.Fatalf("got %v, want the injected fault", err)
			}
			wantNoRecord(t, x, ref.Key)
			if err := tt.do(x); err != nil {
				t.Fatalf("again: %v", err)
			}
			if tt.name == "delete" {
				wantNoRecord(t, x, ref.Key)
				return
			}
			if got, err := x.Get(t.Context(), ref.Key); err != nil || got != ref {
				t.Errorf("Get: got %+v, %v, want %+v", got, err, ref)
			}
		})
	}
}

func TestIndexRefusesForeignTokens(t *testing.T) {
	t.Parallel()
	x := newIndex(t, bustest.Start(t).Conn(bus.RoleAPI).JetStream())
	for _, bad := range []string{"a.b", "*", ">", "_", " ", "ä", "a\n"} {
		ref := artifactstest.Record(bad, 1)
		if err := x.Put(t.Context(), ref); err == nil {
			t.Errorf("Put for owner %q: no error", bad)
		}
		if _, _, err := x.List(t.Context(), artifacts.Query{Tenant: bad}); err == nil {
			t.Errorf("List for tenant %q: no error", bad)
		}
	}
}

// fill records n artifacts of one owner.
func fill(t testing.TB, x *artifactstore.Index, owner string, n int) {
	t.Helper()
	const writers = 16
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; i < n; i += writers {
				if err := x.Put(t.Context(), artifactstest.Record(owner, i)); err != nil {
					t.Errorf("Put: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestIndexListsThousandsInPages(t *testing.T) {
	t.Parallel()
	x := newIndex(t, bustest.Start(t).Conn(bus.RoleAPI).JetStream())
	const n = 1500
	fill(t, x, "abc", n)
	q := artifacts.Query{Tenant: "default", Owner: "abc", Limit: 400}
	for i := n - 1; ; {
		refs, next, err := x.List(t.Context(), q)
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		for _, ref := range refs {
			if want := artifactstest.Record("abc", i); ref != want {
				t.Fatalf("got %+v, want %+v", ref, want)
			}
			i--
		}
		if next == "" {
			if i != -1 {
				t.Errorf("%d records are missing", i+1)
			}
			return
		}
		q.Cursor = next
	}
}

// TestStoreOnTheBus walks an artifact through the roles that touch it.
func TestStoreOnTheBus(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	store := func(role bus.Role) *artifacts.Store {
		js := env.Conn(role).JetStream()
		s, err := artifacts.New(artifacts.Config{Blobs: newBlobs(t, js), Index: newIndex(t, js)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	worker, api := store(bus.RoleWorker), store(bus.RoleAPI)
	ref, err := worker.Put(ctx, artifacts.Draft{
		Pack: "slides.render", Name: "Präsentation 漢.pdf", JobID: "j", Attempt: 1, Tenant: "default", Owner: "abc", TTL: time.Hour,
	}, strings.NewReader("%PDF"))
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	if _, err := api.Stat(ctx, ref.Key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Stat of a hidden artifact: got %v, want ErrNotFound", err)
	}
	if err := worker.Publish(ctx, artifacts.Ref{Key: ref.Key}); err != nil {
		t.Fatalf("Publish: %v", err)
	}
	if got, err := api.Stat(ctx, ref.Key); err != nil || got != ref {
		t.Errorf("Stat: got %+v, %v, want %+v", got, err, ref)
	}
	if refs, _, err := api.List(ctx, artifacts.Query{Tenant: "default", Owner: "abc"}); err != nil || len(refs) != 1 || refs[0] != ref {
		t.Errorf("List: got %+v, %v, want %+v", refs, err, ref)
	}
	report, err := api.Sweep(ctx, time.Now().Add(2*time.Hour), nil)
	if err != nil || report != (artifacts.SweepReport{Expired: 1}) {
		t.Errorf("Sweep: got %+v, %v, want one expired", report, err)
	}
	if _, err := api.Stat(ctx, ref.Key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Stat after the sweep: got %v, want ErrNotFound", err)
	}
}

func BenchmarkListOneOwner(b *testing.B) {
	x := newIndex(b, bustest.Start(b).Conn(bus.RoleAPI).JetStream())
	fill(b, x, "abc", 10_000)
	fill(b, x, "other", 1000)
	for b.Loop() {
		refs, _, err := x.List(b.Context(), artifacts.Query{Tenant: "default", Owner: "abc", Limit: 200})
		if err != nil || len(refs) != 200 {
			b.Fatalf("List: %d, %v", len(refs), err)
		}
	}
}
