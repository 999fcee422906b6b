package cli

import (
	"context"
	"strings"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

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
		changes["input"] = in
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
