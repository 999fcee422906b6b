package artifactstore_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/artifactstore"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/artifactstest"
)

// uploadEnv makes the test binary an uploader that never finishes; its value
// is a JSON server.
const uploadEnv = "ARTIFACTSTORE_TEST_UPLOAD"

func TestMain(m *testing.M) {
	if v := os.Getenv(uploadEnv); v != "" {
		if err := uploadForEver(v); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func newBlobs(t testing.TB, js bus.JetStream) *artifactstore.Blobs {
	t.Helper()
	blobs, err := artifactstore.NewBlobs(t.Context(), js)
	if err != nil {
		t.Fatalf("NewBlobs: %v", err)
	}
	return blobs
}

func newIndex(t testing.TB, js bus.JetStream) *artifactstore.Index {
	t.Helper()
	index, err := artifactstore.NewIndex(t.Context(), js)
	if err != nil {
		t.Fatalf("NewIndex: %v", err)
	}
	return index
}

func TestBlobs(t *testing.T) {
	t.Parallel()
	artifactstest.TestBlobs(t, func(t *testing.T) artifacts.Blobs {
		return newBlobs(t, bustest.Start(t).Conn(bus.RoleAPI).JetStream())
	})
}

func TestIndex(t *testing.T) {
	t.Parallel()
	artifactstest.TestIndex(t, func(t *testing.T) artifacts.Index {
		return newIndex(t, bustest.Start(t).Conn(bus.RoleAPI).JetStream())
	})
}

func TestAnotherPrefix(t *testing.T) {
	t.Parallel()
	js := bustest.Start(t, bustest.WithPrefix("acme")).Conn(bus.RoleAPI).JetStream()
	blobs, index := newBlobs(t, js), newIndex(t, js)
	ref := artifactstest.Record("abc", 1)
	if _, _, err := blobs.Put(t.Context(), ref.Key, nil, strings.NewReader("x")); err != nil {
		t.Errorf("Put: %v", err)
	}
	if err := index.Put(t.Context(), ref); err != nil {
		t.Errorf("Put: %v", err)
	}
	if refs, _, err := index.List(t.Context(), artifacts.Query{}); err != nil || len(refs) != 1 {
		t.Errorf("List: got %v, %v, want one", refs, err)
	}
}

// TestNoSpace bounds the bucket, as a quota of the server's account would.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	nc, err := nats.Connect(env.Server.URL(), nats.UserInfo(string(bus.RoleAdmin), env.Server.Password(bus.RoleAdmin)),
		nats.CustomInboxPrefix("_INBOX."+bus.DefaultPrefix+"."+string(bus.RoleAdmin)))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(ctx, "OBJ_"+bus.BucketArtifacts)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxBytes = 8 << 20
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	artifactstest.TestNoSpace(t, newBlobs(t, env.Conn(bus.RoleWorker).JetStream()))
}

func TestStorageFailureIsNoSpace(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{bus.ErrFull, bus.ErrFrozen} {
		faults := bustest.NewFaults(bustest.Start(t).Conn(bus.RoleWorker).JetStream())
		faults.Add(bustest.Rule{Op: bustest.OpObjectPut, Nth: 1, Kind: bustest.Before, Err: cause})
		faults.Add(bustest.Rule{Op: bustest.OpKVPut, Nth: 1, Kind: bustest.Before, Err: cause})
		if _, _, err := newBlobs(t, faults).Put(t.Context(), "p/k", nil, strings.NewReader("x")); !errors.Is(err, artifacts.ErrNoSpace) {
			t.Errorf("Put of bytes, %v: got %v, want ErrNoSpace", cause, err)
		}
		if err := newIndex(t, faults).Put(t.Context(), artifactstest.Record("abc", 1)); !errors.Is(err, artifacts.ErrNoSpace) {
			t.Errorf("Put of a record, %v: got %v, want ErrNoSpace", cause, err)
		}
	}
}

// TestKilledUpload kills a process in the middle of an upload.
func TestKilledUpload(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	where, err := json.Marshal(server{env.Server.URL(), env.Server.Password(bus.RoleWorker)})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), uploadEnv+"="+string(where))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // open for as long as the child is to wait
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // it was killed
	if err != nil || line != "halfway\n" {
		t.Fatalf("child said %q, %v", line, err)
	}

	js := env.Conn(bus.RoleAPI).JetStream()
	blobs := newBlobs(t, js)
	if got, err := blobs.Stat(ctx, killedKey); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Stat: got %+v, %v, want ErrNotFound", got, err)
	}
	if _, err := blobs.Open(ctx, killedKey, artifacts.Range{}); !errors.Is(err, artifacts.ErrNotFound) {
		t.Errorf("Open: got %v, want ErrNotFound", err)
	}
	if err := blobs.Walk(ctx, "", func(b artifacts.Blob) error { return fmt.Errorf("shows %s", b.Key) }); err != nil {
		t.Errorf("Walk: %v", err)
	}
	if _, _, err := blobs.Put(ctx, killedKey, nil, strings.NewReader("again")); err != nil {
		t.Errorf("Put of the same key: %v", err)
	}
	objects, err := js.Objects(ctx, bus.BucketArtifacts)
	if err != nil {
		t.Fatal(err)
	}
	// The walk spared what may still be an upload under way; an hour later it
	// would not.
	if n, err := objects.Reclaim(ctx, 0); err != nil || n == 0 {
		t.Errorf("Reclaim: got %d, %v, want the dead upload's chunks", n, err)
	}
	r, err := blobs.Open(ctx, killedKey, artifacts.Range{})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "again" {
		t.Errorf("read %q, %v, want again", got, err)
	}
}

const killedKey = "p/killed"

// server is what a child process needs to connect.
type server struct{ URL, Password string }

func uploadForEver(where string) error {
	var s server
	if err := json.Unmarshal([]byte(where), &s); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.Config{URL: s.URL, User: bus.RoleWorker, Password: s.Password})
	if err != nil {
		return err
	}
	blobs, err := artifactstore.NewBlobs(ctx, conn.JetStream())
	if err != nil {
		return err
	}
	body := io.MultiReader(&artifactstest.Pattern{N: 8 << 20, AtEnd: func() { fmt.Println("halfway") }}, os.Stdin)
	_, _, err = blobs.Put(ctx, killedKey, nil, body)
	return err
}
