// Package jobstore is the JetStream side of the job system: it implements the
// ports of pkg/jobs and internal/worker over the narrow interface of
// internal/bus. Which message goes where, and why, is in docs/bus.md.
package jobstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Store implements jobs.Ledger, jobs.Queue, jobs.Keys, jobs.DeadLetters and
// worker.Source. It is safe for concurrent use.
type Store struct {
	js     bus.JetStream
	source events.Source
	shards int
	log    zerolog.Logger
}

// New returns a Store. installation names the source of its events; shards is
// the number of consumers a lane is split into.
func New(js bus.JetStream, installation string, shards int, log zerolog.Logger) (*Store, error) {
	src, err := events.NewSource(installation)
	if err != nil {
		return nil, err
	}
	return &Store{js: js, source: src, shards: max(shards, 1), log: log}, nil
}

// busError maps the errors of the bus onto those of the ports.
func busError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bus.ErrNoMessage):
		return fmt.Errorf("%w: %w", jobs.ErrNotFound, err)
	case errors.Is(err, bus.ErrWrongSequence):
		return fmt.Errorf("%w: %w", jobs.ErrConflict, err)
	case errors.Is(err, bus.ErrSubjectTaken):
		return fmt.Errorf("%w: %w", jobs.ErrQueued, err)
	case errors.Is(err, bus.ErrFull):
		return fmt.Errorf("%w: %w", jobs.ErrQueueFull, err)
	case errors.Is(err, bus.ErrFrozen), errors.Is(err, bus.ErrUnavailable), errors.Is(err, bus.ErrClosed),
		errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", jobs.ErrUnavailable, err)
	}
	return err
}

// Judge says whether the attempt that stored ref has won its job: what
// artifacts.Config asks for.
func (s *Store) Judge(ctx context.Context, ref artifacts.Ref) (artifacts.Verdict, error) {
	rec, err := s.Last(ctx, jobs.Key{Tenant: ref.Tenant, Owner: ref.Owner, ID: ref.JobID}, true)
	switch {
	case errors.Is(err, jobs.ErrNotFound):
		return artifacts.Lost, nil
	case err != nil:
		return artifacts.Undecided, err
	case !rec.Job.State.Terminal():
		return artifacts.Undecided, nil
	}
	for _, a := range rec.Job.Artifacts {
		if a.Key == ref.Key {
			return artifacts.Won, nil
		}
	}
	return artifacts.Lost, nil
}
