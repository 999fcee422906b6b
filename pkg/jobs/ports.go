package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Errors of the ports a caller may branch on.
var (
	// ErrNotFound: no such job, or not the caller's.
	ErrNotFound = errors.New("job not found")
	// ErrExpired: the job has ended and its time was over. It is an
	// ErrNotFound: nobody may tell one from the other.
	ErrExpired = fmt.Errorf("%w: its result has expired", ErrNotFound)
	// ErrConflict: the lifecycle moved since it was read.
	ErrConflict = errors.New("lifecycle moved")
	// ErrInputNotStored: the input that goes with an event was not stored, so
	// the event must not be built upon; a later claim stores it.
	ErrInputNotStored = errors.New("input not stored")
	// ErrQueued: the queue holds the job already.
	ErrQueued = errors.New("already queued")
	// ErrQueueFull: the pool's queue is at its limit.
	ErrQueueFull = errors.New("queue is full")
	// ErrUnavailable: the bus cannot be reached or its storage failed.
	ErrUnavailable = errors.New("bus unavailable")
)

// Record is the newest lifecycle event of a job.
type Record struct {
	Job      Job
	Sequence uint64 // of the event; the expectation of the next one
}

// Move is the next lifecycle event of a job.
type Move struct {
	// Job is the record after the move; its state decides the event's type.
	Job Job
	// Expected is the sequence of the event this one follows, 0 for the first.
	Expected uint64
	// Input is stored beside the event unless it was before, so that the job
	// can be inspected and run again after it left the queue. The first move
	// has it, and a claim that cannot know whether that was kept.
	Input       *Submission
	TraceParent string
}

// Ledger is the source of truth: the lifecycle of every job, written by
// compare-and-set.
type Ledger interface {
	// Last returns the newest event, or ErrNotFound; of a job that has expired
	// that is its tombstone. leader asks the leader
	// of the stream, which knows every acknowledged write.
	Last(ctx context.Context, k Key, leader bool) (Record, error)
	// Append stores m and returns its sequence; ErrConflict when the
	// lifecycle is not at m.Expected, ErrInputNotStored when m.Input is not.
	Append(ctx context.Context, m Move) (uint64, error)
	// Input returns what the job ran on, or ErrNotFound before its first claim.
	Input(ctx context.Context, k Key) (Submission, error)
	// KeepInput stores what Input returns, unless it was stored before.
	KeepInput(ctx context.Context, s Submission) error
}

// Place is where a waiting job stands.
type Place string

// The places.
const (
	InQueue    Place = "queue"
	InHold     Place = "hold"
	InSchedule Place = "schedule"
)

// Queue holds the jobs that wait.
type Queue interface {
	// Enqueue puts a job into its lane: nil only when the bus has it safe.
	// ErrQueued when it is there already, ErrQueueFull at the limit.
	Enqueue(ctx context.Context, s Submission) error
	// Schedule puts a job into its lane at a later time; scheduling it again
	// replaces the time.
	Schedule(ctx context.Context, s Submission, at time.Time) error
	// Find looks a waiting job up in queue, hold and schedule, or
	// ErrNotFound. leader asks the leaders of the streams, which know every
	// acknowledged write.
	Find(ctx context.Context, k Key, leader bool) (Submission, Place, error)
	// Remove takes a job out of queue, hold and schedule; absent is no error.
	Remove(ctx context.Context, k Key, pool string) error
}

// Reservation is what an idempotency key stands for.
type Reservation struct {
	JobID     string    `json:"job_id"`
	InputHash string    `json:"input_hash"`
	CreatedAt time.Time `json:"created_at"`
}

// Keys holds idempotency keys.
type Keys interface {
	// Reserve stores r under hash, or returns what is there already.
	Reserve(ctx context.Context, hash string, r Reservation) (held Reservation, fresh bool, err error)
	// Renew stores r under hash in place of held, or returns ErrConflict when
	// something else is there.
	Renew(ctx context.Context, hash string, held, r Reservation) error
}

// Index is the read model of listings. Nothing but listings depends on it.
type Index interface {
	List(ctx context.Context, q Query) (page []Job, next string, err error)
	// Ahead is roughly how many jobs wait before j in its lane.
	Ahead(j Job) int
	// Children counts the jobs of the same owner that have k as their parent,
	// by state; nil when there are none.
	Children(k Key) map[State]int
}

// Admission decides whether a caller may submit now.
type Admission interface {
	// Priority is that of a job whose submit names none.
	Priority(c identity.Caller) Priority
	// Admit counts a job in, or returns a *packs.Error rate_limited that says
	// when to come again. done is called once with what became of the submit.
	Admit(j Job) (done func(accepted bool), err error)
}

// Feed tells when jobs end and how far they have come.
type Feed interface {
	// Terminal delivers the terminal record of a job that ends after the
	// call, at most once and perhaps never: callers re-read as well.
	Terminal(k Key) (ended <-chan Job, stop func())
	// Progress returns the newest progress of a job, nil when none is known.
	Progress(ctx context.Context, k Key) *Progress
	// Cancel tells the worker at once that a cancel was requested; a message
	// lost costs no more than one heartbeat.
	Cancel(ctx context.Context, worker string, k Key)
}

// DeadLetters holds the jobs that failed for good.
type DeadLetters interface {
	// List returns dead letters newest first. Empty tenant and owner: all.
	List(ctx context.Context, q DeadQuery) (page []DeadLetter, next string, err error)
	// Get returns one, or ErrNotFound.
	Get(ctx context.Context, k Key) (DeadLetter, error)
	// Drop forgets one; absent is no error. It does not come back when its
	// job's last event is read once more.
	Drop(ctx context.Context, k Key, pool string) error
	// Replayed notes the job that was made from one. The same note twice is
	// shown once.
	Replayed(ctx context.Context, k Key, pool string, as ReplayedAs) error
}

// Stash keeps inputs and outputs too large for a message.
type Stash interface {
	Stash(ctx context.Context, key string, r io.Reader) error
	Unstash(ctx context.Context, key string) (io.ReadCloser, error)
	// DropStash removes what was stashed; absent is no error.
	DropStash(ctx context.Context, key string) error
}

// Catalog finds packs by name and version.
type Catalog interface {
	Get(name, version string) (packs.Pack, error)
}
