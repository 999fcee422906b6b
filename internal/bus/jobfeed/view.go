package jobfeed

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/events"
)

// viewerBuffer is how many messages one follower may lag before it is told to
// read what it missed from the history.
const viewerBuffer = 256

// viewer is one subscription of a follower within the process.
type viewer struct {
	pattern []string
	queue   chan bus.CoreMessage
	missed  chan struct{}
	done    chan struct{}
}

func (v *viewer) matches(tokens []string) bool {
	for i, p := range v.pattern {
		if p == ">" {
			return i < len(tokens)
		}
		if i >= len(tokens) || p != "*" && p != tokens[i] {
			return false
		}
	}
	return len(v.pattern) == len(tokens)
}

func (v *viewer) offer(m bus.CoreMessage) {
	select {
	case v.queue <- m:
	default:
		select {
		case v.missed <- struct{}{}:
		default:
		}
	}
}

// Subscribe implements events.Feed inside the process.
func (h *Hub) Subscribe(subject string, fn func(string, map[string][]string, []byte), lost func()) (func(), error) {
	v := &viewer{
		pattern: strings.Split(subject, "."), queue: make(chan bus.CoreMessage, viewerBuffer),
		missed: make(chan struct{}, 1), done: make(chan struct{}),
	}
	var wg sync.WaitGroup
	wg.Go(func() { v.run(fn, lost) })
	h.mu.Lock()
	h.viewers[v] = struct{}{}
	h.mu.Unlock()
	return func() {
		h.mu.Lock()
		delete(h.viewers, v)
		h.mu.Unlock()
		close(v.done)
		wg.Wait()
	}, nil
}

func (v *viewer) run(fn func(string, map[string][]string, []byte), lost func()) {
	for {
		select {
		case <-v.done:
			return
		case m := <-v.queue:
			fn(m.Subject, m.Header, m.Data)
		case <-v.missed:
			lost()
		}
	}
}

// History implements events.Feed.
func (h *Hub) History(ctx context.Context, tenant, owner string, r events.HistoryRequest) (events.HistoryPage, error) {
	return h.history(ctx, tenant, owner, r)
}

// Stream implements events.Feed: names have no installation prefix here.
func (h *Hub) Stream(wire string) string {
	if _, plain, ok := strings.Cut(wire, "_"); ok {
		return plain
	}
	return wire
}

func (h *Hub) scan(ctx context.Context, stream string, filters []string, from uint64, fn func(events.Stored) error) error {
	return h.js.Scan(ctx, stream, filters, from, func(m bus.Message) error {
		return fn(events.Stored{Subject: m.Subject, Header: m.Header, Data: m.Data, Sequence: m.Sequence, Time: m.Time})
	})
}

// ServeHistory answers the history requests of outside programs until Close.
func (h *Hub) ServeHistory() error {
	// A few at a time: a request reads up to a thousand messages.
	slots := make(chan struct{}, 8)
	stop, err := h.core.Subscribe(events.HistoryFilter(), func(m bus.CoreMessage) {
		if m.Reply == nil {
			return
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			reply, err := events.ServeHistory(ctx, m.Subject, m.Data, h.history)
			if err != nil {
				h.log.Warn().Err(err).Msg("history request not answered in full")
			}
			if err := m.Reply(reply); err != nil {
				h.log.Debug().Err(err).Msg("history reply not sent")
			}
		}()
	})
	if err != nil {
		return fmt.Errorf("serve history: %w", err)
	}
	h.stop = append(h.stop, stop)
	return nil
}
