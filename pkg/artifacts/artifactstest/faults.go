package artifactstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

func testReaderFails(t *testing.T, b artifacts.Blobs) {
	// The last two look like an end and are none: what an upload cut short
	// reports, and an end that belongs to something else.
	for _, fault := range []error{
		errors.New("broken pipe"), io.ErrUnexpectedEOF, fmt.Errorf("read token: %w", io.EOF),
	} {
		for _, n := range []int64{0, 10, 1 << 20} {
			if _, _, err := b.Put(t.Context(), "p/k", nil, &Pattern{N: n, Fail: fault}); !errors.Is(err, fault) {
				t.Errorf("Put after %d bytes: got %v, want the reader's error %v", n, err, fault)
			}
			wantNothing(t, b, "p/k")
		}
	}
	mustPut(t, b, "p/k", "x", nil)
}

func testContextEnds(t *testing.T, b artifacts.Blobs) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := io.MultiReader(&Pattern{N: 1 << 20, AtEnd: cancel}, &Pattern{N: 1 << 20})
	if _, _, err := b.Put(ctx, "p/k", nil, r); !errors.Is(err, context.Canceled) {
		t.Errorf("Put: got %v, want Canceled", err)
	}
	wantNothing(t, b, "p/k")
}

func testUnderWay(t *testing.T, b artifacts.Blobs) {
	looked := false
	r := &Pattern{N: 1 << 20, AtEnd: func() {
		looked = true
		wantNothing(t, b, "p/k")
	}}
	if _, _, err := b.Put(t.Context(), "p/k", nil, r); err != nil {
		t.Fatalf("Put: %v", err)
	}
	if !looked {
		t.Error("Put did not read to the end")
	}
	if got := walk(t, b, ""); !slices.Equal(got, []string{"p/k"}) {
		t.Errorf("Walk: got %q", got)
	}
}

func testOpenEnds(t *testing.T, b artifacts.Blobs) {
	const size = 8 << 20
	if _, _, err := b.Put(t.Context(), "p/k", nil, &Pattern{N: size}); err != nil {
		t.Fatalf("Put: %v", err)
	}
	r, err := b.Open(t.Context(), "p/k", artifacts.Range{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if _, err := io.ReadFull(r, make([]byte, 10)); err != nil {
		t.Errorf("read: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close with bytes left: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err = b.Open(ctx, "p/k", artifacts.Range{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer r.Close()
	cancel()
	if n, err := io.Copy(io.Discard, r); err == nil {
		t.Errorf("read %d bytes to the end after the context ended, want an error", n)
	}
}

// TestNoSpace checks blobs that hold more than 1 MiB and less than 24 MiB:
// what does not fit is refused whole and what fits still does.
func TestNoSpace(t *testing.T, b artifacts.Blobs) {
	ctx := t.Context()
	mustPut(t, b, "p/small", "kept", nil)
	if _, _, err := b.Put(ctx, "p/big", nil, &Pattern{N: 32 << 20}); !errors.Is(err, artifacts.ErrNoSpace) {
		t.Fatalf("Put: got %v, want ErrNoSpace", err)
	}
	wantNothing(t, b, "p/big")
	if got := read(t, b, "p/small", artifacts.Range{}); got != "kept" {
		t.Errorf("earlier blob: got %q, want kept", got)
	}
	if _, _, err := b.Put(ctx, "p/next", nil, &Pattern{N: 64 << 10}); err != nil {
		t.Errorf("Put of what fits: %v", err)
	}
}
