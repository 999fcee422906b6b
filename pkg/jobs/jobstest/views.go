package jobstest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

const defaultPage = 50

// index is the listing of jobs.
type index struct{ w *World }

// List implements jobs.Index.
func (x index) List(_ context.Context, q jobs.Query) ([]jobs.Job, string, error) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	var all []jobs.Job
	for _, l := range x.w.lives {
		if l.last != nil {
			all = append(all, l.last.Job)
		}
	}
	for _, s := range x.w.queue {
		if l := x.w.lives[s.Job.ID]; l == nil || l.last == nil {
			all = append(all, s.Job)
		}
	}
	if q.Cursor != "" && len(q.Cursor) != 36 {
		return nil, "", errCursor
	}
	all = slices.DeleteFunc(all, func(j jobs.Job) bool { return !matches(q, j) || q.Cursor != "" && j.ID >= q.Cursor })
	slices.SortFunc(all, func(a, b jobs.Job) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
	})
	page, next := page(all, q.Limit, func(j jobs.Job) string { return j.ID })
	return page, next, nil
}

func matches(q jobs.Query, j jobs.Job) bool {
	k := j.Key()
	value, labelled := j.Labels[q.LabelKey]
	switch {
	case q.Tenant != "" && (q.Tenant != k.Tenant || q.Owner != k.Owner),
		q.State != "" && q.State != j.State,
		len(q.States) > 0 && !slices.Contains(q.States, j.State),
		q.Pack != "" && q.Pack != j.Pack,
		q.Pool != "" && q.Pool != j.Pool,
		q.Parent != "" && q.Parent != j.ParentID,
		q.Schedule != "" && q.Schedule != j.ScheduleID,
		q.LabelKey != "" && !labelled,
		q.LabelValue != "" && q.LabelValue != value,
		!q.Since.IsZero() && j.CreatedAt.Before(q.Since),
		!q.Until.IsZero() && !j.CreatedAt.Before(q.Until):
		return false
	}
	return true
}

var errCursor = packs.Errorf(packs.InvalidInput, "the cursor is none this list handed out; start without one")

// page cuts the first page out of all; what follows its last item, by cursor,
// is the next.
func page[T any](all []T, limit int, cursor func(T) string) (first []T, next string) {
	if limit == 0 {
		limit = defaultPage
	}
	if len(all) <= limit {
		return all, ""
	}
	return all[:limit], cursor(all[limit-1])
}

// Ahead implements jobs.Index.
func (x index) Ahead(j jobs.Job) int {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	n := 0
	for _, s := range x.w.queue {
		if s.Job.ID == j.ID {
			break
		}
		if s.Job.Priority == j.Priority && s.Job.Pool == j.Pool && x.w.cancels[s.Job.ID] == nil {
			n++
		}
	}
	return n
}

// deadLetters is the list of dead letters.
type deadLetters struct{ w *World }

// List implements jobs.DeadLetters.
func (d deadLetters) List(_ context.Context, q jobs.DeadQuery) ([]jobs.DeadLetter, string, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	before := uint64(math.MaxUint64)
	if q.Cursor != "" {
		var err error
		if before, err = strconv.ParseUint(q.Cursor, 10, 64); err != nil {
			return nil, "", errCursor
		}
	}
	var all []jobs.DeadLetter
	for _, letter := range slices.Backward(d.w.dead) {
		if d.w.deaths[letter.Submission.Job.ID] >= before {
			continue
		}
		k := letter.Submission.Job.Key()
		if (q.Tenant == "" || q.Tenant == k.Tenant && q.Owner == k.Owner) && q.Matches(letter) {
			letter.Submission.Input = nil
			all = append(all, letter)
		}
	}
	page, next := page(all, q.Limit, func(l jobs.DeadLetter) string { return fmt.Sprint(d.w.deaths[l.Submission.Job.ID]) })
	return page, next, nil
}

// Get implements jobs.DeadLetters.
func (d deadLetters) Get(_ context.Context, k jobs.Key) (jobs.DeadLetter, error) {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	for _, letter := range d.w.dead {
		if sees(k, letter.Submission.Job.Key()) {
			return letter, nil
		}
	}
	return jobs.DeadLetter{}, jobs.ErrNotFound
}

// Drop implements jobs.DeadLetters.
func (d deadLetters) Drop(_ context.Context, k jobs.Key, _ string) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	d.w.dead = slices.DeleteFunc(d.w.dead, func(l jobs.DeadLetter) bool { return sees(k, l.Submission.Job.Key()) })
	return nil
}

// Replayed implements jobs.DeadLetters.
func (d deadLetters) Replayed(_ context.Context, k jobs.Key, _ string, as jobs.ReplayedAs) error {
	d.w.mu.Lock()
	defer d.w.mu.Unlock()
	for i, l := range d.w.dead {
		known := slices.ContainsFunc(l.ReplayedAs, func(r jobs.ReplayedAs) bool { return r.JobID == as.JobID })
		if sees(k, l.Submission.Job.Key()) && !known {
			// A new slice: letters that were handed out share the old one.
			d.w.dead[i].ReplayedAs = append(slices.Clip(slices.Clone(l.ReplayedAs)), as)
		}
	}
	return nil
}

// Terminal implements jobs.Feed.
func (w *World) Terminal(k jobs.Key) (<-chan jobs.Job, func()) {
	ended := make(chan jobs.Job, 1)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	w.mu.Lock()
	seen := w.seq // events before the call are none of this feed's
	w.mu.Unlock()
	go func() {
		defer close(done)
		for {
			events, changed := w.Events(k, seen)
			if n := len(events); n > 0 && events[n-1].Terminal {
				if rec, err := w.Last(ctx, k, true); err == nil {
					ended <- rec.Job
				}
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ended, func() { stop(); <-done }
}

// Progress implements jobs.Feed.
func (w *World) Progress(_ context.Context, k jobs.Key) *jobs.Progress {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.find(k); l != nil {
		return l.progress
	}
	return nil
}

// Cancel implements jobs.Feed: it ends the context of the job's handler.
func (w *World) Cancel(_ context.Context, _ string, k jobs.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cancel := w.cancels[k.ID]; cancel != nil {
		cancel()
	}
}

// Children implements jobs.Index.
func (x index) Children(k jobs.Key) map[jobs.State]int {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	out := map[jobs.State]int{}
	count := func(j jobs.Job) {
		if own := j.Key(); j.ParentID == k.ID && own.Tenant == k.Tenant && own.Owner == k.Owner {
			out[j.State]++
		}
	}
	for _, l := range x.w.lives {
		if l.last != nil {
			count(l.last.Job)
		}
	}
	for _, s := range x.w.queue {
		if l := x.w.lives[s.Job.ID]; l == nil || l.last == nil {
			count(s.Job)
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
