package process_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/agent"
	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/process"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

func TestMain(m *testing.M) {
	// What no sidecar may see.
	if err := os.Setenv("HELMDECK_TEST_SECRET", "SECRET"); err != nil {
		panic(err)
	}
	sessionstest.Main(m, agent.Main)
}

func TestRuntime(t *testing.T) {
	t.Parallel()
	sessionstest.RunRuntime(t, func(t *testing.T) sessions.Runtime { return open(t, sessionstest.Config(t)) })
}

func TestRuntimeWithoutNamespaces(t *testing.T) {
	t.Parallel()
	sessionstest.RunRuntime(t, func(t *testing.T) sessions.Runtime { return open(t, plain(t)) })
}

// plain is a configuration without namespaces, with a data directory that the
// uid of a sidecar can reach: those of the testing package are closed.
func plain(t *testing.T) process.Config {
	t.Helper()
	cfg := sessionstest.Config(t)
	dir, err := os.MkdirTemp("", "helmdeck-plain")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove %s: %v", dir, err)
		}
	})
	cfg.Dir, cfg.Plain = dir, true
	return cfg
}

// TestRuntimeAsUser runs both suites again without root's rights.
func TestRuntimeAsUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("the suites above ran as a user")
	}
	home, err := os.MkdirTemp("", "helmdeck-user")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	const uid = 64321
	if err := os.Chown(home, uid, uid); err != nil {
		t.Fatal(err)
	}
	// The link works although the file lies where the user cannot go.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestRuntime$|^TestRuntimeWithoutNamespaces$|^TestKilledAgent", "-test.count=1")
	cmd.Env = append(os.Environ(), "TMPDIR="+home, "HOME="+home)
	cmd.Dir = home
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func open(t *testing.T, cfg process.Config) *process.Runtime {
	t.Helper()
	rt, err := process.New(cfg)
	if err != nil {
		t.Fatalf("runtime: %v", err)
	}
	return rt
}

// sidecar starts one and returns it with its client.
func sidecar(t *testing.T, rt *process.Runtime, id, image string) (sessions.Sidecar, *sessions.Agent) {
	t.Helper()
	sc, err := rt.Start(t.Context(), sessions.StartSpec{LeaseID: id, Generation: 1, Token: "token", Spec: sessions.Spec{Image: image}})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		if err := rt.Stop(context.Background(), id); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return sc, sessions.NewAgent(sc.Endpoint, "token", 1)
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never came true: %s", what)
		}
	}
}

// belongs lists the processes that have mark in their arguments, and the
// browsers whose profile lies below scratch.
func belongs(marks ...string) []string {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var found []string
	for _, p := range paths {
		data, err := os.ReadFile(p)
		for _, m := range marks {
			if err == nil && strings.Contains(string(data), m) {
				found = append(found, strings.ReplaceAll(string(data), "\x00", " "))
				break
			}
		}
	}
	return found
}

func TestKilledAgentLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]func(*testing.T) process.Config{
		"namespaces": func(t *testing.T) process.Config { return sessionstest.Config(t) },
		"plain":      plain,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			rt := open(t, cfg)
			images, err := rt.Images(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			image := images[len(images)-1] // with a browser where there is one
			id := "kill-" + name
			_, a := sidecar(t, rt, id, image)
			mark := "77" + strconv.Itoa(os.Getpid()) + "." + strconv.Itoa(len(name))
			go func() {
				// A child, a grandchild, and one that left group and session.
				_, _ = a.Exec(t.Context(), sessions.Command{Argv: []string{"sh", "-c",
					"(sleep " + mark + "; :) & setsid sh -c 'sleep " + mark + "; :' & sleep " + mark}})
			}()
			profile := filepath.Join(cfg.Dir, "sidecars", id, "scratch")
			until(t, "the programs run", func() bool { return len(belongs("sleep\x00"+mark)) == 3 })
			if image == process.ImageBrowser {
				if _, err := a.Browser(t.Context()); err != nil {
					t.Fatal(err)
				}
				if len(belongs(profile)) == 0 {
					t.Fatal("no browser to be killed")
				}
			}
			pid := agentPID(t, cfg.Dir, id)
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			until(t, "nothing of the sidecar runs", func() bool { return len(belongs(mark, profile)) == 0 })
			// The agent itself is the last to go.
			until(t, "the sidecar is off the list", func() bool {
				list, err := rt.List(t.Context())
				return err == nil && len(list) == 0
			})
			if left, _ := os.ReadDir(filepath.Join(cfg.Dir, "sidecars")); len(left) != 0 {
				t.Errorf("folders left: %v", left)
			}
		})
	}
}

// agentPID reads the runtime's own state file.
func agentPID(t *testing.T, dir, id string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "sidecars", id, "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(data), `"pid":`)
	digits, _, _ := strings.Cut(after, ",")
	pid, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestDeadMan(t *testing.T) {
	t.Parallel()
	cfg := sessionstest.Config(t)
	cfg.ExpireAfter, cfg.DeadManAfter = 300*time.Millisecond, 3*time.Second
	rt := open(t, cfg)
	_, a := sidecar(t, rt, "dead-man", process.ImageBase)
	mark := "88" + strconv.Itoa(os.Getpid()) + ".5"
	go func() { _, _ = a.Exec(t.Context(), sessions.Command{Argv: []string{"sleep", mark}}) }()
	until(t, "the program runs", func() bool { return len(belongs("sleep\x00"+mark)) == 1 })
	run := func() error {
		_, err := a.Exec(t.Context(), sessions.Command{Argv: []string{"true"}})
		return err
	}
	until(t, "an expired lease is refused", func() bool {
		var refusal *sessions.AgentError
		return errors.As(run(), &refusal) && refusal.Code == "expired"
	})
	// A late renewal is still one: the scheduler decides about the end.
	if err := a.Renew(t.Context()); err != nil {
		t.Fatalf("late renewal: %v", err)
	}
	if err := run(); err != nil {
		t.Errorf("after the renewal: %v", err)
	}
	until(t, "the agent ended itself and its programs", func() bool {
		list, err := rt.List(t.Context())
		return err == nil && len(list) == 0 && len(belongs(mark)) == 0
	})
}

func TestAdoption(t *testing.T) {
	t.Parallel()
	cfg := sessionstest.Config(t)
	first := open(t, cfg)
	sc, a := sidecar(t, first, "adopted", process.ImageBase)
	if err := a.WriteFile(t.Context(), "kept", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	// Another process would do just this.
	second := open(t, cfg)
	list, err := second.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Endpoint != sc.Endpoint || list[0].LeaseID != "adopted" {
		t.Fatalf("list: got %+v, %v", list, err)
	}
	// A new sidecar of the adopter does not get the old one's uid.
	_, b := sidecar(t, second, "newer", process.ImageBase)
	if os.Getuid() == 0 {
		if one, two := whoami(t, a), whoami(t, b); one == two {
			t.Errorf("both sidecars run as uid %s", one)
		}
	}
	if err := second.Stop(t.Context(), "adopted"); err != nil {
		t.Fatal(err)
	}
	if err := a.Renew(t.Context()); !errors.Is(err, sessions.ErrLost) {
		t.Errorf("renewal of the stopped one: got %v, want ErrLost", err)
	}
}

func whoami(t *testing.T, a *sessions.Agent) string {
	t.Helper()
	r, err := a.Exec(t.Context(), sessions.Command{Argv: []string{"id", "-u"}})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(r.Stdout))
}

// TestForeignPID: a state file whose process number went to another program
// leads to no kill.
func TestForeignPID(t *testing.T) {
	t.Parallel()
	cfg := sessionstest.Config(t)
	rt := open(t, cfg)
	bystander := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(cfg.Dir, "sidecars", "stale")
	if err := os.Mkdir(folder, 0o711); err != nil {
		t.Fatal(err)
	}
	state := `{"lease":"stale","pid":` + strconv.Itoa(bystander.Process.Pid) + `,"born_at":"another-boot/1","endpoint":"http://127.0.0.1:1"}`
	if err := os.WriteFile(filepath.Join(folder, "state.json"), []byte(state), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := rt.List(t.Context())
	if err != nil || len(list) != 0 {
		t.Errorf("list: got %+v, %v", list, err)
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("bystander: %v", err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder: got %v, want it gone", err)
	}
	_ = bystander.Process.Kill()
	_ = bystander.Wait()
}

// TestSecretsOfTheDataDirectory: neither keys beside the sidecars nor the
// state of its own are readable in a sidecar.
func TestSecretsOfTheDataDirectory(t *testing.T) {
	t.Parallel()
	cfg := sessionstest.Config(t)
	if err := os.WriteFile(filepath.Join(cfg.Dir, "token"), []byte("SECRET"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, a := sidecar(t, open(t, cfg), "nosy", process.ImageBase)
	r, err := a.Exec(t.Context(), sessions.Command{Argv: []string{"sh", "-c",
		"cat ../state.json ../agent.log ../../../token; ls -R ../../..; cat /proc/1/root" + cfg.Dir + "/token; true"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"SECRET", `"token"`, "state.json\n", "token\n"} {
		if strings.Contains(string(r.Stdout), bad) {
			t.Errorf("a sidecar sees %q in:\n%s", bad, r.Stdout)
		}
	}
}

// TestBadConfig reports all faults together.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	_, err := process.New(process.Config{AgentPath: "/nonexistent", ExpireAfter: 2, DeadManAfter: 1, Log: zerolog.Nop()})
	for _, want := range []string{"data directory", "/nonexistent", "ExpireAfter"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to name %s", err, want)
		}
	}
}
