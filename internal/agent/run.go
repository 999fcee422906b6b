package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

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
