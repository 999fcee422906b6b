package jobstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Bury stores a dead letter. The same letter twice is stored once, as long as
// the first is kept.
func (s *Store) Bury(ctx context.Context, d jobs.DeadLetter) error {
	subject, err := events.DLQSubject(d.Submission.Job.Pool, d.Submission.Job.Key())
	if err != nil {
		return err
	}
	data, err := jobs.EncodeDead(d)
	if err != nil {
		return fmt.Errorf("encode dead letter: %w", err)
	}
	none := uint64(0)
	_, err = s.js.Publish(ctx, bus.Outgoing{Subject: subject, Data: data, Expect: &none})
	return busError(err)
}

// Get implements jobs.DeadLetters.
func (s *Store) Get(ctx context.Context, k jobs.Key) (jobs.DeadLetter, error) {
	filter, err := events.DLQFilter("", k)
	if err != nil {
		return jobs.DeadLetter{}, fmt.Errorf("%w: %w", jobs.ErrNotFound, err)
	}
	m, err := s.js.Last(ctx, bus.StreamDead, filter, true)
	if err != nil {
		return jobs.DeadLetter{}, busError(err)
	}
	return decodeDead(m)
}

func decodeDead(m bus.Message) (jobs.DeadLetter, error) {
	var d jobs.DeadLetter
	if err := json.Unmarshal(m.Data, &d); err != nil {
		return d, fmt.Errorf("decode dead letter %d: %w", m.Sequence, err)
	}
	return d, nil
}

// List implements jobs.DeadLetters. Pages go back from the newest; the cursor
// is the sequence of the last letter shown.
func (s *Store) List(ctx context.Context, q jobs.DeadQuery) ([]jobs.DeadLetter, string, error) {
	limit := q.Limit
	if limit == 0 {
		limit = 50
	}
	if limit < 1 || limit > 200 {
		return nil, "", packs.Errorf(packs.InvalidInput, "limit must be between 1 and 200")
	}
	before := uint64(0)
	if q.Cursor != "" {
		n, err := strconv.ParseUint(q.Cursor, 10, 64)
		if err != nil {
			return nil, "", packs.Errorf(packs.InvalidInput, "cursor is not one this list handed out")
		}
		before = n
	}
	filter, err := events.DLQFilter(q.Pool, jobs.Key{Tenant: q.Tenant, Owner: q.Owner})
	if err != nil {
		return nil, "", packs.Errorf(packs.InvalidInput, "no such pool %q", q.Pool)
	}
	type letter struct {
		jobs.DeadLetter
		seq uint64
	}
	var newest []letter // a window of the newest limit+1, oldest first
	err = s.js.Scan(ctx, bus.StreamDead, []string{filter}, 0, func(m bus.Message) error {
		if before > 0 && m.Sequence >= before {
			return nil
		}
		d, err := decodeDead(m)
		if err != nil {
			s.log.Warn().Err(err).Msg("dead letter not understood, left out of the list")
			return nil
		}
		if q.Pack != "" && d.Submission.Job.Pack != q.Pack {
			return nil
		}
		if newest = append(newest, letter{d, m.Sequence}); len(newest) > limit+1 {
			newest = newest[1:]
		}
		return nil
	})
	if err != nil {
		return nil, "", busError(err)
	}
	next := ""
	if len(newest) > limit {
		newest = newest[1:]
		next = strconv.FormatUint(newest[0].seq, 10)
	}
	slices.Reverse(newest)
	page := make([]jobs.DeadLetter, len(newest))
	for i, l := range newest {
		page[i] = l.DeadLetter
	}
	return page, next, nil
}
