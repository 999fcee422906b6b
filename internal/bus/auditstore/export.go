package auditstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
)

// Exporter hands the records of the trail on, in order, each at least once.
// Every API replica may run one; they share a place, and all but one stand
// back.
type Exporter struct {
	JS bus.JetStream
	// Name is the key of the place in the trail's bucket.
	Name string
	// Send takes a batch with the stored form of each record. Its error means
	// that the batch comes again, after the duration if that is not zero.
	Send func(ctx context.Context, records []audit.Record, stored [][]byte) (again time.Duration, err error)
	Log  zerolog.Logger

	seen  place // as of the last look, while another one exports
	since time.Time
	lost  bool
}

// place is how far an exporter is.
type place struct {
	ID uint64    `json:"id"` // the last record that was taken
	At time.Time `json:"at"`
}

const (
	exportRecords = 500
	exportBytes   = 1 << 20
	exportPoll    = time.Second
	exportAgain   = time.Second
	exportAtMost  = time.Minute
	// exportStand is how long another exporter may be silent.
	exportStand = 5 * time.Second
)

// Run exports until ctx ends.
func (e *Exporter) Run(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		n, again, err := e.step(ctx)
		wait := exportPoll
		switch {
		case err != nil && ctx.Err() == nil:
			failures++
			wait = max(min(exportAgain<<min(failures-1, 10), exportAtMost), again)
			e.Log.Warn().Err(err).Dur("again_ms", wait).Msg("audit records not exported, they come again")
		case n > 0:
			failures = 0
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// step exports one batch and returns how many records it had.
func (e *Exporter) step(ctx context.Context) (n int, again time.Duration, err error) {
	kv, err := e.JS.KV(ctx, bus.BucketTrail)
	if err != nil {
		return 0, 0, err
	}
	at, revision, err := e.place(ctx, kv)
	if err != nil {
		return 0, 0, err
	}
	if e.stands(at) {
		return 0, 0, nil
	}
	if state, err := e.JS.Stream(ctx, bus.StreamTrail, ""); err != nil {
		return 0, 0, err
	} else if state.Last < at.ID {
		// An older backup was restored: what it ends with was taken before.
		return 0, 0, e.move(ctx, kv, state.Last, revision)
	}
	records, stored, err := e.read(ctx, at.ID+1)
	if err != nil || len(records) == 0 {
		return 0, 0, err
	}
	if again, err = e.Send(ctx, records, stored); err != nil {
		return 0, again, err
	}
	return len(records), 0, e.move(ctx, kv, records[len(records)-1].ID, revision)
}

// move notes how far the export is, unless another exporter did so meanwhile.
func (e *Exporter) move(ctx context.Context, kv bus.KV, id, revision uint64) error {
	value, err := json.Marshal(place{ID: id, At: time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("encode place: %w", err)
	}
	_, err = kv.Update(ctx, e.Name, value, revision)
	if errors.Is(err, bus.ErrWrongSequence) {
		e.lost, e.seen, e.since = true, place{}, time.Now()
		return nil
	}
	return err
}

func (e *Exporter) place(ctx context.Context, kv bus.KV) (at place, revision uint64, err error) {
	entry, err := kv.Get(ctx, e.Name)
	if errors.Is(err, bus.ErrNoMessage) {
		return at, 0, nil
	}
	if err != nil {
		return at, 0, err
	}
	if err := json.Unmarshal(entry.Value, &at); err != nil {
		return at, 0, fmt.Errorf("read place of %s: %w", e.Name, err)
	}
	return at, entry.Revision, nil
}

// stands reports whether another exporter is at work.
func (e *Exporter) stands(at place) bool {
	if !e.lost {
		return false
	}
	if at != e.seen {
		e.seen, e.since = at, time.Now()
	}
	e.lost = time.Since(e.since) < exportStand
	return e.lost
}

func (e *Exporter) read(ctx context.Context, from uint64) (records []audit.Record, stored [][]byte, err error) {
	size := 0
	err = e.JS.Scan(ctx, bus.StreamTrail, []string{everyRecord}, from, func(m bus.Message) error {
		if size += len(m.Data); len(records) == exportRecords || len(records) > 0 && size > exportBytes {
			return errEnough
		}
		var r audit.Record
		if json.Unmarshal(m.Data, &r) != nil {
			r = audit.Record{} // a check of the trail tells of it; its text goes along
		}
		r.ID = m.Sequence
		records, stored = append(records, r), append(stored, m.Data)
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return records, stored, err
}
