// Package jobindex is the read model of job listings: the newest record of
// every job a replica has heard of, in memory, bounded, rebuilt at start.
// Nothing but listings, queue positions and the reconciler's choice of what
// to look at depends on it; whoever acts on a job reads the ledger first.
package jobindex

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// DefaultLimit is how many jobs are remembered; the oldest ended ones go
// first. A record is about one kilobyte.
const DefaultLimit = 100_000

// refreshEvery is how often the places where jobs wait are read again.
const refreshEvery = 30 * time.Second

// entry is one job. The record is decoded when somebody asks for it: most are
// never looked at.
type entry struct {
	id            string
	tenant, owner string
	state         jobs.State
	raw           []byte
	job           *jobs.Job
	// seen is the refresh in which a waiting job was last found waiting.
	seen uint64
}

// Index implements jobs.Index. Safe for concurrent use.
type Index struct {
	js    bus.JetStream
	store *jobstore.Store
	limit int
	log   zerolog.Logger
	ready chan struct{}

	mu      sync.Mutex // guards the fields below
	byID    map[string]*entry
	ordered []*entry // by id, which orders by time of submit; sorted lazily
	sorted  bool
	round   uint64
}

// New returns an Index that hears of jobs from hub. Run fills it.
func New(js bus.JetStream, store *jobstore.Store, hub *jobfeed.Hub, limit int, log zerolog.Logger) *Index {
	if limit <= 0 {
		limit = DefaultLimit
	}
	x := &Index{js: js, store: store, limit: limit, log: log, ready: make(chan struct{}), byID: map[string]*entry{}, sorted: true}
	hub.Tap(x.hear)
	return x
}

// Run reads the lifecycle stream once, then the places where jobs wait every
// 30 s, until ctx ends.
func (x *Index) Run(ctx context.Context) error {
	for {
		err := x.load(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return nil
		}
		x.log.Warn().Err(err).Msg("job index not built yet, trying again")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	close(x.ready)
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := x.refresh(ctx); err != nil && ctx.Err() == nil {
			x.log.Warn().Err(err).Msg("waiting jobs not read, the list may lag")
		}
	}
}

func (x *Index) load(ctx context.Context) error {
	err := x.js.Scan(ctx, bus.StreamEvents, []string{"evt.*.*.*.lc"}, 0, func(m bus.Message) error {
		t := strings.Split(m.Subject, ".")
		if typ := m.Header["ce-type"]; len(t) == 5 && len(typ) > 0 {
			x.put(t[1], t[2], t[3], stateOf(typ[0]), m.Data)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read lifecycle stream: %w", err)
	}
	return x.refresh(ctx)
}

// refresh adds waiting jobs that no live message told of, and forgets those
// that wait no more and of which no event is known.
func (x *Index) refresh(ctx context.Context) error {
	x.mu.Lock()
	x.round++
	round := x.round
	x.mu.Unlock()
	err := x.store.Waiting(ctx, func(sub jobs.Submission, place jobs.Place) error {
		job := sub.Job
		if place == jobs.InSchedule && job.State == jobs.Queued {
			job.State = jobs.Scheduled
		}
		x.waiting(job, round)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read waiting jobs: %w", err)
	}
	x.forgetGone(round)
	return nil
}

func (x *Index) waiting(job jobs.Job, round uint64) {
	k := job.Key()
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.byID[k.ID]
	if e == nil {
		e = x.add(k.Tenant, k.Owner, k.ID)
		e.state = job.State
	}
	e.seen = round
	if e.job == nil && e.raw == nil {
		e.job = &job
	}
}

func (x *Index) forgetGone(round uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// A job heard of as queued that was not found twice was cancelled or
	// claimed, and its event was lost on the way.
	for id, e := range x.byID {
		if e.state == jobs.Queued && e.seen+2 <= round {
			delete(x.byID, id)
			x.sorted = false
		}
	}
}

// hear takes one live message.
func (x *Index) hear(m jobfeed.Message) {
	switch m.Kind {
	case events.KindLifecycle:
		x.put(m.Tenant, m.Owner, m.JobID, stateOf(m.Type), m.Data)
	case events.KindQueued:
		x.queued(m)
	}
}

// queued notes a job of which only headers are known yet.
func (x *Index) queued(m jobfeed.Message) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byID[m.JobID] != nil {
		return
	}
	e := x.add(m.Tenant, m.Owner, m.JobID)
	e.state, e.seen = jobs.Queued, x.round
	job := jobs.Job{ID: m.JobID, State: jobs.Queued, Pack: first(m.Header[jobstore.PackHeader])}
	// Nats-Subject: <prefix>.job.<pool>.<lane>.…
	if t := strings.Split(first(m.Header["Nats-Subject"]), "."); len(t) > 3 {
		job.Pool, job.Priority = t[2], jobs.Priority(t[3])
	}
	job.CreatedAt, _ = time.Parse(time.RFC3339Nano, first(m.Header["ce-time"]))
	e.job = &job
}

func first(v []string) string {
	if len(v) == 0 {
		return ""
	}
	return v[0]
}

func stateOf(typ string) jobs.State {
	switch typ {
	case events.JobStarted, events.JobCancelRequested:
		return jobs.Running
	case events.JobRetrying:
		return jobs.Retrying
	case events.JobScheduled:
		return jobs.Scheduled
	case events.JobSucceeded:
		return jobs.Succeeded
	case events.JobFailed:
		return jobs.Failed
	case events.JobCancelled:
		return jobs.Cancelled
	}
	return ""
}

func (x *Index) put(tenant, owner, id string, state jobs.State, raw []byte) {
	if state == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.byID[id]
	if e == nil {
		e = x.add(tenant, owner, id)
	}
	if e.state.Terminal() && !state.Terminal() {
		return // an older event, read after a newer one was heard
	}
	e.state, e.raw, e.job = state, raw, nil
}

// add makes an entry; x.mu is held.
func (x *Index) add(tenant, owner, id string) *entry {
	e := &entry{id: id, tenant: tenant, owner: owner}
	if n := len(x.ordered); n > 0 && x.ordered[n-1].id > id {
		x.sorted = false
	}
	x.byID[id] = e
	x.ordered = append(x.ordered, e)
	if len(x.ordered) > x.limit+x.limit/8 {
		x.evict()
	}
	return e
}

// evict drops the oldest ended jobs down to the limit; x.mu is held.
func (x *Index) evict() {
	x.sort()
	over := len(x.ordered) - x.limit
	keep := x.ordered[:0]
	for _, e := range x.ordered {
		if over > 0 && e.state.Terminal() {
			delete(x.byID, e.id)
			over--
			continue
		}
		keep = append(keep, e)
	}
	clear(x.ordered[len(keep):])
	x.ordered = keep
}

// sort brings ordered in line with byID; x.mu is held.
func (x *Index) sort() {
	if x.sorted {
		return
	}
	x.ordered = slices.DeleteFunc(x.ordered, func(e *entry) bool { return x.byID[e.id] != e })
	slices.SortFunc(x.ordered, func(a, b *entry) int { return strings.Compare(a.id, b.id) })
	x.sorted = true
}

// record decodes the job of e; x.mu is held.
func (e *entry) record() (jobs.Job, bool) {
	if e.job == nil {
		var j jobs.Job
		if json.Unmarshal(e.raw, &j) != nil {
			return jobs.Job{}, false
		}
		e.job, e.raw = &j, nil
		j.Output = nil // lists do not show outputs
	}
	return *e.job, true
}

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
	page, next := x.page(q)
	for i := range page {
		if page[i].Caller.Subject == "" { // known by its headers only
			if sub, _, err := x.store.Find(ctx, jobs.Key{ID: page[i].ID}, false); err == nil {
				page[i] = sub.Job
			}
		}
	}
	return page, next, nil
}

func (x *Index) page(q jobs.Query) (page []jobs.Job, next string) {
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
			return page, page[len(page)-1].ID
		}
		page = append(page, job)
	}
	return page, ""
}

func (e *entry) belongs(q jobs.Query) bool {
	return (q.Tenant == "" || q.Tenant == e.tenant) && (q.Owner == "" || q.Owner == e.owner) &&
		(q.State == "" || q.State == e.state)
}

func matches(q jobs.Query, j jobs.Job) bool {
	switch {
	case q.Pack != "" && q.Pack != j.Pack, q.Pool != "" && q.Pool != j.Pool, q.Parent != "" && q.Parent != j.ParentID:
		return false
	case !q.Since.IsZero() && j.CreatedAt.Before(q.Since), !q.Until.IsZero() && j.CreatedAt.After(q.Until):
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
		if other, ok := e.record(); ok && other.Pool == j.Pool && other.Priority == j.Priority {
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
		if e.state.Terminal() {
			continue
		}
		if j, ok := e.record(); ok && j.CreatedAt.Before(before) {
			out = append(out, jobs.Key{Tenant: e.tenant, Owner: e.owner, ID: e.id})
		}
	}
	return out
}
