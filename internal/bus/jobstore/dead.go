package jobstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// A dead letter is one message that never changes. What happens to it later
// lies beside it in small messages, its marks: that it was quarantined, so
// that those are counted without being read; each of its replays; and for a
// while that it was dropped.

// droppedFor is how long a dropped letter is not buried again: longer than the
// last event of its job may still come to a consumer that was away.
const droppedFor = time.Hour

// Bury stores a dead letter. The same letter twice is stored once, as long as
// the first is kept, and one that was dropped lately is not stored again.
func (s *Store) Bury(ctx context.Context, d jobs.DeadLetter) error {
	job := d.Submission.Job
	k := job.Key()
	subject, err := events.DLQSubject(job.Pool, k)
	if err != nil {
		return err
	}
	data, err := jobs.EncodeDead(d)
	if err != nil {
		return fmt.Errorf("encode dead letter: %w", err)
	}
	switch dropped, err := s.dropped(ctx, job.Pool, k); {
	case err != nil:
		return err
	case dropped:
		return nil
	}
	none := uint64(0)
	if d.Poison {
		mark, err := events.DLQMarkSubject(job.Pool, k, events.KindPoison)
		if err != nil {
			return err
		}
		_, err = s.js.Publish(ctx, bus.Outgoing{Subject: mark, Expect: &none})
		if err != nil && !errors.Is(err, bus.ErrWrongSequence) { // there already
			return busError(err)
		}
	}
	_, err = s.js.Publish(ctx, bus.Outgoing{Subject: subject, Data: data, Expect: &none})
	return busError(err)
}

func (s *Store) dropped(ctx context.Context, pool string, k jobs.Key) (bool, error) {
	mark, err := events.DLQMarkSubject(pool, k, events.KindDropped)
	if err != nil {
		return false, err
	}
	_, err = s.js.Last(ctx, bus.StreamDead, mark, true)
	if errors.Is(err, bus.ErrNoMessage) {
		return false, nil
	}
	return err == nil, busError(err)
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
	d, err := decodeDead(m)
	if err != nil {
		return d, err
	}
	replays, err := s.replays(ctx, d.Submission.Job.Pool, d.Submission.Job.Key())
	d.ReplayedAs = replays[k.ID]
	return d, err
}

func decodeDead(m bus.Message) (jobs.DeadLetter, error) {
	var d jobs.DeadLetter
	if err := json.Unmarshal(m.Data, &d); err != nil {
		return d, fmt.Errorf("decode dead letter %d: %w", m.Sequence, err)
	}
	return d, nil
}

// Replayed implements jobs.DeadLetters.
func (s *Store) Replayed(ctx context.Context, k jobs.Key, pool string, as jobs.ReplayedAs) error {
	subject, err := events.DLQMarkSubject(pool, k, events.KindReplay)
	if err != nil {
		return err
	}
	data, err := json.Marshal(as)
	if err != nil {
		return fmt.Errorf("encode replay: %w", err)
	}
	_, err = s.js.Publish(ctx, bus.Outgoing{Subject: subject, Data: data, MsgID: k.ID + "/" + as.JobID})
	return busError(err)
}

// replays reads the jobs made from dead letters, by the id of the old one.
func (s *Store) replays(ctx context.Context, pool string, k jobs.Key) (map[string][]jobs.ReplayedAs, error) {
	filter, err := events.DLQMarkFilter(pool, k, events.KindReplay)
	if err != nil {
		return nil, err
	}
	out := map[string][]jobs.ReplayedAs{}
	err = s.js.Scan(ctx, bus.StreamDead, []string{filter}, 0, func(m bus.Message) error {
		var as jobs.ReplayedAs
		at, err := events.Parse(m.Subject)
		if err == nil {
			err = json.Unmarshal(m.Data, &as)
		}
		if err != nil {
			s.log.Warn().Err(err).Uint64("sequence", m.Sequence).Msg("replay of a dead letter not understood, left out")
			return nil
		}
		known := func(r jobs.ReplayedAs) bool { return r.JobID == as.JobID }
		if !slices.ContainsFunc(out[at.JobID], known) {
			out[at.JobID] = append(out[at.JobID], as)
		}
		return nil
	})
	return out, busError(err)
}

// Drop implements jobs.DeadLetters.
func (s *Store) Drop(ctx context.Context, k jobs.Key, pool string) error {
	dropped, err := events.DLQMarkSubject(pool, k, events.KindDropped)
	if err != nil {
		return err
	}
	if _, err := s.js.Publish(ctx, bus.Outgoing{Subject: dropped, TTL: droppedFor}); err != nil {
		return busError(err)
	}
	letter, err := events.DLQSubject(pool, k)
	if err != nil {
		return err
	}
	var subjects []string
	for _, kind := range []string{events.KindPoison, events.KindReplay} {
		mark, err := events.DLQMarkSubject(pool, k, kind)
		if err != nil {
			return err
		}
		subjects = append(subjects, mark)
	}
	// The letter goes last: while it is there, dropping it again does the rest.
	for _, subject := range append(subjects, letter) {
		if err := s.js.Purge(ctx, bus.StreamDead, subject, 0); err != nil {
			return busError(err)
		}
	}
	return nil
}

// DeadCount is how many dead letters a pool has, and how many of them were
// quarantined.
type DeadCount struct{ All, Poison int }

// CountDead counts the dead letters of every pool without reading them.
func (s *Store) CountDead(ctx context.Context) (map[string]DeadCount, error) {
	out := map[string]DeadCount{}
	for _, p := range packs.Pools {
		pool := string(p)
		letters, err := events.DLQFilter(pool, jobs.Key{})
		if err != nil {
			return nil, err
		}
		marks, err := events.DLQMarkFilter(pool, jobs.Key{}, events.KindPoison)
		if err != nil {
			return nil, err
		}
		var n DeadCount
		if n.All, err = s.js.Count(ctx, bus.StreamDead, letters); err == nil {
			n.Poison, err = s.js.Count(ctx, bus.StreamDead, marks)
		}
		if err != nil {
			return nil, fmt.Errorf("count dead letters of pool %s: %w", pool, busError(err))
		}
		out[pool] = n
	}
	return out, nil
}

// List implements jobs.DeadLetters. Pages go back from the newest; the cursor
// is the sequence of the last letter shown.
func (s *Store) List(ctx context.Context, q jobs.DeadQuery) ([]jobs.DeadLetter, string, error) {
	limit := q.Limit
	if limit == 0 {
		limit = 50
	}
	if limit < 1 || limit > jobs.MaxBatch {
		return nil, "", packs.Errorf(packs.InvalidInput, "limit must be between 1 and %d", jobs.MaxBatch)
	}
	before := uint64(0)
	if q.Cursor != "" {
		n, err := strconv.ParseUint(q.Cursor, 10, 64)
		if err != nil {
			return nil, "", packs.Errorf(packs.InvalidInput, "cursor is not one this list handed out")
		}
		before = n
	}
	owner := jobs.Key{Tenant: q.Tenant, Owner: q.Owner}
	filter, err := events.DLQFilter(q.Pool, owner)
	if err != nil {
		return nil, "", packs.Errorf(packs.InvalidInput, "no such pool %.80q; the pools are %s", q.Pool, poolNames())
	}
	replays, err := s.replays(ctx, q.Pool, owner)
	if err != nil {
		return nil, "", err
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
		d.ReplayedAs = replays[d.Submission.Job.ID]
		if !q.Matches(d) {
			return nil
		}
		d.Submission.Input = nil // a quarter of a megabyte each
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

func poolNames() string {
	names := make([]string, len(packs.Pools))
	for i, p := range packs.Pools {
		names[i] = string(p)
	}
	return strings.Join(names, ", ")
}
