// Package jobs is the client side of the job system: what a job is, which
// moves between its states are legal, and how jobs are submitted, read,
// listed, awaited, cancelled and run again.
//
// It knows nothing of NATS. The durable side stands behind Ledger, Queue and
// Index, implemented in internal/bus/jobstore; running jobs is the business
// of internal/worker.
package jobs

import (
	"encoding/json"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/records"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// State of a job.
type State string

// The states. Retrying is queued with a past attempt.
const (
	Scheduled State = "scheduled"
	Queued    State = "queued"
	Running   State = "running"
	Retrying  State = "retrying"
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Terminal reports whether no further move is legal.
func (s State) Terminal() bool { return s == Succeeded || s == Failed || s == Cancelled }

// Priority is the lane a job queues in.
type Priority string

// The lanes, served 8:3:1 so that none starves, or strictly one after the
// other if the operator says so.
const (
	High   Priority = "high"
	Normal Priority = "normal"
	Low    Priority = "low"
)

// Lanes lists the priorities from the first served to the last.
var Lanes = []Priority{High, Normal, Low}

// LaneWeights are the shares of the lanes while all have a backlog.
var LaneWeights = map[Priority]int{High: 8, Normal: 3, Low: 1}

// Key locates a job: its id and the bus tokens of whom it belongs to. Tenant
// and Owner may be empty when an administrator asks for a job by id alone.
type Key struct {
	Tenant, Owner, ID string
}

// Job is the record of a job as every surface shows it, without input and
// without secrets. Every lifecycle event carries it.
type Job struct {
	ID       string   `json:"id"`
	Pack     string   `json:"pack"`
	Version  string   `json:"version"` // "v1"
	Pool     string   `json:"pool"`
	State    State    `json:"state"`
	Attempt  int      `json:"attempt"` // charged attempts begun; lost workers are not charged
	Priority Priority `json:"priority"`
	// Progress is filled in by readers from the latest progress event.
	Progress *Progress `json:"progress,omitempty"`
	// QueuePosition is approximate: messages before it in its lane.
	QueuePosition *int `json:"queue_position,omitempty"`
	// WaitingReason is filled in by readers: why a queued or retrying job does
	// not start, beside its turn. Empty when only its turn has not come.
	WaitingReason string          `json:"waiting_reason,omitempty"`
	Output        json.RawMessage `json:"output,omitempty"`
	// OutputKey is the blob of an output above the claim-check limit; readers
	// resolve it into Output.
	OutputKey string            `json:"output_key,omitempty"`
	Artifacts []artifacts.Ref   `json:"artifacts,omitempty"`
	Error     *Failure          `json:"error,omitempty"`
	SessionID string            `json:"session_id,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Caller    identity.Caller   `json:"caller"`
	ParentID  string            `json:"parent_id,omitempty"`
	ReplayOf  string            `json:"replay_of,omitempty"`
	// Call says how a pack called the job; nil for all other jobs, also those
	// whose parent_id their submitter chose.
	Call *Called `json:"call,omitempty"`
	// Children counts the jobs with this parent by state, as far as the
	// replica that answers knows them; filled in by readers of one job.
	Children map[State]int `json:"children,omitempty"`
	// Webhook is told of the job's events.
	Webhook *webhooks.Hook `json:"webhook,omitempty"`
	// ScheduleID is the schedule whose run the job is.
	ScheduleID string `json:"schedule_id,omitempty"`

	// ResultTTLS is how long the job is kept after its end, in seconds, 0 for
	// as long as the installation keeps jobs; ExpiresAt is when it goes away.
	ResultTTLS int       `json:"result_ttl_s,omitempty"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	// Expired is set on what stays of a job whose time was over: its id, its
	// pack and how it ended. No reader sees it.
	Expired bool `json:"expired,omitempty"`

	CreatedAt    time.Time `json:"created_at"`
	ScheduledFor time.Time `json:"scheduled_for,omitzero"`
	StartedAt    time.Time `json:"started_at,omitzero"` // of the current or last attempt
	FinishedAt   time.Time `json:"finished_at,omitzero"`
	DurationMS   int64     `json:"duration_ms,omitempty"` // of the last attempt, milliseconds
	Warnings     []string  `json:"warnings,omitempty"`

	TimeoutS    int          `json:"timeout_s,omitempty"` // per attempt
	MaxAttempts int          `json:"max_attempts,omitempty"`
	Effect      packs.Effect `json:"effect,omitempty"`
	// RetryTimeouts: the caller asked for more than one attempt, so a timeout
	// of the pack itself is worth another one.
	RetryTimeouts bool `json:"retry_timeouts,omitempty"`
	// Worker runs the current attempt.
	Worker string `json:"worker,omitempty"`
	// Runs counts claims; Lost counts those whose worker was lost and Returned
	// those a stopping worker handed back, neither of which is charged:
	// Attempt = Runs - Lost - Returned.
	Runs     int `json:"runs,omitempty"`
	Lost     int `json:"lost,omitempty"`
	Returned int `json:"returned,omitempty"`
	// EffectBegun is set once an EffectOnce pack is about to act.
	EffectBegun bool `json:"effect_begun,omitempty"`
	// Poison is set on a failed job that was quarantined.
	Poison bool `json:"poison,omitempty"`
	// CancelRequested is set while a running job is being stopped.
	CancelRequested bool `json:"cancel_requested,omitempty"`
	// History is the error chain of earlier attempts, oldest first, bounded.
	History []AttemptError `json:"history,omitempty"`
	// RetryAt is when a retrying job runs again.
	RetryAt time.Time `json:"retry_at,omitzero"`

	// ConcurrencyKey: of the tenant's jobs with this key at most
	// ConcurrencyLimit run at once.
	ConcurrencyKey   string `json:"concurrency_key,omitempty"`
	ConcurrencyLimit int    `json:"concurrency_limit,omitempty"`
	// LimitKeys name the limits under which the newest run holds a place.
	LimitKeys []string `json:"limit_keys,omitempty"`
	// InputBytes is the size of the input.
	InputBytes int64 `json:"input_bytes,omitempty"`

	// Unknown are the members that a newer program wrote; see EncodeJob.
	Unknown records.Unknown `json:"-"`
}

// Key returns the key of the job.
func (j Job) Key() Key {
	return Key{Tenant: j.Caller.TenantToken(), Owner: j.Caller.Owner(), ID: j.ID}
}

// Stamped returns the record with the time at which it goes away, if it has
// one and has ended.
func (j Job) Stamped() Job {
	if j.ResultTTLS > 0 && j.State.Terminal() {
		j.ExpiresAt = j.FinishedAt.Add(time.Duration(j.ResultTTLS) * time.Second)
	}
	return j
}

// Tombstone is what stays of a record that has expired.
func (j Job) Tombstone() Job {
	return Job{
		ID: j.ID, Pack: j.Pack, Version: j.Version, Pool: j.Pool, State: j.State, Priority: j.Priority,
		CreatedAt: j.CreatedAt, FinishedAt: j.FinishedAt, ExpiresAt: j.ExpiresAt, Expired: true,
	}
}

// Progress is how far a running job has come.
type Progress struct {
	Percent float64   `json:"percent"` // 0 to 100
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// Failure is the error part of a record.
type Failure struct {
	Code    packs.Code     `json:"code"`
	Message string         `json:"message"`
	Details []packs.Detail `json:"details,omitempty"`
	// RetryAfterS asks the caller to wait so many seconds.
	RetryAfterS int `json:"retry_after_s,omitempty"`
}

// AttemptError is the outcome of one attempt that did not win.
type AttemptError struct {
	Run     int        `json:"run"`
	Worker  string     `json:"worker"`
	Code    packs.Code `json:"code"`
	Message string     `json:"message"`
	At      time.Time  `json:"at"`
}

// Submission is a job on its way through the queue: the record and what it
// runs on.
type Submission struct {
	Job   Job             `json:"job"`
	Input json.RawMessage `json:"input,omitempty"`
	// InputKey is the blob of an input above the claim-check limit.
	InputKey    string `json:"input_key,omitempty"`
	TraceParent string `json:"traceparent,omitempty"`
	// PassedOn counts how often the job was put off because the worker that got
	// it has not this version of its pack.
	PassedOn int `json:"passed_on,omitempty"`
	// Unknown are the members that a newer program wrote; see EncodeSubmission.
	Unknown records.Unknown `json:"-"`
	// WebhookSecret signs deliveries to Job.Webhook; it is sealed.
	WebhookSecret string `json:"webhook_secret,omitempty"`
	// Encoded is the message a store read this from, so that it can write the
	// same again without encoding it anew. It is void once a field changes.
	Encoded *Encoded `json:"-"`
}

// Encoded is a submission as a message.
type Encoded struct {
	Header map[string][]string
	Data   []byte
}

// Request asks for a job. It is the body of POST /api/v1/jobs.
type Request struct {
	Pack        string            `json:"pack"`
	Version     string            `json:"version,omitempty"` // "", "latest" or "v<n>"
	Input       json.RawMessage   `json:"input,omitempty"`
	Priority    Priority          `json:"priority,omitempty"`
	TimeoutS    int               `json:"timeout_s,omitempty"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	ParentID    string            `json:"parent_id,omitempty"`
	// RunAt and DelayS put the job off: until a time, which runs at once when
	// it is past, or by seconds. At most one of them, at most MaxDelay ahead.
	RunAt  time.Time `json:"run_at,omitzero"`
	DelayS int       `json:"delay_s,omitempty"`
	// ResultTTLS removes the job with all it left so many seconds after its
	// end, MinResultTTLS to MaxResultTTLS; 0: kept like all others.
	ResultTTLS int `json:"result_ttl_s,omitempty"`
	// ConcurrencyKey is any text of up to 256 bytes: of the tenant's jobs with
	// the same key at most ConcurrencyLimit (1 to 1,000; 1 by default) run at
	// once, the others wait.
	ConcurrencyKey   string `json:"concurrency_key,omitempty"`
	ConcurrencyLimit int    `json:"concurrency_limit,omitempty"`
	// Webhook is told of the job's events. WebhookURL and WebhookSecret are
	// the older names; they ask for the terminal events in the plain format.
	Webhook       *webhooks.Target `json:"webhook,omitempty"`
	WebhookURL    string           `json:"webhook_url,omitempty"`
	WebhookSecret string           `json:"webhook_secret,omitempty"`
	// IdempotencyKey comes from the Idempotency-Key header.
	IdempotencyKey string `json:"-"`
	// TraceParent is the W3C trace context of the request.
	TraceParent string `json:"-"`
}

// Query selects jobs for a listing, newest first.
type Query struct {
	Tenant, Owner string // tokens; both empty: everybody's (administrators)
	State         State
	States        []State // any of these; empty: any
	Pack, Pool    string
	Parent        string
	Schedule      string // id
	LabelKey      string
	LabelValue    string
	Since, Until  time.Time // by creation
	Limit         int       // 1 to 200; 0: 50
	Cursor        string
}

// DeadLetter is a job that failed for good, with its input, for inspection
// and replay.
type DeadLetter struct {
	Submission Submission `json:"submission"`
	// Poison is set when the job was quarantined because workers died on it.
	Poison bool      `json:"poison,omitempty"`
	DeadAt time.Time `json:"dead_at"`
	// ReplayedAs lists the jobs made from the letter, oldest first.
	ReplayedAs []ReplayedAs `json:"replayed_as,omitempty"`
}

// ReplayedAs is a job made from a dead letter.
type ReplayedAs struct {
	JobID string    `json:"job_id"`
	At    time.Time `json:"at"`
}
