package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// watch follows one job to its end and shows what it left.
type watch struct {
	con *console.Console
	c   *client.Client
	// save is the folder that artifacts are downloaded into; empty: none.
	save string
	// wait bounds the waiting; 0: the context alone does.
	wait time.Duration
	// told is called for every event, before it is shown; may be nil.
	told func(client.Event, *console.Progress)
}

// run follows the job and prints its result. The failure of the job is its
// error. When the waiting ends first, the job goes on.
func (w *watch) run(ctx context.Context, id, label string) error {
	result, err := w.result(ctx, id, label)
	if err != nil {
		return err
	}
	if err := w.saveAll(ctx, result.Artifacts); err != nil {
		return hinted(err, "the artifacts are still there: helmdeck artifact get KEY")
	}
	return showResult(w.con, result)
}

func (w *watch) result(ctx context.Context, id, label string) (client.Result, error) {
	waiting := ctx
	if w.wait > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, w.wait)
		defer cancel()
	}
	err := w.follow(waiting, id, label)
	if err == nil {
		var result client.Result
		if result, err = w.c.Await(waiting, id); err == nil {
			return result, nil
		}
	}
	if waiting.Err() == nil {
		return client.Result{}, err
	}
	return client.Result{}, goesOn(ctx, id, w.wait)
}

// goesOn says that nobody waits for a job any more, and what can be done.
func goesOn(ctx context.Context, id string, waited time.Duration) error {
	f := &failure{exit: exitRetry, Code: string(packs.Timeout), JobID: id,
		Message: fmt.Sprintf("the job has not ended after %s; it goes on", waited)}
	if ctx.Err() != nil {
		f.exit, f.Code, f.Message = exitInterrupted, "interrupted", "not waiting any more; the job goes on"
	}
	f.Hints = []string{"follow it: helmdeck job watch " + id, "cancel it: helmdeck job cancel " + id}
	return f
}

// follow shows the events of a job until the terminal one.
func (w *watch) follow(ctx context.Context, id, label string) error {
	bar := w.con.Progress(label)
	defer bar.End()
	for e, err := range w.c.Events(ctx, id, "") {
		if err != nil {
			return err
		}
		if w.told != nil {
			w.told(e, bar)
		}
		show(w.con, bar, e)
	}
	return nil
}

func show(con *console.Console, bar *console.Progress, e client.Event) {
	if p, ok := e.Progress(); ok {
		bar.Set(p.Percent, p.Message)
		return
	}
	for _, line := range e.Lines() {
		bar.Note("%s %s", con.Dim("|"), console.Clean(line))
	}
	job, ok := e.Job()
	if !ok {
		return
	}
	switch {
	case job.State == jobs.Retrying:
		bar.Note("%s attempt %d ended: %s", con.Yellow("again:"), job.Runs, lastFault(job))
		bar.Set(0, "waits for the next attempt")
	case job.CancelRequested:
		bar.Set(0, "is being stopped")
	case job.State == jobs.Running:
		bar.Set(0, fmt.Sprintf("attempt %d began", max(job.Attempt, 1)))
	case job.State == jobs.Scheduled:
		bar.Set(0, "waits until "+console.Time(job.ScheduledFor))
	}
}

// lastFault is how the last attempt of a job ended.
func lastFault(job jobs.Job) string {
	if n := len(job.History); n > 0 {
		return console.Clean(fmt.Sprintf("%s: %s", job.History[n-1].Code, job.History[n-1].Message))
	}
	if job.Error != nil {
		return console.Clean(fmt.Sprintf("%s: %s", job.Error.Code, job.Error.Message))
	}
	return "its worker was lost"
}

// showResult prints a result: the keys of the output, or the envelope as JSON.
func showResult(con *console.Console, r client.Result) error {
	for _, warning := range r.Warnings {
		con.Say("%s %s", con.Yellow("warning:"), console.Clean(warning))
	}
	if con.JSON {
		return con.WriteJSON(r)
	}
	pairs, err := pairsOf(r.Output)
	if err != nil {
		return fmt.Errorf("read the output: %w", err)
	}
	return con.Fields(pairs...)
}

// pairsOf lists keys and values of an output in its own order: text as it is,
// the rest as JSON.
func pairsOf(output json.RawMessage) ([]string, error) {
	if !strings.HasPrefix(strings.TrimSpace(string(output)), "{") {
		return []string{"output", string(output)}, nil
	}
	d := json.NewDecoder(strings.NewReader(string(output)))
	if _, err := d.Token(); err != nil { // the brace
		return nil, err
	}
	var pairs []string
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		text := string(value)
		var s string
		if json.Unmarshal(value, &s) == nil {
			text = s
		}
		pairs = append(pairs, fmt.Sprint(key), text)
	}
	return pairs, nil
}

// saveAll downloads artifacts into the folder that was asked for.
func (w *watch) saveAll(ctx context.Context, refs []artifacts.Ref) error {
	if w.save == "" {
		return nil
	}
	if err := os.MkdirAll(w.save, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", fileError(err))
	}
	for _, ref := range refs {
		path, d, err := download(ctx, w.c, ref.Key, func(name string) (string, error) { return freshPath(w.save, name) })
		if err != nil {
			return err
		}
		w.con.Say("saved %s (%s)", path, console.Bytes(d.Size))
	}
	return nil
}

// freshPath is a path for name in dir that nothing has yet.
func freshPath(dir, name string) (string, error) {
	const most = 1000
	ext := filepath.Ext(name)
	for i := range most {
		candidate := name
		if i > 0 {
			candidate = fmt.Sprintf("%s-%d%s", strings.TrimSuffix(name, ext), i+1, ext)
		}
		path := filepath.Join(dir, candidate)
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s holds %d files called %s already", dir, most, name)
}
