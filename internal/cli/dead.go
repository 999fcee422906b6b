package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// dead is helmdeck dead.
type dead struct {
	List   deadList   `cmd:"" help:"List jobs that failed for good, newest first."`
	Show   deadShow   `cmd:"" help:"Show one with its input and its story."`
	Replay deadReplay `cmd:"" help:"Run them again as new jobs."`
}

// Help shows with --help.
func (dead) Help() string {
	return `A job that used up its attempts, or on which workers died, is a dead letter: kept with its input until somebody looks.

Examples:

    helmdeck dead list
    helmdeck dead show ID
    helmdeck dead replay ID --input @mended.json`
}

type deadList struct {
	Pack   string `placeholder:"NAME" help:"Jobs of this pack."`
	Pool   string `placeholder:"NAME" help:"Jobs of this pool."`
	Limit  int    `default:"50" help:"Jobs on a page, 1 to 200."`
	Cursor string `placeholder:"CURSOR" help:"Where a page before ended."`
	caller
}

// Help shows with --help.
func (deadList) Help() string {
	return `Examples:

    helmdeck dead list --pack http.fetch
    helmdeck dead list -o json | jq -r '.dead[].submission.job.id'`
}

// Run lists.
func (d *deadList) Run(ctx context.Context, con *console.Console) error {
	c, err := d.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.DeadLetters(ctx, jobs.DeadQuery{Pack: d.Pack, Pool: d.Pool, Limit: d.Limit, Cursor: d.Cursor})
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(list)
	}
	rows := make([][]string, len(list.Dead))
	for i := range list.Dead {
		l := &list.Dead[i]
		text := remark(&l.Submission.Job)
		if l.Poison {
			text = "poison, " + text
		}
		rows[i] = []string{l.Submission.Job.ID, l.Submission.Job.Pack, console.Age(l.DeadAt), text}
	}
	if err := con.Table([]string{"ID", "PACK", "DEAD FOR", "REMARK"}, rows); err != nil {
		return err
	}
	more(con, list.NextCursor)
	return nil
}

type deadShow struct {
	ID string `arg:"" help:"Id of the job."`
	caller
}

// Help shows with --help.
func (deadShow) Help() string {
	return `Examples:

    helmdeck dead show ID
    helmdeck dead show ID -o json | jq .submission.input > input.json`
}

// Run shows.
func (d *deadShow) Run(ctx context.Context, con *console.Console) error {
	c, err := d.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := c.DeadLetter(ctx, d.ID)
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(l)
	}
	if err := showJob(con, &l.Submission.Job); err != nil {
		return err
	}
	poison := ""
	if l.Poison {
		poison = "yes: workers died on it"
	}
	return con.Fields("dead since", console.Time(l.DeadAt), "poison", poison, "input", string(l.Submission.Input))
}

type deadReplay struct {
	IDs   []string `arg:"" optional:"" name:"id" help:"Ids of the jobs."`
	Input string   `placeholder:"JSON|@FILE|-" help:"Another input instead of the old one, for one job."`
	All   bool     `help:"All dead letters that --pack and --pool select."`
	Pack  string   `placeholder:"NAME" help:"With --all: of this pack."`
	Pool  string   `placeholder:"NAME" help:"With --all: of this pool."`
	caller
}

// Help shows with --help.
func (deadReplay) Help() string {
	return `Prints the ids of the new jobs, one a line, in the order of the old ones.

Examples:

    helmdeck dead replay ID
    helmdeck dead replay ID --input @mended.json
    helmdeck dead replay --all --pack http.fetch`
}

// replayPage is how many dead letters one request replays.
const replayPage = 100

// Run replays.
func (d *deadReplay) Run(ctx context.Context, con *console.Console) error {
	switch {
	case d.All == (len(d.IDs) > 0):
		return misused("name the jobs, or say --all")
	case d.Input != "" && len(d.IDs) != 1:
		return misused("--input is for one job")
	case !d.All && d.Pack+d.Pool != "":
		return misused("--pack and --pool go with --all")
	}
	in, err := inputOf(d.Input, &reader{con: con})
	if err != nil {
		return err
	}
	c, err := d.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ids := d.IDs
	if d.All {
		if ids, err = d.every(ctx, c); err != nil {
			return err
		}
	}
	list := client.ReplayList{Replayed: []client.Replayed{}}
	for len(ids) > 0 {
		page := ids[:min(len(ids), replayPage)]
		ids = ids[len(page):]
		r := client.ReplayRequest{IDs: page}
		if len(in) > 0 {
			r = client.ReplayRequest{ID: page[0], Input: in}
		}
		done, err := c.Replay(ctx, r)
		if err != nil {
			return err
		}
		list.Replayed = append(list.Replayed, done...)
	}
	return showReplayed(con, list)
}

// every lists the ids that --all means, before any is replayed.
func (d *deadReplay) every(ctx context.Context, c *client.Client) ([]string, error) {
	var ids []string
	q := jobs.DeadQuery{Pack: d.Pack, Pool: d.Pool, Limit: 200}
	for {
		list, err := c.DeadLetters(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range list.Dead {
			ids = append(ids, list.Dead[i].Submission.Job.ID)
		}
		if q.Cursor = list.NextCursor; q.Cursor == "" {
			return ids, nil
		}
	}
}

func showReplayed(con *console.Console, list client.ReplayList) error {
	var failed []string
	var first *client.Problem
	for i := range list.Replayed {
		r := &list.Replayed[i]
		if r.Error != nil {
			if first == nil {
				first = r.Error
			}
			failed = append(failed, r.ID+": "+r.Error.Message)
			continue
		}
		if !con.JSON && r.Job != nil {
			if err := con.Print("%s", r.Job.ID); err != nil {
				return err
			}
		}
	}
	if con.JSON {
		if err := con.WriteJSON(list); err != nil {
			return err
		}
	}
	if first == nil {
		return nil
	}
	return &failure{
		exit: exitOf(first.Error), Code: string(first.Error), Details: first.Details,
		Message: fmt.Sprintf("%d of %d were not replayed:\n%s", len(failed), len(list.Replayed), strings.Join(failed, "\n")),
	}
}
