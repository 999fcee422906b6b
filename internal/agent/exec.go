package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

const (
	defaultMaxOutput = 1 << 20 // bytes per stream when the request names none
	// aliveEvery is how often a silent answer says that it goes on; a reader
	// that vanished without closing is noticed by the failing write.
	aliveEvery = 5 * time.Second
	// lingering is how long output is still read after the program ended: a
	// process that left the group may hold the pipe open for ever.
	lingering = 500 * time.Millisecond
	// closing bounds the wait for a caller to stop sending.
	closing = 2 * time.Second
)

// serveExec runs one command. The answer starts when the program does; until
// then a refusal is a plain error.
func (a *Agent) serveExec(w http.ResponseWriter, r *http.Request) error {
	// What the caller still sends when the answer is complete stays unread, so
	// the connection serves this call alone.
	w.Header().Set("Connection", "close")
	rc := http.NewResponseController(w)
	if err := rc.EnableFullDuplex(); err != nil {
		return err
	}
	kind, head, err := wire.ReadFrame(r.Body)
	if err != nil || kind != wire.Command {
		return invalid("the first frame must be the command")
	}
	var c wire.Exec
	if err := json.Unmarshal(head, &c); err != nil || len(c.Argv) == 0 {
		return invalid("malformed command")
	}
	ctx, span := a.tracer.Start(r.Context(), "agent.exec")
	defer span.End()
	span.SetAttributes(attribute.String("process.executable.name", filepath.Base(c.Argv[0])))
	run, err := a.startRun(c)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/vnd.helmdeck.frames")
	w.WriteHeader(http.StatusOK)
	out := &frames{w: w, flush: rc.Flush, broken: run.abandon}
	if rc.Flush() != nil {
		run.kill()
	}
	exit := run.follow(ctx, r.Body, out, time.Duration(c.TimeoutMS)*time.Millisecond)
	span.SetAttributes(attribute.Int("process.exit.code", exit.Code))
	data, err := json.Marshal(exit)
	if err == nil {
		out.write(wire.Exited, data)
	}
	// Closing with input unread would reset the connection, and the caller
	// might lose the end of the answer: let it stop sending first.
	select {
	case <-run.fed:
	case <-time.After(closing):
	}
	return nil
}

func (a *Agent) startRun(c wire.Exec) (*run, error) {
	dir, err := a.workDir(c.Dir)
	if err != nil {
		return nil, err
	}
	program, err := lookUp(c.Argv[0], dir, a.boot.Path)
	if err != nil {
		return nil, err
	}
	env := append([]string(nil), a.env...)
	for k, v := range c.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
			return nil, invalid("malformed environment variable")
		}
		env = append(env, k+"="+v)
	}
	cmd := &exec.Cmd{Path: program, Args: c.Argv, Env: env, Dir: dir}
	r := &run{family: a.family, cmd: cmd, limit: cmp.Or(c.MaxOutput, defaultMaxOutput), fed: make(chan struct{})}
	theirs, err := r.pipes()
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
	}()
	if err == nil {
		r.startedAt = time.Now()
		err = a.family.start(cmd)
	}
	if err != nil {
		r.closePipes()
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENOEXEC) || errors.Is(err, syscall.E2BIG) {
			return nil, invalid("start " + c.Argv[0] + ": " + err.Error())
		}
		return nil, err
	}
	return r, nil
}

// workDir checks the working folder; links that leave the scratch are refused.
func (a *Agent) workDir(dir string) (string, error) {
	if dir == "" {
		return a.boot.Scratch, nil
	}
	if !filepath.IsLocal(dir) {
		return "", invalid("dir must be relative and stay in the scratch folder")
	}
	info, err := a.scratch.Stat(dir)
	if err != nil {
		return "", fileError(dir, err)
	}
	if !info.IsDir() {
		return "", invalid(dir + " is not a folder")
	}
	return filepath.Join(a.boot.Scratch, dir), nil
}

// lookUp finds a program on the sidecar's path, or beside dir when its name
// has a slash.
func lookUp(name, dir string, path []string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		if executable(name) {
			return name, nil
		}
		return "", notFound("no program " + name)
	}
	for _, d := range path {
		if p := filepath.Join(d, name); executable(p) {
			return p, nil
		}
	}
	return "", notFound("no program " + name + " in this image")
}

func executable(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// frames writes an answer from several goroutines.
type frames struct {
	mu     sync.Mutex // guards w
	w      io.Writer
	flush  func() error
	broken func() // called when the reader is gone
}

func (f *frames) write(k wire.Kind, payload []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := wire.WriteFrame(f.w, k, payload)
	if err == nil {
		err = f.flush()
	}
	if err != nil {
		f.broken()
	}
}

// keepAlive writes an empty frame now and then until stop returns.
func (f *frames) keepAlive() (stop func()) {
	done := make(chan struct{})
	var loop sync.WaitGroup
	loop.Go(func() {
		tick := time.NewTicker(aliveEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				f.write(wire.Alive, nil)
			}
		}
	})
	return func() { close(done); loop.Wait() }
}
