package webhooks

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// object is what a delivery tells of a job: the data of the CloudEvent, or the
// whole body in the plain format. Its fields keep the names that receivers
// made for older versions read.
type object struct {
	// EventType is pack.complete or pack.failed, as receivers know them, or
	// pack.<state> before the end.
	EventType string      `json:"event_type"`
	JobID     string      `json:"job_id"`
	TaskID    string      `json:"task_id"`
	Pack      string      `json:"pack"`
	State     string      `json:"state"` // working, completed or failed
	StartedAt time.Time   `json:"started_at"`
	EndedAt   time.Time   `json:"ended_at,omitzero"`
	Result    *toolResult `json:"result,omitempty"`
	Error     *toolResult `json:"error,omitempty"`
	Snapshot  snapshot    `json:"snapshot"`
	Meta      meta        `json:"meta"`
	// OutputTruncated: the output is too large for a delivery; ResultURL has it.
	OutputTruncated bool   `json:"output_truncated,omitempty"`
	ResultURL       string `json:"result_url,omitempty"`
}

// toolResult is a result as MCP has it.
type toolResult struct {
	Content []content `json:"content"`
	IsError bool      `json:"isError"`
}

type content struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// snapshot is a job as the older job tools show it.
type snapshot struct {
	JobID     string    `json:"job_id"`
	Pack      string    `json:"pack"`
	State     string    `json:"state"`
	Progress  float64   `json:"progress"` // 0 to 100
	Message   string    `json:"message,omitempty"`
	StartedAt time.Time `json:"started_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	Error     string    `json:"error,omitempty"`
}

// meta holds what the older object has no place for.
type meta struct {
	Event    string            `json:"event"`
	State    jobs.State        `json:"state,omitempty"`
	Attempt  int               `json:"attempt"`
	Labels   map[string]string `json:"labels,omitempty"`
	ReplayOf string            `json:"replay_of,omitempty"`
	ParentID string            `json:"parent_id,omitempty"`
}

// detail is how much of a job goes into a body.
type detail int

// From whole to the least: a body that is too large is made again with less.
const (
	whole detail = iota
	noOutput
	bare
)

// longText is where texts are cut in a bare body, in bytes.
const longText = 1024

// newObject tells of job; ev is the name of the event.
func newObject(job jobs.Job, ev, base string, d detail) (object, error) {
	o := object{
		JobID: job.ID, TaskID: "pack_" + job.ID, Pack: job.Pack, State: "working",
		StartedAt: job.StartedAt, EndedAt: job.FinishedAt,
		Meta: meta{Event: ev, State: job.State, Attempt: job.Attempt, Labels: job.Labels, ReplayOf: job.ReplayOf, ParentID: job.ParentID},
	}
	if o.StartedAt.IsZero() {
		o.StartedAt = job.CreatedAt
	}
	if d == bare {
		o.Meta.Labels = nil
	}
	var err error
	var progress float64
	switch job.State {
	case jobs.Succeeded:
		o.State, o.EventType, progress = "completed", "pack.complete", 100
		o.OutputTruncated = d > whole || job.OutputKey != ""
		if o.OutputTruncated {
			o.ResultURL = base + "/api/v1/jobs/" + job.ID + "/result"
		}
		o.Result, err = success(job, d)
	case jobs.Failed, jobs.Cancelled:
		// Older receivers know no third end: a cancelled job is one that failed
		// with the code cancelled.
		o.State, o.EventType = "failed", "pack.failed"
		o.Error, o.Snapshot.Error, err = failure(job, d)
	case jobs.Scheduled, jobs.Queued, jobs.Running, jobs.Retrying:
		o.EventType = "pack." + ev[len("job."):]
	}
	if job.Progress != nil && progress == 0 {
		progress = job.Progress.Percent
		o.Snapshot.Message = cut(job.Progress.Message)
	}
	o.Snapshot = snapshot{
		JobID: o.JobID, Pack: o.Pack, State: o.State, Progress: progress, Message: o.Snapshot.Message,
		StartedAt: o.StartedAt, EndedAt: o.EndedAt, Error: o.Snapshot.Error,
	}
	return o, err
}

func success(job jobs.Job, d detail) (*toolResult, error) {
	r := client.Result{
		Pack: job.Pack, Version: job.Version, Output: job.Output, Artifacts: job.Artifacts,
		DurationMS: job.DurationMS, SessionID: job.SessionID, JobID: job.ID, Warnings: job.Warnings,
	}
	if d > whole || job.OutputKey != "" {
		r.Output = nil
	}
	if d == bare {
		r.Artifacts, r.Warnings = nil, nil
	}
	return result(r, false)
}

func failure(job jobs.Job, d detail) (*toolResult, string, error) {
	f := jobs.Failure{Code: packs.Internal, Message: "the job left no error"}
	if job.Error != nil {
		f = *job.Error
	}
	if d == bare {
		f.Message, f.Details = cut(f.Message), nil
	}
	r, err := result(client.Problem{Error: f.Code, Message: f.Message, JobID: job.ID, Details: f.Details, RetryAfterS: f.RetryAfterS}, true)
	return r, string(f.Code) + ": " + cut(f.Message), err
}

func result(v any, failed bool) (*toolResult, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return &toolResult{Content: []content{{Type: "text", Text: string(text)}}, IsError: failed}, nil
}

func cut(s string) string {
	if len(s) <= longText {
		return s
	}
	n := longText
	for n > 0 && s[n]&0xC0 == 0x80 { // inside a character
		n--
	}
	return s[:n] + "…"
}

// render makes the body of a delivery of ev, which records job, and the value
// of webhooks.HeaderEvent.
func render(ev event.Event, job jobs.Job, base string, f webhooks.Format) (body []byte, kind string, err error) {
	for d := whole; d <= bare; d++ {
		o, err := newObject(job, webhooks.EventOf(ev.Type()), base, d)
		if err != nil {
			return nil, "", fmt.Errorf("render job %s: %w", job.ID, err)
		}
		if body, err = encode(ev, o, f); err != nil {
			return nil, "", fmt.Errorf("render job %s: %w", job.ID, err)
		}
		kind = o.EventType
		if len(body) < webhooks.MaxBody {
			break
		}
	}
	return body, kind, nil
}

func encode(ev event.Event, data any, f webhooks.Format) ([]byte, error) {
	raw, err := json.Marshal(data)
	if err != nil || f == webhooks.Plain {
		return raw, err
	}
	out := ev.Clone()
	if err := out.SetData(event.ApplicationJSON, json.RawMessage(raw)); err != nil {
		return nil, err
	}
	_, body, err := events.EncodeStructured(out)
	return body, err
}
