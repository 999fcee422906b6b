// Package schedulestore is the JetStream side of schedules: records and names
// in the bucket "schedules", timers as message schedules of the server.
//
// A timer is one message on sched.cron.<id> that the server publishes to
// sched.fire.<id> at its time, once; the next one is set when that was dealt
// with. The server's own repeating schedules are not used: they skip what came
// due while the server was down, and know neither jitter nor what to do about
// an hour that is missing or comes twice.
package schedulestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/records"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

// The keys of the bucket: one per schedule, one per name (a digest).
const (
	recordPrefix = "s."
	namePrefix   = "n."
)

// Store implements schedules.Store, schedules.Names and schedules.Timers. It
// is safe for concurrent use.
type Store struct {
	js  bus.JetStream
	kv  bus.KV
	log zerolog.Logger

	ready chan struct{} // closed once the records that were there are known

	mu    sync.RWMutex // guards known
	known map[string]*schedules.Record
}

// New returns a Store. Run keeps what List returns up to date.
func New(ctx context.Context, js bus.JetStream, log zerolog.Logger) (*Store, error) {
	kv, err := js.KV(ctx, bus.BucketSchedules)
	if err != nil {
		return nil, busError(err)
	}
	return &Store{js: js, kv: kv, log: log, ready: make(chan struct{}), known: map[string]*schedules.Record{}}, nil
}

func busError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bus.ErrNoMessage):
		return fmt.Errorf("%w: %w", schedules.ErrNotFound, err)
	case errors.Is(err, bus.ErrExists):
		return fmt.Errorf("%w: %w", schedules.ErrExists, err)
	case errors.Is(err, bus.ErrWrongSequence):
		return fmt.Errorf("%w: %w", schedules.ErrConflict, err)
	case errors.Is(err, bus.ErrFrozen), errors.Is(err, bus.ErrUnavailable), errors.Is(err, bus.ErrClosed),
		errors.Is(err, bus.ErrFull), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", jobs.ErrUnavailable, err)
	}
	return err
}

var form = records.FormOf(schedules.Record{})

// Create implements schedules.Store.
func (s *Store) Create(ctx context.Context, r schedules.Record) error {
	value, err := records.Encode(r, r.Unknown)
	if err != nil {
		return fmt.Errorf("encode schedule: %w", err)
	}
	if _, err = s.kv.Create(ctx, recordPrefix+r.ID, value, 0); err == nil {
		failpoint.Hit(failpoint.ScheduleAfterCreate)
	}
	return busError(err)
}

// Get implements schedules.Store.
func (s *Store) Get(ctx context.Context, id string) (schedules.Record, uint64, error) {
	var r schedules.Record
	e, err := s.kv.Get(ctx, recordPrefix+id)
	if err != nil {
		return r, 0, busError(err)
	}
	if r.Unknown, err = form.Decode(e.Value, &r); err != nil {
		return r, 0, fmt.Errorf("decode schedule %s: %w", id, err)
	}
	return r, e.Revision, nil
}

// Update implements schedules.Store.
func (s *Store) Update(ctx context.Context, r schedules.Record, revision uint64) error {
	value, err := records.Encode(r, r.Unknown)
	if err != nil {
		return fmt.Errorf("encode schedule: %w", err)
	}
	if _, err = s.kv.Update(ctx, recordPrefix+r.ID, value, revision); err == nil && r.Begun != nil {
		failpoint.Hit(failpoint.ScheduleAfterDecide)
	}
	return busError(err)
}

// Delete implements schedules.Store.
func (s *Store) Delete(ctx context.Context, id string) error {
	return busError(s.kv.Delete(ctx, recordPrefix+id))
}

// List implements schedules.Store. It waits until Run has read the records
// once.
func (s *Store) List(ctx context.Context) ([]*schedules.Record, error) {
	select {
	case <-s.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*schedules.Record, 0, len(s.known))
	for _, r := range s.known {
		all = append(all, r)
	}
	return all, nil
}

// Run keeps up with the bucket until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		entries, err := s.kv.Watch(ctx, recordPrefix+">")
		if err == nil {
			for e := range entries {
				s.note(e)
			}
			continue
		}
		if ctx.Err() == nil {
			s.log.Warn().Err(err).Msg("schedules not watched yet, trying again")
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return nil
}

func (s *Store) note(e bus.KVEntry) {
	if e.Key == "" {
		select {
		case <-s.ready:
		default:
			close(s.ready)
		}
		return
	}
	id := strings.TrimPrefix(e.Key, recordPrefix)
	var r schedules.Record
	if !e.Deleted {
		if err := json.Unmarshal(e.Value, &r); err != nil {
			s.log.Error().Err(err).Str("schedule", id).Msg("record of a schedule not understood, left out")
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Deleted {
		delete(s.known, id)
		return
	}
	s.known[id] = &r
}

type holder struct {
	ID    string    `json:"id"`
	Since time.Time `json:"since"`
}

// claimTries bounds a claim that meets a name just being let go of.
const claimTries = 5

// Claim implements schedules.Names.
func (s *Store) Claim(ctx context.Context, name, id string) (schedules.Holder, bool, error) {
	value, err := json.Marshal(holder{ID: id, Since: time.Now().UTC()})
	if err != nil {
		return schedules.Holder{}, false, err
	}
	for range claimTries {
		if _, err = s.kv.Create(ctx, namePrefix+name, value, 0); err == nil {
			return schedules.Holder{}, true, nil
		}
		if !errors.Is(err, bus.ErrExists) {
			break
		}
		var held schedules.Holder
		if held, err = s.holder(ctx, name); err == nil || !errors.Is(err, bus.ErrNoMessage) {
			return held, false, busError(err)
		}
	}
	return schedules.Holder{}, false, busError(err)
}

func (s *Store) holder(ctx context.Context, name string) (schedules.Holder, error) {
	e, err := s.kv.Get(ctx, namePrefix+name)
	if err != nil {
		return schedules.Holder{}, err
	}
	var h holder
	if err := json.Unmarshal(e.Value, &h); err != nil {
		return schedules.Holder{}, fmt.Errorf("decode name of a schedule: %w", err)
	}
	return schedules.Holder{ID: h.ID, Since: h.Since, Revision: e.Revision}, nil
}

// TakeOver implements schedules.Names.
func (s *Store) TakeOver(ctx context.Context, name, id string, held schedules.Holder) error {
	value, err := json.Marshal(holder{ID: id, Since: time.Now().UTC()})
	if err != nil {
		return err
	}
	_, err = s.kv.Update(ctx, namePrefix+name, value, held.Revision)
	return busError(err)
}

// Free implements schedules.Names.
func (s *Store) Free(ctx context.Context, name, id string) error {
	held, err := s.holder(ctx, name)
	switch {
	case errors.Is(err, bus.ErrNoMessage):
		return nil
	case err != nil:
		return busError(err)
	case held.ID != id:
		return nil
	}
	return busError(s.kv.Delete(ctx, namePrefix+name))
}
