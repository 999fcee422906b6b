package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

// schedule is helmdeck schedule.
type schedule struct {
	Create scheduleCreate `cmd:"" help:"Create a schedule and print its id."`
	List   scheduleList   `cmd:"" help:"List schedules, newest first."`
	Show   scheduleShow   `cmd:"" help:"Show a schedule with its next and last runs."`
	Update scheduleUpdate `cmd:"" help:"Change a schedule."`
	Pause  schedulePause  `cmd:"" help:"Let no run begin until it is resumed."`
	Resume scheduleResume `cmd:"" help:"Let a paused schedule go on."`
	Run    scheduleRun    `cmd:"" help:"Run the job of a schedule now."`
	Delete scheduleDelete `cmd:"" help:"Delete schedules."`
}

// Help shows with --help.
func (schedule) Help() string {
	return `A schedule submits a job again and again: at the times of a cron expression, or at an interval.

Examples:

    helmdeck schedule create http.fetch url=https://example.org/ --cron "0 6 * * 1-5" --time-zone Europe/Berlin
    helmdeck schedule create http.fetch url=https://example.org/ --every 15m --name poll
    helmdeck schedule list
    helmdeck job list --schedule ID`
}

// timing is when the jobs of a schedule run; an empty string leaves a setting
// as it is.
type timing struct {
	Cron     string `placeholder:"EXPR" help:"Five fields (minute hour day month weekday) or six (second first)."`
	Every    string `placeholder:"DURATION" help:"Interval such as 90s or 1h30m, instead of --cron."`
	TimeZone string `placeholder:"ZONE" help:"IANA name of the zone of --cron, such as Europe/Berlin; UTC by default."`
	Overlap  string `placeholder:"POLICY" help:"When the run before has not ended: skip (default), queue or replace."`
	CatchUp  string `placeholder:"POLICY" help:"Runs missed while paused or down: none, last (default) or all."`
	Start    string `placeholder:"TIME" help:"No run before this time (RFC 3339)."`
	End      string `placeholder:"TIME" help:"No run after this time (RFC 3339)."`
	Jitter   string `placeholder:"DURATION" help:"Put each run off by up to so long."`
}

// jitter is Jitter in whole seconds.
func (t *timing) jitter() (int, error) {
	if t.Jitter == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(t.Jitter)
	if err != nil || d < 0 {
		return 0, misused("--jitter: %q is no duration such as 30s", t.Jitter)
	}
	return int((d + time.Second - 1) / time.Second), nil
}

type scheduleCreate struct {
	request
	timing
	ScheduleName string `name:"name" placeholder:"TEXT" help:"Name of the schedule, unique among yours."`
	caller
}

// Help shows with --help.
func (scheduleCreate) Help() string {
	return `The input is checked now; the newest version of the pack at the time of each run is used unless --version says otherwise.

Examples:

    helmdeck schedule create slides.render markdown=@deck.md --cron "0 7 * * 1" --time-zone America/New_York --name weekly
    helmdeck schedule create http.fetch url=https://example.org/ --every 10m --jitter 30s --overlap replace
    helmdeck schedule create http.fetch url=https://example.org/ --cron "30 2 * * *" --catch-up all --label kind=nightly`
}

// Run creates.
func (s *scheduleCreate) Run(ctx context.Context, con *console.Console) error {
	spec := schedules.Spec{
		Name: s.ScheduleName, Cron: s.Cron, Every: s.Every, TimeZone: s.TimeZone,
		Overlap: schedules.Overlap(s.Overlap), CatchUp: schedules.CatchUp(s.CatchUp),
	}
	var err error
	if spec.JitterS, err = s.jitter(); err != nil {
		return err
	}
	if spec.StartAt, err = instant("--start", s.Start); err != nil {
		return err
	}
	if spec.EndAt, err = instant("--end", s.End); err != nil {
		return err
	}
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	if spec.Request, err = s.build(ctx, con, c); err != nil {
		return err
	}
	made, err := c.CreateSchedule(ctx, spec)
	if err != nil {
		return withPackHints(err, spec.Pack)
	}
	if con.JSON {
		return con.WriteJSON(made)
	}
	con.Say("%s", con.Dim("first run: "+console.Time(made.NextRuns[0])+"; see: helmdeck schedule show "+made.ID))
	return con.Print("%s", made.ID)
}

type scheduleList struct {
	State  string `placeholder:"STATE" help:"active, paused or ended."`
	Pack   string `placeholder:"NAME" help:"Schedules of this pack."`
	Name   string `placeholder:"TEXT" help:"The schedule of this name."`
	Limit  int    `default:"50" help:"Schedules on a page, 1 to 200."`
	Cursor string `placeholder:"CURSOR" help:"Where a page before ended."`
	caller
}

// Help shows with --help.
func (scheduleList) Help() string {
	return `Examples:

    helmdeck schedule list --state paused
    helmdeck schedule list --name weekly -o json | jq -r '.schedules[0].id'`
}

// Run lists.
func (s *scheduleList) Run(ctx context.Context, con *console.Console) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Schedules(ctx, schedules.Query{
		State: schedules.State(s.State), Pack: s.Pack, Name: s.Name, Limit: s.Limit, Cursor: s.Cursor})
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(list)
	}
	rows := make([][]string, len(list.Schedules))
	for i := range list.Schedules {
		r := &list.Schedules[i]
		next, last := "", ""
		if len(r.NextRuns) > 0 {
			next = console.Time(r.NextRuns[0])
		}
		if len(r.LastRuns) > 0 {
			last = string(r.LastRuns[0].Outcome)
		}
		rows[i] = []string{r.ID, r.Name, r.Pack, when(r), string(r.State), next, last}
	}
	if err := con.Table([]string{"ID", "NAME", "PACK", "WHEN", "STATE", "NEXT", "LAST"}, rows); err != nil {
		return err
	}
	more(con, list.NextCursor)
	return nil
}

// when is the times of a schedule in few words.
func when(s *schedules.Schedule) string {
	if s.Every != "" {
		return "every " + s.Every
	}
	if s.TimeZone == "UTC" {
		return s.Cron
	}
	return s.Cron + " " + s.TimeZone
}

type scheduleShow struct {
	ID string `arg:"" help:"Id of the schedule."`
	caller
}

// Help shows with --help.
func (scheduleShow) Help() string {
	return `Examples:

    helmdeck schedule show ID
    helmdeck schedule show ID -o json | jq -r '.next_runs[]'`
}

// Run shows.
func (s *scheduleShow) Run(ctx context.Context, con *console.Console) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := c.Schedule(ctx, s.ID)
	if err != nil {
		return err
	}
	return showSchedule(con, &r)
}

func showSchedule(con *console.Console, s *schedules.Schedule) error {
	if con.JSON {
		return con.WriteJSON(s)
	}
	pairs := []string{
		"id", s.ID, "name", s.Name, "state", string(s.State), "when", when(s), "starts", console.Time(s.StartAt), "ends", console.Time(s.EndAt),
		"overlap", string(s.Overlap), "catch up", string(s.CatchUp), "pack", s.Pack + versionSuffix(s.Version), "input", string(s.Input),
		"priority", string(s.Priority), "caller", s.Caller.Subject, "created", console.Time(s.CreatedAt), "running", s.ActiveJobID,
	}
	if s.JitterS > 0 {
		pairs = append(pairs, "jitter", fmt.Sprintf("%ds", s.JitterS))
	}
	if s.WaitingRuns > 0 {
		pairs = append(pairs, "waiting", fmt.Sprintf("%d runs", s.WaitingRuns))
	}
	for k, v := range s.Labels {
		pairs = append(pairs, "label", k+"="+v)
	}
	for _, t := range s.NextRuns {
		pairs = append(pairs, "next run", console.Time(t))
	}
	for _, r := range s.LastRuns {
		words := []string{console.Time(r.At), string(r.Outcome)}
		if r.Trigger != schedules.ByTime {
			words = append(words, strings.ReplaceAll(string(r.Trigger), "_", " "))
		}
		if r.Count > 0 {
			words = append(words, fmt.Sprintf("%d times", r.Count))
		}
		if r.Error != nil {
			words = append(words, shorten(fmt.Sprintf("%s: %s", r.Error.Code, r.Error.Message)))
		}
		pairs = append(pairs, "last run", strings.TrimSpace(strings.Join(words, "  ")+"  "+r.JobID))
	}
	return con.Fields(pairs...)
}

func versionSuffix(v string) string {
	if v == "" {
		return ""
	}
	return "@" + v
}

type scheduleUpdate struct {
	ID string `arg:"" help:"Id of the schedule."`
	timing
	Name    string `placeholder:"TEXT" help:"Another name."`
	Input   string `placeholder:"JSON|@FILE|-" help:"Another input instead of the old one."`
	Version string `placeholder:"vN" help:"Another version of the pack; latest follows the newest."`
	Clear   string `placeholder:"KEYS" help:"Settings to set back, with commas, such as end_at,jitter_s,name."`
	caller
}

// Help shows with --help.
func (scheduleUpdate) Help() string {
	return `What is not named stays as it is. Other times apply from now on.

Examples:

    helmdeck schedule update ID --cron "0 8 * * 1-5"
    helmdeck schedule update ID --every 5m --overlap queue
    helmdeck schedule update ID --input @deck.json --clear end_at`
}

// Run changes.
func (s *scheduleUpdate) Run(ctx context.Context, con *console.Console) error {
	changes, err := s.changes(con)
	if err != nil {
		return err
	}
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := c.UpdateSchedule(ctx, s.ID, changes)
	if err != nil {
		return err
	}
	return showSchedule(con, &r)
}

func (s *scheduleUpdate) changes(con *console.Console) (map[string]any, error) {
	changes := map[string]any{}
	for key, text := range map[string]string{
		"cron": s.Cron, "every": s.Every, "time_zone": s.TimeZone, "overlap": s.Overlap, "catch_up": s.CatchUp,
		"start_at": s.Start, "end_at": s.End, "name": s.Name, "version": s.Version,
	} {
		if text != "" {
			changes[key] = text
		}
	}
	if s.Jitter != "" {
		n, err := s.jitter()
		if err != nil {
			return nil, err
		}
		changes["jitter_s"] = n
	}
	in, err := inputOf(s.Input, &reader{con: con})
	if err != nil {
		return nil, err
	}
	if len(in) > 0 {
		changes["input"] = json.RawMessage(in)
	}
	for key := range strings.SplitSeq(s.Clear, ",") {
		if key = strings.TrimSpace(key); key == "" {
			continue
		}
		if _, ok := changes[key]; ok {
			return nil, misused("--clear: %s is set by a flag too", key)
		}
		changes[key] = nil
	}
	if len(changes) == 0 {
		return nil, misused("say what to change")
	}
	return changes, nil
}

type schedulePause struct {
	ID string `arg:"" help:"Id of the schedule."`
	caller
}

// Help shows with --help.
func (schedulePause) Help() string {
	return `The job of a run that has begun goes on.

Examples:

    helmdeck schedule pause ID`
}

// Run pauses.
func (s *schedulePause) Run(ctx context.Context, con *console.Console) error {
	return s.change(con, func(c *client.Client) (schedules.Schedule, error) { return c.PauseSchedule(ctx, s.ID) })
}

type scheduleResume struct {
	ID string `arg:"" help:"Id of the schedule."`
	caller
}

// Help shows with --help.
func (scheduleResume) Help() string {
	return `The catch-up policy of the schedule says what becomes of the runs that were missed.

Examples:

    helmdeck schedule resume ID`
}

// Run resumes.
func (s *scheduleResume) Run(ctx context.Context, con *console.Console) error {
	return s.change(con, func(c *client.Client) (schedules.Schedule, error) { return c.ResumeSchedule(ctx, s.ID) })
}

// change does something to a schedule and shows its state.
func (c *caller) change(con *console.Console, do func(*client.Client) (schedules.Schedule, error)) error {
	cl, err := c.connect()
	if err != nil {
		return err
	}
	defer cl.Close()
	s, err := do(cl)
	if err != nil {
		return err
	}
	if con.JSON {
		return con.WriteJSON(s)
	}
	return con.Print("%s  %s", s.ID, s.State)
}

type scheduleRun struct {
	ID string `arg:"" help:"Id of the schedule."`
	caller
}

// Help shows with --help.
func (scheduleRun) Help() string {
	return `Prints the id of the job. It runs whether the schedule is paused or not, and whatever else runs.

Examples:

    helmdeck job watch $(helmdeck schedule run ID)`
}

// Run runs.
func (s *scheduleRun) Run(ctx context.Context, con *console.Console) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	job, err := c.RunSchedule(ctx, s.ID)
	if err != nil {
		return err
	}
	return showID(con, job)
}

type scheduleDelete struct {
	IDs []string `arg:"" name:"id" help:"Ids of the schedules."`
	caller
}

// Help shows with --help.
func (scheduleDelete) Help() string {
	return `Jobs of runs that have begun go on; cancel them with helmdeck job cancel.

Examples:

    helmdeck schedule delete ID
    helmdeck schedule list --state ended -o json | jq -r '.schedules[].id' | xargs helmdeck schedule delete`
}

// Run deletes, and stops at the first error.
func (s *scheduleDelete) Run(ctx context.Context, con *console.Console) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for _, id := range s.IDs {
		if err := c.DeleteSchedule(ctx, id); err != nil {
			return err
		}
		if con.JSON {
			err = con.WriteLine(map[string]string{"id": id, "state": "deleted"})
		} else {
			err = con.Print("%s  deleted", id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
