package bus_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

func openKV(t *testing.T, c *bus.Conn, bucket string) bus.KV {
	t.Helper()
	kv, err := c.JetStream().KV(bustest.Context(t), bucket)
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

func TestKeyLife(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	kv := openKV(t, env.Conn(bus.RoleWorker), bus.BucketLeases)
	if _, err := kv.Get(ctx, "a"); !errors.Is(err, bus.ErrNoMessage) {
		t.Errorf("absent: got %v, want ErrNoMessage", err)
	}
	r1, err := kv.Create(ctx, "a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Create(ctx, "a", []byte("x"), 0); !errors.Is(err, bus.ErrExists) {
		t.Errorf("create twice: got %v, want ErrExists", err)
	}
	r2, err := kv.Update(ctx, "a", []byte("2"), r1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Update(ctx, "a", []byte("x"), r1); !errors.Is(err, bus.ErrWrongSequence) {
		t.Errorf("stale update: got %v, want ErrWrongSequence", err)
	}
	got, err := kv.Get(ctx, "a")
	want := bus.KVEntry{Key: "a", Value: []byte("2"), Revision: r2, Created: got.Created}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if err := kv.Delete(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Get(ctx, "a"); !errors.Is(err, bus.ErrNoMessage) {
		t.Errorf("deleted: got %v, want ErrNoMessage", err)
	}
	if _, err := kv.Create(ctx, "a", []byte("3"), 0); err != nil {
		t.Errorf("create after delete: %v", err)
	}
	for _, key := range []string{"", "a.", ".a", "a..b", "a b", "a*", ">"} {
		if _, err := kv.Put(ctx, key, nil); err == nil {
			t.Errorf("key %q was accepted", key)
		}
	}
}

func TestKeyExpires(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	kv := openKV(t, env.Conn(bus.RoleWorker), bus.BucketLimits)
	changes, err := kv.Watch(ctx, "slot")
	if err != nil {
		t.Fatal(err)
	}
	if e := <-changes; e.Key != "" {
		t.Fatalf("first entry of an empty bucket: %+v", e)
	}
	if _, err := kv.Create(ctx, "slot", []byte("x"), time.Second); err != nil {
		t.Fatal(err)
	}
	if e := <-changes; e.Deleted || e.Key != "slot" {
		t.Fatalf("created: %+v", e)
	}
	select {
	case e := <-changes:
		if !e.Deleted || e.Key != "slot" {
			t.Errorf("expired: %+v", e)
		}
	case <-ctx.Done():
		t.Fatal("watcher was not told of the expiry")
	}
	if _, err := kv.Create(ctx, "slot", []byte("y"), time.Second); err != nil {
		t.Errorf("create after expiry: %v", err)
	}
}

func TestWatchSurvivesRestart(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	kv := openKV(t, env.Conn(bus.RoleScheduler), bus.BucketLeases)
	if _, err := kv.Put(ctx, "a", []byte("1")); err != nil {
		t.Fatal(err)
	}
	watch, stop := context.WithCancel(ctx)
	changes, err := kv.Watch(watch, ">")
	if err != nil {
		t.Fatal(err)
	}
	if e := <-changes; e.Key != "a" {
		t.Fatalf("present entry: %+v", e)
	}
	if e := <-changes; e.Key != "" {
		t.Fatalf("mark: %+v", e)
	}
	if err := env.Server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(ctx, "b", []byte("2")); err != nil {
		t.Fatal(err)
	}
	for found := false; !found; {
		select {
		case e, ok := <-changes:
			if !ok {
				t.Fatal("watch ended")
			}
			if e.Key == "" {
				t.Error("second mark")
			}
			found = e.Key == "b"
		case <-ctx.Done():
			t.Fatal("change after the restart was not seen")
		}
	}
	stop()
	for range changes { // drained until closed
	}
}

func TestObjects(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	objects, err := env.Conn(bus.RoleWorker).JetStream().Objects(ctx, bus.BucketArtifacts)
	if err != nil {
		t.Fatal(err)
	}
	big := make([]byte, 5<<20+17)
	if _, err := rand.Read(big); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"empty": {}, "small": []byte("hello"), "big/ü file": big} {
		sum := sha256.Sum256(content)
		want := bus.ObjectInfo{Name: name, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:]), Meta: map[string]string{"k": "v"}}
		put, err := objects.Put(ctx, name, want.Meta, iotest.HalfReader(bytes.NewReader(content)))
		if err != nil {
			t.Fatalf("put %s: %v", name, err)
		}
		ignore := cmpopts.IgnoreFields(bus.ObjectInfo{}, "Modified")
		if diff := cmp.Diff(want, put, ignore); diff != "" {
			t.Errorf("put %s (-want +got):\n%s", name, diff)
		}
		r, info, err := objects.Get(ctx, name)
		if err != nil {
			t.Fatalf("get %s: %v", name, err)
		}
		if diff := cmp.Diff(want, info, ignore); diff != "" {
			t.Errorf("get %s (-want +got):\n%s", name, diff)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("content of %s: %d bytes, %v", name, len(got), err)
		}
		_ = r.Close()
	}
	if err := objects.Delete(ctx, "small"); err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Info(ctx, "small"); !errors.Is(err, bus.ErrNoMessage) {
		t.Errorf("deleted: got %v, want ErrNoMessage", err)
	}
	if _, _, err := objects.Get(ctx, "small"); !errors.Is(err, bus.ErrNoMessage) {
		t.Errorf("get deleted: got %v, want ErrNoMessage", err)
	}
	names := map[string]bool{}
	if err := objects.Walk(ctx, func(i bus.ObjectInfo) error { names[i.Name] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{"empty": true, "big/ü file": true}, names); diff != "" {
		t.Errorf("walk (-want +got):\n%s", diff)
	}
}

func TestReclaimRemovesOrphansOnly(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	objects, err := env.Conn(bus.RoleWorker).JetStream().Objects(ctx, bus.BucketArtifacts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Put(ctx, "kept", nil, bytes.NewReader(make([]byte, 300<<10))); err != nil {
		t.Fatal(err)
	}
	_, js := raw(t, env, bus.RoleAdmin)
	for range 3 { // an upload whose process died
		if _, err := js.Publish(ctx, "$O.artifacts.C.orphan", []byte("chunk")); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := objects.Reclaim(ctx, time.Hour); err != nil || n != 0 {
		t.Errorf("young chunks: %d, %v", n, err)
	}
	if n, err := objects.Reclaim(ctx, 0); err != nil || n != 3 {
		t.Errorf("old chunks: %d, %v", n, err)
	}
	r, _, err := objects.Get(ctx, "kept")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r); err != nil || n != 300<<10 {
		t.Errorf("kept object: %d bytes, %v", n, err)
	}
}

// TestLibraryReadsBuckets guards the layout: operators use other NATS tools.
func TestLibraryReadsBuckets(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	ours := env.Conn(bus.RoleAPI).JetStream()
	_, js := raw(t, env, bus.RoleAdmin)
	content := bytes.Repeat([]byte("0123456789"), 40_000)
	objects, err := ours.Objects(ctx, bus.BucketArtifacts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Put(ctx, "ours", nil, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	store, err := js.ObjectStore(ctx, bus.BucketArtifacts)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := store.GetBytes(ctx, "ours"); err != nil || !bytes.Equal(got, content) {
		t.Errorf("library reads ours: %d bytes, %v", len(got), err)
	}
	if _, err := store.PutBytes(ctx, "theirs", content); err != nil {
		t.Fatal(err)
	}
	r, _, err := objects.Get(ctx, "theirs")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, content) {
		t.Errorf("we read theirs: %d bytes, %v", len(got), err)
	}
	kv := openKV(t, env.Conn(bus.RoleAPI), bus.BucketTenants)
	if _, err := kv.Put(ctx, "a.b", []byte("1")); err != nil {
		t.Fatal(err)
	}
	theirs, err := js.KeyValue(ctx, bus.BucketTenants)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := theirs.Get(ctx, "a.b"); err != nil || string(e.Value()) != "1" {
		t.Errorf("library reads our key: %v", err)
	}
	if err := kv.Delete(ctx, "a.b"); err != nil {
		t.Fatal(err)
	}
	if _, err := theirs.Get(ctx, "a.b"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("library reads a deleted key: %v", err)
	}
}

func TestFailedUploadLeavesNothing(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	js := env.Conn(bus.RoleWorker).JetStream()
	objects, err := js.Objects(ctx, bus.BucketArtifacts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := objects.Put(ctx, "a", nil, bytes.NewReader([]byte("old"))); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	r := io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), iotest.ErrReader(broken))
	if _, err := objects.Put(ctx, "a", nil, r); !errors.Is(err, broken) {
		t.Errorf("got %v, want the reader's error", err)
	}
	info, err := objects.Info(ctx, "a")
	if err != nil || info.Size != 3 {
		t.Errorf("old object: %+v, %v", info, err)
	}
	if n, err := objects.Reclaim(ctx, 0); err != nil || n != 0 {
		t.Errorf("chunks left by a failed upload: %d, %v", n, err)
	}
}
