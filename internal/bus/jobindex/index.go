// Package jobindex is the read model of job listings: the newest record of
// every job a replica has heard of, in memory, bounded, rebuilt at start.
// Nothing but listings, queue positions and the reconciler's choice of what
// to look at depends on it; whoever acts on a job reads the ledger first.
package jobindex

import (
	"context"
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
)

// DefaultLimit is how many jobs are remembered; the oldest ended ones go
// first. A record is about one kilobyte.
const DefaultLimit = 100_000

const refreshEvery = 30 * time.Second

// maxRaw is the largest record kept as it came. A larger one is decoded at
// once, for it is the output that makes it large, and lists show none.
const maxRaw = 4 << 10

// entry is one job. The record is decoded when somebody asks for it: most are
// never looked at.
type entry struct {
	id            string
	tenant, owner string
	state         jobs.State
	sequence      uint64 // of the event raw came from, 0: none heard of
	raw           []byte
	job           *jobs.Job
	parent        string // id, empty for none
	// subject is where the message of a job lies of which only the headers
	// are known; empty for all others.
	subject string
	// seen is the refresh in which a waiting job was last found waiting.
	seen uint64
	// bytes is the size of the input, counted what the entry counts as in the
	// tallies.
	bytes   int64
	counted class
}

// Index implements jobs.Index. Safe for concurrent use.
type Index struct {
	// RefreshEvery is how often the places where jobs wait are read again,
	// and what the live feed lost; default 30 s. Set it before Run.
	RefreshEvery time.Duration

	js    bus.JetStream
	store *jobstore.Store
	hub   *jobfeed.Hub
	limit int
	log   zerolog.Logger
	ready chan struct{}

	// Touched by Run only: every event up to mark is known as of losses.
	mark, losses uint64

	mu      sync.Mutex // guards the fields below
	byID    map[string]*entry
	kin     map[string]map[string]*entry // the children of a job, by both ids
	ordered []*entry                     // by id, which orders by time of submit; sorted lazily
	sorted  bool
	round   uint64
	heard   uint64 // the highest sequence of an event
	tallies map[party]*tally
}

// New returns an Index that hears of jobs from hub. Run fills it.
func New(js bus.JetStream, store *jobstore.Store, hub *jobfeed.Hub, limit int, log zerolog.Logger) *Index {
	if limit <= 0 {
		limit = DefaultLimit
	}
	x := &Index{js: js, store: store, hub: hub, limit: limit, log: log, ready: make(chan struct{}), byID: map[string]*entry{}, tallies: map[party]*tally{}, kin: map[string]map[string]*entry{}, sorted: true}
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
	every := x.RefreshEvery
	if every == 0 {
		every = refreshEvery
	}
	tick := time.NewTicker(every)
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
	losses := x.hub.Losses()
	if err := x.scan(ctx); err != nil {
		return err
	}
	x.losses = losses
	return x.refresh(ctx)
}

// scan reads the events after mark.
func (x *Index) scan(ctx context.Context) error {
	err := x.js.Scan(ctx, bus.StreamEvents, []string{"evt.*.*.*.lc"}, x.mark+1, func(m bus.Message) error {
		t := strings.Split(m.Subject, ".")
		if typ := m.Header["ce-type"]; len(t) == 5 && len(typ) > 0 {
			x.put(t[1], t[2], t[3], stateOf(typ[0]), m.Sequence, m.Data, first(m.Header[parentHeader]))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read lifecycle stream: %w", err)
	}
	return nil
}

// catchUp reads the events that the live feed may have missed.
func (x *Index) catchUp(ctx context.Context) error {
	x.mu.Lock()
	heard := x.heard
	x.mu.Unlock()
	// What was heard is complete unless something was lost before now.
	if losses := x.hub.Losses(); losses != x.losses {
		if err := x.scan(ctx); err != nil {
			return err
		}
		x.losses = losses
	}
	x.mark = heard
	return nil
}

// refresh adds what no live message told of, and forgets the jobs that wait
// no more and of which no event is known.
func (x *Index) refresh(ctx context.Context) error {
	if err := x.catchUp(ctx); err != nil {
		return err
	}
	x.mu.Lock()
	x.round++
	round := x.round
	x.mu.Unlock()
	err := x.store.Waiting(ctx, func(sub jobs.Submission, place jobs.Place) error {
		job := sub.Job
		if place == jobs.InSchedule && job.State == jobs.Queued && sub.PassedOn == 0 {
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
		e.state, e.bytes = job.State, job.InputBytes
		x.settle(e)
	}
	x.relate(e, job.ParentID)
	e.seen = round
	if job.State == jobs.Queued {
		e.due()
	}
	if e.subject != "" || e.job == nil && e.raw == nil {
		e.job, e.subject = &job, ""
	}
}

func (x *Index) forgetGone(round uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// A job heard of as queued that was not found twice was cancelled or
	// claimed, and its event was lost on the way.
	for _, e := range x.byID {
		if (e.state == jobs.Queued || e.state == jobs.Scheduled) && e.sequence == 0 && e.seen+2 <= round {
			x.forget(e)
			x.sorted = false
		}
	}
}

// hear takes one live message.
func (x *Index) hear(m jobfeed.Message) {
	switch m.Kind {
	case events.KindLifecycle:
		x.put(m.Tenant, m.Owner, m.JobID, stateOf(m.Type), m.Sequence, m.Data, first(m.Header[parentHeader]))
	case events.KindQueued:
		x.queued(m)
	}
}

// queued notes a job of which only headers are known yet.
func (x *Index) queued(m jobfeed.Message) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byID[m.JobID]; e != nil {
		e.due()
		return
	}
	e := x.add(m.Tenant, m.Owner, m.JobID)
	e.state, e.seen, e.bytes = jobs.Queued, x.round, bytesOf(m)
	x.settle(e)
	job := jobs.Job{ID: m.JobID, State: jobs.Queued, Pack: first(m.Header[jobstore.PackHeader]), Version: first(m.Header[jobstore.VersionHeader])}
	// Nats-Subject: <prefix>.job.<pool>.<lane>.…
	_, subject, _ := strings.Cut(first(m.Header["Nats-Subject"]), ".")
	if s, err := events.Parse(subject); err == nil {
		job.Pool, job.Priority, e.subject = s.Pool, s.Lane, subject
		if depth := jobs.LaneDepth(s.Lane); depth > 0 { // its priority is in the record
			job.Priority, job.Call = "", &jobs.Called{Depth: depth}
		}
	}
	job.ParentID = first(m.Header[parentHeader])
	x.relate(e, job.ParentID)
	job.CreatedAt, _ = time.Parse(time.RFC3339Nano, first(m.Header["ce-time"]))
	e.job = &job
}

// due notes that a scheduled job lies in its queue now, of which there is no
// event; x.mu is held.
func (e *entry) due() {
	if e.state != jobs.Scheduled {
		return
	}
	if job, ok := e.record(); ok {
		job.State = jobs.Queued
		e.state, e.job = jobs.Queued, &job
	}
}

// Scheduled counts the jobs of a tenant (token) that wait for their time, as
// far as this replica knows.
func (x *Index) Scheduled(tenant string) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, e := range x.byID {
		if e.state == jobs.Scheduled && e.tenant == tenant {
			n++
		}
	}
	return n
}

func first(v []string) string {
	if len(v) == 0 {
		return ""
	}
	return v[0]
}

// expired is the state of a job whose time was over. Its entry stays, unseen,
// until it is evicted: an older event of it may still be on its way.
const expired jobs.State = "expired"

// over reports whether the job has ended.
func (e *entry) over() bool { return e.state.Terminal() || e.state == expired }

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
	case events.JobExpired:
		return expired
	}
	return ""
}

func (x *Index) put(tenant, owner, id string, state jobs.State, sequence uint64, raw []byte, parent string) {
	if state == "" {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.byID[id]
	if e == nil {
		e = x.add(tenant, owner, id)
	}
	x.relate(e, parent)
	x.heard = max(x.heard, sequence)
	if sequence <= e.sequence {
		return // an older event, read after a newer one was heard
	}
	queued := e.state == jobs.Queued
	e.state, e.sequence, e.raw, e.job, e.subject = state, sequence, raw, nil, ""
	if queued {
		e.due() // the event was overtaken by the message
	}
	x.settle(e)
	if len(raw) > maxRaw {
		e.record()
	}
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
		if over > 0 && e.over() {
			x.forget(e)
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
		j, err := jobs.ReadJob(e.raw)
		if err != nil {
			return jobs.Job{}, false
		}
		e.job, e.raw = &j, nil
		j.Output = nil // lists do not show outputs
	}
	return *e.job, true
}
