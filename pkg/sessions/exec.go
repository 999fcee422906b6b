package sessions

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

// defaultMaxOutput is what Command.MaxOutput means when it is 0.
const defaultMaxOutput = 1 << 20

// killedCode is the exit code of a process ended by SIGKILL.
const killedCode = 137

// Exec runs one command; see Session. When the command was killed by the
// system the Result is valid and the error is ErrKilled; when Timeout passed
// the error is context.DeadlineExceeded and the Result holds what was printed.
func (a *Agent) Exec(ctx context.Context, c Command) (Result, error) {
	if len(c.Argv) == 0 {
		return Result{}, errors.New("run command: no program named")
	}
	started := time.Now()
	// The request lives as long as the command: cancelling it is what tells
	// the agent to kill the process group.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := cmp.Or(c.MaxOutput, defaultMaxOutput)
	body, err := execBody(c, limit)
	if err != nil {
		return Result{}, fmt.Errorf("run %s: %w", c.Argv[0], err)
	}
	defer body.Close()
	// The transport waits for a body it is still reading, even when ctx ended.
	defer context.AfterFunc(ctx, func() { _ = body.Close() })()
	resp, err := a.do(ctx, http.MethodPost, wire.PathExec, body)
	if err != nil {
		return Result{}, fmt.Errorf("run %s: %w", c.Argv[0], err)
	}
	defer func() { _ = resp.Body.Close() }()
	var stdout, stderr bytes.Buffer
	out, errOut := c.Stdout, c.Stderr
	if out == nil {
		out = &stdout
	}
	if errOut == nil {
		errOut = &stderr
	}
	exit, err := readExec(resp.Body, out, errOut)
	r := Result{
		ExitCode: exit.Code, Stdout: stdout.Bytes(), Stderr: stderr.Bytes(),
		Truncated: exit.Truncated, Duration: time.Since(started),
	}
	switch {
	case err != nil:
		return r, fmt.Errorf("run %s: %w", c.Argv[0], transportError(ctx, err))
	case exit.TimedOut:
		return r, fmt.Errorf("run %s: not done after %s: %w", c.Argv[0], c.Timeout, context.DeadlineExceeded)
	case exit.Code == killedCode:
		return r, fmt.Errorf("run %s: %w", c.Argv[0], ErrKilled)
	}
	return r, nil
}

// execBody is the request: the command in a frame, then the frames of stdin.
// The pipe's writer ends when the body is closed.
func execBody(c Command, limit int64) (io.ReadCloser, error) {
	head, err := json.Marshal(wire.Exec{
		Argv: c.Argv, Env: c.Env, Dir: c.Dir, MaxOutput: limit,
		TimeoutMS: int64((c.Timeout + time.Millisecond - 1) / time.Millisecond),
	})
	if err != nil {
		return nil, err
	}
	var first bytes.Buffer
	if err := wire.WriteFrame(&first, wire.Command, head); err != nil {
		return nil, err
	}
	if c.Stdin == nil {
		return io.NopCloser(&first), nil
	}
	pr, pw := io.Pipe()
	go func() {
		_, err := first.WriteTo(pw)
		buf := make([]byte, 32<<10)
		for err == nil {
			var n int
			n, err = c.Stdin.Read(buf)
			if n > 0 {
				if werr := wire.WriteFrame(pw, wire.Stdin, buf[:n]); werr != nil {
					err = werr
				}
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		_ = pw.CloseWithError(err)
	}()
	return pr, nil
}

// readExec copies output until the exit frame.
func readExec(r io.Reader, stdout, stderr io.Writer) (wire.Exit, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	for {
		kind, payload, err := wire.ReadFrame(br)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return wire.Exit{Code: -1}, err
		}
		switch kind {
		case wire.Stdout:
			_, err = stdout.Write(payload)
		case wire.Stderr:
			_, err = stderr.Write(payload)
		case wire.Exited:
			var exit wire.Exit
			if err := json.Unmarshal(payload, &exit); err != nil {
				return wire.Exit{Code: -1}, fmt.Errorf("decode exit: %w", err)
			}
			return exit, nil
		}
		if err != nil {
			return wire.Exit{Code: -1}, fmt.Errorf("pass on output: %w", err)
		}
	}
}
