package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

const (
	// silence is how long a stream may say nothing, not even a comment, which
	// the server sends every 15 s, before it counts as dead.
	silence = time.Minute
	// maxLine bounds one line of a stream: an event carries a job record.
	maxLine = 8 << 20
)

// Event is one event of a job.
type Event struct {
	// ID resumes the stream after this event.
	ID string
	// Type is the CloudEvents type, "dev.helmdeck.job.started" for instance.
	Type string
	// Data is the CloudEvent in JSON.
	Data json.RawMessage
}

// Terminal reports whether it is the last event of its job.
func (e Event) Terminal() bool {
	return strings.HasSuffix(e.Type, ".job.succeeded") || strings.HasSuffix(e.Type, ".job.failed") ||
		strings.HasSuffix(e.Type, ".job.cancelled")
}

// Job returns the record that a lifecycle event carries.
func (e Event) Job() (jobs.Job, bool) {
	job, ok := data[jobs.Job](e)
	return job, ok && job.ID != ""
}

// Progress returns the progress that a progress event carries.
func (e Event) Progress() (jobs.Progress, bool) {
	if !strings.HasSuffix(e.Type, ".job.progress") {
		return jobs.Progress{}, false
	}
	return data[jobs.Progress](e)
}

// Lines returns the lines that a log event carries.
func (e Event) Lines() []string {
	if !strings.HasSuffix(e.Type, ".job.log") {
		return nil
	}
	log, _ := data[struct {
		Lines []string `json:"lines"`
	}](e)
	return log.Lines
}

func data[T any](e Event) (T, bool) {
	var event struct {
		Data T `json:"data"`
	}
	err := json.Unmarshal(e.Data, &event)
	return event.Data, err == nil
}

// Events follows a job from the event after lastID, the first one when empty,
// to the terminal one. It connects again when the connection is lost, and
// yields no event twice. The last thing it may yield is an error: the
// server's, or that of ctx.
func (c *Client) Events(ctx context.Context, id, lastID string) iter.Seq2[Event, error] {
	return c.resumed(ctx, call{method: http.MethodGet, path: pathOf("jobs", id, "events"), repeat: true}, id, lastID)
}

// resumed reads a stream of events to its last one, over as many connections
// as it takes.
func (c *Client) resumed(ctx context.Context, rq call, id, lastID string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for failures := 0; failures < tries; {
			got := 0
			done, err := c.stream(ctx, rq, lastID, func(e Event) bool {
				got++
				lastID = e.ID
				return yield(e, nil)
			})
			switch {
			case done:
				return
			case err == nil:
			case ctx.Err() != nil:
				yield(Event{}, fmt.Errorf("follow job %s: %w", id, ctx.Err()))
				return
			case !worthRepeating(err):
				yield(Event{}, err)
				return
			}
			// A stream that brought something is alive; one that ends at once
			// again and again is not.
			if failures++; got > 0 {
				failures = 0
			}
			if err := sleep(ctx, firstPause<<min(failures, 4)); err != nil {
				yield(Event{}, fmt.Errorf("follow job %s: %w", id, err))
				return
			}
		}
		yield(Event{}, fmt.Errorf("%w: the stream of job %s ends each time", ErrUnreachable, id))
	}
}

// logEnd is the type of the event after which nothing of a log comes.
const logEnd = "end"

// LogLines reads the lines a job logged from the chunk after the cursor, the
// first one when empty; with follow until the job ends. It connects again when
// the connection is lost, and yields no line twice. The last thing it may
// yield is an error.
func (c *Client) LogLines(ctx context.Context, id, after string, follow bool) iter.Seq2[LogChunk, error] {
	rq := call{method: http.MethodGet, path: pathOf("jobs", id, "logs"), repeat: true}
	if follow {
		rq.query = values("follow", "true")
	}
	return func(yield func(LogChunk, error) bool) {
		for e, err := range c.resumed(ctx, rq, id, after) {
			if err != nil {
				yield(LogChunk{}, err)
				return
			}
			if e.Type == logEnd {
				return
			}
			chunk := LogChunk{Cursor: e.ID}
			if err := json.Unmarshal(e.Data, &chunk); err != nil {
				yield(LogChunk{}, fmt.Errorf("read log of job %s: %w", id, err))
				return
			}
			if !yield(chunk, nil) {
				return
			}
		}
	}
}

// stream reads one connection. done is set when there is nothing to come back
// for: the last event was there, or the reader has enough.
func (c *Client) stream(ctx context.Context, rq call, lastID string, handle func(Event) bool) (done bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rq.header = map[string]string{"Last-Event-ID": lastID, "Accept": "text/event-stream"}
	res, err := c.send(ctx, rq)
	if err != nil {
		return false, err
	}
	defer func() { _ = res.Body.Close() }() // read-only
	if res.StatusCode == http.StatusNoContent {
		return true, nil
	}
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	for event, err := range parse(&alive{r: res.Body, quiet: quiet}) {
		if err != nil {
			return false, fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		if !handle(event) || event.Terminal() || event.Type == logEnd {
			return true, nil
		}
	}
	return false, nil
}

// alive puts off the end of a stream whenever something comes.
type alive struct {
	r     io.Reader
	quiet *time.Timer
}

func (a *alive) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	a.quiet.Reset(silence)
	return n, err
}

// parse reads server-sent events. An event without a blank line after it is
// not complete and not yielded.
func parse(r io.Reader) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(make([]byte, 0, 64<<10), maxLine)
		var e Event
		var text []string
		for lines.Scan() {
			field, value, _ := strings.Cut(lines.Text(), ":")
			value = strings.TrimPrefix(value, " ")
			switch {
			case lines.Text() == "":
				if len(text) == 0 {
					continue
				}
				e.Data = json.RawMessage(strings.Join(text, "\n"))
				if !yield(e, nil) {
					return
				}
				e.Type, text = "", nil
			case field == "id":
				e.ID = value
			case field == "event":
				e.Type = value
			case field == "data":
				text = append(text, value)
			}
		}
		if err := lines.Err(); err != nil && !errors.Is(err, io.EOF) {
			yield(Event{}, err)
		}
	}
}
