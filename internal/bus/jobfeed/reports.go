package jobfeed

import (
	"context"
	"encoding/json"
	"fmt"
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
func (r *Reports) Progress(ctx context.Context, j worker.Teller, p jobs.Progress) error {
	return r.send(ctx, j, events.KindProgress, events.JobProgress, p)
}

// Log implements worker.Reports.
func (r *Reports) Log(ctx context.Context, j worker.Teller, from int, lines []string) error {
	return r.send(ctx, j, events.KindLog, events.JobLog, events.Log{Lines: lines, From: from, At: time.Now().UTC()})
}

func (r *Reports) send(ctx context.Context, j worker.Teller, kind, typ string, data any) error {
	subject, err := events.ProgSubject(j.Key, kind)
	if err != nil {
		return err
	}
	ev, err := r.source.New(typ, events.About{Key: j.Key, Attempt: j.Attempt, ParentID: j.ParentID}, data)
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

// Listen implements worker.Reports.
func (r *Reports) Listen(id string, c worker.Control) (func(), error) {
	cancel, err := events.CancelSubject(id)
	if err != nil {
		return nil, err
	}
	drain, err := events.DrainSubject(id)
	if err != nil {
		return nil, err
	}
	var stops []func()
	stop := func() {
		for _, s := range stops {
			s()
		}
	}
	for subject, fn := range map[string]func(bus.CoreMessage){
		cancel: func(m bus.CoreMessage) {
			var k jobs.Key
			if json.Unmarshal(m.Data, &k) == nil {
				c.Cancel(k)
			}
		},
		drain:                func(m bus.CoreMessage) { r.drain(m, c) },
		events.HeartbeatPing: func(bus.CoreMessage) { c.Ping() },
	} {
		s, err := r.core.Subscribe(subject, fn)
		if err != nil {
			stop()
			return nil, err
		}
		stops = append(stops, s)
	}
	return stop, nil
}

// drain passes a request to drain on and answers with what the worker does.
func (r *Reports) drain(m bus.CoreMessage, c worker.Control) {
	var req drainRequest
	if json.Unmarshal(m.Data, &req) != nil || m.Reply == nil {
		return
	}
	body, err := json.Marshal(c.Drain(req.Within))
	if err == nil {
		err = m.Reply(body)
	}
	if err != nil {
		r.log.Warn().Err(err).Msg("request to drain not answered")
	}
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
