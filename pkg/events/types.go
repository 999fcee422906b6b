package events

import (
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Prefix begins the type of every event of this product.
const Prefix = "dev.helmdeck."

// The types of events. Names never change meaning.
const (
	// JobSubmitted carries jobs.Submission and travels on the queue only.
	JobSubmitted = Prefix + "job.submitted"
	// JobScheduled to JobCancelled are the lifecycle: jobs.Job as data.
	JobScheduled       = Prefix + "job.scheduled"
	JobStarted         = Prefix + "job.started"
	JobRetrying        = Prefix + "job.retrying"
	JobCancelRequested = Prefix + "job.cancel_requested"
	JobSucceeded       = Prefix + "job.succeeded"
	JobFailed          = Prefix + "job.failed"
	JobCancelled       = Prefix + "job.cancelled"

	JobProgress = Prefix + "job.progress" // jobs.Progress
	JobLog      = Prefix + "job.log"      // Log
	JobArtifact = Prefix + "job.artifact" // Manifest

	SessionLeased   = Prefix + "session.leased"   // Session
	SessionReleased = Prefix + "session.released" // Session

	PipelineStep     = Prefix + "pipeline.step"     // Step
	PipelineFinished = Prefix + "pipeline.finished" // Run
)

// Terminal reports whether an event of this type is the last of its job.
func Terminal(typ string) bool {
	return typ == JobSucceeded || typ == JobFailed || typ == JobCancelled
}

// TypeOf returns the type of the lifecycle event that records job in its
// present state, "" for a state that no event of the lifecycle records.
func TypeOf(job *jobs.Job) string {
	switch job.State {
	case jobs.Scheduled:
		return JobScheduled
	case jobs.Running:
		if job.CancelRequested {
			return JobCancelRequested
		}
		return JobStarted
	case jobs.Retrying:
		return JobRetrying
	case jobs.Succeeded:
		return JobSucceeded
	case jobs.Failed:
		return JobFailed
	case jobs.Cancelled:
		return JobCancelled
	case jobs.Queued:
		return ""
	}
	return ""
}

// Log is the data of JobLog: lines a pack wrote, oldest first.
type Log struct {
	Lines []string  `json:"lines"`
	At    time.Time `json:"at"`
}

// Manifest is the data of JobArtifact: what the winning attempt left.
type Manifest struct {
	Artifacts []artifacts.Ref `json:"artifacts"`
}

// Session is the data of SessionLeased and SessionReleased.
type Session struct {
	SessionID string `json:"session_id"`
	Image     string `json:"image"`
	Host      string `json:"host"`
}

// Step is the data of PipelineStep: one step began or ended.
type Step struct {
	RunID      string    `json:"run_id"`
	PipelineID string    `json:"pipeline_id"`
	StepID     string    `json:"step_id"`
	Pack       string    `json:"pack"`
	Status     string    `json:"status"` // running, succeeded, failed, cancelled
	JobID      string    `json:"job_id,omitempty"`
	At         time.Time `json:"at"`
}

// Run is the data of PipelineFinished.
type Run struct {
	RunID         string    `json:"run_id"`
	PipelineID    string    `json:"pipeline_id"`
	Status        string    `json:"status"` // succeeded, failed, cancelled
	FailureClass  string    `json:"failure_class,omitempty"`
	FailureReason string    `json:"failure_reason,omitempty"`
	StartedAt     time.Time `json:"started_at"`
	EndedAt       time.Time `json:"ended_at"`
}
