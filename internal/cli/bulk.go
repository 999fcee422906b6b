package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// jobFilters are the flags that select many jobs.
type jobFilters struct {
	All      bool   `help:"All of them; the filters narrow it."`
	State    string `placeholder:"STATE" help:"Those in this state."`
	Pack     string `placeholder:"NAME" help:"Those of this pack."`
	Pool     string `placeholder:"NAME" help:"Those of this pool."`
	Label    string `placeholder:"KEY[=VALUE]" help:"Those with this label."`
	Parent   string `placeholder:"ID" help:"Children of this job."`
	Schedule string `placeholder:"ID" help:"Those that this schedule made."`
	Since    string `placeholder:"TIME|AGE" help:"Created at or after a time (RFC 3339) or so long ago (2h)."`
	Until    string `placeholder:"TIME|AGE" help:"Created before it."`
	asking
}

// asking is how a command that acts on many makes sure.
type asking struct {
	DryRun bool `help:"Say how many there are, and do nothing."`
	Yes    bool `short:"y" help:"Do not ask; needed without a terminal."`
}

func (f *jobFilters) given() bool {
	return f.All || f.State+f.Pack+f.Pool+f.Label+f.Parent+f.Schedule+f.Since+f.Until != ""
}

func (f *jobFilters) selection() (s client.JobSelection, err error) {
	s = client.JobSelection{
		All: f.All, State: jobs.State(f.State), Pack: f.Pack, Pool: f.Pool, Label: f.Label, Parent: f.Parent, Schedule: f.Schedule,
	}
	if s.Since, err = moment("--since", f.Since); err != nil {
		return s, err
	}
	s.Until, err = moment("--until", f.Until)
	return s, err
}

// sure counts what a command would act on and asks whether it shall. many
// counts; it returns more when there is more than it counted. done says that
// there is nothing to do any more.
func (a asking) sure(con *console.Console, verb, things string, many func() (n int, more bool, err error)) (done bool, err error) {
	if a.Yes && !a.DryRun {
		return false, nil
	}
	n, more, err := many()
	if err != nil {
		return true, err
	}
	count := fmt.Sprint(n)
	if more {
		count += " or more"
	}
	switch {
	case a.DryRun && con.JSON:
		return true, con.WriteJSON(client.BulkResult{Matched: n, More: more})
	case a.DryRun:
		return true, con.Print("%s", count)
	case n == 0:
		con.Say("there are no such %s", things)
		return true, nil
	}
	yes, err := con.Confirm("%s %s %s?", verb, count, things)
	if errors.Is(err, console.ErrNobody) {
		return true, misused("this would %s %s %s; say --yes, or --dry-run to count only", verb, count, things)
	}
	if err == nil && !yes {
		con.Say("nothing was done")
	}
	return err != nil || !yes, err
}

// whole calls do for one part after the other until there is no more, and adds
// up the answers.
func whole(do func(cursor string) (client.BulkResult, error)) (all client.BulkResult, err error) {
	for {
		res, err := do(all.NextCursor)
		if err != nil {
			return all, err
		}
		all.Matched += res.Matched
		all.Done += res.Done
		all.Requested += res.Requested
		all.Skipped += res.Skipped
		all.Failed += res.Failed
		all.Jobs = append(all.Jobs, res.Jobs...)
		all.Errors = append(all.Errors, res.Errors...)
		all.NextCursor = res.NextCursor
		if !res.More || res.NextCursor == "" {
			all.NextCursor = ""
			return all, nil
		}
	}
}

// showBulk tells what a bulk command did. What failed is an error.
func showBulk(con *console.Console, done string, res client.BulkResult) error {
	if con.JSON {
		if err := con.WriteJSON(res); err != nil {
			return err
		}
	} else {
		line := fmt.Sprintf("%d %s", res.Done, done)
		if res.Requested > 0 {
			line += fmt.Sprintf(", %d being stopped", res.Requested)
		}
		if res.Skipped > 0 {
			line += fmt.Sprintf(", %d skipped: they have moved on", res.Skipped)
		}
		if err := con.Print("%s", line); err != nil {
			return err
		}
	}
	if res.Failed == 0 {
		return nil
	}
	f := &failure{Message: fmt.Sprintf("%d of %d failed", res.Failed, res.Matched)}
	for i, e := range res.Errors {
		if i == 0 {
			f.exit, f.Code = exitOf(e.Error.Error), string(e.Error.Error)
		}
		f.Hints = append(f.Hints, e.ID+": "+e.Error.Message)
	}
	return f
}

// many is helmdeck job cancel with filters.
func (j *jobCancel) many(ctx context.Context, con *console.Console, c *client.Client) error {
	sel, err := j.selection()
	if err != nil {
		return err
	}
	if done, err := j.sure(con, "cancel", "jobs", func() (int, bool, error) {
		dry := sel
		dry.DryRun = true
		res, err := c.CancelMany(ctx, dry)
		return res.Matched, res.More, err
	}); done {
		return err
	}
	res, err := whole(func(cursor string) (client.BulkResult, error) {
		sel.Cursor = cursor
		return c.CancelMany(ctx, sel)
	})
	if err != nil {
		return err
	}
	return showBulk(con, "cancelled", res)
}

// many is helmdeck job retry with filters.
func (j *jobRetry) many(ctx context.Context, con *console.Console, c *client.Client, key string) error {
	sel, err := j.selection()
	if err != nil {
		return err
	}
	if done, err := j.sure(con, "run again", "jobs", func() (int, bool, error) {
		dry := sel
		dry.DryRun = true
		res, err := c.RetryMany(ctx, dry, "")
		return res.Matched, res.More, err
	}); done {
		return err
	}
	res, err := whole(func(cursor string) (client.BulkResult, error) {
		sel.Cursor = cursor
		return c.RetryMany(ctx, sel, key)
	})
	if err != nil {
		return err
	}
	return showBulk(con, "run again", res)
}
