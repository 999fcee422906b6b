package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// dead is helmdeck dead.
type dead struct {
	List   deadList   `cmd:"" help:"List jobs that failed for good, newest first."`
	Show   deadShow   `cmd:"" help:"Show one with its input and its story."`
	Edit   deadEdit   `cmd:"" help:"Edit the input of one in your editor and run it again."`
	Replay deadReplay `cmd:"" help:"Run them again as new jobs."`
	Drop   deadDrop   `cmd:"" help:"Forget them."`
}

// Help shows with --help.
func (dead) Help() string {
	return `A job that used up its attempts, or on which workers died, is a dead letter: kept with its input until somebody looks, for 90 days by default.

Examples:

    helmdeck dead list
    helmdeck dead show ID
    helmdeck dead edit ID
    helmdeck dead replay --all --pack http.fetch --rate 5`
}

// deadFilters are the flags that select dead letters.
type deadFilters struct {
	Pack   string `placeholder:"NAME" help:"Jobs of this pack."`
	Pool   string `placeholder:"NAME" help:"Jobs of this pool."`
	Code   string `placeholder:"CODE" help:"Jobs that ended with this code, such as handler_failed."`
	Poison *bool  `negatable:"" help:"Those that were quarantined because workers died on them; --no-poison: the others."`
	Label  string `placeholder:"KEY[=VALUE]" help:"Jobs with this label."`
	Since  string `placeholder:"TIME|AGE" help:"Dead at or after a time (RFC 3339) or since so long (2h)."`
	Until  string `placeholder:"TIME|AGE" help:"Dead before it."`
}

func (f *deadFilters) given() bool {
	return f.Pack+f.Pool+f.Code+f.Label+f.Since+f.Until != "" || f.Poison != nil
}

func (f *deadFilters) query() (q jobs.DeadQuery, err error) {
	q = jobs.DeadQuery{Pack: f.Pack, Pool: f.Pool, Code: packs.Code(f.Code), Poison: f.Poison}
	q.LabelKey, q.LabelValue, _ = strings.Cut(f.Label, "=")
	if q.Since, err = moment("--since", f.Since); err != nil {
		return q, err
	}
	q.Until, err = moment("--until", f.Until)
	return q, err
}

func (f *deadFilters) selection() (client.DeadSelection, error) {
	q, err := f.query()
	return client.DeadSelection{
		All: true, Pack: q.Pack, Pool: q.Pool, Code: q.Code, Poison: q.Poison, Label: f.Label, Since: q.Since, Until: q.Until,
	}, err
}

type deadList struct {
	deadFilters
	Replayed *bool  `negatable:"" help:"Those that were replayed; --no-replayed: the others."`
	Limit    int    `default:"50" help:"Jobs on a page, 1 to 200."`
	Cursor   string `placeholder:"CURSOR" help:"Where a page before ended."`
	caller
}

// Help shows with --help.
func (deadList) Help() string {
	return `Examples:

    helmdeck dead list --pack http.fetch --since 24h
    helmdeck dead list --poison
    helmdeck dead list --no-replayed -o json | jq -r '.dead[].submission.job.id'`
}

// Run lists.
func (d *deadList) Run(ctx context.Context, con *console.Console) error {
	q, err := d.query()
	if err != nil {
		return err
	}
	q.Replayed, q.Limit, q.Cursor = d.Replayed, d.Limit, d.Cursor
	c, err := d.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.DeadLetters(ctx, q)
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
		if n := len(l.ReplayedAs); n > 0 {
			text = "replayed, " + text
		}
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
	j := &l.Submission.Job
	if err := showJob(con, j); err != nil {
		return err
	}
	pairs := []string{"dead since", console.Time(l.DeadAt)}
	if l.Poison {
		pairs = append(pairs, "poison", "yes: workers died on it")
	}
	if j.Lost > 0 || j.Returned > 0 {
		pairs = append(pairs, "runs", fmt.Sprintf("%d, of which %d lost their worker and %d were handed back", j.Runs, j.Lost, j.Returned))
	}
	for _, r := range l.ReplayedAs {
		pairs = append(pairs, "replayed as", r.JobID+" at "+console.Time(r.At))
	}
	return con.Fields(append(pairs, "input", string(l.Submission.Input))...)
}

type deadDrop struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Ids of the jobs; or filters."`
	All bool     `help:"All of them; the filters narrow it."`
	deadFilters
	Replayed *bool `negatable:"" help:"Those that were replayed; --no-replayed: the others."`
	asking
	caller
}

// Help shows with --help.
func (deadDrop) Help() string {
	return `A dropped letter can no longer be shown or replayed; the record of its job stays for as long as its events do. With filters instead of ids they are counted first, and dropped when you say yes.

Examples:

    helmdeck dead drop ID
    helmdeck dead drop --replayed --until 720h
    helmdeck dead drop --all --yes`
}

// Run drops.
func (d *deadDrop) Run(ctx context.Context, con *console.Console) error {
	filtered := d.All || d.given() || d.Replayed != nil
	if filtered == (len(d.IDs) > 0) {
		return misused("name the jobs, or filters (--all for every one)")
	}
	sel, err := d.selection()
	if err != nil {
		return err
	}
	sel.Replayed = d.Replayed
	c, err := d.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if !filtered {
		for _, id := range d.IDs {
			if err := c.DropDead(ctx, id); err != nil {
				return err
			}
		}
		if con.JSON {
			return con.WriteJSON(client.BulkResult{Matched: len(d.IDs), Done: len(d.IDs)})
		}
		return con.Print("%d dropped", len(d.IDs))
	}
	if done, err := d.sure(con, "drop", "dead letters", func() (int, bool, error) {
		dry := sel
		dry.DryRun = true
		res, err := c.DropManyDead(ctx, dry)
		return res.Matched, res.More, err
	}); done {
		return err
	}
	res, err := whole(func(cursor string) (client.BulkResult, error) {
		sel.Cursor = cursor
		return c.DropManyDead(ctx, sel)
	})
	if err != nil {
		return err
	}
	return showBulk(con, "dropped", res)
}
