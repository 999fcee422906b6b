package jobindex

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// List implements jobs.Index. The cursor is the id of the last job shown.
func (x *Index) List(ctx context.Context, q jobs.Query) ([]jobs.Job, string, error) {
	select {
	case <-x.ready:
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
	if q.Limit == 0 {
		q.Limit = 50
	}
	if q.Cursor != "" && len(q.Cursor) != 36 {
		return nil, "", packs.Errorf(packs.InvalidInput, "cursor is not one this list handed out")
	}
	if q.LabelKey != "" || q.Parent != "" || q.Schedule != "" { // headers do not tell
		x.fill(ctx, x.partial(q))
	}
	page, partial, next := x.page(q)
	if len(partial) > 0 {
		x.fill(ctx, partial)
		page, _, next = x.page(q)
	}
	return page, next, nil
}

// place is where the record of a job lies of which only the headers are known.
type place struct{ id, subject string }

// Bounds of one fill: records read in all, and at once.
const maxFill, fillers = 1000, 16

// partial returns the jobs that may match q and are known by headers only.
func (x *Index) partial(q jobs.Query) (places []place) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.byID {
		if e.subject != "" && e.belongs(q) && len(places) < maxFill {
			places = append(places, place{e.id, e.subject})
		}
	}
	return places
}

// fill reads the records at places.
func (x *Index) fill(ctx context.Context, places []place) {
	slots := make(chan struct{}, fillers)
	var wg sync.WaitGroup
	for _, p := range places {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			x.read(ctx, p)
		})
	}
	wg.Wait()
}

// read completes the entry of a queued job. A job that has left the queue
// meanwhile is told of by its events.
func (x *Index) read(ctx context.Context, p place) {
	s, err := events.Parse(p.subject)
	if err != nil {
		return
	}
	m, err := x.js.Last(ctx, bus.JobsStream(packs.Pool(s.Pool)), p.subject, false)
	if err != nil {
		return
	}
	sub, err := jobstore.DecodeSubmission(m)
	if err != nil {
		return
	}
	job := sub.Job
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byID[p.id]; e != nil && e.subject == p.subject {
		e.job, e.subject = &job, ""
	}
}

func (x *Index) page(q jobs.Query) (page []jobs.Job, partial []place, next string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sort()
	for i := len(x.ordered) - 1; i >= 0; i-- {
		e := x.ordered[i]
		if q.Cursor != "" && e.id >= q.Cursor || !e.belongs(q) {
			continue
		}
		job, ok := e.record()
		if !ok || !matches(q, job) {
			continue
		}
		if len(page) == q.Limit {
			return page, partial, page[len(page)-1].ID
		}
		page = append(page, job)
		if e.subject != "" {
			partial = append(partial, place{e.id, e.subject})
		}
	}
	return page, partial, ""
}

func (e *entry) belongs(q jobs.Query) bool {
	return (q.Tenant == "" || q.Tenant == e.tenant) && (q.Owner == "" || q.Owner == e.owner) &&
		e.state != expired && (q.State == "" || q.State == e.state) && (len(q.States) == 0 || slices.Contains(q.States, e.state))
}

func matches(q jobs.Query, j jobs.Job) bool {
	switch {
	case q.Pack != "" && q.Pack != j.Pack, q.Pool != "" && q.Pool != j.Pool, q.Parent != "" && q.Parent != j.ParentID,
		q.Schedule != "" && q.Schedule != j.ScheduleID:
		return false
	case !q.Since.IsZero() && j.CreatedAt.Before(q.Since), !q.Until.IsZero() && !j.CreatedAt.Before(q.Until):
		return false
	case q.LabelKey != "":
		v, ok := j.Labels[q.LabelKey]
		return ok && (q.LabelValue == "" || q.LabelValue == v)
	}
	return true
}

// Ahead implements jobs.Index.
func (x *Index) Ahead(j jobs.Job) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, e := range x.byID {
		if e.state != jobs.Queued || e.id >= j.ID {
			continue
		}
		if other, ok := e.record(); ok && other.Pool == j.Pool && other.Lane() == j.Lane() {
			n++
		}
	}
	return n
}

// Unfinished returns the keys of the jobs that have not ended as far as this
// replica knows, submitted before the given time.
func (x *Index) Unfinished(before time.Time) []jobs.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []jobs.Key
	for _, e := range x.byID {
		if e.over() {
			continue
		}
		if j, ok := e.record(); ok && j.CreatedAt.Before(before) {
			out = append(out, jobs.Key{Tenant: e.tenant, Owner: e.owner, ID: e.id})
		}
	}
	return out
}

// Queued calls fn for every job that waits for a worker as far as this replica
// knows. Of a job heard of lately the version may be missing. fn must not call
// the index.
func (x *Index) Queued(fn func(jobs.Job)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for _, e := range x.byID {
		if e.state != jobs.Queued && e.state != jobs.Retrying {
			continue
		}
		if j, ok := e.record(); ok && !j.RetryAt.After(now) {
			fn(j)
		}
	}
}
