package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// catchUp reads the history from the floors to the present. Unanswered
// questions are asked again until patience is over, and once if it is 0.
func (fl *follow) catchUp(ctx context.Context, patience time.Duration) error {
	r := HistoryRequest{JobID: fl.filter.JobID, After: Cursor{}}
	for name, t := range fl.streams {
		r.After[name] = t.floor
	}
	if !fl.probed {
		// A job has few lifecycle events: reading them all tells whether the
		// terminal one lies before the cursor.
		r.After[StreamEvents] = 0
	}
	for {
		page, err := fl.ask(ctx, r, patience)
		if err != nil {
			return err
		}
		for _, h := range page.Events {
			if err := fl.past(h); err != nil {
				return err
			}
		}
		fl.confirm(page.Next)
		if page.Done {
			fl.probed = true
			return nil
		}
		if page.Next.String() == r.After.String() {
			return fmt.Errorf("%w: the answer does not move on from %s", ErrNoHistory, r.After)
		}
		r.After = page.Next
	}
}

// confirm raises the floors to next, up to which everything was delivered.
func (fl *follow) confirm(next Cursor) {
	for name, t := range fl.streams {
		n, ok := next[name]
		if !ok || n < t.floor {
			continue
		}
		t.floor, t.known = n, true
		for seq := range t.window {
			if seq <= n {
				delete(t.window, seq)
			}
		}
	}
}

func (fl *follow) past(h HistoryEvent) error {
	t := fl.streams[h.Stream]
	s, err := Parse(h.Subject)
	if t == nil || err != nil || s.Kind == KindInput {
		return nil
	}
	if t.seen(h.Sequence) || h.StoredAt.Before(fl.since) {
		if fl.filter.JobID != "" && s.Kind == KindLifecycle && Terminal(h.Event.Type()) {
			fl.ended = true
		}
		return nil
	}
	t.window[h.Sequence] = struct{}{}
	return fl.deliver(Event{Event: h.Event, Kind: s.Kind, Key: keyOf(s),
		Stream: h.Stream, StreamSequence: h.Sequence, StoredAt: h.StoredAt})
}

func (fl *follow) ask(ctx context.Context, r HistoryRequest, patience time.Duration) (HistoryPage, error) {
	until := time.Now().Add(patience)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, pauseMax) {
		attempt, cancel := context.WithTimeout(ctx, askTimeout)
		page, err := fl.feed.History(attempt, fl.opts.Tenant, fl.opts.Owner, r)
		cancel()
		switch {
		case err == nil:
			return page, nil
		case ctx.Err() != nil:
			return HistoryPage{}, ctx.Err()
		case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, ErrBadRequest):
			return HistoryPage{}, err
		case errors.Is(err, errRefused), time.Now().Add(pause).After(until):
			return HistoryPage{}, fmt.Errorf("%w: %w", ErrNoHistory, err)
		}
		select {
		case <-ctx.Done():
			return HistoryPage{}, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func ignoreNoHistory(err error) error {
	if errors.Is(err, ErrNoHistory) {
		return nil
	}
	return err
}
