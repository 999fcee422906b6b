package jobstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Expiry says when an ended job goes away with all it left.
type Expiry struct {
	Tenant string    `json:"tenant"`
	Owner  string    `json:"owner"`
	ID     string    `json:"id"`
	At     time.Time `json:"at"`
}

// Key is that of the job.
func (e Expiry) Key() jobs.Key { return jobs.Key{Tenant: e.Tenant, Owner: e.Owner, ID: e.ID} }

// NoteExpiry remembers when a job goes away. It may be repeated.
func (s *Store) NoteExpiry(ctx context.Context, job jobs.Job) error {
	k := job.Key()
	value, err := json.Marshal(Expiry{Tenant: k.Tenant, Owner: k.Owner, ID: k.ID, At: job.ExpiresAt})
	if err != nil {
		return fmt.Errorf("encode expiry of job %s: %w", job.ID, err)
	}
	kv, err := s.js.KV(ctx, bus.BucketExpiries)
	if err != nil {
		return busError(err)
	}
	if _, err := kv.Put(ctx, job.ID, value); err != nil {
		return busError(fmt.Errorf("note expiry of job %s: %w", job.ID, err))
	}
	return nil
}

// Expiries sends what is remembered, then what is noted and dropped (with a
// zero At), until ctx ends and the channel is closed.
func (s *Store) Expiries(ctx context.Context) (<-chan Expiry, error) {
	kv, err := s.js.KV(ctx, bus.BucketExpiries)
	if err != nil {
		return nil, busError(err)
	}
	entries, err := kv.Watch(ctx, ">")
	if err != nil {
		return nil, busError(err)
	}
	out := make(chan Expiry)
	go func() {
		defer close(out)
		for e := range entries { // closed with ctx
			x := Expiry{ID: e.Key}
			if e.Key == "" || !e.Deleted && json.Unmarshal(e.Value, &x) != nil {
				continue
			}
			select {
			case out <- x:
			case <-ctx.Done():
			}
		}
	}()
	return out, nil
}

// DropExpiry forgets that a job was to go away; the last step.
func (s *Store) DropExpiry(ctx context.Context, jobID string) error {
	kv, err := s.js.KV(ctx, bus.BucketExpiries)
	if err != nil {
		return busError(err)
	}
	if err := kv.Delete(ctx, jobID); err != nil {
		return busError(fmt.Errorf("drop expiry of job %s: %w", jobID, err))
	}
	return nil
}

// Entomb writes the tombstone of an ended job after its last
// event and returns its sequence. From then on nobody sees the job.
// ErrConflict when the lifecycle is not at rec.
func (s *Store) Entomb(ctx context.Context, k jobs.Key, rec jobs.Record) (uint64, error) {
	ev, err := s.source.New(events.JobExpired, events.About{Key: k}, rec.Job.Tombstone())
	if err != nil {
		return 0, err
	}
	subject, err := events.EvtSubject(k, events.KindLifecycle)
	if err != nil {
		return 0, err
	}
	header, data, err := events.Encode(ev)
	if err != nil {
		return 0, err
	}
	seq, err := s.js.Publish(ctx, bus.Outgoing{Subject: subject, Header: header, Data: data, Expect: &rec.Sequence})
	if err != nil {
		return 0, busError(err)
	}
	return seq, nil
}

// Terminal returns the terminal record of a job below its tombstone, or
// ErrNotFound when that was removed already.
func (s *Store) Terminal(ctx context.Context, k jobs.Key) (jobs.Job, error) {
	filter, err := events.EvtFilter(k, events.KindLifecycle)
	if err != nil {
		return jobs.Job{}, fmt.Errorf("%w: %w", jobs.ErrNotFound, err)
	}
	var found *jobs.Job
	err = s.js.Scan(ctx, bus.StreamEvents, []string{filter}, 0, func(m bus.Message) error {
		j, err := DecodeJob(m)
		if err != nil {
			return err
		}
		if j.State.Terminal() && !j.Expired {
			found = &j
		}
		return nil
	})
	if err != nil {
		return jobs.Job{}, busError(err)
	}
	if found == nil {
		return jobs.Job{}, jobs.ErrNotFound
	}
	return *found, nil
}

// Forget removes what the streams hold of a job whose tombstone is at
// sequence upTo: its progress and log, its input, its manifest, its dead
// letter, and last of all its events. It may be repeated.
func (s *Store) Forget(ctx context.Context, k jobs.Key, upTo uint64) error {
	lifecycle, err := events.EvtFilter(k, events.KindLifecycle)
	if err != nil {
		return err
	}
	steps := []struct {
		stream string
		filter func() (string, error)
		upTo   uint64
	}{
		{bus.StreamProgress, func() (string, error) { return events.ProgFilter(k, events.KindProgress) }, 0},
		{bus.StreamProgress, func() (string, error) { return events.ProgFilter(k, events.KindLog) }, 0},
		{bus.StreamDead, func() (string, error) { return events.DLQFilter("", k) }, 0},
		{bus.StreamEvents, func() (string, error) { return events.EvtFilter(k, events.KindArtifacts) }, 0},
		{bus.StreamEvents, func() (string, error) { return events.EvtFilter(k, events.KindInput) }, 0},
		{bus.StreamEvents, func() (string, error) { return lifecycle, nil }, upTo},
	}
	for _, step := range steps {
		filter, err := step.filter()
		if err != nil {
			return err
		}
		if err := s.js.Purge(ctx, step.stream, filter, step.upTo); err != nil && !errors.Is(err, bus.ErrNoMessage) {
			return busError(fmt.Errorf("forget job %s: %w", k.ID, err))
		}
	}
	return nil
}
