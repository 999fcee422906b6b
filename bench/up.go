package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
)

// process is a running helmdeck up, or the bus of one inside this process.
type process struct {
	cmd    *exec.Cmd
	dir    string
	url    string
	inside *bus.Server // nil: another process
}

// startInside starts the bus in this process, as helmdeck up runs it beside
// its roles: they talk to it without a socket.
func startInside(ctx context.Context, dir string) (*process, error) {
	busProfile, err := bus.ProfileByName(*profile)
	if err != nil {
		return nil, err
	}
	server, err := bus.StartServer(ctx, bus.ServerConfig{Dir: filepath.Join(dir, "bus"), Profile: busProfile, Log: zerolog.Nop()})
	if err != nil {
		return nil, err
	}
	p := &process{dir: dir, inside: server}
	admin, err := bus.Connect(ctx, bus.Config{Server: server, User: bus.RoleAdmin, Name: "bench"})
	if err == nil {
		_, err = admin.Init(ctx)
		admin.Close()
	}
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// start runs helmdeck up with extra arguments and returns once it is ready.
func start(ctx context.Context, dir, listen string, args ...string) (*process, error) {
	p := &process{dir: dir, url: "http://" + listen}
	p.cmd = exec.CommandContext(ctx, *binary, append([]string{"up", "--data", dir, "--listen", listen, "--log-level", "error", "--profile", *profile}, args...)...)
	p.cmd.Env = append(os.Environ(), "HELMDECK_TEST_PACKS=1")
	if *serverCPU != "" { // this program once more, with a profile
		p.cmd.Path, _ = os.Executable()
		p.cmd.Env = append(p.cmd.Env, serveEnv+"="+*serverCPU)
	}
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := func() bool {
		if strings.Contains(strings.Join(args, " "), "--roles=") {
			_, err := os.Stat(filepath.Join(dir, "nats.url"))
			return err == nil
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/readyz", nil)
		if err != nil {
			return false
		}
		r, err := (&http.Client{Timeout: time.Second}).Do(req)
		if err != nil {
			return false
		}
		_ = r.Body.Close() // the status is all we want
		return r.StatusCode == http.StatusOK
	}
	for end := time.Now().Add(30 * time.Second); !ready(); {
		if time.Now().After(end) {
			p.stop()
			return nil, errors.New("helmdeck up is not ready after 30 s")
		}
		select {
		case <-ctx.Done():
			p.stop()
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return p, nil
}

func (p *process) stop() {
	if p.inside != nil {
		p.inside.Shutdown()
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // ended already otherwise
	_ = p.cmd.Wait()                          // its exit code is not what is measured
}

func (p *process) file(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(p.dir, name))
	return strings.TrimSpace(string(b)), err
}

// memory reports the resident memory of an idle helmdeck up.
func memory(ctx context.Context, dir string) error {
	p, err := start(ctx, dir, "127.0.0.1:38471")
	if err != nil {
		return err
	}
	defer p.stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(10 * time.Second): // idle means after the start is digested
	}
	fmt.Printf("idle helmdeck up: %d MB resident (aim: under 120 MB)\n", p.resident())
	return nil
}

// worker joins a worker of the core pool to the bus of p.
func (p *process) worker(ctx context.Context) (*process, error) {
	addr, err := p.file("nats.url")
	if err != nil {
		return nil, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(filepath.Dir(*binary), "helmdeck-worker"), "github.com/helmdeck/helmdeck/cmd/worker")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build the worker: %w", err)
	}
	w := &process{dir: p.dir}
	w.cmd = exec.CommandContext(ctx, filepath.Join(filepath.Dir(*binary), "helmdeck-worker"), "--nats", addr,
		"--nats-creds", filepath.Join(p.dir, "nats-worker.json"), "--keys", filepath.Join(p.dir, "keys.json"),
		"--pools", "core", "--slots", "64", "--profile", "embedded", "--log-level", "error")
	w.cmd.Env = append(os.Environ(), "HELMDECK_TEST_PACKS=1")
	w.cmd.Stderr = os.Stderr
	return w, w.cmd.Start()
}
