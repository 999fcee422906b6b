package artifacts

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// grace is how long hidden blobs are spared: an upload may be on its way to
// Publish, a job on its way from one stream to the next.
const grace = time.Hour

// DefaultSweepEvery is the period of RunSweeper.
const DefaultSweepEvery = time.Hour

// sweepPage is how many records one look at the index takes.
const sweepPage = 5000

// maxSweepErrors is how many errors one sweep collects before it gives up.
const maxSweepErrors = 10

// SweepReport counts what one sweep did.
type SweepReport struct {
	Expired  int `json:"expired"`  // visible artifacts whose time was over, removed
	Hidden   int `json:"hidden"`   // hidden blobs that never will be visible, removed
	Stashed  int `json:"stashed"`  // claim-check blobs no job needs, removed
	Ghosts   int `json:"ghosts"`   // records whose bytes are gone, removed
	Repaired int `json:"repaired"` // artifacts that should have been visible, published
}

// InUse reports whether a job is in any stream that may need its claim-check
// blobs (queued, scheduled, held, dead or in the event history).
type InUse func(ctx context.Context, jobID string) (bool, error)

// RunSweeper sweeps now and every period (0: DefaultSweepEvery) until ctx
// ends, then returns nil. A sweep that fails is logged and tried again.
func (s *Store) RunSweeper(ctx context.Context, every time.Duration, inUse InUse) error {
	if every <= 0 {
		every = DefaultSweepEvery
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		report, err := s.Sweep(ctx, s.cfg.Now(), inUse)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.cfg.Log.Warn().Err(err).Any("report", report).Msg("artifact sweep incomplete")
		case report != SweepReport{}:
			s.cfg.Log.Info().Any("report", report).Msg("artifacts swept")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Sweep removes, as of now, artifacts whose time is over; blobs an hour old
// that no winning attempt lists and no upload published; claim-check blobs
// whose job two sweeps at least an hour apart found in no stream; records
// without bytes; and what unfinished uploads left behind. It publishes what a
// crash kept hidden. Several processes may sweep at once. inUse nil spares
// the claim-check blobs. A fault with one artifact does not stop the others.
func (s *Store) Sweep(ctx context.Context, now time.Time, inUse InUse) (SweepReport, error) {
	w := sweep{Store: s, now: now, inUse: inUse, records: map[string]time.Time{}, idle: map[string]time.Time{}}
	err := w.index(ctx)
	if err == nil {
		err = s.cfg.Blobs.Walk(ctx, "", func(b Blob) error { return w.note(w.blob(ctx, b)) })
	}
	if err == nil {
		err = w.ghosts(ctx)
	}
	if err = errors.Join(append(w.faults, err)...); err != nil {
		return w.report, fmt.Errorf("sweep artifacts: %w", err)
	}
	s.mu.Lock()
	s.idle = w.idle
	s.mu.Unlock()
	return w.report, nil
}

// sweep is the state of one pass.
type sweep struct {
	*Store
	now     time.Time
	inUse   InUse
	records map[string]time.Time // index key → creation, minus those whose blob was met
	idle    map[string]time.Time // as Store.idle, of this pass
	report  SweepReport
	faults  []error
}

// note keeps a fault and goes on, until there are too many.
func (w *sweep) note(err error) error {
	if err == nil {
		return nil
	}
	w.faults = append(w.faults, err)
	if len(w.faults) >= maxSweepErrors {
		return errors.New("too many faults")
	}
	return nil
}

func (w *sweep) index(ctx context.Context) error {
	q := Query{Limit: sweepPage}
	for {
		refs, next, err := w.cfg.Index.List(ctx, q)
		if err != nil {
			return err
		}
		for _, ref := range refs {
			if !expired(ref, w.now) {
				w.records[ref.Key] = ref.CreatedAt
				continue
			}
			err := w.remove(ctx, ref.Key)
			if err == nil {
				w.report.Expired++
			}
			if err := w.note(err); err != nil {
				return err
			}
		}
		if next == "" {
			return nil
		}
		q.Cursor = next
	}
}

func (w *sweep) blob(ctx context.Context, b Blob) error {
	if _, ok := w.records[b.Key]; ok {
		delete(w.records, b.Key)
		return nil
	}
	if jobID, ok := stashJob(b.Key); ok {
		return w.stashed(ctx, b, jobID)
	}
	if w.now.Sub(b.ModifiedAt) < grace || !validKey(b.Key) {
		return nil
	}
	// It may have been published since the index was read.
	if _, err := w.cfg.Index.Get(ctx, b.Key); !errors.Is(err, ErrNotFound) {
		return err
	}
	return w.hidden(ctx, b)
}

func (w *sweep) hidden(ctx context.Context, b Blob) error {
	ref, err := w.stored(ctx, b.Key)
	if errors.Is(err, ErrNotFound) {
		return nil // removed since
	}
	if err != nil {
		return err
	}
	verdict := Lost
	if ref.JobID != "" {
		if verdict, err = w.cfg.Judge(ctx, ref); err != nil {
			return fmt.Errorf("ask job %s: %w", ref.JobID, err)
		}
	}
	switch {
	case verdict == Undecided:
	case verdict == Won && !expired(ref, w.now):
		if err := w.cfg.Index.Put(ctx, ref); err != nil {
			return err
		}
		w.report.Repaired++
	default:
		if err := w.cfg.Blobs.Delete(ctx, b.Key); err != nil {
			return err
		}
		w.report.Hidden++
	}
	return nil
}

// stashed needs two looks an hour apart, for a job on its way from one
// stream to another can for a moment be seen in none.
func (w *sweep) stashed(ctx context.Context, b Blob, jobID string) error {
	if w.inUse == nil || w.now.Sub(b.ModifiedAt) < grace {
		return nil
	}
	used, err := w.inUse(ctx, jobID)
	if err != nil {
		return fmt.Errorf("look for job %s: %w", jobID, err)
	}
	if used {
		return nil
	}
	w.mu.Lock()
	since, seen := w.Store.idle[b.Key]
	w.mu.Unlock()
	if !seen {
		since = w.now
	}
	if w.now.Sub(since) < grace {
		w.idle[b.Key] = since
		return nil
	}
	if err := w.cfg.Blobs.Delete(ctx, b.Key); err != nil {
		return err
	}
	w.report.Stashed++
	return nil
}

// ghosts removes records whose blob the walk did not meet: a publish that
// crossed a deletion.
func (w *sweep) ghosts(ctx context.Context) error {
	for key, createdAt := range w.records {
		if w.now.Sub(createdAt) < grace {
			continue
		}
		_, err := w.cfg.Blobs.Stat(ctx, key)
		if err == nil {
			continue
		}
		if errors.Is(err, ErrNotFound) {
			if err = w.cfg.Index.Delete(ctx, key); err == nil {
				w.report.Ghosts++
			}
		}
		if err := w.note(err); err != nil {
			return err
		}
	}
	return nil
}
