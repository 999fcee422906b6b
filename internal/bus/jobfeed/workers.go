package jobfeed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/events"
)

const (
	// deadAfter is three heartbeats: the worker is gone, or nobody hears it.
	deadAfter = 15 * time.Second
	// settleAfter is one heartbeat: every worker was heard by then.
	settleAfter = 5 * time.Second
	// ctlTimeout bounds the wait for a worker's answer.
	ctlTimeout = 5 * time.Second
)

// ErrNoWorker says that no worker of that name listens.
var ErrNoWorker = errors.New("no such worker")

// Workers keeps the last heartbeat of every worker that lives.
type Workers struct {
	core  bus.Core
	stop  func()
	since time.Time

	mu   sync.Mutex // guards the fields below
	seen map[string]heard
	lost uint64
}

type heard struct {
	status worker.Status
	at     time.Time
}

// WatchWorkers listens to heartbeats and asks for one at once.
func WatchWorkers(ctx context.Context, core bus.Core) (*Workers, error) {
	w := &Workers{core: core, since: time.Now(), seen: map[string]heard{}}
	stop, err := core.Subscribe("hb.worker.*", w.beat)
	if err != nil {
		return nil, fmt.Errorf("watch workers: %w", err)
	}
	w.stop = stop
	if err := core.Publish(ctx, events.HeartbeatPing, nil, nil); err != nil {
		stop()
		return nil, fmt.Errorf("ask for heartbeats: %w", err)
	}
	return w, nil
}

func (w *Workers) beat(m bus.CoreMessage) {
	var s worker.Status
	if json.Unmarshal(m.Data, &s) != nil || s.ID == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.Gone {
		delete(w.seen, s.ID)
		return
	}
	w.seen[s.ID] = heard{status: s, at: time.Now()}
}

// Close ends the watch.
func (w *Workers) Close() { w.stop() }

// Settled reports whether every worker had the time to be heard.
func (w *Workers) Settled() bool { return time.Since(w.since) > settleAfter }

// Live returns the workers heard from within three heartbeats, by id.
func (w *Workers) Live() []worker.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget()
	var out []worker.Status
	for _, h := range w.seen {
		out = append(out, h.status)
	}
	slices.SortFunc(out, func(a, b worker.Status) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Lost counts the workers whose heartbeats ended without a farewell.
func (w *Workers) Lost() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget()
	return w.lost
}

// forget drops the silent ones; w.mu is held.
func (w *Workers) forget() {
	for id, h := range w.seen {
		if time.Since(h.at) > deadAfter {
			delete(w.seen, id)
			w.lost++
		}
	}
}

// Drain asks a worker to stop: it pulls no more, lets what runs go on for
// within (0: as long as at SIGTERM), hands the rest back and ends. It may be
// repeated, with another time as well. The answer is what the worker does now.
// ErrNoWorker when nobody of that name listens.
func (w *Workers) Drain(ctx context.Context, id string, within time.Duration) (worker.Status, error) {
	subject, err := events.DrainSubject(id)
	if err != nil {
		return worker.Status{}, fmt.Errorf("%w: %w", ErrNoWorker, err)
	}
	body, err := json.Marshal(drainRequest{Within: within})
	if err != nil {
		return worker.Status{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, ctlTimeout)
	defer cancel()
	m, err := w.core.Request(ctx, subject, body)
	if errors.Is(err, bus.ErrNoListener) {
		return worker.Status{}, fmt.Errorf("%w: %w", ErrNoWorker, err)
	}
	if err != nil {
		return worker.Status{}, fmt.Errorf("drain worker %s: %w", id, err)
	}
	var s worker.Status
	if err := json.Unmarshal(m.Data, &s); err != nil {
		return s, fmt.Errorf("decode answer of worker %s: %w", id, err)
	}
	return s, nil
}

// drainRequest travels to the worker.
type drainRequest struct {
	Within time.Duration `json:"within,omitempty"` // nanoseconds; 0: the worker's own
}
