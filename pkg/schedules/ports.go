package schedules

import (
	"context"
	"errors"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Errors of the ports.
var (
	// ErrNotFound: no such schedule, or not the caller's.
	ErrNotFound = errors.New("schedule not found")
	// ErrExists: the id, or the name, is taken.
	ErrExists = errors.New("schedule exists")
	// ErrConflict: the record moved since it was read.
	ErrConflict = errors.New("schedule moved")
)

// Store holds the records. Its errors wrap those above, or
// jobs.ErrUnavailable.
type Store interface {
	// Create stores a new record, or ErrExists.
	Create(ctx context.Context, r Record) error
	// Get reads the newest record, and its revision for Update.
	Get(ctx context.Context, id string) (Record, uint64, error)
	// Update stores r if the record is at revision, or ErrConflict.
	Update(ctx context.Context, r Record, revision uint64) error
	// Delete removes a record; absent is no error.
	Delete(ctx context.Context, id string) error
	// List returns all records as this replica knows them, which may lag. They
	// are shared: nobody may change them.
	List(ctx context.Context) ([]*Record, error)
}

// Names keeps names unique. They come as digests.
type Names interface {
	// Claim holds name for id, and returns who held it before otherwise.
	Claim(ctx context.Context, name, id string) (held Holder, ok bool, err error)
	// TakeOver gives a name to another id if it is still held as held says.
	TakeOver(ctx context.Context, name, id string, held Holder) error
	// Free lets go of a name if id holds it.
	Free(ctx context.Context, name, id string) error
}

// Holder is who holds a name.
type Holder struct {
	ID       string
	Since    time.Time
	Revision uint64
}

// Timers are the alarm clocks of the bus, one a schedule.
type Timers interface {
	// Arm makes the timer of a schedule fire for the time at, at the moment
	// when; it replaces the one before.
	Arm(ctx context.Context, id string, at, when time.Time) error
	// Disarm removes the timer.
	Disarm(ctx context.Context, id string) error
	// Armed calls fn for every timer that has not fired yet.
	Armed(ctx context.Context, fn func(id string, at time.Time) error) error
}

// Jobs is the job system; *jobs.Service is it.
type Jobs interface {
	// Faults returns what is wrong with a request, with pointers into its body.
	Faults(r jobs.Request) ([]packs.Detail, error)
	// SubmitRun submits the job of a run; the same run again is the same job.
	SubmitRun(ctx context.Context, c identity.Caller, r jobs.Request, run jobs.Run) (jobs.Job, error)
	// Locate reads a job through the leaders of the bus, or jobs.ErrNotFound.
	Locate(ctx context.Context, k jobs.Key) (jobs.Job, error)
	Cancel(ctx context.Context, c identity.Caller, id string) (jobs.Job, error)
}
