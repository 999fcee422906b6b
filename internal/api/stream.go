package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// firstEventTimeout is how long a stream waits for its first event before it
// sends its header: until then a bad cursor can be answered with an error and
// the end of a job with 204.
const firstEventTimeout = time.Second

// item is what a follower hands to the handler that writes.
type item struct {
	event Event
	err   error
}

// pump runs seq in a goroutine of its own, so that its consumer can wait for
// time to pass as well. The channel is closed when seq ends. stop ends it,
// and waits until it has.
func pump(ctx context.Context, follow func(context.Context) iter.Seq2[Event, error]) (items <-chan item, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c := make(chan item)
	go func() {
		defer close(c)
		for event, err := range follow(ctx) {
			select {
			case c <- item{event, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return c, func() {
		cancel()
		for range c { // closed by the goroutine on its way out
		}
	}
}

// streamEvents follows a job by server-sent events.
func (a *API) streamEvents(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "after")
	after := Cursor(q.Text("after"))
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after = Cursor(last)
	}
	if err := q.Err(); err != nil {
		return err
	}
	job, err := a.cfg.Jobs.Get(r.Context(), callerOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		x.Header().Set("Content-Type", "text/event-stream")
		x.WriteHeader(http.StatusOK)
		return nil
	}
	ctx, done := a.streaming(r.Context())
	defer done()
	items, stop := pump(ctx, func(ctx context.Context) iter.Seq2[Event, error] {
		return a.cfg.Events.Follow(ctx, job.Key(), after)
	})
	defer stop()
	first, open, err := a.firstEvent(ctx, items)
	switch {
	case err != nil:
		return err
	case !open && after != "" && ctx.Err() == nil:
		// Nothing comes after the terminal event. 204 tells an EventSource
		// not to connect again.
		return x.noContent()
	}
	return a.writeEvents(ctx, x, items, first)
}

// streaming returns a context that also ends when the server shuts down.
func (a *API) streaming(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(a.life, cancel)
	a.metrics.streams.Inc()
	return ctx, func() { unhook(); cancel(); a.metrics.streams.Dec() }
}

// firstEvent waits a moment for the first event; nil when none came. open is
// false when there is none to come.
func (a *API) firstEvent(ctx context.Context, items <-chan item) (first *Event, open bool, err error) {
	timer := time.NewTimer(firstEventTimeout)
	defer timer.Stop()
	select {
	case it, ok := <-items:
		if !ok {
			return nil, false, nil
		}
		if it.err != nil {
			return nil, false, followError(it.err)
		}
		return &it.event, true, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil, true, nil
}

func followError(err error) error {
	if errors.Is(err, ErrBadCursor) {
		return packs.Fail(packs.InvalidInput, err,
			"Last-Event-ID is none this stream handed out; leave it out to start at the first event")
	}
	return fmt.Errorf("follow job: %w", err)
}

func (a *API) writeEvents(ctx context.Context, x *exchange, items <-chan item, first *Event) error {
	h := x.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	h.Set("X-Content-Type-Options", "nosniff")
	x.WriteHeader(http.StatusOK)
	if first != nil {
		if err := writeEvent(x, *first); err != nil {
			return err
		}
	}
	idle := time.NewTimer(a.cfg.Limits.KeepAlive)
	defer idle.Stop()
	for {
		if err := x.flush(); err != nil {
			return err
		}
		select {
		case it, ok := <-items:
			if !ok {
				return nil
			}
			if it.err != nil { // the client resumes with Last-Event-ID
				return followError(it.err)
			}
			if err := writeEvent(x, it.event); err != nil {
				return err
			}
		case <-idle.C:
			if _, err := io.WriteString(x, ": keep-alive\n\n"); err != nil {
				return fmt.Errorf("%w: %w", wire.ErrClientGone, err)
			}
		case <-ctx.Done():
			return nil
		}
		idle.Reset(a.cfg.Limits.KeepAlive)
	}
}

func (x *exchange) flush() error {
	if err := x.deadlines.Flush(); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrClientGone, err)
	}
	return nil
}

// oneLine keeps a field of the event stream from becoming two.
var oneLine = strings.NewReplacer("\n", "", "\r", "")

func writeEvent(w io.Writer, e Event) error {
	var b strings.Builder
	fmt.Fprintf(&b, "id: %s\nevent: %s\n", oneLine.Replace(string(e.Cursor)), oneLine.Replace(e.Type))
	for line := range strings.SplitSeq(string(e.Data), "\n") {
		fmt.Fprintf(&b, "data: %s\n", strings.TrimSuffix(line, "\r"))
	}
	b.WriteString("\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrClientGone, err)
	}
	return nil
}
