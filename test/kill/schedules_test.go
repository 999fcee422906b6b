package kill

import (
	"context"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

// TestKillAtEveryStepOfASchedule ends the API replica that attends to a
// schedule at each step of that: each time it was due is one job that ran
// once, and none is missing.
func TestKillAtEveryStepOfASchedule(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addWorker("worker", nil, "--pools", "core", "--slots", "4")
	for _, step := range failpoint.ScheduleSteps {
		t.Run(step, func(t *testing.T) {
			c.t = t
			c.scheduleStep(step)
		})
	}
	c.t = t
}

func (c *cluster) scheduleStep(step string) {
	c.t.Helper()
	name := "api-" + step
	c.api, c.urls = nil, nil
	c.addAPI(name, "HELMDECK_FAILPOINT="+step, "HELMDECK_FAILPOINT_FILE="+filepath.Join(c.dir, "hit-"+step))
	defer c.end(name, syscall.SIGTERM)
	spec := schedules.Spec{Every: "1s", Overlap: schedules.Queue, Request: jobs.Request{
		Pack: "test.echo", Input: []byte(`{"message":"tick"}`), IdempotencyKey: step,
	}}
	var s schedules.Schedule
	c.insist("create a schedule", func(ctx context.Context, api *client.Client) (err error) {
		s, err = api.CreateSchedule(ctx, spec)
		return err
	})
	const least = 4
	var made []jobs.Job
	c.until("runs", func() bool {
		c.insist("list its jobs", func(ctx context.Context, api *client.Client) error {
			list, err := api.Jobs(ctx, jobs.Query{Schedule: s.ID, State: jobs.Succeeded, Limit: 200})
			made = list.Jobs
			return err
		})
		return len(made) >= least && c.died(name)
	})
	c.insist("pause", func(ctx context.Context, api *client.Client) error {
		_, err := api.PauseSchedule(ctx, s.ID)
		return err
	})
	var shown schedules.Schedule
	c.until("its last job ends", func() bool {
		c.insist("show", func(ctx context.Context, api *client.Client) (err error) {
			shown, err = api.Schedule(ctx, s.ID)
			return err
		})
		return shown.ActiveJobID == ""
	})
	c.insist("list its jobs", func(ctx context.Context, api *client.Client) error {
		list, err := api.Jobs(ctx, jobs.Query{Schedule: s.ID, Limit: 200})
		made = list.Jobs
		return err
	})
	slices.SortFunc(made, func(a, b jobs.Job) int { return a.ScheduledFor.Compare(b.ScheduledFor) })
	for i, j := range made {
		due := s.CreatedAt.Add(time.Duration(i+1) * time.Second)
		if !j.ScheduledFor.Equal(due) || j.ID != schedules.JobID(s.ID, due) || j.State != jobs.Succeeded || j.Runs != 1 {
			c.t.Errorf("job %d: %s for %s, %s after %d runs; want one for %s", i, j.ID, j.ScheduledFor, j.State, j.Runs, due)
		}
	}
	for _, r := range shown.LastRuns {
		if r.Outcome != schedules.RunSucceeded {
			c.t.Errorf("run %+v", r)
		}
	}
	c.insist("delete", func(ctx context.Context, api *client.Client) error { return api.DeleteSchedule(ctx, s.ID) })
}
