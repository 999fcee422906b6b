package api

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// ErrBadCursor is wrapped by Follow and History when the cursor is none they
// handed out.
var ErrBadCursor = errors.New("malformed event cursor")

// Cursor marks a place in the events of one job, by default
// "<stream>:<sequence>". It is opaque to the API, printable ASCII without
// spaces, and works on every replica. Empty stands before the first event.
type Cursor string

// EventKind is the class of an event: the last token of its live subject.
type EventKind string

// The kinds of events a follower sees.
const (
	EventLifecycle EventKind = "lc"
	EventArtifacts EventKind = "art"
	EventProgress  EventKind = "progress"
	EventLog       EventKind = "log"
	EventQueued    EventKind = "queued"
)

// Event is one event of a job on its way to a follower.
type Event struct {
	// Cursor resumes after this event.
	Cursor Cursor
	// Type is the CloudEvents type, for instance "dev.helmdeck.job.started".
	Type string
	Kind EventKind
	// Terminal is set on the last event of the job.
	Terminal bool
	// Data is the CloudEvent in structured JSON mode, on one line. It holds
	// neither inputs nor secrets.
	Data []byte
}

// Events gives followers the events of a job in order of time: what is
// stored, then what comes. key is complete: the API has read the job before.
type Events interface {
	// Follow yields the stored events after the cursor, then live ones, without
	// a gap between, and ends after the terminal event, which it yields once
	// and last; after a cursor at the terminal event it ends at once. It blocks
	// between events; it ends without an error when ctx
	// ends or the consumer stops. An error is the last thing it yields.
	Follow(ctx context.Context, key jobs.Key, after Cursor) iter.Seq2[Event, error]
	// History yields the stored events after the cursor and ends at the
	// present.
	History(ctx context.Context, key jobs.Key, after Cursor) iter.Seq2[Event, error]
}

// PoolStatus is the load of one pool, as GET /api/v1/pools shows it.
type PoolStatus = client.PoolStatus

// Pools tells the load of every pool of the installation, and pauses them.
type Pools interface {
	// Pools returns every pool, those without load too.
	Pools(ctx context.Context) ([]PoolStatus, error)
	// Pause holds the jobs of a pool back; Until is zero for no end. It may
	// be repeated.
	Pause(ctx context.Context, pool string, p client.PoolPause) error
	// Resume ends a pause; by is who wants it. It may be repeated.
	Resume(ctx context.Context, pool, by string) error
}

// Workers tells which workers live, and drains them.
type Workers interface {
	// Workers returns them by id.
	Workers() []client.WorkerStatus
	// Drain asks one to end, with within for what runs (0: its own default),
	// and returns what it does now. Nobody of that name is a *packs.Error
	// with not_found.
	Drain(ctx context.Context, id string, within time.Duration) (client.WorkerStatus, error)
}

// Health tells whether a part the API cannot work without can be used.
type Health interface {
	// Ready returns nil, or what is wrong in words an operator understands.
	Ready(ctx context.Context) error
}

// HealthFunc makes a function a Health.
type HealthFunc func(ctx context.Context) error

// Ready calls f.
func (f HealthFunc) Ready(ctx context.Context) error { return f(ctx) }

// Packs is the catalogue.
type Packs interface {
	// Get finds a pack; version is "", "latest" or "v<n>". Its error is a
	// *packs.Error with not_found that names close matches.
	Get(name, version string) (packs.Pack, error)
	// List returns every version of every pack that is not hidden, by name
	// and then by version, lowest first.
	List() []packs.Pack
}
