package sessionstest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

func execStreams(t *testing.T, b *bench) {
	u := b.start("base")
	if err := u.WriteFile(b.ctx, "sub/in.txt", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	r, err := u.Exec(b.ctx, sessions.Command{
		Argv: []string{"sh", "-c", `ls; cat; echo "$GREETING" >&2; exit 3`}, Dir: "sub",
		Env: map[string]string{"GREETING": "hello"}, Stdin: strings.NewReader(strings.Repeat("y", 100_000)),
		Stdout: &out, Stderr: &errOut,
	})
	if err != nil || r.ExitCode != 3 || r.Truncated {
		t.Fatalf("got %+v, %v", r, err)
	}
	if want := "in.txt\n" + strings.Repeat("y", 100_000); out.String() != want {
		t.Errorf("stdout: got %d bytes, want %d", out.Len(), len(want))
	}
	if diff := cmp.Diff("hello\n", errOut.String()); diff != "" {
		t.Errorf("stderr (-want +got):\n%s", diff)
	}
	// A program that does not read its input is not held up by it.
	r, err = u.Exec(b.ctx, sessions.Command{Argv: []string{"true"}, Stdin: strings.NewReader(strings.Repeat("z", 1<<20))})
	if err != nil || r.ExitCode != 0 {
		t.Errorf("input nobody reads: got %+v, %v", r, err)
	}
	// Output comes while the program runs.
	pr, pw := io.Pipe()
	first := &firstWrite{done: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", "echo ready; cat"}, Stdin: pr, Stdout: first})
		done <- err
	}()
	select {
	case <-first.done:
	case <-b.ctx.Done():
		t.Fatal("no output while the program runs")
	}
	_ = pw.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type firstWrite struct {
	done chan struct{}
	seen bool
}

func (w *firstWrite) Write(p []byte) (int, error) {
	if !w.seen {
		w.seen = true
		close(w.done)
	}
	return len(p), nil
}

func execRefusals(t *testing.T, b *bench) {
	u := b.start("base")
	for name, c := range map[string]sessions.Command{
		"no such program":    {Argv: []string{"no-such-program"}},
		"no such path":       {Argv: []string{"./no-such-program"}},
		"no such folder":     {Argv: []string{"true"}, Dir: "none"},
		"folder outside":     {Argv: []string{"true"}, Dir: "../.."},
		"absolute folder":    {Argv: []string{"true"}, Dir: "/etc"},
		"malformed variable": {Argv: []string{"true"}, Env: map[string]string{"A=B": "x"}},
	} {
		_, err := u.Exec(b.ctx, c)
		var refusal *sessions.AgentError
		if !errors.As(err, &refusal) || refusal.Status/100 != 4 {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
		if missing := strings.HasPrefix(name, "no such"); missing != errors.Is(err, sessions.ErrNotFound) {
			t.Errorf("%s: got %v, ErrNotFound is %t", name, err, !missing)
		}
	}
}

func execEndsWithItsCaller(t *testing.T, b *bench) {
	u := b.start("base")
	program, mark := sleeper()
	// A group with a child, a shell that ignores polite signals, and input
	// that never ends.
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	pr, pw := io.Pipe()
	defer func() { _ = pw.Close() }()
	go func() {
		_, err := u.Exec(ctx, sessions.Command{Argv: []string{"sh", "-c", "trap '' TERM HUP INT; " + program + " & " + program}, Stdin: pr})
		done <- err
	}()
	b.until("the programs run", func() bool { return marked("sleep\x00"+mark) == 2 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	b.until("the programs ended", func() bool { return marked(mark) == 0 })
}

func execEndsItsGroup(t *testing.T, b *bench) {
	u := b.start("base")
	program, mark := sleeper()
	// The child in the background holds the output open; it must not hold the
	// call up.
	r, err := u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", program + " & echo started"}})
	if err != nil || string(r.Stdout) != "started\n" {
		t.Errorf("got %+v, %v", r, err)
	}
	b.until("the child ended", func() bool { return marked(mark) == 0 })
}

func execTimeout(t *testing.T, b *bench) {
	u := b.start("base")
	program, mark := sleeper()
	r, err := u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", "echo begun; " + program}, Timeout: 300 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) || string(r.Stdout) != "begun\n" {
		t.Errorf("got %+v, %v, want what was printed and DeadlineExceeded", r, err)
	}
	b.until("the program ended", func() bool { return marked(mark) == 0 })
}

func execKilled(t *testing.T, b *bench) {
	u := b.start("base")
	r, err := u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", "echo last words; kill -KILL $$"}})
	if !errors.Is(err, sessions.ErrKilled) || r.ExitCode != 137 || string(r.Stdout) != "last words\n" {
		t.Errorf("got %+v, %v, want code 137 and ErrKilled", r, err)
	}
	r, err = u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", "kill -TERM $$"}})
	if err != nil || r.ExitCode != 143 {
		t.Errorf("got %+v, %v, want code 143", r, err)
	}
}

func execCapsOutput(t *testing.T, b *bench) {
	u := b.start("base")
	r, err := u.Exec(b.ctx, sessions.Command{
		Argv: []string{"sh", "-c", "head -c 3000000 /dev/zero; echo short >&2"}, MaxOutput: 100_000,
	})
	if err != nil || len(r.Stdout) != 100_000 || !r.Truncated || string(r.Stderr) != "short\n" {
		t.Errorf("got %d bytes, truncated %t, stderr %q, %v", len(r.Stdout), r.Truncated, r.Stderr, err)
	}
	r, err = u.Exec(b.ctx, sessions.Command{Argv: []string{"head", "-c", "3000000", "/dev/zero"}})
	if err != nil || len(r.Stdout) != 1<<20 || !r.Truncated {
		t.Errorf("default cap: got %d bytes, truncated %t, %v", len(r.Stdout), r.Truncated, err)
	}
}
