package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// turn is how long one request waits for a result before it asks again: less
// than the idle limit of common proxies.
const turn = 45 * time.Second

// Packs lists the newest version of every pack, by name.
func (c *Client) Packs(ctx context.Context) (list []Pack, err error) {
	err = c.get(ctx, pathOf("packs"), nil, &list)
	return list, err
}

// Pack shows a pack; version is "", "latest" or "v<n>".
func (c *Client) Pack(ctx context.Context, name, version string) (p Pack, err error) {
	err = c.get(ctx, packPath(name, version), nil, &p)
	return p, err
}

func packPath(name, version string) string {
	if version == "" {
		return pathOf("packs", name)
	}
	return pathOf("packs", name, version)
}

// RunOptions are the rarer wishes of RunPack.
type RunOptions struct {
	Version string
	// IdempotencyKey makes repeating the call safe across processes. Empty: a
	// random one, which makes it safe within the call.
	IdempotencyKey string
	// Accepted is called with the record when the result takes longer than a
	// request, before the wait goes on; may be nil.
	Accepted func(jobs.Job)
}

// RunPack submits a job and waits for its result until ctx ends, however long
// it takes. The failure of the job is an *Error with its JobID. When ctx ends
// the job goes on.
func (c *Client) RunPack(ctx context.Context, name string, input json.RawMessage, o RunOptions) (Result, error) {
	if len(bytes.TrimSpace(input)) == 0 {
		input = json.RawMessage("{}")
	}
	if o.IdempotencyKey == "" {
		o.IdempotencyKey = uuid.NewString()
	}
	result, pending, err := c.result(ctx, call{
		method: http.MethodPost, path: packPath(name, o.Version), body: input, repeat: true, query: waitFor(turn),
		header: map[string]string{"Idempotency-Key": o.IdempotencyKey},
	})
	if err != nil || pending == nil {
		return result, err
	}
	if o.Accepted != nil {
		o.Accepted(*pending)
	}
	return c.Await(ctx, pending.ID)
}

// Await waits for the result of a job until ctx ends.
func (c *Client) Await(ctx context.Context, id string) (Result, error) {
	for {
		result, pending, err := c.Result(ctx, id, turn)
		if err != nil || pending == nil {
			return result, err
		}
		// A server that shuts down answers before the wait is over.
		if err := sleep(ctx, firstPause); err != nil {
			return Result{}, fmt.Errorf("wait for job %s: %w", id, err)
		}
	}
}

// Result fetches the result of a job, waiting for it at most wait, at most 15
// minutes. pending is the record of a job that has not ended by then.
func (c *Client) Result(ctx context.Context, id string, wait time.Duration) (result Result, pending *jobs.Job, err error) {
	return c.result(ctx, call{
		method: http.MethodGet, path: pathOf("jobs", id, "result"), query: waitFor(wait), repeat: true,
	})
}

func waitFor(d time.Duration) url.Values {
	return values("wait", strconv.Itoa(int(d/time.Second)))
}

func (c *Client) result(ctx context.Context, rq call) (result Result, pending *jobs.Job, err error) {
	var raw json.RawMessage
	status, err := c.answer(ctx, rq, &raw)
	if err != nil {
		return Result{}, nil, err
	}
	if status == http.StatusAccepted {
		pending = &jobs.Job{}
		err = json.Unmarshal(raw, pending)
	} else {
		err = json.Unmarshal(raw, &result)
	}
	if err != nil {
		return Result{}, nil, fmt.Errorf("read the answer of %s %s: %w", rq.method, rq.path, err)
	}
	return result, pending, nil
}

// Submit submits a job. With an IdempotencyKey the call is repeated when the
// server is away; without one it is sent once.
func (c *Client) Submit(ctx context.Context, r jobs.Request) (job jobs.Job, err error) {
	body, err := encode(r)
	if err != nil {
		return job, err
	}
	err = c.exchange(ctx, call{
		method: http.MethodPost, path: pathOf("jobs"), body: body, repeat: r.IdempotencyKey != "",
		header: map[string]string{"Idempotency-Key": r.IdempotencyKey},
	}, &job)
	return job, err
}

// Job reads the record of a job.
func (c *Client) Job(ctx context.Context, id string) (job jobs.Job, err error) {
	err = c.get(ctx, pathOf("jobs", id), nil, &job)
	return job, err
}

// Jobs lists jobs, newest first. Tenant and Owner of q are of no account.
func (c *Client) Jobs(ctx context.Context, q jobs.Query) (list JobList, err error) {
	err = c.get(ctx, pathOf("jobs"), values(
		"state", string(q.State), "pack", q.Pack, "pool", q.Pool, "parent", q.Parent, "schedule", q.Schedule, "label", labelOf(q.LabelKey, q.LabelValue),
		"since", timestamp(q.Since), "until", timestamp(q.Until), "limit", number(q.Limit), "cursor", q.Cursor,
	), &list)
	return list, err
}

func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// Cancel cancels a job and returns its record, which is not terminal while
// the worker is ending it.
func (c *Client) Cancel(ctx context.Context, id string) (job jobs.Job, err error) {
	err = c.exchange(ctx, call{method: http.MethodPost, path: pathOf("jobs", id, "cancel"), repeat: true}, &job)
	return job, err
}

// Retry runs an ended job again as a new one, with the old input or, when it
// is not empty, with another.
func (c *Client) Retry(ctx context.Context, id string, input json.RawMessage) (job jobs.Job, err error) {
	body, err := encode(RetryRequest{Input: input})
	if err != nil {
		return job, err
	}
	err = c.exchange(ctx, call{method: http.MethodPost, path: pathOf("jobs", id, "retry"), body: body}, &job)
	return job, err
}

// Logs returns the lines a job logged as text; with follow the text ends with
// the job. The caller closes it.
func (c *Client) Logs(ctx context.Context, id string, follow bool) (io.ReadCloser, error) {
	rq := call{method: http.MethodGet, path: pathOf("jobs", id, "logs"), repeat: true}
	if follow {
		rq.query = values("follow", "true")
	}
	res, err := c.send(ctx, rq)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Version returns the server's version.
func (c *Client) Version(ctx context.Context) (string, error) {
	var v VersionInfo
	err := c.get(ctx, "/version", nil, &v)
	return v.Version, err
}

// Ready asks once whether the server can serve calls, and whether each of
// pools has a worker. A server that answers "unavailable" is no error.
func (c *Client) Ready(ctx context.Context, pools ...string) (r Readiness, err error) {
	query := url.Values{}
	for _, p := range pools {
		query.Set("pools", query.Get("pools")+","+p)
	}
	err = c.exchange(ctx, call{
		method: http.MethodGet, path: "/readyz", query: query, accept: []int{http.StatusServiceUnavailable},
	}, &r)
	return r, err
}
