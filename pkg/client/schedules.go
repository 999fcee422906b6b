package client

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

// CreateSchedule creates a schedule. The idempotency key of its request makes
// repeating the call safe across processes; empty: a random one, which makes
// it safe within the call.
func (c *Client) CreateSchedule(ctx context.Context, spec schedules.Spec) (s schedules.Schedule, err error) {
	body, err := encode(spec)
	if err != nil {
		return s, err
	}
	key := spec.IdempotencyKey
	if key == "" {
		key = uuid.NewString()
	}
	err = c.exchange(ctx, call{
		method: http.MethodPost, path: pathOf("schedules"), body: body, repeat: true,
		header: map[string]string{"Idempotency-Key": key},
	}, &s)
	return s, err
}

// Schedules lists schedules, newest first.
func (c *Client) Schedules(ctx context.Context, q schedules.Query) (list ScheduleList, err error) {
	err = c.get(ctx, pathOf("schedules"), values(
		"state", string(q.State), "pack", q.Pack, "name", q.Name, "limit", number(q.Limit), "cursor", q.Cursor), &list)
	return list, err
}

// Schedule shows a schedule with its next and last runs.
func (c *Client) Schedule(ctx context.Context, id string) (s schedules.Schedule, err error) {
	err = c.get(ctx, pathOf("schedules", id), nil, &s)
	return s, err
}

// UpdateSchedule changes a schedule. changes holds the keys of the body of a
// create: those that are absent stay, nil takes the default.
func (c *Client) UpdateSchedule(ctx context.Context, id string, changes map[string]any) (s schedules.Schedule, err error) {
	body, err := encode(changes)
	if err != nil {
		return s, err
	}
	err = c.exchange(ctx, call{method: http.MethodPatch, path: pathOf("schedules", id), body: body, repeat: true}, &s)
	return s, err
}

// DeleteSchedule deletes a schedule.
func (c *Client) DeleteSchedule(ctx context.Context, id string) error {
	return c.exchange(ctx, call{method: http.MethodDelete, path: pathOf("schedules", id)}, nil)
}

// PauseSchedule lets no run of a schedule begin.
func (c *Client) PauseSchedule(ctx context.Context, id string) (s schedules.Schedule, err error) {
	err = c.exchange(ctx, call{method: http.MethodPost, path: pathOf("schedules", id, "pause"), repeat: true}, &s)
	return s, err
}

// ResumeSchedule lets a paused schedule go on.
func (c *Client) ResumeSchedule(ctx context.Context, id string) (s schedules.Schedule, err error) {
	err = c.exchange(ctx, call{method: http.MethodPost, path: pathOf("schedules", id, "resume"), repeat: true}, &s)
	return s, err
}

// RunSchedule submits the job of a schedule now.
func (c *Client) RunSchedule(ctx context.Context, id string) (job jobs.Job, err error) {
	err = c.exchange(ctx, call{
		method: http.MethodPost, path: pathOf("schedules", id, "run"), repeat: true,
		header: map[string]string{"Idempotency-Key": uuid.NewString()},
	}, &job)
	return job, err
}
