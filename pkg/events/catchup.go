package events

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// track is what is known of one stream.
type track struct {
	// floor: everything up to it was delivered or is not wanted.
	floor uint64
	// known is false while it is not yet clear where the past ends (LiveOnly).
	known bool
	// window holds the sequences delivered above floor.
	window map[uint64]struct{}
}

// raise moves the floor to n, up to which everything was delivered.
func (t *track) raise(n uint64) {
	if n < t.floor {
		return
	}
	t.floor, t.known = n, true
	for seq := range t.window {
		if seq <= n {
			delete(t.window, seq)
		}
	}
}

func (t *track) seen(n uint64) bool {
	_, ok := t.window[n]
	return ok || t.known && n <= t.floor
}

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
		for name, n := range page.Next {
			if t := fl.streams[name]; t != nil {
				t.raise(n)
			}
		}
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

func (fl *follow) past(h HistoryEvent) error {
	t := fl.streams[h.Stream]
	s, ok := followed(h.Subject)
	if t == nil || !ok {
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

// followed takes the subject of an event apart; inputs are not followed.
func followed(subject string) (Subject, bool) {
	s, err := Parse(subject)
	return s, err == nil && s.Kind != KindInput
}

func readable(header map[string][]string, data []byte) (event.Event, bool) {
	ev, err := Decode(header, data)
	return ev, err == nil
}

// number is the number in a header, 0 if there is none.
func number(header map[string][]string, name string) uint64 {
	n, err := strconv.ParseUint(first(header, name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func keyOf(s Subject) jobs.Key { return jobs.Key{Tenant: s.Tenant, Owner: s.Owner, ID: s.JobID} }

// first is the first value of a header that the server wrote.
func first(header map[string][]string, name string) string {
	if v := header[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}
