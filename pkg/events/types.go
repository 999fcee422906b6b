package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/google/uuid"

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
	// JobExpired is what stays of the lifecycle of a job whose time was over:
	// jobs.Job, of which little is left. It comes after the terminal event.
	JobExpired = Prefix + "job.expired"

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
	if job.Expired {
		return JobExpired
	}
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
	Lines []string `json:"lines"`
	// From is how many lines the run wrote before these, so that a reader can
	// tell when some are no longer kept.
	From int       `json:"from,omitempty"`
	At   time.Time `json:"at"`
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

// The extension attributes of this product's events.
const (
	ExtTenant      = "tenant"      // tenant token
	ExtJobID       = "jobid"       // the job; equals the subject attribute
	ExtAttempt     = "attempt"     // jobs.Job.Attempt, integer
	ExtSequence    = "sequence"    // 20 digits, orders the events of one producer and job
	ExtTraceParent = "traceparent" // W3C trace context
	ExtReplayOf    = "replayof"    // the job this one repeats
	ExtParentID    = "parentid"    // the parent of the job
)

// Source makes the events of one installation. It is safe for concurrent use.
type Source struct {
	uri types.URIRef
}

// NewSource returns the source "/helmdeck/<installation>". installation is a
// name of letters, digits, "-" and "_".
func NewSource(installation string) (Source, error) {
	if !ValidToken(installation) || url.PathEscape(installation) != installation {
		return Source{}, fmt.Errorf("name installation %q: letters, digits, - and _ only", installation)
	}
	return Source{uri: types.URIRef{URL: url.URL{Path: "/helmdeck/" + installation}}}, nil
}

// String returns the source attribute.
func (s Source) String() string { return s.uri.String() }

// About is what a producer knows about an event beside its type and data.
// Zero fields are left out of the event or filled in.
type About struct {
	Key     jobs.Key // subject, jobid and tenant
	Attempt int
	// Sequence orders the events of the job; 0 leaves it out.
	Sequence    uint64
	TraceParent string
	ReplayOf    string
	ParentID    string
	// ID defaults to a new UUIDv7, Time to now.
	ID   string
	Time time.Time
}

var jsonType = event.ApplicationJSON

// New makes an event whose data is the JSON form of data; a json.RawMessage
// is taken as it is.
func (s Source) New(typ string, about About, data any) (event.Event, error) {
	if s.uri.Path == "" {
		return event.Event{}, errors.New("make event: source has no installation")
	}
	body, err := marshal(data)
	if err != nil {
		return event.Event{}, fmt.Errorf("make event %s: %w", typ, err)
	}
	if about.ID == "" {
		v7, err := uuid.NewV7()
		if err != nil {
			return event.Event{}, fmt.Errorf("make event %s: %w", typ, err)
		}
		about.ID = v7.String()
	}
	if about.Time.IsZero() {
		about.Time = time.Now()
	}
	c := &event.EventContextV1{
		ID:              about.ID,
		Source:          s.uri,
		Type:            typ,
		DataContentType: &jsonType,
		Time:            &types.Timestamp{Time: about.Time.UTC()},
		Extensions:      about.extensions(),
	}
	if about.Key.ID != "" {
		c.Subject = &about.Key.ID
	}
	return event.Event{Context: c, DataEncoded: body}, nil
}

func (a *About) extensions() map[string]any {
	ext := make(map[string]any, 7)
	for _, e := range [...]struct{ name, value string }{
		{ExtTenant, a.Key.Tenant}, {ExtJobID, a.Key.ID},
		{ExtTraceParent, a.TraceParent}, {ExtReplayOf, a.ReplayOf}, {ExtParentID, a.ParentID},
	} {
		if e.value != "" {
			ext[e.name] = e.value
		}
	}
	if a.Attempt > 0 {
		ext[ExtAttempt] = int32(min(a.Attempt, 1<<31-1))
	}
	if a.Sequence > 0 {
		ext[ExtSequence] = formatSequence(a.Sequence)
	}
	return ext
}

// formatSequence pads to the width of the largest sequence, so that the text
// sorts as the number does.
func formatSequence(n uint64) string {
	var b [20]byte
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return string(b[:])
}

// Sequence returns the sequence extension of an event, 0 when it has none.
func Sequence(ev event.Event) uint64 {
	s, _ := ev.Extensions()[ExtSequence].(string)
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func marshal(data any) ([]byte, error) {
	switch d := data.(type) {
	case nil:
		return nil, nil
	case json.RawMessage:
		return d, nil
	default:
		return json.Marshal(d)
	}
}

// Lifecycle makes the event that records job in its present state. Key,
// Attempt and ReplayOf come from the record.
func (s Source) Lifecycle(job jobs.Job, about About) (event.Event, error) {
	typ := TypeOf(&job)
	if typ == "" {
		return event.Event{}, fmt.Errorf("make event of job %s: state %q has no event", job.ID, job.State)
	}
	about.Key, about.Attempt, about.ReplayOf, about.ParentID = job.Key(), job.Attempt, job.ReplayOf, job.ParentID
	return s.New(typ, about, job)
}

// Submitted makes the event that queues sub.
func (s Source) Submitted(sub jobs.Submission, about About) (event.Event, error) {
	about.Key, about.Attempt, about.ReplayOf, about.ParentID = sub.Job.Key(), sub.Job.Attempt, sub.Job.ReplayOf, sub.Job.ParentID
	if about.TraceParent == "" {
		about.TraceParent = sub.TraceParent
	}
	return s.New(JobSubmitted, about, sub)
}
