package schedules

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// find reads a schedule that c may see: one of the own, or for an
// administrator anybody's. The id is checked, for it becomes part of keys.
func (s *Service) find(ctx context.Context, c identity.Caller, id string) (Record, uint64, error) {
	if u, err := uuid.Parse(id); err != nil || u.String() != id {
		return Record{}, 0, ErrNotFound
	}
	rec, revision, err := s.cfg.Store.Get(ctx, id)
	if err == nil && !sees(c, &rec) {
		return Record{}, 0, ErrNotFound
	}
	return rec, revision, err
}

func sees(c identity.Caller, r *Record) bool {
	return c.Admin() || c.Owns(r.Caller.TenantToken(), r.Caller.Owner())
}

// Get returns a schedule of the caller.
func (s *Service) Get(ctx context.Context, c identity.Caller, id string) (Schedule, error) {
	rec, _, err := s.find(ctx, c, id)
	if err != nil {
		return Schedule{}, asError(err)
	}
	return rec.view(), nil
}

// Query selects schedules for a listing.
type Query struct {
	State  State
	Pack   string
	Name   string
	Limit  int // 1 to 200; 0: 50
	Cursor string
}

// List returns the caller's schedules newest first, without inputs and with
// the newest run only; an administrator sees all. A schedule made at another
// replica a moment ago may not be there yet.
func (s *Service) List(ctx context.Context, c identity.Caller, q Query) (page []Schedule, next string, err error) {
	limit := cmp.Or(q.Limit, 50)
	if limit < 1 || limit > 200 {
		return nil, "", packs.Errorf(packs.InvalidInput, "limit must be between 1 and 200")
	}
	var after cursor
	if q.Cursor != "" {
		if after, err = parseCursor(q.Cursor); err != nil {
			return nil, "", packs.Errorf(packs.InvalidInput, "cursor is not one this list handed out")
		}
	}
	all, err := s.cfg.Store.List(ctx)
	if err != nil {
		return nil, "", asError(err)
	}
	all = slices.DeleteFunc(slices.Clone(all), func(r *Record) bool {
		return q.State != "" && q.State != r.State() || q.Pack != "" && q.Pack != r.Pack || q.Name != "" && q.Name != r.Name ||
			q.Cursor != "" && compare(placeOf(r), after) >= 0 || !sees(c, r)
	})
	slices.SortFunc(all, func(a, b *Record) int { return compare(placeOf(b), placeOf(a)) })
	if len(all) > limit {
		all = all[:limit]
		next = placeOf(all[limit-1]).String()
	}
	page = make([]Schedule, len(all))
	for i, r := range all {
		page[i] = r.view()
		page[i].Input = nil
		page[i].LastRuns = page[i].LastRuns[:min(len(page[i].LastRuns), 1)]
	}
	return page, next, nil
}

// cursor is a place in the list of schedules, which is ordered by age.
type cursor struct {
	created int64 // Unix time in nanoseconds
	id      string
}

func placeOf(r *Record) cursor { return cursor{r.CreatedAt.UnixNano(), r.ID} }

func compare(a, b cursor) int {
	return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.id, b.id))
}

func (c cursor) String() string { return strconv.FormatInt(c.created, 36) + "." + c.id }

func parseCursor(s string) (c cursor, err error) {
	created, id, _ := strings.Cut(s, ".")
	c.id = id
	c.created, err = strconv.ParseInt(created, 36, 64)
	return c, err
}

// Update changes a schedule: change gets its spec and returns the new one.
// Other times apply from now on. Every fault of the result is told at once.
func (s *Service) Update(ctx context.Context, c identity.Caller, id string, change func(Spec) (Spec, error)) (Schedule, error) {
	var old, out Record
	err := s.owned(ctx, c, id, func(r *Record) (bool, error) {
		spec, err := change(r.Spec)
		if err != nil {
			return false, err
		}
		old = *r
		now := s.cfg.Now().UTC()
		r.Spec, r.UpdatedAt = spec.normalise(), now
		if retimes(old.Spec, r.Spec) {
			r.Anchor = now
			err = s.check(r, s.after(r, now))
		} else {
			err = s.check(r, time.Time{})
		}
		if err == nil && old.Name != r.Name {
			err = s.claimName(ctx, r.Caller, r.Name, id)
		}
		out = *r
		return true, err
	})
	if err != nil {
		return Schedule{}, asError(err)
	}
	if old.Name != out.Name {
		s.freeName(ctx, old.Caller, old.Name, id)
	}
	s.wake(ctx, id)
	return out.view(), nil
}

// after is where new times begin: now, or the last time dealt with when the
// clock was set back a little since, so that no time runs twice.
func (s *Service) after(r *Record, now time.Time) time.Time {
	if ahead := r.LastAt.Sub(now); ahead > 0 && ahead < time.Hour {
		return r.LastAt
	}
	return now
}

// owned changes a schedule that c may see.
func (s *Service) owned(ctx context.Context, c identity.Caller, id string, fn func(*Record) (bool, error)) error {
	if _, _, err := s.find(ctx, c, id); err != nil {
		return err
	}
	return s.change(ctx, id, func(r *Record) (bool, error) {
		if !sees(c, r) {
			return false, ErrNotFound
		}
		return fn(r)
	})
}

// Delete removes a schedule, with its timer. The job of a run goes on.
func (s *Service) Delete(ctx context.Context, c identity.Caller, id string) error {
	rec, _, err := s.find(ctx, c, id)
	if err != nil {
		return asError(err)
	}
	// The record first: whoever sets the timer after that finds it gone and
	// takes the timer away again.
	if err := s.cfg.Store.Delete(ctx, id); err != nil {
		return asError(err)
	}
	s.freeName(ctx, rec.Caller, rec.Name, id)
	if err := s.cfg.Timers.Disarm(ctx, id); err != nil {
		s.cfg.Log.Warn().Err(err).Str("schedule", id).Msg("timer of a deleted schedule not removed, the next pass removes it")
	}
	return nil
}

// Pause stops a schedule: no run begins until it is resumed. A job that runs
// goes on.
func (s *Service) Pause(ctx context.Context, c identity.Caller, id string) (Schedule, error) {
	return s.setPaused(ctx, c, id, true)
}

// Resume lets a paused schedule go on. The times that passed meanwhile are
// missed, and CatchUp says what becomes of them.
func (s *Service) Resume(ctx context.Context, c identity.Caller, id string) (Schedule, error) {
	return s.setPaused(ctx, c, id, false)
}

func (s *Service) setPaused(ctx context.Context, c identity.Caller, id string, paused bool) (Schedule, error) {
	var out Record
	err := s.owned(ctx, c, id, func(r *Record) (bool, error) {
		changed := r.Paused != paused
		if changed {
			r.Paused, r.UpdatedAt = paused, s.cfg.Now().UTC()
			if !paused {
				r.MissedBefore = r.UpdatedAt
			}
		}
		out = *r
		return changed, nil
	})
	if err != nil {
		return Schedule{}, asError(err)
	}
	if !paused {
		// What waited goes on now, not when the timer fires next.
		if _, err := s.Attend(ctx, id, Word{}); err != nil {
			s.cfg.Log.Warn().Err(err).Str("schedule", id).Msg("resumed schedule not attended to, the next pass does it")
		}
		if rec, _, err := s.cfg.Store.Get(ctx, id); err == nil {
			out = rec
		}
	}
	s.wake(ctx, id)
	return out.view(), nil
}

// RunNow submits a job of a schedule at once, as its owner, whether it is
// paused or not and whatever else runs. It is among the last runs and does not
// count for Overlap. With an idempotency key the same call makes one job.
func (s *Service) RunNow(ctx context.Context, c identity.Caller, id, idempotencyKey string) (jobs.Job, error) {
	rec, _, err := s.find(ctx, c, id)
	if err != nil {
		return jobs.Job{}, asError(err)
	}
	now := s.cfg.Now().UTC()
	run := jobs.Run{JobID: uuid.Must(uuid.NewV7()).String(), ScheduleID: id, At: now}
	if idempotencyKey != "" {
		run.JobID = uuid7(rec.CreatedAt, [32]byte(s.digest("run", id, c.TenantToken(), c.Subject, idempotencyKey)))
		if job, err := s.cfg.Jobs.Locate(ctx, key(rec.Caller, run.JobID)); err == nil {
			return job, nil
		} else if !errors.Is(err, jobs.ErrNotFound) {
			return jobs.Job{}, asError(err)
		}
	}
	job, err := s.cfg.Jobs.SubmitRun(ctx, rec.Caller, rec.Request, run)
	if err != nil {
		return jobs.Job{}, asError(err)
	}
	err = s.change(ctx, id, func(r *Record) (bool, error) {
		if slices.ContainsFunc(r.Runs, func(x Run) bool { return x.JobID == job.ID }) {
			return false, nil
		}
		r.remember(Run{At: now, Trigger: ByHand, JobID: job.ID, Outcome: RunActive})
		return true, nil
	})
	if err != nil {
		// The job was accepted, and its record names the schedule.
		s.cfg.Log.Warn().Err(err).Str("schedule", id).Str("job", job.ID).Msg("run by hand not noted in its schedule")
	}
	return job, nil
}
