package bus_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

func TestRestartKeepsData(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	worker, tcp := env.Conn(bus.RoleWorker).JetStream(), env.TCP(bus.RoleAPI).JetStream()
	if _, err := worker.Publish(ctx, bus.Outgoing{Subject: job("1"), Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	url := env.Server.URL()
	if err := env.Server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if got := env.Server.URL(); got != url {
		t.Errorf("URL %s after restart, was %s", got, url)
	}
	for name, js := range map[string]bus.JetStream{"in process": worker, "tcp": tcp} {
		if m, err := js.Last(ctx, bus.JobsStream(packs.PoolCore), job("1"), false); err != nil || string(m.Data) != "x" {
			t.Errorf("%s: %q, %v", name, m.Data, err)
		}
	}
	ds, err := worker.Pull(ctx, bus.JobsStream(packs.PoolCore), bus.LaneConsumer("normal", 0), 1, 10*time.Second)
	if err != nil || len(ds) != 1 {
		t.Errorf("pull after restart: %v, %v", ds, err)
	}
}

func TestPullOutlivesRestart(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	js := env.Conn(bus.RoleWorker).JetStream()
	got := make(chan []bus.Delivery, 1)
	go func() {
		for ctx.Err() == nil {
			ds, err := js.Pull(ctx, bus.JobsStream(packs.PoolCore), bus.LaneConsumer("normal", 0), 4, 20*time.Second)
			if err != nil {
				t.Error(err)
			}
			if len(ds) > 0 || err != nil {
				got <- ds
				return
			}
		}
	}()
	if err := env.Server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := env.Conn(bus.RoleAPI).JetStream().Publish(ctx, bus.Outgoing{Subject: job("1")}); err != nil {
		t.Fatal(err)
	}
	select {
	case ds := <-got:
		if len(ds) != 1 {
			t.Errorf("got %d deliveries", len(ds))
		}
	case <-ctx.Done():
		t.Fatal("no delivery after the restart")
	}
}

func TestSecondServerSaysWhoHoldsTheDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bustest.Start(t, bustest.WithDir(dir))
	_, err := bus.StartServer(bustest.Context(t), bus.ServerConfig{Dir: dir})
	locked, ok := errors.AsType[*bus.LockedError](err)
	if !ok || locked.PID != os.Getpid() || locked.Dir != dir {
		t.Errorf("got %v, want a LockedError with pid %d", err, os.Getpid())
	}
}

func TestDirectoryIsFreeAfterShutdown(t *testing.T) {
	t.Parallel()
	ctx, cfg := bustest.Context(t), bus.ServerConfig{Dir: t.TempDir()}
	for range 2 {
		s, err := bus.StartServer(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Healthy(ctx); err != nil {
			t.Error(err)
		}
		s.Shutdown()
		if err := s.Healthy(ctx); !errors.Is(err, bus.ErrUnavailable) {
			t.Errorf("healthy after shutdown: %v", err)
		}
	}
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = bus.StartServer(bustest.Context(t), bus.ServerConfig{Dir: t.TempDir(), Listen: l.Addr().String()})
	if port, ok := errors.AsType[*bus.PortError](err); !ok || port.Addr != l.Addr().String() || !strings.Contains(err.Error(), "taken") {
		t.Errorf("got %v, want a PortError", err)
	}
}

func TestBadConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := bus.StartServer(bustest.Context(t), bus.ServerConfig{Listen: "nowhere", Prefix: "a.b", Profile: bus.HA()})
	for _, want := range []string{"no directory", "nowhere", `"a.b"`, "replicas"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %s", err, want)
		}
	}
}

// mount mounts a tmpfs until the test ends, or skips.
func mount(t *testing.T, dir, options string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "tmpfs", "-o", options, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.Background(), "umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
}

func TestReadOnlyDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount(t, dir, "size=1m,ro")
	for _, d := range []string{dir, filepath.Join(dir, "new")} {
		_, err := bus.StartServer(bustest.Context(t), bus.ServerConfig{Dir: d})
		if e, ok := errors.AsType[*bus.DirError](err); !ok || e.Dir != d || !strings.Contains(err.Error(), "not writable") {
			t.Errorf("%s: got %v, want a DirError", d, err)
		}
	}
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount(t, dir, "size=24m")
	env := bustest.Start(t, bustest.WithDir(filepath.Join(dir, "bus")))
	ctx, tcp := bustest.Context(t), env.TCP(bus.RoleWorker).JetStream()
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	// Two writers to two streams, until each is refused.
	type outcome struct {
		acked   []string
		failure error
	}
	outcomes := make(chan outcome, 2)
	js := env.Conn(bus.RoleWorker).JetStream()
	for _, format := range []string{"job.core.normal.0.default.alice.%d", "evt.default.alice.%d.lc"} {
		go func() {
			var o outcome
			for i := 0; o.failure == nil; i++ {
				subject := fmt.Sprintf(format, i)
				call, cancel := context.WithTimeout(ctx, 3*time.Second)
				_, o.failure = js.Publish(call, bus.Outgoing{Subject: subject, Data: []byte(rand.Text() + strings.Repeat(rand.Text(), 3000)), Expect: seq(0)})
				cancel()
				if o.failure == nil {
					o.acked = append(o.acked, subject)
				}
			}
			outcomes <- o
		}()
	}
	var acked []string
	for range 2 {
		o := <-outcomes
		acked = append(acked, o.acked...)
		if !errors.Is(o.failure, bus.ErrFrozen) {
			t.Errorf("publish to a full disk: got %v, want ErrFrozen", o.failure)
		}
	}
	if len(acked) < 50 {
		t.Errorf("only %d writes before the disk was full", len(acked))
	}
	if err := env.Server.Healthy(ctx); !errors.Is(err, bus.ErrFrozen) {
		t.Errorf("healthy with a full disk: got %v, want ErrFrozen", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := env.Server.Healthy(ctx); !errors.Is(err, bus.ErrFrozen) {
		t.Errorf("healthy before the restart: got %v, want ErrFrozen", err)
	}
	if err := env.Server.Restart(ctx); err != nil {
		t.Fatalf("restart with space: %v", err)
	}
	if err := env.Server.Healthy(ctx); err != nil {
		t.Errorf("healthy with space: %v", err)
	}
	kept := map[string]bool{}
	for _, stream := range []string{bus.StreamEvents, bus.JobsStream(packs.PoolCore)} {
		if err := tcp.Scan(ctx, stream, []string{">"}, 0, func(m bus.Message) error {
			kept[m.Subject] = true
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	for _, subject := range acked {
		if !kept[subject] {
			t.Errorf("%s was acknowledged and is lost", subject)
		}
	}
	for _, subject := range []string{job("after"), "evt.default.alice.after.lc"} {
		if _, err := tcp.Publish(ctx, bus.Outgoing{Subject: subject, Expect: seq(0)}); err != nil {
			t.Errorf("publish with space: %v", err)
		}
	}
}

// raw is a connection of the library, for what the narrow interface cannot do.
func raw(t *testing.T, env *bustest.Env, role bus.Role) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(env.Server.URL(), nats.UserInfo(string(role), env.Server.Password(role)),
		nats.CustomInboxPrefix("_INBOX.hd."+string(role)), nats.PermissionErrOnSubscribe(true),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // the tests look at the call itself
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

func TestRestartMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "bus")
	env, ctx := bustest.Start(t, bustest.WithDir(dir)), bustest.Context(t)
	js := env.Conn(bus.RoleWorker).JetStream()
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("1")}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	err := env.Server.Restart(ctx)
	if _, ok := errors.AsType[*bus.DirError](err); !ok {
		t.Fatalf("restart without the directory: got %v, want a DirError", err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := env.Server.Healthy(ctx); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("healthy in between: got %v, want ErrUnavailable", err)
	}
	if err := env.Server.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Last(ctx, bus.JobsStream(packs.PoolCore), job("1"), false); err != nil {
		t.Error(err)
	}
	env.Server.Shutdown()
	if err := env.Server.Restart(ctx); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("restart after shutdown: got %v, want ErrClosed", err)
	}
}

// TestStreamThatIsBeingRestoredIsNoStorageFailure: its folder is there before
// it is, and whoever restarts a frozen server must not meet it.
func TestStreamThatIsBeingRestoredIsNoStorageFailure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env, ctx := bustest.Start(t, bustest.WithDir(dir)), bustest.Context(t)
	streams, err := filepath.Glob(filepath.Join(dir, "store", "jetstream", "*", "streams"))
	if err != nil || len(streams) != 1 {
		t.Fatalf("folders of streams: %v, %v", streams, err)
	}
	if err := os.Mkdir(filepath.Join(streams[0], "HALF"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := env.Server.Healthy(ctx); !errors.Is(err, bus.ErrUnavailable) || errors.Is(err, bus.ErrFrozen) {
		t.Errorf("got %v, want ErrUnavailable alone", err)
	}
}
