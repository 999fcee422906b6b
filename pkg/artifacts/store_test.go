package artifacts_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/artifactstest"
)

// bundle is a store over memory, with a job system that knows what it is told.
type bundle struct {
	*artifacts.Store
	blobs *artifactstest.Blobs
	index *artifactstest.Index

	mu       sync.Mutex
	verdicts map[string]artifacts.Verdict // guarded by mu: by job; absent: Lost
	judgeErr error                        // guarded by mu
	now      time.Time                    // guarded by mu
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{
		blobs:    artifactstest.NewBlobs(0),
		index:    artifactstest.NewIndex(),
		verdicts: map[string]artifacts.Verdict{},
		now:      time.Now(),
	}
	store, err := artifacts.New(artifacts.Config{
		Blobs:   b.blobs,
		Index:   b.index,
		LinkKey: []byte("0123456789abcdef0123456789abcdef"),
		Now:     func() time.Time { b.mu.Lock(); defer b.mu.Unlock(); return b.now },
		Judge: func(_ context.Context, ref artifacts.Ref) (artifacts.Verdict, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.judgeErr != nil {
				return 0, b.judgeErr
			}
			if v, ok := b.verdicts[ref.JobID]; ok {
				return v, nil
			}
			return artifacts.Lost, nil
		},
	})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	b.Store = store
	return b
}

func (b *bundle) judge(jobID string, v artifacts.Verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.verdicts[jobID] = v
}

func (b *bundle) advance(d time.Duration) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
	return b.now
}

// draft is one of job "job-1".
func draft() artifacts.Draft {
	return artifacts.Draft{
		Pack: "slides.render", Name: "deck.pdf", JobID: "job-1", Attempt: 2,
		Tenant: "default", Owner: "abcdefgh",
	}
}

func put(t *testing.T, b *bundle, d artifacts.Draft, content string) artifacts.Ref {
	t.Helper()
	ref, err := b.Put(t.Context(), d, strings.NewReader(content))
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	return ref
}

func publish(t *testing.T, b *bundle, refs ...artifacts.Ref) {
	t.Helper()
	if err := b.Publish(t.Context(), refs...); err != nil {
		t.Fatalf("Publish: %v", err)
	}
}

func wantHidden(t *testing.T, b *bundle, key string) {
	t.Helper()
	if ref, err := b.Stat(t.Context(), key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Stat(%q): got %+v, %v, want ErrNotFound", key, ref, err)
	}
	if _, _, err := b.Open(t.Context(), key, artifacts.Range{}); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Open(%q): got %v, want ErrNotFound", key, err)
	}
	if _, _, err := b.Content(t.Context(), key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Content(%q): got %v, want ErrNotFound", key, err)
	}
	if err := b.Delete(t.Context(), key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Delete(%q): got %v, want ErrNotFound", key, err)
	}
	refs, _, err := b.List(t.Context(), artifacts.Query{})
	if err != nil || slices.ContainsFunc(refs, func(r artifacts.Ref) bool { return r.Key == key }) {
		t.Errorf("List shows %q (%v)", key, err)
	}
}

func wantContent(t *testing.T, b *bundle, key, want string) {
	t.Helper()
	_, r, err := b.Open(t.Context(), key, artifacts.Range{})
	if err != nil {
		t.Fatalf("Open(%q): %v", key, err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != want {
		t.Errorf("Open(%q): got %q, %v, want %q", key, got, err, want)
	}
}

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := artifacts.New(artifacts.Config{LinkKey: []byte("short")})
	for _, want := range []string{"no blobs", "no index", "link key"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to name %q", err, want)
		}
	}
}

func TestPutIsHiddenUntilPublished(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.judge("job-1", artifacts.Undecided)
	ref := put(t, b, draft(), "%PDF-1.7")
	at := b.advance(0).UTC().Round(0)
	want := artifacts.Ref{
		Key: ref.Key, Pack: "slides.render", Name: "deck.pdf", ContentType: "application/pdf", Size: 8,
		SHA256:    "86edbaa24831badfa0a8b04bb410141e2ee4182b6d0014493fe262a7a331c20b",
		CreatedAt: at, ExpiresAt: at.Add(7 * 24 * time.Hour), JobID: "job-1", Attempt: 2, Tenant: "default", Owner: "abcdefgh",
	}
	if diff := cmp.Diff(want, ref); diff != "" {
		t.Errorf("Put: (-want +got)\n%s", diff)
	}
	if !strings.HasPrefix(ref.Key, "slides.render/") || !strings.HasSuffix(ref.Key, "-deck.pdf") ||
		len(ref.Key) != len("slides.render/-deck.pdf")+16 {
		t.Errorf("key %q is not of the documented form", ref.Key)
	}
	wantHidden(t, b, ref.Key)

	// A ref read back from a job record has lost tenant and owner.
	publish(t, b, artifacts.Ref{Key: ref.Key}, artifacts.Ref{Key: ref.Key})
	got, err := b.Stat(t.Context(), ref.Key)
	if err != nil {
		t.Fatalf("Stat: %v", err)
	}
	if diff := cmp.Diff(ref, got); diff != "" {
		t.Errorf("Stat: (-want +got)\n%s", diff)
	}
	wantContent(t, b, ref.Key, "%PDF-1.7")
	refs, next, err := b.List(t.Context(), artifacts.Query{Tenant: "default", Owner: "abcdefgh"})
	if diff := cmp.Diff([]artifacts.Ref{ref}, refs); diff != "" || next != "" || err != nil {
		t.Errorf("List: %q, %v (-want +got)\n%s", next, err, diff)
	}

	if err := b.Delete(t.Context(), ref.Key); err != nil {
		t.Fatalf("Delete: %v", err)
	}
	wantHidden(t, b, ref.Key)
	// A late repetition of the job's end does not bring it back.
	publish(t, b, ref)
	b.judge("job-1", artifacts.Won)
	wantHidden(t, b, ref.Key)
}

func TestPublishLostInACrashIsMadeUpFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	won, lost, upload := draft(), draft(), draft()
	won.JobID, lost.JobID, upload.JobID = "won", "lost", ""
	b.judge("won", artifacts.Won)
	b.judge("lost", artifacts.Lost)
	wonRef, lostRef, uploadRef := put(t, b, won, "w"), put(t, b, lost, "l"), put(t, b, upload, "u")
	wantContent(t, b, wonRef.Key, "w")
	if refs, _, err := b.List(t.Context(), artifacts.Query{}); err != nil || len(refs) != 1 {
		t.Errorf("List after the repair: got %v, %v, want one", refs, err)
	}
	wantHidden(t, b, lostRef.Key)
	wantHidden(t, b, uploadRef.Key)

	late := put(t, b, won, "late")
	b.judgeErr = errors.New("bus is away")
	if _, err := b.Stat(t.Context(), late.Key); !errors.Is(err, b.judgeErr) {
		t.Errorf("Stat while the job cannot be asked: got %v, want that error", err)
	}
	b.judgeErr = nil
	b.advance(8 * 24 * time.Hour)
	wantHidden(t, b, late.Key)
}

func TestPutFails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	broken := errors.New("sidecar is gone")
	for _, tt := range []struct {
		name string
		d    artifacts.Draft
		r    io.Reader
		want error
	}{
		{"reader fails at once", artifacts.Draft{Pack: "p"}, iotest.ErrReader(broken), broken},
		{"reader fails later", artifacts.Draft{Pack: "p", Name: "x.bin"},
			&artifactstest.Pattern{N: 1 << 20, Fail: broken}, broken},
		{"upload cut short while sniffed", artifacts.Draft{Pack: "p"},
			io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrUnexpectedEOF)), io.ErrUnexpectedEOF},
		{"no namespace", artifacts.Draft{}, strings.NewReader(""), artifacts.ErrBadNamespace},
		{"namespace of the claim check", artifacts.Draft{Pack: "_jobs"}, strings.NewReader(""), artifacts.ErrBadNamespace},
		{"namespace with folders", artifacts.Draft{Pack: "a/b"}, strings.NewReader(""), artifacts.ErrBadNamespace},
		{"namespace that climbs", artifacts.Draft{Pack: ".."}, strings.NewReader(""), artifacts.ErrBadNamespace},
	} {
		if ref, err := b.Put(t.Context(), tt.d, tt.r); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %+v, %v, want %v", tt.name, ref, err, tt.want)
		}
	}
	if err := b.blobs.Walk(t.Context(), "", func(n artifacts.Blob) error {
		t.Errorf("left behind: %s", n.Key)
		return nil
	}); err != nil {
		t.Error(err)
	}

	full, err := artifacts.New(artifacts.Config{Blobs: artifactstest.NewBlobs(1 << 20), Index: b.index})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := full.Put(t.Context(), draft(), &artifactstest.Pattern{N: 2 << 20}); !errors.Is(err, artifacts.ErrNoSpace) {
		t.Errorf("full store: got %v, want ErrNoSpace", err)
	}
}

func TestTTL(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, tt := range []struct{ ttl, want time.Duration }{
		{0, 7 * 24 * time.Hour}, {time.Minute, time.Minute}, {-1, 0},
	} {
		d := draft()
		d.TTL = tt.ttl
		ref := put(t, b, d, "x")
		if tt.want == 0 != ref.ExpiresAt.IsZero() || tt.want != 0 && ref.ExpiresAt.Sub(ref.CreatedAt) != tt.want {
			t.Errorf("ttl %v: made %v, expires %v", tt.ttl, ref.CreatedAt, ref.ExpiresAt)
		}
	}
}

func TestContentSeeks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := "0123456789"
	ref := put(t, b, draft(), text)
	publish(t, b, ref)
	got, r, err := b.Content(t.Context(), ref.Key)
	if err != nil || got.Key != ref.Key {
		t.Fatalf("Content: got %+v, %v", got, err)
	}
	defer r.Close()
	if err := iotest.TestReader(r, []byte(text)); err != nil {
		t.Error(err)
	}
}

func TestStash(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	key := artifacts.InputKey("0192d3a4")
	if err := b.Stash(ctx, key, strings.NewReader("input")); err != nil {
		t.Fatalf("Stash: %v", err)
	}
	if err := b.Stash(ctx, key, strings.NewReader("input")); err != nil {
		t.Errorf("same bytes again: %v", err)
	}
	if err := b.Stash(ctx, key, strings.NewReader("other")); !errors.Is(err, artifacts.ErrExists) {
		t.Errorf("other bytes: got %v, want ErrExists", err)
	}
	for run, out := range []string{"first", "second"} {
		if err := b.Stash(ctx, artifacts.OutputKey("0192d3a4", run), strings.NewReader(out)); err != nil {
			t.Errorf("output of run %d: %v", run, err)
		}
	}
	r, err := b.Unstash(ctx, key)
	if err != nil {
		t.Fatalf("Unstash: %v", err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != "input" {
		t.Errorf("Unstash: got %q, %v", got, err)
	}
	publish(t, b, artifacts.Ref{Key: key, Pack: "_jobs"})
	wantHidden(t, b, key)

	broken := errors.New("broken")
	if err := b.Stash(ctx, artifacts.InputKey("j"), iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("broken reader: got %v", err)
	}
	for range 2 {
		if err := b.DropStash(ctx, key); err != nil {
			t.Errorf("DropStash: %v", err)
		}
	}
	if _, err := b.Unstash(ctx, key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Unstash after DropStash: got %v, want ErrNotFound", err)
	}

	ref := put(t, b, draft(), "an artifact")
	publish(t, b, ref)
	for _, key := range []string{ref.Key, "_jobs/", "_jobs/a", "_jobs//input", "_jobs/a/b/c", ""} {
		if err := b.Stash(ctx, key, strings.NewReader("")); !errors.Is(err, artifacts.ErrBadNamespace) {
			t.Errorf("Stash(%q): got %v, want ErrBadNamespace", key, err)
		}
		if _, err := b.Unstash(ctx, key); !errors.Is(err, artifacts.ErrNotFound) {
			t.Errorf("Unstash(%q): got %v, want ErrNotFound", key, err)
		}
		if err := b.DropStash(ctx, key); !errors.Is(err, artifacts.ErrBadNamespace) {
			t.Errorf("DropStash(%q): got %v, want ErrBadNamespace", key, err)
		}
	}
	wantContent(t, b, ref.Key, "an artifact")
}
