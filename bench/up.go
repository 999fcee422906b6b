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
)

// process is a running helmdeck up.
type process struct {
	cmd *exec.Cmd
	dir string
	url string
}

// start runs helmdeck up with extra arguments and returns once it is ready.
func start(ctx context.Context, dir, listen string, args ...string) (*process, error) {
	p := &process{dir: dir, url: "http://" + listen}
	p.cmd = exec.CommandContext(ctx, *binary, append([]string{"up", "--data", dir, "--listen", listen, "--log-level", "error"}, args...)...)
	p.cmd.Env = append(os.Environ(), "HELMDECK_TEST_PACKS=1")
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
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		var kb int
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kb); n == 1 {
			fmt.Printf("idle helmdeck up: %d MB resident (aim: under 120 MB)\n", kb/1024)
		}
	}
	return nil
}
