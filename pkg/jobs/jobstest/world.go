// Package jobstest is a job system in memory, for tests of what stands on
// jobs.Service: the ports of pkg/jobs and a worker that runs jobs.
//
// It keeps the rules a caller can see: the lifecycle moves by compare-and-set
// and along legal moves only, a job is in its queue until its terminal event
// is written, idempotency keys stay. It forgets everything at the end.
package jobstest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// World holds the jobs. It is safe for concurrent use.
type World struct {
	mu      sync.Mutex                    // guards all below
	seq     uint64                        // of the last event of any job
	lives   map[string]*life              // by job id
	queue   []jobs.Submission             // in order of arrival
	due     map[string]time.Time          // scheduled jobs, by id
	keys    map[string]jobs.Reservation   // by hash
	dead    []jobs.DeadLetter             // oldest first
	deaths  map[string]uint64             // sequence of the last event of each of them, by job id
	stash   map[string][]byte             // by key
	cancels map[string]context.CancelFunc // running handlers, by job id
	refuse  error                         // what Enqueue answers, when set
	changed chan struct{}                 // closed and replaced at every change
}

// life is what is known of one job.
type life struct {
	key      jobs.Key
	last     *jobs.Record
	input    *jobs.Submission
	events   []Event
	progress *jobs.Progress
}

// Event is one event of a job as a follower sees it.
type Event struct {
	Seq      uint64 // grows over all jobs
	Type     string // CloudEvents type
	Kind     string // "lc", "progress" or "log"
	Terminal bool
	Data     []byte // the CloudEvent in structured mode
}

// New returns an empty World.
func New() *World {
	return &World{
		lives: map[string]*life{}, due: map[string]time.Time{}, deaths: map[string]uint64{}, keys: map[string]jobs.Reservation{},
		stash: map[string][]byte{}, cancels: map[string]context.CancelFunc{}, changed: make(chan struct{}),
	}
}

// Config returns a configuration of jobs.Service over the World.
func (w *World) Config(packs jobs.Catalog) jobs.Config {
	return jobs.Config{
		Ledger: w, Queue: w, Keys: w, Index: index{w}, Feed: w, Dead: deadLetters{w}, Stash: w,
		Packs: packs, KeySecret: []byte("a secret of tests"),
	}
}

// Refuse makes every later Enqueue fail with err; nil ends that.
func (w *World) Refuse(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refuse = err
}

// Events returns the events of a job after seq, and a channel that is closed
// at the next change of anything.
func (w *World) Events(k jobs.Key, seq uint64) (after []Event, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.find(k); l != nil {
		for _, e := range l.events {
			if e.Seq > seq {
				after = append(after, e)
			}
		}
	}
	return after, w.changed
}

// wake tells everybody who waits; the caller holds mu.
func (w *World) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// find returns the life of a job that k may see; the caller holds mu.
func (w *World) find(k jobs.Key) *life {
	l := w.lives[k.ID]
	if l == nil || !sees(k, l.key) {
		return nil
	}
	return l
}

// sees reports whether asking for k may find the job filed under key.
func sees(k, key jobs.Key) bool {
	return k.ID == key.ID && (k.Tenant == "" && k.Owner == "" || k == key)
}

// emit appends an event; the caller holds mu.
func (w *World) emit(l *life, kind, name string, terminal bool, data any) uint64 {
	w.seq++
	typ := "dev.helmdeck.job." + name
	text, err := json.Marshal(map[string]any{
		"specversion": "1.0", "id": fmt.Sprint("event-", w.seq), "source": "/helmdeck/test", "type": typ,
		"subject": l.key.ID, "jobid": l.key.ID, "datacontenttype": "application/json", "data": data,
	})
	if err != nil {
		panic(err) // the types of our own events
	}
	l.events = append(l.events, Event{Seq: w.seq, Type: typ, Kind: kind, Terminal: terminal, Data: text})
	w.wake()
	return w.seq
}

// Last implements jobs.Ledger.
func (w *World) Last(_ context.Context, k jobs.Key, _ bool) (jobs.Record, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.find(k); l != nil && l.last != nil {
		return *l.last, nil
	}
	return jobs.Record{}, jobs.ErrNotFound
}

// Append implements jobs.Ledger.
func (w *World) Append(_ context.Context, m jobs.Move) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := m.Job.Key()
	l := w.lives[key.ID]
	if l == nil {
		l = &life{key: key}
		w.lives[key.ID] = l
	}
	var at uint64
	from := jobs.Queued
	if l.last != nil {
		at, from = l.last.Sequence, l.last.Job.State
	}
	if m.Expected != at {
		return 0, jobs.ErrConflict
	}
	begins := l.last == nil && m.Job.State == jobs.Scheduled // of a job put off
	if err := jobs.CheckMove(from, m.Job.State); err != nil && !begins {
		return 0, fmt.Errorf("append to job %s: %w", key.ID, err)
	}
	if m.Input != nil {
		l.input = m.Input
	}
	seq := w.emit(l, "lc", eventOf(m.Job), m.Job.State.Terminal(), m.Job)
	l.last = &jobs.Record{Job: m.Job, Sequence: seq}
	if m.Job.State == jobs.Failed && l.input != nil {
		letter := jobs.DeadLetter{Submission: *l.input, Poison: m.Job.Poison, DeadAt: m.Job.FinishedAt}
		letter.Submission.Job = m.Job
		w.dead = append(w.dead, letter)
		w.deaths[key.ID] = seq
	}
	return seq, nil
}

// eventOf is the last part of the type of the event that records job.
func eventOf(job jobs.Job) string {
	switch {
	case job.State == jobs.Running && job.CancelRequested:
		return "cancel_requested"
	case job.State == jobs.Running:
		return "started"
	}
	return string(job.State)
}

// Input implements jobs.Ledger.
func (w *World) Input(_ context.Context, k jobs.Key) (jobs.Submission, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.find(k); l != nil && l.input != nil {
		return *l.input, nil
	}
	return jobs.Submission{}, jobs.ErrNotFound
}

// KeepInput implements jobs.Ledger.
func (w *World) KeepInput(_ context.Context, s jobs.Submission) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lives[s.Job.ID]
	if l == nil {
		l = &life{key: s.Job.Key()}
		w.lives[s.Job.ID] = l
	}
	if l.input == nil {
		l.input = &s
	}
	return nil
}

// Enqueue implements jobs.Queue.
func (w *World) Enqueue(_ context.Context, s jobs.Submission) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return w.refuse
	}
	if w.queued(s.Job.ID) >= 0 {
		return jobs.ErrQueued
	}
	w.queue = append(w.queue, s)
	w.wake()
	return nil
}

func (w *World) queued(id string) int {
	return slices.IndexFunc(w.queue, func(s jobs.Submission) bool { return s.Job.ID == id })
}

// Schedule implements jobs.Queue; the job runs when its time has come.
func (w *World) Schedule(_ context.Context, s jobs.Submission, at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queued(s.Job.ID) < 0 {
		w.queue = append(w.queue, s)
	}
	w.due[s.Job.ID] = at
	w.wake()
	time.AfterFunc(time.Until(at), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wake()
	})
	return nil
}

// Find implements jobs.Queue.
func (w *World) Find(_ context.Context, k jobs.Key, _ bool) (jobs.Submission, jobs.Place, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.queued(k.ID)
	if i < 0 || !sees(k, w.queue[i].Job.Key()) {
		return jobs.Submission{}, "", jobs.ErrNotFound
	}
	if time.Now().Before(w.due[k.ID]) {
		return w.queue[i], jobs.InSchedule, nil
	}
	return w.queue[i], jobs.InQueue, nil
}

// Remove implements jobs.Queue.
func (w *World) Remove(_ context.Context, k jobs.Key, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := w.queued(k.ID); i >= 0 {
		w.queue = slices.Delete(w.queue, i, i+1)
	}
	delete(w.due, k.ID)
	w.wake()
	return nil
}

// Reserve implements jobs.Keys.
func (w *World) Reserve(_ context.Context, hash string, r jobs.Reservation) (jobs.Reservation, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if held, ok := w.keys[hash]; ok {
		return held, false, nil
	}
	w.keys[hash] = r
	return r, true, nil
}

// Renew implements jobs.Keys.
func (w *World) Renew(_ context.Context, hash string, held, r jobs.Reservation) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keys[hash].JobID != held.JobID {
		return jobs.ErrConflict
	}
	w.keys[hash] = r
	return nil
}

// Stash implements jobs.Stash.
func (w *World) Stash(_ context.Context, key string, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stash[key] = b
	return nil
}

// DropStash implements jobs.Stash.
func (w *World) DropStash(_ context.Context, key string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.stash, key)
	return nil
}

// Unstash implements jobs.Stash.
func (w *World) Unstash(_ context.Context, key string) (io.ReadCloser, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.stash[key]
	if !ok {
		return nil, jobs.ErrNotFound
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}
