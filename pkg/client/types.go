package client

import (
	"encoding/json"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

// Pack is a pack as GET /api/v1/packs lists it and /api/v1/packs/{name} shows
// it: the contract of one version and the versions there are.
type Pack struct {
	Name        string `json:"name"`
	Summary     string `json:"summary"`
	Description string `json:"description"`
	// Versions are those that can be called, oldest first, or, when a version
	// was asked for, that one. Latest is the last of them and the one shown.
	Versions      []string          `json:"versions"`
	Latest        string            `json:"latest"`
	Pool          packs.Pool        `json:"pool"`
	Async         bool              `json:"async"`
	Needs         packs.Needs       `json:"needs"`
	InputSchema   json.RawMessage   `json:"input_schema"`
	OutputSchema  json.RawMessage   `json:"output_schema"`
	Errors        []packs.Code      `json:"errors"`
	Effect        packs.Effect      `json:"effect,omitempty"`
	Metadata      map[string]string `json:"metadata"`
	Examples      []packs.Example   `json:"examples"`
	TimeoutS      int               `json:"timeout_s"`    // of one attempt
	MaxAttempts   int               `json:"max_attempts"` // unless the job says otherwise
	MaxInputBytes int64             `json:"max_input_bytes"`
	// Available is false when something the pack needs is absent; Reason says
	// what, and which variable to set.
	Available bool   `json:"available"`
	Reason    string `json:"reason,omitempty"`
}

// Result is the envelope of a job that succeeded.
type Result struct {
	Pack       string          `json:"pack"`
	Version    string          `json:"version"`
	Output     json.RawMessage `json:"output"`
	Artifacts  []artifacts.Ref `json:"artifacts,omitempty"`
	DurationMS int64           `json:"duration_ms"` // milliseconds, of the attempt that won
	SessionID  string          `json:"session_id,omitempty"`
	JobID      string          `json:"job_id"`
	Warnings   []string        `json:"warnings,omitempty"`
}

// Problem is the body of every error answer below /api.
type Problem struct {
	Error       packs.Code     `json:"error"`
	Message     string         `json:"message"`
	Retryable   bool           `json:"retryable"`
	RetryAfterS int            `json:"retry_after_s,omitempty"`
	JobID       string         `json:"job_id,omitempty"`
	Details     []packs.Detail `json:"details,omitempty"`
}

// JobList is one page of jobs, newest first.
type JobList struct {
	Jobs []jobs.Job `json:"jobs"`
	// NextCursor asks for the next page; empty at the end.
	NextCursor string `json:"next_cursor,omitempty"`
}

// ScheduleList is one page of schedules, newest first, without their inputs.
type ScheduleList struct {
	Schedules  []schedules.Schedule `json:"schedules"`
	NextCursor string               `json:"next_cursor,omitempty"`
}

// DeadList is one page of dead letters, newest first, without their inputs.
type DeadList struct {
	Dead       []jobs.DeadLetter `json:"dead"`
	NextCursor string            `json:"next_cursor,omitempty"`
}

// RetryRequest is the optional body of POST /api/v1/jobs/{id}/retry.
type RetryRequest struct {
	// Input replaces the input of the old job; empty keeps it.
	Input json.RawMessage `json:"input,omitempty"`
}

// PoolStatus is the load of one pool, at most two seconds old.
type PoolStatus struct {
	Pool string `json:"pool"`
	// Waiting jobs lie in the queue and were not delivered.
	Waiting int `json:"waiting"`
	// Running jobs are claimed by a live worker, as its last heartbeat said.
	Running int `json:"running"`
	// Unacknowledged jobs were delivered to a worker and have not ended: they
	// run, wait for a retry, or their worker is gone.
	Unacknowledged int `json:"unacknowledged"`
	// Workers are those that take jobs, on Slots at once; Draining ones finish
	// what they run.
	Workers  int `json:"workers"`
	Slots    int `json:"slots"`
	Draining int `json:"draining"`
	// OldestAgeS is the age of the oldest waiting job in seconds, 0 for none.
	OldestAgeS float64 `json:"oldest_age_s"`
	// Autoscale is waiting + unacknowledged - running, never below 0: jobs no
	// live worker has.
	Autoscale int `json:"autoscale"`
	// Unserved jobs wait although no live worker will take them: the pool has
	// none, or none with their version of their pack.
	Unserved int `json:"unserved"`
	// DeadLetters are those of the pool; Poison were quarantined, because
	// workers died on them.
	DeadLetters int `json:"dead_letters"`
	Poison      int `json:"poison"`
	// Paused is there while no job of the pool is handed out.
	Paused *PoolPause `json:"paused,omitempty"`
}

// PoolPause says how and why a pool is paused.
type PoolPause struct {
	// Until is when it ends by itself; absent: never.
	Until  time.Time `json:"until,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// By and Since are absent when somebody paused the consumers directly; By
	// is shown to administrators.
	By    string    `json:"by,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// PauseRequest is the optional body of POST /api/v1/pools/{pool}/pause. At
// most one of Until and ForS is given; with neither the pool stays paused
// until it is resumed.
type PauseRequest struct {
	Until time.Time `json:"until,omitzero"`
	// ForS is in seconds, at most a year.
	ForS int `json:"for_s,omitempty"`
	// Reason is shown wherever the pause is; at most 256 bytes.
	Reason string `json:"reason,omitempty"`
}

// WorkerStatus is one live worker, as its last heartbeat told.
type WorkerStatus struct {
	ID      string `json:"id"`
	Host    string `json:"host"`
	Version string `json:"version"`
	// Slots and Running are jobs by pool: how many at once, how many now.
	Slots   map[string]int `json:"slots"`
	Running map[string]int `json:"running"`
	// Packs are those it runs, "http.fetch@v1"; absent when it does not tell.
	Packs []string `json:"packs,omitempty"`
	// Leaked counts handlers that did not stop when told to.
	Leaked int `json:"leaked,omitempty"`
	// Draining is set once it takes no more jobs; at DrainBy it hands back
	// those that still run.
	Draining bool      `json:"draining"`
	DrainBy  time.Time `json:"drain_by,omitzero"`
	LastBeat time.Time `json:"last_beat"`
}

// WorkerList is every live worker.
type WorkerList struct {
	Workers []WorkerStatus `json:"workers"`
}

// DrainRequest is the optional body of POST /api/v1/workers/{id}/drain.
type DrainRequest struct {
	// WithinS is how long running jobs may go on, 1 to 7200 seconds; absent:
	// as long as at SIGTERM.
	WithinS int `json:"within_s,omitempty"`
}

// PoolList is the load of every pool.
type PoolList struct {
	Pools []PoolStatus `json:"pools"`
}

// ArtifactList is one page of artifacts, newest first.
type ArtifactList struct {
	Artifacts  []artifacts.Ref `json:"artifacts"`
	Count      int             `json:"count"` // of this page
	NextCursor string          `json:"next_cursor,omitempty"`
}

// Upload is the answer to an upload.
type Upload struct {
	ArtifactKey string `json:"artifact_key"`
	URL         string `json:"url"`
	Size        int64  `json:"size"` // bytes
	ContentType string `json:"content_type"`
	Filename    string `json:"filename"`
	SHA256      string `json:"sha256"`
}

// LogChunk is a piece of a job's log.
type LogChunk struct {
	// Lines, oldest first; none in the chunk that ends a log.
	Lines []string `json:"lines"`
	// Missed counts the lines before these that are no longer kept.
	Missed  int       `json:"missed,omitempty"`
	Attempt int       `json:"attempt,omitempty"`
	At      time.Time `json:"at,omitzero"`
	// Cursor resumes after this chunk.
	Cursor string `json:"-"`
}

// VersionInfo is the answer of GET /version.
type VersionInfo struct {
	Version string `json:"version"`
}

// Readiness is the answer of GET /readyz.
type Readiness struct {
	// Status is "ready" or "unavailable".
	Status string `json:"status"`
	// Checks maps each part to "ok" or to what is wrong with it.
	Checks map[string]string `json:"checks"`
	Pools  []PoolStatus      `json:"pools"`
}
