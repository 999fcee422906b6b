package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
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

// run is one started command with its ends of the pipes.
type run struct {
	family         *family
	cmd            *exec.Cmd
	stdin          *os.File
	stdout, stderr *os.File
	limit          int64
	startedAt      time.Time
	fed            chan struct{} // closed when the request's body ended
	// mu guards ended: after it the group's number may belong to others.
	mu    sync.Mutex
	ended bool
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

// pipes connects the command; theirs are the ends to close once it started.
func (r *run) pipes() (theirs []*os.File, err error) {
	in, stdin, err := os.Pipe()
	if err != nil {
		return theirs, err
	}
	r.cmd.Stdin, r.stdin = in, stdin
	theirs = append(theirs, in)
	stdout, out, err := os.Pipe()
	if err != nil {
		return theirs, err
	}
	r.cmd.Stdout, r.stdout = out, stdout
	theirs = append(theirs, out)
	stderr, errOut, err := os.Pipe()
	if err != nil {
		return theirs, err
	}
	r.cmd.Stderr, r.stderr = errOut, stderr
	return append(theirs, errOut), nil
}

func (r *run) closePipes() {
	for _, f := range []*os.File{r.stdin, r.stdout, r.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// kill ends the whole process group, as long as it is ours, and reports
// whether it was.
func (r *run) kill() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended {
		killGroup(r.cmd.Process.Pid)
	}
	return !r.ended
}

func (r *run) abandon() { r.kill() }

// follow feeds and drains the command until it ended, was too slow, or the
// caller is gone: ctx ends when its connection does.
func (r *run) follow(ctx context.Context, body io.Reader, out *frames, timeout time.Duration) wire.Exit {
	defer r.closePipes()
	defer context.AfterFunc(ctx, r.abandon)()
	var exit wire.Exit
	var timedOut atomic.Bool
	if timeout > 0 {
		defer time.AfterFunc(timeout, func() {
			timedOut.Store(r.kill())
		}).Stop()
	}
	go r.feed(body)
	stopAlive := out.keepAlive()
	var pumps sync.WaitGroup
	var cutOut, cutErr bool
	pumps.Go(func() { cutOut = r.pump(wire.Stdout, r.stdout, out) })
	pumps.Go(func() { cutErr = r.pump(wire.Stderr, r.stderr, out) })
	state, err := r.await()
	// What is in the pipes now is all there is, unless a process that left
	// the group keeps writing.
	deadline := time.Now().Add(lingering)
	_ = r.stdout.SetReadDeadline(deadline)
	_ = r.stderr.SetReadDeadline(deadline)
	pumps.Wait()
	stopAlive()
	exit.TimedOut = timedOut.Load()
	exit.Truncated = cutOut || cutErr
	exit.DurationMS = time.Since(r.startedAt).Milliseconds()
	exit.Code = -1
	if err == nil {
		exit.Code, exit.Signal = exitCode(state)
	}
	return exit
}

// await waits for the end of the program and of its group.
func (r *run) await() (*os.ProcessState, error) {
	return r.family.wait(r.cmd, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ended = true
	})
}

// exitCode follows the shells: 128+n for a program ended by signal n.
func exitCode(state *os.ProcessState) (code, signal int) {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signal() > 0 {
		return 128 + int(ws.Signal()), int(ws.Signal())
	}
	return state.ExitCode(), 0
}

// feed hands the request's stdin to the program. It reads to the end of the
// request whether the program wants input or not: the server notices a closed
// connection only then.
func (r *run) feed(body io.Reader) {
	defer close(r.fed)
	defer func() { _ = r.stdin.Close() }()
	wanted := true
	for {
		kind, payload, err := wire.ReadFrame(body)
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil || kind != wire.Stdin:
			r.kill() // the caller is gone, or speaks nonsense
			return
		}
		if wanted {
			_, err := r.stdin.Write(payload)
			wanted = err == nil
		}
	}
}

// pump passes output on up to the limit and reads the rest to nowhere, so
// that the program is not blocked by its own talk.
func (r *run) pump(kind wire.Kind, from *os.File, out *frames) (cut bool) {
	buf := make([]byte, 32<<10)
	left := r.limit
	for {
		n, err := from.Read(buf)
		if n > 0 {
			take := min(int64(n), left)
			cut = cut || take < int64(n)
			left -= take
			if take > 0 {
				out.write(kind, buf[:take])
			}
		}
		if err != nil {
			return cut
		}
	}
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
