// Package history judges a run of the job system from outside: what clients
// were promised, against what the lifecycle stream, the queues and the
// leases hold when everything has come to rest.
//
// The invariants are numbered I1 to I8; Check names the number of each
// violation. A checker that misses a planted bug is broken: see package
// test/planted.
package history

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"sync"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/bus/limitstore"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Log is what the clients saw. Safe for concurrent use.
type Log struct {
	mu       sync.Mutex // guards the fields below
	accepted map[string]string
	ended    map[string]jobs.State
}

// NewLog returns an empty log.
func NewLog() *Log { return &Log{accepted: map[string]string{}, ended: map[string]jobs.State{}} }

// Accepted notes that a submit was answered with a job. value is the unique
// text its output must hold when it succeeds; empty: any.
func (l *Log) Accepted(id, value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted[id] = value
}

// Ended notes the terminal state a client was told.
func (l *Log) Ended(id string, s jobs.State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended[id] = s
}

// IDs returns the accepted jobs.
func (l *Log) IDs() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := make([]string, 0, len(l.accepted))
	for id := range l.accepted {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids
}

// Violation is one broken invariant.
type Violation struct {
	Rule  string // "I1"
	JobID string
	What  string
}

func (v Violation) String() string { return fmt.Sprintf("%s %s: %s", v.Rule, v.JobID, v.What) }

// Options say what the run allowed.
type Options struct {
	// NoLosses: no worker was killed or stopped, so no job may have lost one.
	NoLosses bool
}

type event struct {
	seq uint64
	job jobs.Job
}

// Check reads the bus at rest and returns every violation:
//
//	I1 every accepted job reaches exactly one terminal event
//	I2 no event follows a terminal one
//	I3 runs grow by one with each claim
//	I4 at most one succeeded event a job, and its output is the job's own
//	I5 only the holder of the newest claim writes
//	I6 a client is told the state the stream holds
//	I7 nothing is left in queue, hold, schedule or lease; failed jobs have a dead letter
//	I8 no slot of a limit is held
func Check(ctx context.Context, js bus.JetStream, store *jobstore.Store, l *Log, o Options) ([]Violation, error) {
	events := map[string][]event{}
	err := js.Scan(ctx, bus.StreamEvents, []string{"evt.*.*.*.lc"}, 0, func(m bus.Message) error {
		var j jobs.Job
		if err := json.Unmarshal(m.Data, &j); err != nil {
			return err
		}
		events[j.ID] = append(events[j.ID], event{m.Sequence, j})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read lifecycle: %w", err)
	}
	waiting := map[string]string{}
	err = store.Waiting(ctx, func(s jobs.Submission, p jobs.Place) error {
		waiting[s.Job.ID] = string(p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read queues: %w", err)
	}
	var out []Violation
	add := func(rule, id, format string, args ...any) {
		out = append(out, Violation{rule, id, fmt.Sprintf(format, args...)})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, value := range l.accepted {
		checkEnd(id, value, events[id], waiting[id], l.ended[id], add)
	}
	for id, es := range events {
		checkChain(id, es, o, add)
		if last := es[len(es)-1].job; last.State == jobs.Failed {
			if _, err := store.Get(ctx, last.Key()); err != nil {
				add("I7", id, "failed without a dead letter: %v", err)
			}
		}
	}
	for id, place := range waiting {
		add("I7", id, "still in %s", place)
	}
	return append(append(out, leases(ctx, js)...), slots(ctx, js)...), nil
}

func checkEnd(id, value string, es []event, place string, told jobs.State, add func(rule, id, format string, args ...any)) {
	var terminal, succeeded int
	for _, e := range es {
		if e.job.State.Terminal() {
			terminal++
		}
		if e.job.State == jobs.Succeeded {
			succeeded++
			if value != "" && !strings.Contains(string(e.job.Output), value) {
				add("I4", id, "output %.100s lacks %s", e.job.Output, value)
			}
		}
	}
	switch {
	case terminal == 0 && place == "":
		add("I1", id, "accepted, not ended and in no queue: lost (%d events)", len(es))
	case terminal == 0:
		add("I1", id, "accepted, not ended, still in %s", place)
	case terminal > 1:
		add("I1", id, "%d terminal events", terminal)
	}
	if succeeded > 1 {
		add("I4", id, "succeeded %d times", succeeded)
	}
	if told != "" && terminal == 1 && es[len(es)-1].job.State != told {
		add("I6", id, "client was told %s, stream says %s", told, es[len(es)-1].job.State)
	}
}

func checkChain(id string, es []event, o Options, add func(rule, id, format string, args ...any)) {
	runs, worker := 0, ""
	for i, e := range es {
		if i > 0 && es[i-1].job.State.Terminal() {
			add("I2", id, "%s by %s after %s", e.job.State, e.job.Worker, es[i-1].job.State)
		}
		switch {
		case e.job.Runs == runs+1:
			runs, worker = e.job.Runs, e.job.Worker
		case e.job.Runs < runs:
			add("I3", id, "run %d after run %d", e.job.Runs, runs)
		case e.job.Runs > runs+1:
			add("I3", id, "run %d follows run %d", e.job.Runs, runs)
		case e.job.Worker != worker && !(runs == 0 && e.job.Worker == ""):
			add("I5", id, "%s wrote %s during run %d of %s", e.job.Worker, e.job.State, runs, worker)
		}
	}
	if last := es[len(es)-1].job; o.NoLosses && last.Lost > 0 {
		add("I5", id, "lost %d workers although none died", last.Lost)
	}
}

// slots reports slots that are held.
func slots(ctx context.Context, js bus.JetStream) []Violation {
	store, err := limitstore.Open(ctx, js)
	if err != nil {
		return []Violation{{"I8", "limits", err.Error()}}
	}
	all, err := store.All(ctx)
	if err != nil {
		return []Violation{{"I8", "limits", err.Error()}}
	}
	var out []Violation
	for key, st := range all {
		for id, h := range st.Holders {
			out = append(out, Violation{"I8", id, fmt.Sprintf("run %d still holds a slot of %s", h.Run, key)})
		}
	}
	return out
}

// leases reports lease records that are not over.
func leases(ctx context.Context, js bus.JetStream) []Violation {
	var out []Violation
	kv, err := js.KV(ctx, bus.BucketLeases)
	if err != nil {
		return []Violation{{"I7", "leases", err.Error()}}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	entries, err := kv.Watch(ctx, ">")
	if err != nil {
		return []Violation{{"I7", "leases", err.Error()}}
	}
	for e := range entries {
		if e.Key == "" {
			break
		}
		if !e.Deleted && !strings.Contains(string(e.Value), `"state":"gone"`) {
			out = append(out, Violation{"I7", e.Key, "lease is left: " + string(e.Value)})
		}
	}
	return out
}
