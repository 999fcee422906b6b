package jobstest

import (
	"cmp"
	"context"
	"slices"

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
	all = slices.DeleteFunc(all, func(j jobs.Job) bool { return !matches(q, j) })
	slices.SortFunc(all, func(a, b jobs.Job) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.ID, a.ID))
	})
	return page(all, q.Limit, q.Cursor, func(j jobs.Job) string { return j.ID })
}

func matches(q jobs.Query, j jobs.Job) bool {
	k := j.Key()
	value, labelled := j.Labels[q.LabelKey]
	switch {
	case q.Tenant != "" && (q.Tenant != k.Tenant || q.Owner != k.Owner),
		q.State != "" && q.State != j.State,
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

// page cuts one page out of all; the cursor is the id of its last item.
func page[T any](all []T, limit int, cursor string, id func(T) string) ([]T, string, error) {
	if cursor != "" {
		i := slices.IndexFunc(all, func(v T) bool { return id(v) == cursor })
		if i < 0 {
			return nil, "", packs.Errorf(packs.InvalidInput, "the cursor is none this list handed out; start without one")
		}
		all = all[i+1:]
	}
	if limit == 0 {
		limit = defaultPage
	}
	if len(all) <= limit {
		return all, "", nil
	}
	return all[:limit], id(all[limit-1]), nil
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
	var all []jobs.DeadLetter
	for _, letter := range slices.Backward(d.w.dead) {
		j := letter.Submission.Job
		if matches(jobs.Query{Tenant: q.Tenant, Owner: q.Owner, Pack: q.Pack, Pool: q.Pool}, j) {
			all = append(all, letter)
		}
	}
	return page(all, q.Limit, q.Cursor, func(l jobs.DeadLetter) string { return l.Submission.Job.ID })
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
