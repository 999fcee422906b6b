package schedules

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

const (
	// rounds bounds one Attend: each round moves the record once, and one for
	// every run that waits is the most there can be to do, beside conflicts.
	rounds = 2*MaxWaiting + 20
	// patience is how long a job that is refused for now is tried to be
	// submitted.
	patience = 24 * time.Hour
	// forgotten is the age at which a job that is nowhere to be found must
	// have run: its events are kept far longer, and it was tried until then.
	forgotten = 2 * patience
)

// Word is why somebody attends to a schedule. The zero Word is no reason in
// particular.
type Word struct {
	// At is the time that a timer fired for.
	At time.Time
	// Ended is the job that has ended, as its last event has it.
	Ended *jobs.Job
}

// Attend does what is due for a schedule: it settles runs whose jobs have
// ended, decides about the times that have come, submits the job of the run
// that begins and sets the timer for the next. It may be called at any time,
// any number of times, by several replicas at once, and goes on where one that
// died left off. A schedule that is gone loses its timer.
//
// When the time that a timer fired for has not come yet by the clock of this
// process, early is how long to wait; the timer is used up, so the caller must
// come again.
func (s *Service) Attend(ctx context.Context, id string, w Word) (early time.Duration, err error) {
	for range rounds {
		rec, revision, err := s.cfg.Store.Get(ctx, id)
		if errors.Is(err, ErrNotFound) {
			return 0, s.cfg.Timers.Disarm(ctx, id)
		}
		if err != nil {
			return 0, err
		}
		next, again, err := s.round(ctx, rec, revision, w)
		if again || errors.Is(err, ErrConflict) {
			continue
		}
		early = max(next.FiresAt().Sub(s.cfg.Now()), 0)
		switch {
		case w.At.IsZero(), err == nil && !next.NextAt.Equal(rec.NextAt): // its timer is set
		case err == nil && w.At.Equal(next.NextAt) && early > 0:
			return early, nil
		default:
			// The timer is used up, and was of a time dealt with before.
			err = errors.Join(err, s.arm(ctx, id))
		}
		if err != nil {
			return 0, fmt.Errorf("attend to schedule %s: %w", id, err)
		}
		return 0, nil
	}
	return 0, fmt.Errorf("attend to schedule %s: it keeps changing", id)
}

// round moves the record once and does what follows. again says that there
// may be more to do; next is the record as it is then.
func (s *Service) round(ctx context.Context, rec Record, revision uint64, w Word) (next Record, again bool, err error) {
	now := s.cfg.Now().UTC()
	changed, absent, err := s.settleEnded(ctx, &rec, w.Ended, now)
	if err != nil {
		return rec, false, err
	}
	cal, faults := rec.Calendar(rec.Anchor)
	if len(faults) > 0 {
		// It was checked when it was stored: a zone has left the database.
		return rec, false, fmt.Errorf("calendar: %s %s", faults[0].Pointer, faults[0].Message)
	}
	if rec.take(now, cal) {
		changed = true
		// The timer first. If the record does not get that far, somebody else
		// moved it and sets the timer after that, or this call is made again.
		if at := rec.FiresAt(); !at.IsZero() {
			if err := s.cfg.Timers.Arm(ctx, rec.ID, rec.NextAt, at); err != nil {
				return rec, false, err
			}
		}
	}
	begun := rec.begin(now)
	if changed || begun {
		// Decided here and once, whoever else looks at the same times: what
		// follows may be done again.
		if err := s.cfg.Store.Update(ctx, rec, revision); err != nil {
			return rec, false, err
		}
	}
	switch {
	case rec.Begun == nil || rec.Paused && absent:
	case begun || absent:
		again, err = s.submit(ctx, rec, now)
	case rec.Replacing:
		var job jobs.Job
		job, err = s.cfg.Jobs.Cancel(ctx, rec.Caller, rec.Begun.JobID)
		again = err == nil && job.State.Terminal()
	}
	return rec, again, err
}

// settleEnded looks up the jobs of runs that are not over. absent says that
// the job of the run that has begun is not there yet.
func (s *Service) settleEnded(ctx context.Context, rec *Record, ended *jobs.Job, now time.Time) (changed, absent bool, err error) {
	for _, id := range rec.unsettled() {
		if ended != nil && ended.ID == id {
			changed = rec.settle(id, outcomeOf(ended.State), ended.Error, ended.FinishedAt) || changed
			continue
		}
		job, err := s.cfg.Jobs.Locate(ctx, key(rec.Caller, id))
		begun := rec.Begun != nil && rec.Begun.JobID == id
		switch {
		case err == nil && job.State.Terminal():
			changed = rec.settle(id, outcomeOf(job.State), job.Error, job.FinishedAt) || changed
		case err == nil:
		case !errors.Is(err, jobs.ErrNotFound):
			return changed, false, err
		case begun && now.Sub(rec.Begun.DecidedAt) < rec.forgottenAfter():
			absent = true
		default:
			changed = rec.settle(id, RunUnknown, nil, now) || changed
		}
	}
	return changed, absent, nil
}

// forgottenAfter is the age at which a job that is nowhere to be found may have
// run, so that it must not be submitted again.
func (r *Record) forgottenAfter() time.Duration {
	if ttl := time.Duration(r.ResultTTLS) * time.Second; ttl > 0 {
		return min(forgotten, ttl) // its events go away that long after its end
	}
	return forgotten
}

func key(c identity.Caller, id string) jobs.Key {
	return jobs.Key{Tenant: c.TenantToken(), Owner: c.Owner(), ID: id}
}

// submit submits the job of the run that has begun. A refusal for good is the
// outcome of the run; any other is tried again.
func (s *Service) submit(ctx context.Context, rec Record, now time.Time) (again bool, err error) {
	_, err = s.cfg.Jobs.SubmitRun(ctx, rec.Caller, rec.Request, jobs.Run{
		JobID: rec.Begun.JobID, ScheduleID: rec.ID, At: rec.Begun.At,
	})
	var refused *packs.Error
	switch {
	case err == nil:
		return false, nil
	case !errors.As(err, &refused), refused.Code == packs.Internal,
		refused.Code.Retryable() && now.Sub(rec.Begun.DecidedAt) < patience:
		return false, err
	}
	s.cfg.Log.Warn().Err(err).Str("schedule", rec.ID).Str("job", rec.Begun.JobID).Msg("run of a schedule was refused")
	f := &jobs.Failure{Code: refused.Code, Message: refused.Message, Details: refused.Details}
	return true, s.change(ctx, rec.ID, func(r *Record) (bool, error) {
		if !r.settle(rec.Begun.JobID, RunFailed, f, s.cfg.Now().UTC()) {
			return false, nil
		}
		for i := range r.Runs {
			if r.Runs[i].JobID == rec.Begun.JobID {
				r.Runs[i].JobID = "" // there is none
			}
		}
		return true, nil
	})
}

// arm sets the timer as the record says, and looks again afterwards: whoever
// changes the record meanwhile sets it too, and the last one to set it has
// seen the last record.
func (s *Service) arm(ctx context.Context, id string) error {
	var armed time.Time
	for range rounds {
		rec, _, err := s.cfg.Store.Get(ctx, id)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		at := rec.FiresAt()
		switch {
		case at.IsZero():
			return s.cfg.Timers.Disarm(ctx, id)
		case at.Equal(armed):
			return nil
		}
		if err := s.cfg.Timers.Arm(ctx, id, rec.NextAt, at); err != nil {
			return err
		}
		armed = at
	}
	return fmt.Errorf("set timer of schedule %s: it keeps changing", id)
}

// change moves the record by compare-and-set; fn returns false to leave it.
func (s *Service) change(ctx context.Context, id string, fn func(*Record) (bool, error)) error {
	for range rounds {
		rec, revision, err := s.cfg.Store.Get(ctx, id)
		if err != nil {
			return err
		}
		ok, err := fn(&rec)
		if err != nil || !ok {
			return err
		}
		if err = s.cfg.Store.Update(ctx, rec, revision); !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("change schedule %s: %w", id, ErrConflict)
}
