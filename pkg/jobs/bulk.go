package jobs

import (
	"context"
	"errors"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Unended and Unsuccessful are the states that a bulk cancel and a bulk retry
// act on unless they are told one.
var (
	Unended      = []State{Scheduled, Queued, Running, Retrying}
	Unsuccessful = []State{Failed, Cancelled}
)

// Outcome is what one job of a bulk call came to.
type Outcome struct {
	ID string // of the job acted on
	// Job is the record after it: of the job itself, or of the new one that a
	// retry made.
	Job Job
	// Skipped: the job was not, or no more, in a state to act on.
	Skipped bool
	Err     error // a *packs.Error
}

// Select returns up to q.Limit (MaxBatch at most, and for 0) of the caller's
// jobs, newest first, and where the next ones begin. It reads the listing,
// which may lag: whoever acts on a job looks at the job itself.
func (s *Service) Select(ctx context.Context, c identity.Caller, q Query) (ids []string, next string, err error) {
	if !c.Admin() {
		q.Tenant, q.Owner = c.TenantToken(), c.Owner()
	}
	if q.Limit == 0 {
		q.Limit = MaxBatch
	}
	if q.Limit < 0 || q.Limit > MaxBatch {
		return nil, "", packs.Errorf(packs.InvalidInput, "limit must be between 1 and %d", MaxBatch)
	}
	page, next, err := s.cfg.Index.List(ctx, q)
	if err != nil {
		return nil, "", asError(err)
	}
	ids = make([]string, len(page))
	for i, j := range page {
		ids[i] = j.ID
	}
	return ids, next, nil
}

// CancelMany cancels each of up to MaxBatch jobs as Cancel does, if it is in
// one of states by then.
func (s *Service) CancelMany(ctx context.Context, c identity.Caller, ids []string, states []State) []Outcome {
	return each(ids, func(id string) (Job, error) { return s.cancel(ctx, c, id, states) })
}

// RetryMany retries each of up to MaxBatch jobs as Retry does, if it is in one
// of states. With a key the call is safe to repeat: each job is retried once
// for it.
func (s *Service) RetryMany(ctx context.Context, c identity.Caller, ids []string, states []State, key string) []Outcome {
	return each(ids, func(id string) (Job, error) {
		p := replayPlan{}
		if key != "" {
			p.key = derived("retry", c.Tenant, c.Subject, key, id)
		}
		return s.retry(ctx, c, id, p, states)
	})
}

// errMoved: the job is in none of the states a call acts on.
var errMoved = errors.New("job is in another state")

func each(ids []string, do func(id string) (Job, error)) []Outcome {
	out := make([]Outcome, len(ids))
	together(len(ids), func(i int) {
		job, err := do(ids[i])
		out[i] = Outcome{ID: ids[i], Job: job}
		if out[i].Skipped = errors.Is(err, errMoved); !out[i].Skipped {
			out[i].Err = asError(err)
		}
	})
	return out
}
