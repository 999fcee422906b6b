// Package kill ends processes of a running installation with SIGKILL, at
// every step of the life of a job and in the middle of anything, and checks
// that nothing accepted is lost, nothing ends twice and nothing is left
// behind. The programs are built with the tag "faults".
package kill

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/test/history"

	"github.com/rs/zerolog"
)

// patience bounds every wait of this package.
const patience = 60 * time.Second

var programs = map[string]string{
	"helmdeck": "cmd/helmdeck", "helmdeck-api": "cmd/api", "helmdeck-worker": "cmd/worker",
	"helmdeck-scheduler": "cmd/scheduler", "helmdeck-agent": "sidecar/agent",
}

var binDir string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "helmdeck-kill-")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(dir) }() // leftovers are the system's to sweep
		// The agent runs under another uid, which must reach it.
		if err := os.Chmod(dir, 0o755); err != nil {
			panic(err)
		}
		binDir = dir
		for name, path := range programs {
			build := exec.Command("go", "build", "-tags", "faults", "-o", filepath.Join(dir, name), "github.com/helmdeck/helmdeck/"+path)
			if out, err := build.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", name, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// proc is one process of the installation; the supervisor starts it again
// when it dies by a failpoint.
type proc struct {
	name string
	args []string
	cmd  *exec.Cmd
	done chan struct{}
	log  *bytes.Buffer
	// wanted is false once the test itself ended it.
	wanted bool
}

// cluster is an installation of separate processes on one NATS.
type cluster struct {
	t    *testing.T
	dir  string
	env  []string
	nats string
	log  *history.Log
	hooks
	api  []*client.Client
	urls []string

	mu    sync.Mutex // guards procs and dead
	procs map[string]*proc
	dead  []string // names of processes that died by a failpoint
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), procs: map[string]*proc{}, log: history.NewLog()}
	// Sidecars run under another uid and must be able to pass.
	for dir := c.dir; strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c.env = append(os.Environ(),
		"HELMDECK_ACK_WAIT=2s", "HELMDECK_TEST_PACKS=1", "HELMDECK_RETRY_IN_QUEUE=-1s",
		"HELMDECK_RECONCILE_EVERY=2s", hookRetries, hookBreaker, "HELMDECK_EGRESS_ALLOWLIST=127.0.0.1/32", "HELMDECK_LOG_LEVEL=info")
	c.receive()
	c.nats = freePort(t)
	t.Cleanup(c.stopAll)
	c.bus()
	return c
}

func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }() // only its number is wanted
	return ln.Addr().String()
}

func (c *cluster) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// bus starts the NATS server, embedded in a process of its own.
func (c *cluster) bus() {
	c.start("bus", "helmdeck", nil, "up", "--data", c.path("bus"), "--roles=none", "--nats-listen", c.nats)
	c.until("bus takes connections", func() bool {
		_, err := os.Stat(c.path("bus", "nats.url"))
		if err != nil {
			return false
		}
		conn, err := net.Dial("tcp", c.nats)
		if err == nil {
			_ = conn.Close() // it answered
		}
		return err == nil
	})
}

func (c *cluster) role(role string) []string {
	return []string{
		"--nats", "nats://" + c.nats, "--nats-creds", c.path("bus", "nats-"+role+".json"),
		"--keys", c.path("bus", "keys.json"), "--data", c.path(role),
	}
}

// addAPI starts an API replica and waits until it is ready.
func (c *cluster) addAPI(name string, env ...string) {
	addr := freePort(c.t)
	args := append(c.role("api"), "--listen", addr, "--token-file", c.path("token"))
	c.start(name, "helmdeck-api", env, args...)
	c.urls = append(c.urls, "http://"+addr)
	c.ready("http://" + addr)
	token, err := os.ReadFile(c.path("token"))
	if err != nil {
		c.t.Fatal(err)
	}
	api, err := client.New("http://"+addr, strings.TrimSpace(string(token)))
	if err != nil {
		c.t.Fatal(err)
	}
	c.api = append(c.api, api)
}

func (c *cluster) ready(url string) {
	c.until(url+" is ready", func() bool {
		r, err := http.Get(url + "/readyz")
		if err != nil {
			return false
		}
		_ = r.Body.Close() // the status is all
		return r.StatusCode == http.StatusOK
	})
}

func (c *cluster) addWorker(name string, env []string, args ...string) {
	args = append(append(c.role("worker"), args...), "--data", c.path(name))
	c.start(name, "helmdeck-worker", env, args...)
}

func (c *cluster) addScheduler(name string) {
	c.start(name, "helmdeck-scheduler", nil, c.role("scheduler")...)
}

// start runs a program and starts it again, without env, when it is killed by
// its own failpoint.
func (c *cluster) start(name, program string, env []string, args ...string) {
	c.t.Helper()
	p := &proc{name: name, args: args, log: &bytes.Buffer{}, wanted: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.procs[name] = p
	c.launch(p, program, env)
}

// launch starts a process; c.mu is held.
func (c *cluster) launch(p *proc, program string, env []string) {
	p.cmd = exec.Command(filepath.Join(binDir, program), p.args...)
	p.cmd.Env = append(append([]string(nil), c.env...), env...)
	out := &lockedWriter{w: p.log}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.done = make(chan struct{})
	if err := p.cmd.Start(); err != nil {
		c.t.Errorf("start %s: %v", p.name, err)
		close(p.done)
		return
	}
	done := p.done
	go func() {
		_ = p.cmd.Wait() // its exit is what the supervisor looks at
		c.mu.Lock()
		defer c.mu.Unlock()
		switch {
		case !p.wanted:
		case p.cmd.ProcessState.ExitCode() > 0:
			c.t.Errorf("%s ended by itself: %s\n%s", p.name, p.cmd.ProcessState, tail(p.log.String(), 3000))
		default: // killed, or stopped by the test
			c.dead = append(c.dead, p.name)
			c.launch(p, program, nil)
		}
		close(done)
	}()
}

type lockedWriter struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// end ends a process of the test's own with a signal and waits for it.
func (c *cluster) end(name string, sig syscall.Signal) {
	c.t.Helper()
	c.mu.Lock()
	p := c.procs[name]
	p.wanted = false
	delete(c.procs, name)
	cmd, done := p.cmd, p.done
	c.mu.Unlock()
	_ = cmd.Process.Signal(sig) // gone already otherwise
	select {
	case <-done:
	case <-time.After(patience):
		c.t.Errorf("%s does not end", name)
		_ = cmd.Process.Kill()
	}
}

func (c *cluster) died(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.dead {
		if n == name {
			return true
		}
	}
	return false
}

func (c *cluster) stopAll() {
	var names []string
	c.mu.Lock()
	for name := range c.procs {
		if name != "bus" {
			names = append(names, name)
		}
	}
	procs := c.procs
	c.mu.Unlock()
	for _, name := range append(names, "bus") {
		p := procs[name]
		if p == nil {
			continue
		}
		c.end(name, syscall.SIGTERM)
		if c.t.Failed() {
			c.t.Logf("log of %s:\n%s", name, tail(p.log.String(), 6000))
		}
	}
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// until polls a condition.
func (c *cluster) until(what string, ok func() bool) {
	c.t.Helper()
	if !c.soon(ok) {
		c.t.Fatalf("%s: not within %s", what, patience)
	}
}

// soon polls a condition for as long as the package is patient.
func (c *cluster) soon(ok func() bool) bool {
	end := time.NewTimer(patience)
	defer end.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end.C:
			return false
		case <-tick.C:
		}
	}
	return true
}

// store opens the bus as its administrator.
func (c *cluster) store() (bus.JetStream, *jobstore.Store, func()) {
	c.t.Helper()
	creds, err := app.ReadCreds(c.path("bus", "nats-admin.json"))
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.Config{
		URL: "nats://" + c.nats, User: bus.RoleAdmin, Password: creds.Password, Name: "check", Profile: bus.Embedded(), Log: zerolog.Nop(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	store, err := jobstore.New(conn.JetStream(), "check", 1, zerolog.Nop())
	if err != nil {
		c.t.Fatal(err)
	}
	return conn.JetStream(), store, conn.Close
}

// check waits until the checker is content, for consequences follow a little
// later, and fails with what is left otherwise.
func (c *cluster) check() {
	c.t.Helper()
	js, store, stop := c.store()
	defer stop()
	end := time.Now().Add(patience / 3)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		found, err := history.Check(ctx, js, store, c.log, history.Options{})
		if err == nil && len(found) == 0 {
			found, err = c.undelivered(ctx, js)
		}
		cancel()
		if err == nil && len(found) == 0 {
			return
		}
		if time.Now().After(end) {
			if err != nil {
				c.t.Fatal(err)
			}
			for _, v := range found {
				c.t.Error(v)
			}
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-c.t.Context().Done():
			return
		}
	}
}

// leftovers returns the processes that mention the installation's folder in
// their command line, whatever their parent, but for those still wanted.
func (c *cluster) leftovers() []string {
	wanted := map[string]bool{}
	c.mu.Lock()
	for _, p := range c.procs {
		wanted[fmt.Sprint(p.cmd.Process.Pid)] = true
	}
	c.mu.Unlock()
	var out []string
	dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range dirs {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		pid := strings.Split(path, "/")[2]
		cwd, _ := os.Readlink(filepath.Join("/proc", pid, "cwd"))
		line := strings.ReplaceAll(string(b), "\x00", " ")
		if !wanted[pid] && (strings.Contains(line, c.dir) || strings.HasPrefix(cwd, c.dir)) {
			out = append(out, pid+" "+line)
		}
	}
	return out
}
