package cli_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/agent"
	busserver "github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/cli"
	"github.com/helmdeck/helmdeck/internal/cli/engines"
	"github.com/helmdeck/helmdeck/pkg/sessions/process"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "agent" {
		os.Exit(agent.Main()) // this binary is the program of the sidecars
	}
	testscript.Main(m, map[string]func(){
		"helmdeck": func() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// within bounds every wait; a busy machine needs its time.
const within = 2 * time.Minute

// TestScripts runs testdata/*.txtar, each against one helmdeck up that all
// share, or against its own.
func TestScripts(t *testing.T) {
	t.Parallel()
	shared := start(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Deadline:            time.Now().Add(10 * time.Minute),
		Setup: func(e *testscript.Env) error {
			u, err := url.Parse(shared.url)
			if err != nil {
				return err
			}
			e.Setenv("HELMDECK_URL", shared.url)
			e.Setenv("SHARED", shared.dir)
			e.Setenv("HELMDECK_DATA", shared.dir)
			e.Setenv("SHARED_PORT", u.Port())
			e.Setenv("HELMDECK_TEST_PACKS", "1")
			e.Setenv("HELMDECK_ENGINES_DIR", process.Look().Engines)
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, "config"))
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "root":
				return os.Getuid() == 0, nil
			case "engines":
				for _, e := range engines.Find(t.Context(), false).Missing() {
					if e.Name != "agent" { // this binary is no helmdeck, the one in PATH is
						return false, nil
					}
				}
				return true, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "capture": capture, "await": await, "eventually": eventually, "readonly": readOnly, "newerdata": newerData,
			"interrupt": interrupt,
		},
	})
}

type server struct{ dir, url string }

// start runs a helmdeck up until the test ends.
func start(t *testing.T) server {
	t.Helper()
	s := server{dir: filepath.Join(t.TempDir(), "data")}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "helmdeck", "up", "--data", s.dir, "--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "HELMDECK_TEST_PACKS=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = within
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	up := make(chan string, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		lines := bufio.NewScanner(io.TeeReader(stderr, &log))
		for lines.Scan() {
			if _, rest, ok := strings.Cut(lines.Text(), "  API    "); ok {
				up <- strings.Fields(rest)[0]
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		reading.Wait()
		if err := cmd.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("helmdeck up ended with %v:\n%s", err, &log)
		}
	})
	select {
	case s.url = <-up:
	case <-time.After(within):
		t.Fatal("helmdeck up did not say that it is up")
	}
	return s
}

// exits runs a program that must end with the given exit code:
// exits 3 helmdeck pack run …
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE program [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("got exit code %d, want %d", got, want)
	}
}

// capture sets a variable to the last standard output, trimmed.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: capture VARIABLE")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}

// eventually repeats a command until its standard output matches a pattern:
// eventually PATTERN COMMAND…
func eventually(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: eventually PATTERN COMMAND…")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); ; <-tick.C {
		if ts.Exec(args[1], args[2:]...) == nil && pattern.MatchString(ts.ReadFile("stdout")) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("no match of %s within %s", args[0], within)
		}
	}
}

// await waits for a file, or with ! until it is gone.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: [!] await FILE")
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); ; <-tick.C {
		if _, err := os.Stat(ts.MkAbs(args[0])); (err != nil) == neg {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s: not within %s", args[0], within)
		}
	}
}

// readOnly mounts a read-only file system at a folder; only root can.
func readOnly(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: readonly DIR")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(syscall.Mount("none", dir, "tmpfs", syscall.MS_RDONLY, "size=1m"))
	ts.Defer(func() { ts.Check(syscall.Unmount(dir, syscall.MNT_DETACH)) })
}

// interrupt sends SIGINT to the background programs.
func interrupt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: interrupt")
	}
	for _, cmd := range ts.BackgroundCmds() {
		ts.Check(cmd.Process.Signal(os.Interrupt))
	}
}

// newerData makes a data directory as a newer version would leave it.
func newerData(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: newerdata DIR")
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	profile, err := busserver.ProfileByName("embedded")
	ts.Check(err)
	s, err := busserver.StartServer(ctx, busserver.ServerConfig{
		Dir: filepath.Join(ts.MkAbs(args[0]), "bus"), Profile: profile, Log: zerolog.Nop(),
	})
	ts.Check(err)
	defer s.Shutdown()
	nc, err := nats.Connect(s.URL(), nats.UserInfo("admin", s.Password(busserver.RoleAdmin)))
	ts.Check(err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ts.Check(err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: busserver.StreamDead, Subjects: []string{"hd.dlq.*.*.*.*"}, Metadata: map[string]string{"dev.helmdeck.topology": "99"},
	})
	ts.Check(err)
}
