package artifacts_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/artifactstest"
)

func TestLayered(t *testing.T) {
	t.Parallel()
	artifactstest.TestBlobs(t, func(*testing.T) artifacts.Blobs {
		return artifacts.Layered(artifactstest.NewBlobs(0), artifactstest.NewBlobs(0))
	})
}

// linking is a first layer that signs links.
type linking struct{ artifacts.Blobs }

func (linking) DirectLink(_ context.Context, key string, _ time.Duration, h artifacts.LinkHeaders) (string, error) {
	return "https://files.example.com/" + key + "?" + h.Disposition, nil
}

func TestLayeredOverOlder(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	first, older := artifactstest.NewBlobs(0), artifactstest.NewBlobs(0)
	const oldKey, newKey = "p/0000000000000001-old.svg", "p/0000000000000002-new.png"
	if _, _, err := older.Put(ctx, oldKey, nil, strings.NewReader("old")); err != nil {
		t.Fatal(err)
	}
	b := artifacts.Layered(linking{first}, older)
	if _, _, err := b.Put(ctx, oldKey, nil, strings.NewReader("x")); !errors.Is(err, artifacts.ErrExists) {
		t.Errorf("Put of an older key: got %v, want ErrExists", err)
	}
	if _, _, err := b.Put(ctx, newKey, nil, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Stat(ctx, newKey); err != nil {
		t.Errorf("new key in the first layer: %v", err)
	}
	met := map[string]bool{}
	if err := b.Walk(ctx, "", func(n artifacts.Blob) error { met[n.Key] = true; return nil }); err != nil || len(met) != 2 {
		t.Errorf("Walk: got %v, %v, want both", met, err)
	}
	if stat, err := b.Stat(ctx, oldKey); err != nil || stat.Size != 3 {
		t.Errorf("Stat of the older key: got %+v, %v", stat, err)
	}

	store, err := artifacts.New(artifacts.Config{Blobs: b, Index: artifactstest.NewIndex(), LinkKey: []byte(strings.Repeat("k", 32))})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		newKey: "https://files.example.com/" + newKey + "?inline; filename=new.png",
		oldKey: "http://deck/api/v1/artifacts/download/" + oldKey + "?expires=",
	} {
		contentType := map[bool]string{true: "image/png", false: "image/svg+xml"}[key == newKey]
		got := store.URL(ctx, "http://deck", artifacts.Ref{Key: key, Name: key[19:], ContentType: contentType})
		if !strings.HasPrefix(got, want) {
			t.Errorf("URL of %s: got %s, want %s…", key, got, want)
		}
	}
	if err := b.Delete(ctx, oldKey); err != nil {
		t.Fatal(err)
	}
	if _, err := older.Stat(ctx, oldKey); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("deleted older key: got %v, want ErrNotFound", err)
	}
}
