package jobfeed

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Reports is the worker's side: it implements worker.Reports.
type Reports struct {
	core   bus.Core
	js     bus.JetStream
	source events.Source
	log    zerolog.Logger
}

// NewReports returns the reports of one worker process.
func NewReports(core bus.Core, js bus.JetStream, installation string, log zerolog.Logger) (*Reports, error) {
	src, err := events.NewSource(installation)
	if err != nil {
		return nil, err
	}
	return &Reports{core: core, js: js, source: src, log: log}, nil
}

// Progress implements worker.Reports.
func (r *Reports) Progress(ctx context.Context, k jobs.Key, p jobs.Progress, attempt int) error {
	return r.send(ctx, k, events.KindProgress, events.JobProgress, attempt, p)
}

// Log implements worker.Reports.
func (r *Reports) Log(ctx context.Context, k jobs.Key, lines []string, attempt int) error {
	return r.send(ctx, k, events.KindLog, events.JobLog, attempt, events.Log{Lines: lines, At: time.Now().UTC()})
}

func (r *Reports) send(ctx context.Context, k jobs.Key, kind, typ string, attempt int, data any) error {
	subject, err := events.ProgSubject(k, kind)
	if err != nil {
		return err
	}
	ev, err := r.source.New(typ, events.About{Key: k, Attempt: attempt}, data)
	if err != nil {
		return err
	}
	header, body, err := events.Encode(ev)
	if err != nil {
		return err
	}
	_, err = r.js.Publish(ctx, bus.Outgoing{Subject: subject, Header: header, Data: body})
	return err
}

// OnCancel implements worker.Reports.
func (r *Reports) OnCancel(id string, fn func(jobs.Key)) (func(), error) {
	subject, err := events.CancelSubject(id)
	if err != nil {
		return nil, err
	}
	return r.core.Subscribe(subject, func(m bus.CoreMessage) {
		var k jobs.Key
		if json.Unmarshal(m.Data, &k) == nil {
			fn(k)
		}
	})
}

// Beat implements worker.Reports.
func (r *Reports) Beat(ctx context.Context, s worker.Status) error {
	subject, err := events.HeartbeatSubject("worker", s.ID)
	if err != nil {
		return err
	}
	body, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode heartbeat: %w", err)
	}
	return r.core.Publish(ctx, subject, nil, body)
}

// OnPing implements worker.Reports.
func (r *Reports) OnPing(fn func()) (func(), error) {
	return r.core.Subscribe(events.HeartbeatPing, func(bus.CoreMessage) { fn() })
}

// deadAfter is three heartbeats: the worker is gone, or nobody hears it.
const deadAfter = 15 * time.Second

// Workers keeps the last heartbeat of every worker that lives.
type Workers struct {
	stop func()

	mu   sync.Mutex // guards seen
	seen map[string]heard
}

type heard struct {
	status worker.Status
	at     time.Time
}

// WatchWorkers listens to heartbeats and asks for one at once.
func WatchWorkers(ctx context.Context, core bus.Core) (*Workers, error) {
	w := &Workers{seen: map[string]heard{}}
	stop, err := core.Subscribe("hb.worker.*", func(m bus.CoreMessage) {
		var s worker.Status
		if json.Unmarshal(m.Data, &s) != nil || s.ID == "" {
			return
		}
		w.mu.Lock()
		w.seen[s.ID] = heard{status: s, at: time.Now()}
		w.mu.Unlock()
	})
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

// Close ends the watch.
func (w *Workers) Close() { w.stop() }

// Live returns the workers heard from within three heartbeats.
func (w *Workers) Live() []worker.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []worker.Status
	for id, h := range w.seen {
		if time.Since(h.at) > deadAfter {
			delete(w.seen, id)
			continue
		}
		out = append(out, h.status)
	}
	return out
}
