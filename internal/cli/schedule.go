package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/cli/console"
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
