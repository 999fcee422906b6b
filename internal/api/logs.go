package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// logRequest is a request for the log of a job.
type logRequest struct {
	job    jobs.Job
	after  Cursor
	follow bool
}

// streamLogs writes the lines a job logged, as text or as events.
func (a *API) streamLogs(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "follow", "after")
	req := logRequest{follow: q.Bool("follow"), after: Cursor(q.Text("after"))}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		req.after = Cursor(last)
	}
	if err := q.Err(); err != nil {
		return err
	}
	var err error
	if req.job, err = a.cfg.Jobs.Get(r.Context(), callerOf(r.Context()), r.PathValue("id")); err != nil {
		return err
	}
	if strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		return a.streamLogEvents(x, r, req)
	}
	return a.writeLog(x, r, req)
}

// streamLogEvents sends the log as server-sent events.
func (a *API) streamLogEvents(x *exchange, r *http.Request, req logRequest) error {
	if r.Method == http.MethodHead {
		x.Header().Set("Content-Type", "text/event-stream")
		x.WriteHeader(http.StatusOK)
		return nil
	}
	ctx, done := a.streaming(r.Context())
	defer done()
	items, stop := pump(ctx, func(ctx context.Context) iter.Seq2[Event, error] { return a.logEvents(ctx, req) })
	defer stop()
	first, open, err := a.firstEvent(ctx, items)
	switch {
	case err != nil:
		return err
	case !open && req.after != "" && ctx.Err() == nil:
		return x.noContent()
	}
	return a.writeEvents(ctx, x, items, first)
}

// The types of the events of a log.
const (
	logEvent = "log"
	logEnd   = "end"
)

// logEvents picks what is of the log out of the events of a job. It yields
// "end" when nothing more can come; one that was cut ends without.
func (a *API) logEvents(ctx context.Context, req logRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		lines := logReader{resumed: req.after != ""}
		var size int64
		last := req.after
		for e, err := range a.log(ctx, req) {
			if err != nil {
				yield(Event{}, err)
				return
			}
			last = e.Cursor
			if e.Terminal {
				yield(Event{Cursor: e.Cursor, Type: logEnd, Terminal: true, Data: []byte("{}")}, nil)
				return
			}
			chunk, ok := lines.read(e)
			if !ok {
				continue
			}
			data, err := json.Marshal(chunk)
			if err != nil {
				yield(Event{}, err)
				return
			}
			if !yield(Event{Cursor: e.Cursor, Type: logEvent, Data: data}, nil) {
				return
			}
			if size += int64(len(data)); !req.follow && size >= a.cfg.Limits.Logs {
				return
			}
		}
		if !req.follow && ctx.Err() == nil {
			yield(Event{Cursor: last, Type: logEnd, Terminal: true, Data: []byte("{}")}, nil)
		}
	}
}

func (a *API) log(ctx context.Context, req logRequest) iter.Seq2[Event, error] {
	if req.follow {
		return a.cfg.Events.Follow(ctx, req.job.Key(), req.after)
	}
	return a.cfg.Events.History(ctx, req.job.Key(), req.after)
}

// writeLog sends the log as text.
func (a *API) writeLog(x *exchange, r *http.Request, req logRequest) error {
	req.follow = req.follow && r.Method != http.MethodHead
	ctx, done := a.streaming(r.Context())
	defer done()
	h := x.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	if req.follow {
		x.WriteHeader(http.StatusOK)
		if err := x.flush(); err != nil {
			return err
		}
	}
	lines := logReader{resumed: req.after != ""}
	var size int64
	for event, err := range a.log(ctx, req) {
		if err != nil {
			return followError(err)
		}
		chunk, ok := lines.read(event)
		if !ok {
			continue
		}
		n, err := writeChunk(x, chunk)
		if err != nil {
			return err
		}
		if size += n; !req.follow && size >= a.cfg.Limits.Logs {
			return notice(x, "cut after %d bytes; the rest: the same with after=%s", size, event.Cursor)
		}
		if req.follow {
			if err := x.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// notice writes a line that is not the job's.
func notice(w io.Writer, format string, args ...any) error {
	if _, err := fmt.Fprintf(w, "[helmdeck: "+format+"]\n", args...); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrClientGone, err)
	}
	return nil
}

func writeChunk(w io.Writer, c client.LogChunk) (int64, error) {
	if c.Missed > 0 {
		if err := notice(w, "%d lines are no longer kept", c.Missed); err != nil {
			return 0, err
		}
	}
	n, err := io.WriteString(w, strings.Join(c.Lines, "\n")+"\n")
	if err != nil {
		return 0, fmt.Errorf("%w: %w", wire.ErrClientGone, err)
	}
	return int64(n), nil
}

// logReader reads log events in order and notices the lines between.
type logReader struct {
	// resumed: the first event need not be the first of its run.
	resumed bool
	attempt int
	next    int // number of the line that should come
}

// read returns the lines of a log event. One that cannot be read is passed
// over: the rest of the log is worth more than an error.
func (l *logReader) read(event Event) (client.LogChunk, bool) {
	if event.Kind != EventLog {
		return client.LogChunk{}, false
	}
	var e struct {
		Attempt int        `json:"attempt"`
		Data    events.Log `json:"data"`
	}
	readable := json.Unmarshal(event.Data, &e) == nil && len(e.Data.Lines) > 0
	if !readable {
		return client.LogChunk{}, false
	}
	c := client.LogChunk{Lines: e.Data.Lines, Attempt: e.Attempt, At: e.Data.At, Cursor: string(event.Cursor)}
	if e.Attempt != l.attempt {
		// Another run, which begins at its first line.
		l.attempt, l.next = e.Attempt, 0
		if l.resumed {
			l.next = e.Data.From
		}
	}
	l.resumed = false
	// A number that goes back is that of a run whose attempt was not charged.
	c.Missed = max(e.Data.From-l.next, 0)
	l.next = e.Data.From + len(e.Data.Lines)
	return c, true
}
