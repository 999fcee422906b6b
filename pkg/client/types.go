package client

import (
	"encoding/json"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
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

// ReplayRequest is the body of POST /api/v1/dead/replay: IDs for many as they
// are, or ID for one, perhaps with another Input.
type ReplayRequest struct {
	ID    string          `json:"id,omitempty"`
	IDs   []string        `json:"ids,omitempty"`
	Input json.RawMessage `json:"input,omitempty"`
}

// ReplayList says what became of each dead letter that was asked for.
type ReplayList struct {
	Replayed []Replayed `json:"replayed"`
}

// Replayed holds the new job of a dead letter, or why there is none.
type Replayed struct {
	ID    string    `json:"id"`
	Job   *jobs.Job `json:"job,omitempty"`
	Error *Problem  `json:"error,omitempty"`
}

// PoolStatus is the load of one pool.
type PoolStatus struct {
	Pool string `json:"pool"`
	// Waiting jobs lie in the queue and were not delivered.
	Waiting int `json:"waiting"`
	// Running jobs are claimed by a live worker.
	Running int `json:"running"`
	// Unacknowledged jobs were delivered to a worker, claimed or not.
	Unacknowledged int `json:"unacknowledged"`
	// Workers are those heard from lately.
	Workers int `json:"workers"`
	// OldestAgeS is the age of the oldest waiting job in seconds, 0 for none.
	OldestAgeS float64 `json:"oldest_age_s"`
	// Autoscale is waiting + unacknowledged - running: jobs no live worker has.
	Autoscale int `json:"autoscale"`
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
