package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
)

// workerCmd is helmdeck worker.
type workerCmd struct {
	List  workerList  `cmd:"" default:"withargs" help:"List the live workers."`
	Drain workerDrain `cmd:"" help:"Make a worker take no more jobs and end."`
}

// Help shows with --help.
func (workerCmd) Help() string {
	return `Needs an administrator's token.

Examples:

    helmdeck worker list
    helmdeck worker drain ID --wait`
}

type workerList struct{ caller }

// Help shows with --help.
func (workerList) Help() string {
	return `BUSY is running jobs of slots, by pool. A worker that is silent for 15 s is left out.

Examples:

    helmdeck worker list
    helmdeck worker list -o json | jq -r '.workers[] | select(.host == "node7") | .id'`
}

// Run lists.
func (w *workerList) Run(ctx context.Context, con *console.Console) error {
	c, err := w.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Workers(ctx)
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(client.WorkerList{Workers: list})
	}
	rows := make([][]string, len(list))
	for i := range list {
		l := &list[i]
		rows[i] = []string{l.ID, l.Host, l.Version, busy(l), console.Age(l.LastBeat), workerRemark(l)}
	}
	return con.Table([]string{"ID", "HOST", "VERSION", "BUSY", "HEARD", "REMARK"}, rows)
}

func busy(w *client.WorkerStatus) string {
	var parts []string
	for pool, slots := range w.Slots {
		parts = append(parts, fmt.Sprintf("%s %d/%d", pool, w.Running[pool], slots))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func workerRemark(w *client.WorkerStatus) string {
	var parts []string
	if w.Draining {
		parts = append(parts, "draining until "+console.Time(w.DrainBy))
	}
	if w.Leaked > 0 {
		parts = append(parts, fmt.Sprintf("%d handlers did not stop", w.Leaked))
	}
	return strings.Join(parts, ", ")
}

type workerDrain struct {
	ID     string        `arg:"" help:"Id of the worker."`
	Within time.Duration `placeholder:"DURATION" help:"How long running jobs may go on, 1s to 2h; as long as at SIGTERM by default."`
	Wait   bool          `help:"Wait until the worker is gone."`
	caller
}

// Help shows with --help.
func (workerDrain) Help() string {
	return `The worker pulls nothing more from now on, lets running jobs finish, hands the rest back to other workers without charging an attempt, and ends with exit code 0. Draining it again changes the time. Whatever starts workers may start another one in its place: tell it first.

Examples:

    helmdeck worker drain worker-1a2b3c4d-node7 --wait
    helmdeck worker drain worker-1a2b3c4d-node7 --within 30m`
}

// drainPoll is how often --wait looks.
const drainPoll = time.Second

// Run drains.
func (w *workerDrain) Run(ctx context.Context, con *console.Console) error {
	if w.Within < 0 {
		return misused("--within must be a time such as 30m")
	}
	c, err := w.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	status, err := c.DrainWorker(ctx, w.ID, client.DrainRequest{WithinS: int((w.Within + time.Second - 1) / time.Second)})
	if err != nil {
		return err
	}
	if w.Wait {
		if status, err = w.gone(ctx, con, c, status); err != nil {
			return err
		}
	}
	if con.JSON {
		return con.WriteJSON(status)
	}
	text := "draining until " + console.Time(status.DrainBy)
	if w.Wait {
		text = "gone"
	}
	return con.Fields("worker", status.ID, "state", text, "busy", busy(&status))
}

// gone waits until no heartbeat of the worker comes any more, and returns the
// last one.
func (w *workerDrain) gone(ctx context.Context, con *console.Console, c *client.Client, last client.WorkerStatus) (client.WorkerStatus, error) {
	bar := con.Progress("drain " + w.ID)
	defer bar.End()
	for {
		list, err := c.Workers(ctx)
		if err != nil {
			return last, err
		}
		i := slices.IndexFunc(list, func(s client.WorkerStatus) bool { return s.ID == w.ID })
		if i < 0 {
			return last, nil
		}
		last = list[i]
		bar.Set(0, busy(&last))
		select {
		case <-ctx.Done():
			return last, ctx.Err()
		case <-time.After(drainPoll):
		}
	}
}
