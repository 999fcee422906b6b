package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// job is helmdeck job.
type job struct {
	Submit jobSubmit `cmd:"" help:"Submit a job and print its id."`
	Batch  jobBatch  `cmd:"" help:"Submit many jobs from a file, one a line, and print their ids."`
	List   jobList   `cmd:"" help:"List jobs, newest first."`
	Show   jobShow   `cmd:"" help:"Show the record of a job."`
	Watch  jobWatch  `cmd:"" help:"Follow a job and print its result."`
	Cancel jobCancel `cmd:"" help:"Cancel jobs."`
	Retry  jobRetry  `cmd:"" help:"Run an ended job again, as a new one."`
	Logs   jobLogs   `cmd:"" help:"Print the lines a job logged."`

	Children jobChildren `cmd:"" help:"List the jobs a job called."`
	Tree     jobTree     `cmd:"" help:"Show a job with all that it called."`
}

// Help shows with --help.
func (job) Help() string {
	return `Examples:

    id=$(helmdeck job submit http.fetch url=https://example.org/)
    helmdeck job watch $id
    helmdeck job list --state running`
}

type jobSubmit struct {
	request
	At string        `placeholder:"TIME" help:"Run it at a time (RFC 3339); a past one is now."`
	In time.Duration `placeholder:"DURATION" help:"Run it after a while, such as 90m."`
	hook
	caller
}

// Help shows with --help.
func (jobSubmit) Help() string {
	return `The id is printed once the bus has the job safe.

Examples:

    helmdeck job submit http.fetch url=https://example.org/ --priority low --label batch=7
    helmdeck job submit slides.render markdown=@deck.md --idempotency-key deck-42
    helmdeck job submit http.fetch url=https://example.org/ --in 90m
    helmdeck job submit slides.render markdown=@deck.md --webhook https://example.com/hooks --webhook-secret-file secret
    helmdeck job submit http.fetch url=https://example.org/ --at 2030-01-31T06:00:00+01:00`
}

// Run submits.
func (j *jobSubmit) Run(ctx context.Context, con *console.Console) error {
	put, err := j.later()
	if err != nil {
		return err
	}
	c, err := j.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	tell, err := j.webhook()
	if err != nil {
		return err
	}
	job, err := j.submit(ctx, con, c, put, tell)
	if err != nil {
		return err
	}
	return showID(con, job)
}

// later puts the job off as --at and --in say.
func (j *jobSubmit) later() (func(*jobs.Request), error) {
	switch {
	case j.At != "" && j.In != 0:
		return nil, misused("give --at or --in, not both")
	case j.In < 0 || j.In > 0 && j.In < time.Second:
		return nil, misused("--in must be at least 1s, got %s", j.In)
	}
	at, err := instant("--at", j.At)
	return func(r *jobs.Request) {
		r.RunAt, r.DelayS = at, int((j.In+time.Second-1)/time.Second)
	}, err
}

type jobShow struct {
	ID string `arg:"" help:"Id of the job."`
	caller
}

// Help shows with --help.
func (jobShow) Help() string {
	return `Examples:

    helmdeck job show 0195a1b2-0000-7000-8000-0000000000a1
    helmdeck job show ID --output json | jq .state`
}

// Run shows.
func (j *jobShow) Run(ctx context.Context, con *console.Console) error {
	c, err := j.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := c.Job(ctx, j.ID)
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(r)
	}
	return showJob(con, &r)
}

func showJob(con *console.Console, r *jobs.Job) error {
	pairs := []string{
		"id", r.ID, "pack", r.Pack + "@" + r.Version, "state", string(r.State), "remark", remark(r), "waits for", r.WaitingReason,
		"pool", r.Pool, "priority", string(r.Priority), "attempt", fmt.Sprintf("%d of %d", r.Attempt, r.MaxAttempts),
		"worker", r.Worker, "session", r.SessionID, "caller", r.Caller.Subject, "parent", r.ParentID, "children", childCounts(r.Children), "schedule", r.ScheduleID, "replay of", r.ReplayOf,
		"created", console.Time(r.CreatedAt), "scheduled for", console.Time(r.ScheduledFor),
		"started", console.Time(r.StartedAt), "finished", console.Time(r.FinishedAt), "kept until", console.Time(r.ExpiresAt),
	}
	for k, v := range r.Labels {
		pairs = append(pairs, "label", k+"="+v)
	}
	if r.Error != nil {
		pairs = append(pairs, "error", string(r.Error.Code)+": "+r.Error.Message)
		for _, d := range r.Error.Details {
			pairs = append(pairs, "fault", d.Pointer+": "+d.Message)
		}
	}
	for _, h := range r.History {
		pairs = append(pairs, "earlier", fmt.Sprintf("run %d on %s, %s: %s", h.Run, h.Worker, h.Code, h.Message))
	}
	for _, a := range r.Artifacts {
		pairs = append(pairs, "artifact", fmt.Sprintf("%s (%s, %s)", a.Key, a.ContentType, console.Bytes(a.Size)))
	}
	for _, w := range r.Warnings {
		pairs = append(pairs, "warning", w)
	}
	if len(r.Output) > 0 {
		pairs = append(pairs, "output", string(r.Output))
	}
	return con.Fields(pairs...)
}

type jobWatch struct {
	ID   string        `arg:"" help:"Id of the job."`
	Wait time.Duration `placeholder:"DURATION" help:"Wait so long at most; the job goes on. For ever by default."`
	Save string        `placeholder:"DIR" type:"path" help:"Download the artifacts into this folder."`
	caller
}

// Help shows with --help.
func (jobWatch) Help() string {
	return `Ends with the job, with the exit code of its outcome. Ctrl-C stops the watching, not the job.

Examples:

    helmdeck job watch ID
    helmdeck job watch ID --save out/`
}

// Run watches.
func (j *jobWatch) Run(ctx context.Context, con *console.Console) error {
	c, err := j.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := c.Job(ctx, j.ID)
	if err != nil {
		return err
	}
	return (&watch{con: con, c: c, save: j.Save, wait: j.Wait}).run(ctx, r.ID, r.Pack)
}

type jobCancel struct {
	IDs []string `arg:"" optional:"" name:"id" help:"Ids of the jobs; or filters."`
	jobFilters
	caller
}

// Help shows with --help.
func (jobCancel) Help() string {
	return `A queued job leaves its queue at once; a running one is stopped by its worker within seconds. Cancelling an ended job changes nothing. With filters instead of ids all that have not ended are counted first, and cancelled when you say yes.

Examples:

    helmdeck job cancel ID
    helmdeck job cancel --state queued --pack http.fetch
    helmdeck job cancel --label batch=7 --dry-run
    helmdeck job cancel --all --yes`
}

// Run cancels.
func (j *jobCancel) Run(ctx context.Context, con *console.Console) error {
	if j.given() == (len(j.IDs) > 0) {
		return misused("name the jobs, or filters (--all for every one)")
	}
	c, err := j.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if j.given() {
		return j.many(ctx, con, c)
	}
	return each(con, j.IDs, func(id string) (jobs.Job, error) { return c.Cancel(ctx, id) })
}

// each does something to several jobs and shows their records; it stops at
// the first error.
func each(con *console.Console, ids []string, do func(string) (jobs.Job, error)) error {
	var done []jobs.Job
	var failed error
	for _, id := range ids {
		r, err := do(id)
		if err != nil {
			failed = err
			break
		}
		done = append(done, r)
	}
	if con.JSON {
		if err := con.WriteJSON(client.JobList{Jobs: append([]jobs.Job{}, done...)}); err != nil {
			return err
		}
		return failed
	}
	for i := range done {
		state := string(done[i].State)
		if done[i].CancelRequested && !done[i].State.Terminal() {
			state += ", being stopped"
		}
		if err := con.Print("%s  %s", done[i].ID, state); err != nil {
			return err
		}
	}
	return failed
}

type jobRetry struct {
	IDs   []string `arg:"" optional:"" name:"id" help:"Ids of the jobs; or filters."`
	Input string   `placeholder:"JSON|@FILE|-" help:"Another input instead of the old one, for one job."`
	jobFilters
	caller
}

// Help shows with --help.
func (jobRetry) Help() string {
	return `Prints the id of each new job, whose record names the old one. With filters instead of ids those that failed or were cancelled, or that are in the --state you say, are counted first and run again when you say yes.

Examples:

    helmdeck job watch $(helmdeck job retry ID)
    helmdeck job retry ID --input @mended.json
    helmdeck job retry --state failed --pack http.fetch --since 2h
    helmdeck job retry --label batch=7 --yes`
}

// Run retries.
func (j *jobRetry) Run(ctx context.Context, con *console.Console) error {
	switch {
	case j.given() == (len(j.IDs) > 0):
		return misused("name the jobs, or filters (--all for every one that failed or was cancelled)")
	case j.Input != "" && len(j.IDs) != 1:
		return misused("--input is for one job")
	}
	in, err := inputOf(j.Input, &reader{con: con})
	if err != nil {
		return err
	}
	c, err := j.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if j.given() {
		return j.many(ctx, con, c, uuid.NewString())
	}
	for _, id := range j.IDs {
		r, err := c.Retry(ctx, id, in)
		if err != nil {
			return err
		}
		if err := showID(con, r); err != nil {
			return err
		}
	}
	return nil
}

type jobLogs struct {
	ID     string `arg:"" help:"Id of the job."`
	Follow bool   `short:"f" help:"Go on until the job ends."`
	caller
}

// Help shows with --help.
func (jobLogs) Help() string {
	return `Lines are kept for a day, a thousand batches of them a job; a note on standard error tells of lines that are no longer kept. --follow goes on until the job ends, also over lost connections. With --output json each line is a JSON string.

Examples:

    helmdeck job logs ID
    helmdeck job logs ID --follow`
}

// Run prints.
func (j *jobLogs) Run(ctx context.Context, con *console.Console) error {
	c, err := j.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for chunk, err := range c.LogLines(ctx, j.ID, "", j.Follow) {
		if err != nil {
			return err
		}
		if chunk.Missed > 0 {
			con.Say("%s %d lines are no longer kept", con.Yellow("note:"), chunk.Missed)
		}
		for _, line := range chunk.Lines {
			if con.JSON {
				err = con.WriteLine(line)
			} else {
				err = con.Print("%s", console.CleanText(line))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
