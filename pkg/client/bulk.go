package client

import (
	"context"
	"net/http"

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
