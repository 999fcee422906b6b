package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

type jobList struct {
	State    string `placeholder:"STATE" help:"scheduled, queued, running, retrying, succeeded, failed or cancelled."`
	Pack     string `placeholder:"NAME" help:"Jobs of this pack."`
	Pool     string `placeholder:"NAME" help:"Jobs of this pool."`
	Label    string `placeholder:"KEY[=VALUE]" help:"Jobs with this label."`
	Parent   string `placeholder:"ID" help:"Children of this job."`
	Schedule string `placeholder:"ID" help:"Jobs of this schedule."`
	Since    string `placeholder:"TIME|AGE" help:"Created at or after a time (RFC 3339) or so long ago (2h)."`
	Until    string `placeholder:"TIME|AGE" help:"Created before it."`
	Limit    int    `default:"50" help:"Jobs on a page, 1 to 200."`
	Cursor   string `placeholder:"CURSOR" help:"Where a page before ended."`
	caller
}

// Help shows with --help.
func (jobList) Help() string {
	return `Examples:

    helmdeck job list --state failed --since 24h
    helmdeck job list --label batch=7 --output json | jq -r '.jobs[].id'`
}

// Run lists.
func (j *jobList) Run(ctx context.Context, con *console.Console) error {
	c, err := j.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	q := jobs.Query{State: jobs.State(j.State), Pack: j.Pack, Pool: j.Pool, Parent: j.Parent, Schedule: j.Schedule, Limit: j.Limit, Cursor: j.Cursor}
	q.LabelKey, q.LabelValue, _ = strings.Cut(j.Label, "=")
	if q.Since, err = moment("--since", j.Since); err != nil {
		return err
	}
	if q.Until, err = moment("--until", j.Until); err != nil {
		return err
	}
	list, err := c.Jobs(ctx, q)
	if err != nil {
		return err
	}
	return showList(con, list)
}

func showList(con *console.Console, list client.JobList) error {
	if con.JSON {
		return con.WriteJSON(list)
	}
	rows := make([][]string, len(list.Jobs))
	for i := range list.Jobs {
		r := &list.Jobs[i]
		rows[i] = []string{r.ID, r.Pack, string(r.State), fmt.Sprint(r.Attempt), console.Age(r.CreatedAt), remark(r)}
	}
	if err := con.Table([]string{"ID", "PACK", "STATE", "ATTEMPT", "AGE", "REMARK"}, rows); err != nil {
		return err
	}
	more(con, list.NextCursor)
	return nil
}

// more says how to see the next page of a list.
func more(con *console.Console, cursor string) {
	if cursor != "" {
		con.Say("%s", con.Dim("more: the same with --cursor "+cursor))
	}
}

// moment reads a time, or an age before now.
func moment(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if age, err := time.ParseDuration(s); err == nil && age >= 0 {
		return time.Now().Add(-age), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, misused("%s: %q is no time such as 2026-01-31T12:00:00Z and no age such as 2h", flag, s)
	}
	return t, nil
}

// instant reads a time, the zero one when s is empty.
func instant(flag, s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, misused("%s: %q is no time such as 2026-01-31T12:00:00Z", flag, s)
	}
	return t, nil
}

// remark is the most telling thing about a job in few words.
func remark(j *jobs.Job) string {
	switch {
	case j.Error != nil && j.WaitingReason == "":
		return shorten(fmt.Sprintf("%s: %s", j.Error.Code, j.Error.Message))
	case j.CancelRequested && !j.State.Terminal():
		return "being stopped"
	case j.WaitingReason != "":
		return shorten(j.WaitingReason)
	case j.State == jobs.Retrying:
		return shorten(lastFault(*j))
	case j.State == jobs.Running && j.Progress != nil:
		return shorten(fmt.Sprintf("%.0f %% %s", j.Progress.Percent, j.Progress.Message))
	case j.State == jobs.Scheduled:
		return "runs at " + console.Time(j.ScheduledFor)
	case j.State == jobs.Queued && j.QueuePosition != nil:
		return fmt.Sprintf("%d before it", *j.QueuePosition)
	case j.State == jobs.Succeeded:
		return (time.Duration(j.DurationMS) * time.Millisecond).String()
	}
	return ""
}

func shorten(s string) string {
	const most = 70
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
