package client

import (
	"context"
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// BatchJob is one job of a batch, with its own idempotency key if it has one.
type BatchJob struct {
	jobs.Request
	IdempotencyKey string `json:"idempotency_key,omitempty"`
}

// BatchRequest is the body of POST /api/v1/jobs/batch: 1 to jobs.MaxBatch jobs.
type BatchRequest struct {
	Jobs []BatchJob `json:"jobs"`
}

// BatchResult says what became of each job of a batch, in order.
type BatchResult struct {
	Jobs     []BatchAnswer `json:"jobs"`
	Accepted int           `json:"accepted"`
	Refused  int           `json:"refused"`
}

// BatchAnswer holds the record of an accepted job, or why it was refused.
type BatchAnswer struct {
	Index int       `json:"index"` // in the request, from 0
	Job   *jobs.Job `json:"job,omitempty"`
	Error *Problem  `json:"error,omitempty"`
}

// SubmitBatch submits up to jobs.MaxBatch jobs, each on its own. With a key
// for the whole the call is repeated when the server is away, and repeating it
// gives the same jobs; without one it is sent once.
func (c *Client) SubmitBatch(ctx context.Context, batch []BatchJob, key string) (res BatchResult, err error) {
	body, err := encode(BatchRequest{Jobs: batch})
	if err != nil {
		return res, err
	}
	err = c.exchange(ctx, call{
		method: http.MethodPost, path: pathOf("jobs", "batch"), body: body, repeat: key != "",
		header: map[string]string{"Idempotency-Key": key},
	}, &res)
	return res, err
}

// JobSelection says which jobs a bulk call acts on: those of IDs, at most
// jobs.MaxBatch, or those that all given filters select, newest first. No
// filter at all needs All, so that a forgotten one does no harm.
type JobSelection struct {
	IDs    []string   `json:"ids,omitempty"`
	All    bool       `json:"all,omitempty"`
	State  jobs.State `json:"state,omitempty"`
	Pack   string     `json:"pack,omitempty"`
	Pool   string     `json:"pool,omitempty"`
	Label  string     `json:"label,omitempty"` // key=value, or key for any value
	Parent string     `json:"parent,omitempty"`
	// Schedule is the id of the schedule that made them.
	Schedule string    `json:"schedule,omitempty"`
	Since    time.Time `json:"since,omitzero"` // created at or after it
	Until    time.Time `json:"until,omitzero"` // created before it
	Page
}

// Page bounds one bulk call and tells where it begins.
type Page struct {
	// Limit is the most the call acts on, 1 to jobs.MaxBatch; 0 is that.
	Limit int `json:"limit,omitempty"`
	// Cursor is NextCursor of the call before.
	Cursor string `json:"cursor,omitempty"`
	// DryRun counts and does nothing.
	DryRun bool `json:"dry_run,omitempty"`
}

// BulkResult says what a bulk call did, or with dry_run what it would act on.
type BulkResult struct {
	Matched int `json:"matched"` // by the call, at most its limit
	// Done is how many were cancelled, retried or dropped.
	Done int `json:"done"`
	// Requested are running jobs that their workers are ending.
	Requested int `json:"requested,omitempty"`
	// Skipped were, or came to be, in another state.
	Skipped int `json:"skipped"`
	Failed  int `json:"failed"`
	// Jobs are the new jobs of a retry.
	Jobs []Retried `json:"jobs,omitempty"`
	// Errors are those of the first few that failed.
	Errors []BulkError `json:"errors,omitempty"`
	// More: there is more than the limit, from NextCursor on.
	More       bool   `json:"more"`
	NextCursor string `json:"next_cursor,omitempty"`
}

// Retried is a new job and the one it repeats.
type Retried struct {
	ID    string `json:"id"` // of the old one
	JobID string `json:"job_id"`
}

// BulkError is why one job was not acted on.
type BulkError struct {
	ID    string  `json:"id"`
	Error Problem `json:"error"`
}

// CancelMany cancels the jobs of a selection that have not ended.
func (c *Client) CancelMany(ctx context.Context, s JobSelection) (res BulkResult, err error) {
	return c.bulk(ctx, pathOf("jobs", "cancel"), s, "", true)
}

// RetryMany runs the jobs of a selection again as new ones: those that failed
// or were cancelled, unless its State says otherwise. With a key the call may
// be repeated.
func (c *Client) RetryMany(ctx context.Context, s JobSelection, key string) (res BulkResult, err error) {
	return c.bulk(ctx, pathOf("jobs", "retry"), s, key, key != "")
}

func (c *Client) bulk(ctx context.Context, path string, in any, key string, repeat bool) (res BulkResult, err error) {
	body, err := encode(in)
	if err != nil {
		return res, err
	}
	err = c.exchange(ctx, call{
		method: http.MethodPost, path: path, body: body, repeat: repeat, header: map[string]string{"Idempotency-Key": key},
	}, &res)
	return res, err
}
