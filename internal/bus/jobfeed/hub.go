// Package jobfeed is the live side of the job system in one process: one
// subscription to everything republished under live.>, fanned out to waiting
// calls, followers and the read model; the heartbeats of the workers; and the
// reports and cancels that travel the other way.
package jobfeed

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Message is one republished message of a job.
type Message struct {
	Tenant, Owner, JobID, Kind string
	// Type is the CloudEvents type; empty for headers that carry none.
	Type    string
	Subject string // "live.…"
	// Sequence is that of the stored message.
	Sequence uint64
	Header   map[string][]string
	Data     []byte
}

// Hub fans the live messages of the bus out. It implements jobs.Feed and
// events.Feed. Safe for concurrent use.
type Hub struct {
	core    bus.Core
	js      bus.JetStream
	history events.HistoryFunc
	log     zerolog.Logger
	stop    []func()

	mu      sync.Mutex // guards the fields below
	waiting map[string]map[*waiter]struct{}
	viewers map[*viewer]struct{}
	taps    []func(Message)
}

type waiter struct {
	key   jobs.Key
	ended chan jobs.Job
}

// New subscribes to the live messages. Close ends the subscription.
func New(core bus.Core, js bus.JetStream, log zerolog.Logger) (*Hub, error) {
	h := &Hub{
		core: core, js: js, log: log,
		waiting: map[string]map[*waiter]struct{}{}, viewers: map[*viewer]struct{}{},
	}
	h.history = events.NewHistory(h.scan)
	stop, err := core.Subscribe("live.>", h.receive)
	if err != nil {
		return nil, fmt.Errorf("follow live events: %w", err)
	}
	h.stop = append(h.stop, stop)
	return h, nil
}

// Close ends the subscriptions.
func (h *Hub) Close() {
	for _, stop := range h.stop {
		stop()
	}
}

// Losses counts the times at which live messages may have been missed.
func (h *Hub) Losses() uint64 { return h.core.Losses() }

// Tap calls fn for every live message from now on, on the one goroutine of
// the subscription: fn must be quick.
func (h *Hub) Tap(fn func(Message)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taps = append(h.taps, fn)
}

func (h *Hub) receive(m bus.CoreMessage) {
	t := strings.Split(m.Subject, ".")
	if len(t) != 5 {
		return
	}
	msg := Message{Tenant: t[1], Owner: t[2], JobID: t[3], Kind: t[4], Subject: m.Subject, Header: m.Header, Data: m.Data}
	if v := m.Header["ce-type"]; len(v) > 0 {
		msg.Type = v[0]
	}
	if v := m.Header["Nats-Sequence"]; len(v) > 0 {
		msg.Sequence, _ = strconv.ParseUint(v[0], 10, 64) // the server wrote it
	}
	h.mu.Lock()
	taps := h.taps
	var waiters []*waiter
	if msg.Kind == events.KindLifecycle && events.Terminal(msg.Type) {
		for w := range h.waiting[msg.JobID] {
			waiters = append(waiters, w)
		}
	}
	for v := range h.viewers {
		if v.matches(t) {
			v.offer(m)
		}
	}
	h.mu.Unlock()
	for _, tap := range taps {
		tap(msg)
	}
	if len(waiters) == 0 {
		return
	}
	job, err := jobs.ReadJob(m.Data)
	if err != nil {
		h.log.Warn().Err(err).Str("job", msg.JobID).Msg("terminal event not understood")
		return
	}
	for _, w := range waiters {
		if w.key.Tenant != "" && (w.key.Tenant != msg.Tenant || w.key.Owner != msg.Owner) {
			continue
		}
		select {
		case w.ended <- job:
		default:
		}
	}
}

// Terminal implements jobs.Feed.
func (h *Hub) Terminal(k jobs.Key) (<-chan jobs.Job, func()) {
	w := &waiter{key: k, ended: make(chan jobs.Job, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	set := h.waiting[k.ID]
	if set == nil {
		set = map[*waiter]struct{}{}
		h.waiting[k.ID] = set
	}
	set[w] = struct{}{}
	return w.ended, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(set, w)
		if len(set) == 0 && len(h.waiting[k.ID]) == 0 {
			delete(h.waiting, k.ID)
		}
	}
}

// Progress implements jobs.Feed.
func (h *Hub) Progress(ctx context.Context, k jobs.Key) *jobs.Progress {
	filter, err := events.ProgFilter(k, events.KindProgress)
	if err != nil {
		return nil
	}
	m, err := h.js.Last(ctx, bus.StreamProgress, filter, false)
	if err != nil {
		return nil // a record without progress is still a record
	}
	var p jobs.Progress
	if json.Unmarshal(m.Data, &p) != nil {
		return nil
	}
	return &p
}

// Cancel implements jobs.Feed.
func (h *Hub) Cancel(ctx context.Context, worker string, k jobs.Key) {
	pushCancel(ctx, h.core, h.log, worker, k)
}

func pushCancel(ctx context.Context, core bus.Core, log zerolog.Logger, worker string, k jobs.Key) {
	failpoint.Hit(failpoint.CancelAfterRequest)
	subject, err := events.CancelSubject(worker)
	if err != nil {
		return
	}
	body, err := json.Marshal(k)
	if err != nil {
		return
	}
	// Lost pushes cost one heartbeat of the worker.
	if err := core.Publish(ctx, subject, nil, body); err != nil {
		log.Debug().Err(err).Str("job", k.ID).Msg("cancel not pushed")
	}
}
