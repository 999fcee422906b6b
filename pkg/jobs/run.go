package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Run is one run of a schedule. Its job has an id that is known before, so
// that submitting it again is no second job.
type Run struct {
	JobID, ScheduleID string
	// At is the time it was due for.
	At time.Time
}

// SubmitRun submits the job of a run of a schedule. It may be called any
// number of times, from several replicas at once: the queue takes a job once,
// and one that has run is not run again while its events are kept.
func (s *Service) SubmitRun(ctx context.Context, c identity.Caller, r Request, run Run) (Job, error) {
	r.IdempotencyKey = ""
	sub, err := s.prepare(c, r)
	if err != nil {
		return Job{}, err
	}
	sub.Job.ID, sub.Job.ScheduleID, sub.Job.ScheduledFor = run.JobID, run.ScheduleID, run.At.UTC()
	return s.accept(ctx, c, r, sub)
}

// Locate reads a job through the leaders of the bus: what they do not know was
// never accepted, or is no longer kept. The error may be ErrNotFound.
func (s *Service) Locate(ctx context.Context, k Key) (Job, error) {
	return s.readOnce(ctx, k, true)
}

// Faults returns everything that is wrong with a request, located in the body
// of a submit: faults of the pack's input are below /input.
func (s *Service) Faults(r Request) ([]packs.Detail, error) {
	var faults []packs.Detail
	pack, err := s.cfg.Packs.Get(r.Pack, r.Version)
	var pe *packs.Error
	switch {
	case r.Pack == "":
		faults = append(faults, packs.Detail{Pointer: "/pack", Message: "is required: the name of the pack to run"})
	case errors.As(err, &pe):
		faults = append(faults, packs.Detail{Pointer: "/pack", Message: pe.Message})
	case err != nil:
		return nil, asError(err)
	default:
		_, _, err = pack.Validate(r.Input)
		if err != nil && !errors.As(err, &pe) {
			return nil, asError(err)
		}
		if err != nil && len(pe.Details) == 0 {
			faults = append(faults, packs.Detail{Pointer: "/input", Message: pe.Message})
		}
		if err != nil {
			for _, d := range pe.Details {
				faults = append(faults, packs.Detail{Pointer: "/input" + d.Pointer, Message: d.Message})
			}
		}
	}
	return append(faults, r.faults(s.cfg.Now())...), nil
}
