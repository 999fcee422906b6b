// Package schedules makes jobs that repeat: what a schedule is, when it is
// due, and what happens then. A run of a schedule is an ordinary job, whose
// id follows from the schedule and the time it is due for, so that a time is
// one job however often it is dealt with.
//
// The record of a schedule is the truth and moves by compare-and-set; the
// timers of the bus only say when to look at it. So a timer that fires twice
// or too early does no harm, and one that is lost is made good by Pass. It
// knows nothing of NATS: that side is internal/bus/schedulestore, and
// internal/control turns what fires into calls of Attend.
package schedules

import (
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/records"
)

// Overlap says what becomes of a run that is due while the one before it has
// not ended.
type Overlap string

// The policies.
const (
	Skip    Overlap = "skip"    // it is left out; the default
	Queue   Overlap = "queue"   // it waits until the one before has ended
	Replace Overlap = "replace" // the one before is cancelled, then it runs
)

// CatchUp says what becomes of runs that were missed: while the installation
// was down for longer than Grace, or the schedule was paused.
type CatchUp string

// The policies.
const (
	CatchUpNone CatchUp = "none" // they are left out
	CatchUpLast CatchUp = "last" // the latest of them runs; the default
	CatchUpAll  CatchUp = "all"  // the latest MaxBacklog of them run, one after the other
)

// Limits of schedules.
const (
	// Grace is how late a run may be and still be on time. It is longer than
	// a clock is set wrong by and a server restarts in.
	Grace = 15 * time.Minute
	// MaxBacklog bounds the times dealt with at once; older ones are missed.
	MaxBacklog = 100
	// MaxWaiting bounds the runs that wait for the one before.
	MaxWaiting = 100
	// MaxRuns is how many past runs a record remembers.
	MaxRuns = 20
	// MaxName and MaxCron are in bytes.
	MaxName, MaxCron = 128, 200
	// MinEvery and MaxEvery bound an interval.
	MinEvery, MaxEvery = time.Second, 366 * 24 * time.Hour
	// MaxJitterS is an hour.
	MaxJitterS = 3600
	// MaxInput is the largest input of a schedule, in bytes: each replica of
	// the API keeps all schedules in memory.
	MaxInput = 64 << 10
	// MaxPerTenant bounds the schedules of a tenant.
	MaxPerTenant = 20_000
	// NextRuns is how many coming runs are shown.
	NextRuns = 5
)

// Spec is what a caller says about a schedule. The body of POST
// /api/v1/schedules is one.
type Spec struct {
	// Name is unique among the caller's schedules; may be empty.
	Name string `json:"name,omitempty"`
	// Cron has five fields (minute hour day month weekday) or six (second
	// first). Either it or Every is set.
	Cron string `json:"cron,omitempty"`
	// Every is a duration such as "90s" or "1h30m".
	Every string `json:"every,omitempty"`
	// TimeZone is the IANA name of the zone that Cron is read in.
	TimeZone string `json:"time_zone,omitempty"`
	// StartAt is the first moment and EndAt the last one that a run may be due.
	StartAt time.Time `json:"start_at,omitzero"`
	EndAt   time.Time `json:"end_at,omitzero"`
	// JitterS puts every run off by up to so many seconds, always the same for
	// the same time.
	JitterS int     `json:"jitter_s,omitempty"`
	Overlap Overlap `json:"overlap,omitempty"`
	CatchUp CatchUp `json:"catch_up,omitempty"`
	// Request is the job of every run. Its parent and delay are not used.
	jobs.Request
}

// State is what a schedule is about.
type State string

// The states.
const (
	Active State = "active"
	Paused State = "paused"
	Ended  State = "ended" // no time is left
)

// Trigger is what made a run.
type Trigger string

// The triggers.
const (
	ByTime    Trigger = "time"
	ByCatchUp Trigger = "catch_up"
	ByHand    Trigger = "manual"
)

// Outcome is what became of a run.
type Outcome string

// The outcomes. The last four of them ran no job.
const (
	RunActive    Outcome = "active" // its job has not ended
	RunSucceeded Outcome = "succeeded"
	RunFailed    Outcome = "failed" // or its job was refused: then it has no job
	RunCancelled Outcome = "cancelled"
	RunUnknown   Outcome = "unknown"  // its job is no longer kept
	RunSkipped   Outcome = "skipped"  // the one before had not ended
	RunReplaced  Outcome = "replaced" // a later one took its place before it began
	RunMissed    Outcome = "missed"   // found too late, and not caught up
)

// Run is a past run of a schedule.
type Run struct {
	// At is the time it was due for, or was asked for by hand.
	At      time.Time     `json:"at"`
	Trigger Trigger       `json:"trigger"`
	JobID   string        `json:"job_id,omitempty"`
	Outcome Outcome       `json:"outcome"`
	Error   *jobs.Failure `json:"error,omitempty"`
	// Count is set when the entry stands for several times without a job, of
	// which At is the latest; beyond 10,000 not all are counted.
	Count      int       `json:"count,omitempty"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
}

// Schedule is a schedule as every surface shows it.
type Schedule struct {
	ID string `json:"id"`
	Spec
	State     State           `json:"state"`
	Caller    identity.Caller `json:"caller"`
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`
	// NextRuns are the coming times, without jitter, at most NextRuns of them.
	NextRuns []time.Time `json:"next_runs"`
	// LastRuns are the newest first, at most MaxRuns of them; in a list only
	// the newest.
	LastRuns []Run `json:"last_runs"`
	// ActiveJobID is the job of the run that has not ended.
	ActiveJobID string `json:"active_job_id,omitempty"`
	// WaitingRuns counts the runs that wait for it.
	WaitingRuns int `json:"waiting_runs,omitempty"`
}

// Record is a schedule as it is stored.
type Record struct {
	ID string `json:"id"`
	Spec
	Caller    identity.Caller `json:"caller"`
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`
	Paused    bool            `json:"paused,omitempty"`
	// Anchor is where the intervals of Every are counted from.
	Anchor time.Time `json:"anchor"`
	// NextAt is the first time that was not dealt with, without jitter; zero
	// when none is left.
	NextAt time.Time `json:"next_at,omitzero"`
	// LastAt is the last time that was dealt with.
	LastAt time.Time `json:"last_at,omitzero"`
	// MissedBefore: times before it are missed, however soon they are found.
	MissedBefore time.Time `json:"missed_before,omitzero"`
	// Begun is the run whose job has not ended as far as the record knows.
	Begun *Begun `json:"begun,omitempty"`
	// Replacing: the job of Begun is to be cancelled for the one that waits.
	Replacing bool      `json:"replacing,omitempty"`
	Waiting   []Waiting `json:"waiting,omitempty"` // oldest first
	Runs      []Run     `json:"runs,omitempty"`    // newest first
	// Hash is the digest of the call that made it, when that had a key.
	Hash string `json:"hash,omitempty"`
	// Unknown are the members that a newer program wrote; see package records.
	Unknown records.Unknown `json:"-"`
}

// Begun is a run that was decided upon. Its job is submitted after that, as
// often as it takes.
type Begun struct {
	JobID     string    `json:"job_id"`
	At        time.Time `json:"at"`
	DecidedAt time.Time `json:"decided_at"`
}

// Waiting is a run that waits for the one before.
type Waiting struct {
	At      time.Time `json:"at"`
	Trigger Trigger   `json:"trigger"`
}

// State returns the state.
func (r *Record) State() State {
	switch {
	case r.Paused:
		return Paused
	case r.NextAt.IsZero():
		return Ended
	}
	return Active
}

// view is r as its owner sees it.
func (r *Record) view() Schedule {
	s := Schedule{
		ID: r.ID, Spec: r.Spec, State: r.State(), Caller: r.Caller, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt,
		NextRuns: []time.Time{}, LastRuns: append([]Run{}, r.Runs...), WaitingRuns: len(r.Waiting),
	}
	if r.Begun != nil {
		s.ActiveJobID = r.Begun.JobID
	}
	cal, faults := r.Calendar(r.Anchor)
	if len(faults) > 0 { // a zone that this build does not know
		return s
	}
	for t := r.NextAt; !t.IsZero() && len(s.NextRuns) < NextRuns; t = cal.Next(t) {
		s.NextRuns = append(s.NextRuns, t)
	}
	return s
}
