package artifactstest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

const (
	// bigSize is larger than any buffer a backend may keep.
	bigSize = 64 << 20
	// maxRead is the largest piece a streaming backend may ask a reader for.
	maxRead = 1 << 20
)

// TestBlobs checks what artifacts.Blobs promises. open returns empty blobs,
// its own for each call, with room for 200 MiB.
func TestBlobs(t *testing.T, open func(t *testing.T) artifacts.Blobs) {
	for _, tt := range []struct {
		name string
		test func(t *testing.T, b artifacts.Blobs)
	}{
		{"what is put is read back", testRoundTrip},
		{"64 MiB stream both ways", testStreams},
		{"ranges", testRanges},
		{"names with any Unicode", testNames},
		{"a key is written once", testWriteOnce},
		{"absent keys", testAbsent},
		{"delete is idempotent", testDelete},
		{"an upload whose reader fails leaves nothing", testReaderFails},
		{"an upload whose context ends leaves nothing", testContextEnds},
		{"an upload under way is not visible", testUnderWay},
		{"walk", testWalk},
		{"walk may delete and stops at an error", testWalkDelete},
		{"closing early and reading after the context", testOpenEnds},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.test(t, open(t))
		})
	}
}

func mustPut(t *testing.T, b artifacts.Blobs, key, content string, meta map[string]string) {
	t.Helper()
	if _, _, err := b.Put(t.Context(), key, meta, strings.NewReader(content)); err != nil {
		t.Fatalf("Put(%q): %v", key, err)
	}
}

func read(t *testing.T, b artifacts.Blobs, key string, rng artifacts.Range) string {
	t.Helper()
	r, err := b.Open(t.Context(), key, rng)
	if err != nil {
		t.Fatalf("Open(%q, %+v): %v", key, rng, err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %q: %v", key, err)
	}
	return string(got)
}

// wantNothing checks that key is not to be seen in any way.
func wantNothing(t *testing.T, b artifacts.Blobs, key string) {
	t.Helper()
	ctx := t.Context()
	if _, err := b.Stat(ctx, key); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Stat(%q): got %v, want ErrNotFound", key, err)
	}
	if r, err := b.Open(ctx, key, artifacts.Range{}); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Open(%q): got %v, %v, want ErrNotFound", key, r, err)
	}
	if keys := walk(t, b, ""); slices.Contains(keys, key) {
		t.Errorf("Walk shows %q", key)
	}
}

func walk(t *testing.T, b artifacts.Blobs, prefix string) []string {
	t.Helper()
	var keys []string
	if err := b.Walk(t.Context(), prefix, func(b artifacts.Blob) error {
		keys = append(keys, b.Key)
		return nil
	}); err != nil {
		t.Fatalf("Walk(%q): %v", prefix, err)
	}
	slices.Sort(keys)
	return keys
}

func testRoundTrip(t *testing.T, b artifacts.Blobs) {
	for _, content := range []string{"", "x", strings.Repeat("0123456789abcdef", 20_000)} {
		key := fmt.Sprintf("p/%d", len(content))
		meta := map[string]string{"name": "Übung 漢字", "empty": ""}
		size, sum, err := b.Put(t.Context(), key, meta, strings.NewReader(content))
		if err != nil {
			t.Fatalf("Put: %v", err)
		}
		want := artifacts.Blob{Key: key, Size: int64(len(content)), SHA256: sumOf(strings.NewReader(content)), Meta: meta}
		if size != want.Size || sum != want.SHA256 {
			t.Errorf("Put: got %d, %s, want %d, %s", size, sum, want.Size, want.SHA256)
		}
		got, err := b.Stat(t.Context(), key)
		if err != nil {
			t.Fatalf("Stat: %v", err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(want, "ModifiedAt")); diff != "" {
			t.Errorf("Stat: (-want +got)\n%s", diff)
		}
		if got.ModifiedAt.IsZero() {
			t.Error("Stat: no ModifiedAt")
		}
		if got := read(t, b, key, artifacts.Range{}); got != content {
			t.Errorf("read %d bytes, want the %d put", len(got), len(content))
		}
	}
}

func testStreams(t *testing.T, b artifacts.Blobs) {
	src := &Pattern{N: bigSize}
	size, sum, err := b.Put(t.Context(), "p/big", nil, src)
	if err != nil {
		t.Fatalf("Put: %v", err)
	}
	want := sumOf(&Pattern{N: bigSize})
	if size != bigSize || sum != want {
		t.Errorf("Put: got %d, %s, want %d, %s", size, sum, bigSize, want)
	}
	if src.Largest > maxRead {
		t.Errorf("Put asked for %d bytes at once, want at most %d", src.Largest, maxRead)
	}
	r, err := b.Open(t.Context(), "p/big", artifacts.Range{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer r.Close()
	got := sha256.New()
	if n, err := io.Copy(got, r); err != nil || n != bigSize {
		t.Fatalf("read %d bytes, %v, want %d", n, err, bigSize)
	}
	if got := hex.EncodeToString(got.Sum(nil)); got != want {
		t.Errorf("checksum of what is read: got %s, want %s", got, want)
	}
}

func testRanges(t *testing.T, b artifacts.Blobs) {
	const size = 300_000 // several chunks
	content, err := io.ReadAll(&Pattern{N: size})
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, b, "p/r", string(content), nil)
	mustPut(t, b, "p/empty", "", nil)
	for _, rng := range []artifacts.Range{
		{},
		{Offset: 1},
		{Length: 1},
		{Offset: 131_072, Length: 2},
		{Offset: 131_071, Length: 131_074},
		{Offset: size - 1, Length: 1},
		{Offset: size - 1, Length: 100},
		{Offset: size - 1, Length: 1<<63 - 1},
		{Offset: size},
		{Offset: size, Length: 5},
	} {
		want := content[rng.Offset:]
		if rng.Length > 0 && rng.Length < int64(len(want)) {
			want = want[:rng.Length]
		}
		if got := read(t, b, "p/r", rng); !bytes.Equal([]byte(got), want) {
			t.Errorf("range %+v: got %d bytes, want these %d", rng, len(got), len(want))
		}
	}
	if got := read(t, b, "p/empty", artifacts.Range{}); got != "" {
		t.Errorf("empty blob: got %q", got)
	}
	for _, rng := range []artifacts.Range{{Offset: size + 1}, {Offset: -1}, {Length: -1}, {Offset: 1 << 62, Length: 1}} {
		if r, err := b.Open(t.Context(), "p/r", rng); !errors.Is(err, artifacts.ErrBadRange) {
			t.Errorf("range %+v: got %v, %v, want ErrBadRange", rng, r, err)
		}
	}
}

func testNames(t *testing.T, b artifacts.Blobs) {
	keys := []string{
		"p/0-a b.txt", "p/1-Ünïcode é.pdf", "p/2-漢字かな.png", "p/3-👩‍👩‍👧.gif", "p/4-a*b>c.d?#%&=+", "p/5-etc/p",
		"p/6-" + strings.Repeat("漢", 200), "p/7-\"quoted\"'s", "p/8-e\u0301", "p/8-\u00e9",
	}
	for i, key := range keys {
		mustPut(t, b, key, fmt.Sprint(i), nil)
	}
	for i, key := range keys {
		if got := read(t, b, key, artifacts.Range{}); got != fmt.Sprint(i) {
			t.Errorf("%q: got %q, want %d", key, got, i)
		}
	}
	slices.Sort(keys)
	if diff := cmp.Diff(keys, walk(t, b, "")); diff != "" {
		t.Errorf("Walk: (-want +got)\n%s", diff)
	}
}

func testWriteOnce(t *testing.T, b artifacts.Blobs) {
	mustPut(t, b, "p/k", "first", map[string]string{"n": "1"})
	second := strings.NewReader("second")
	if _, _, err := b.Put(t.Context(), "p/k", map[string]string{"n": "2"}, second); !errors.Is(err, artifacts.ErrExists) {
		t.Errorf("second Put: got %v, want ErrExists", err)
	}
	if second.Len() != len("second") {
		t.Error("second Put read its reader")
	}
	if got := read(t, b, "p/k", artifacts.Range{}); got != "first" {
		t.Errorf("got %q, want first", got)
	}
	if got, err := b.Stat(t.Context(), "p/k"); err != nil || got.Meta["n"] != "1" {
		t.Errorf("Stat: got %v, %v, want the first metadata", got.Meta, err)
	}
}

func testAbsent(t *testing.T, b artifacts.Blobs) {
	wantNothing(t, b, "p/absent")
	mustPut(t, b, "p/absent-not", "x", nil)
	wantNothing(t, b, "p/absent")
}

func testDelete(t *testing.T, b artifacts.Blobs) {
	for range 2 { // a deleted key is as good as new
		mustPut(t, b, "p/k", "x", nil)
		mustPut(t, b, "p/k2", "y", nil)
		for range 2 {
			if err := b.Delete(t.Context(), "p/k"); err != nil {
				t.Fatalf("Delete: %v", err)
			}
		}
		wantNothing(t, b, "p/k")
		if got := read(t, b, "p/k2", artifacts.Range{}); got != "y" {
			t.Errorf("neighbour: got %q, want y", got)
		}
		if err := b.Delete(t.Context(), "p/k2"); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
}

func testWalk(t *testing.T, b artifacts.Blobs) {
	if got := walk(t, b, ""); len(got) != 0 {
		t.Errorf("Walk of nothing: got %q", got)
	}
	want := artifacts.Blob{Key: "a/1", Size: 3, SHA256: sumOf(strings.NewReader("abc")), Meta: map[string]string{"k": "v"}}
	mustPut(t, b, "a/1", "abc", want.Meta)
	mustPut(t, b, "a/2", "", nil)
	mustPut(t, b, "ab/3", "", nil)
	for prefix, want := range map[string][]string{
		"": {"a/1", "a/2", "ab/3"}, "a/": {"a/1", "a/2"}, "ab/": {"ab/3"}, "c": nil,
	} {
		if diff := cmp.Diff(want, walk(t, b, prefix)); diff != "" {
			t.Errorf("Walk(%q): (-want +got)\n%s", prefix, diff)
		}
	}
	err := b.Walk(t.Context(), "a/1", func(got artifacts.Blob) error {
		stat, err := b.Stat(t.Context(), got.Key)
		if err != nil {
			t.Errorf("Stat: %v", err)
		}
		if diff := cmp.Diff(want, stat, cmpopts.IgnoreFields(want, "ModifiedAt")); diff != "" {
			t.Errorf("Stat of what Walk shows: (-want +got)\n%s", diff)
		}
		if got.ModifiedAt.IsZero() {
			t.Error("Walk: no ModifiedAt")
		}
		return nil
	})
	if err != nil {
		t.Errorf("Walk: %v", err)
	}
}

func testWalkDelete(t *testing.T, b artifacts.Blobs) {
	for i := range 20 {
		mustPut(t, b, fmt.Sprintf("p/%02d", i), "x", nil)
	}
	met := 0
	if err := b.Walk(t.Context(), "p/", func(n artifacts.Blob) error {
		met++
		return b.Delete(t.Context(), n.Key)
	}); err != nil {
		t.Fatalf("Walk: %v", err)
	}
	if left := walk(t, b, ""); met != 20 || len(left) != 0 {
		t.Errorf("Walk met %d and left %q, want 20 and none", met, left)
	}
	mustPut(t, b, "p/a", "x", nil)
	mustPut(t, b, "p/b", "x", nil)
	stop, met := errors.New("stop"), 0
	if err := b.Walk(t.Context(), "", func(artifacts.Blob) error { met++; return stop }); !errors.Is(err, stop) || met != 1 {
		t.Errorf("Walk: got %v after %d, want fn's error after 1", err, met)
	}
}
