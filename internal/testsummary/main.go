// Command testsummary runs "go test -json" with its arguments and prints what a
// plain "go test" prints: one line per package, the output of tests that fail. At
// the end it counts the tests and names every skipped one with its reason, so that
// a check that did not run is seen. Its exit code is that of go test.
//
//	go run ./internal/testsummary -race -timeout 15m ./...
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	code, err := run(context.Background(), ".", os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsummary:", err)
	}
	os.Exit(code)
}

// run starts go test in dir, reports its events to out and returns the exit
// code. The end of ctx kills it.
func run(ctx context.Context, dir string, args []string, out, errOut io.Writer) (int, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir = dir
	cmd.Stderr = errOut
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 2, fmt.Errorf("open the event pipe: %w", err)
	}
	// go test ends its children on these; it must end first for the summary to be whole.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 2, fmt.Errorf("start go test: %w", err)
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case s := <-signals:
				// Fails only when go test has ended already, which is what is wanted.
				_ = cmd.Process.Signal(s)
			case <-done:
				return
			}
		}
	}()

	rep := newReport(out)
	readErr := rep.read(events)
	waitErr := cmd.Wait()
	rep.summary()

	var exit *exec.ExitError
	switch {
	case errors.As(waitErr, &exit):
		if code := exit.ExitCode(); code > 0 {
			return code, nil
		}
		return 1, waitErr
	case waitErr != nil:
		return 2, fmt.Errorf("wait for go test: %w", waitErr)
	case readErr != nil:
		return 2, readErr
	case rep.failed() > 0:
		return 1, nil
	}
	return 0, nil
}
