package chromium_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/chromium"
	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

// watched is a session whose browser tells of its messages.
type watched struct {
	sessions.Session
	messages atomic.Int64
}

func (w *watched) Browser(ctx context.Context) (sessions.Browser, error) {
	b, err := w.Session.Browser(ctx)
	b.Alive = func() { w.messages.Add(1) }
	return b, err
}

// TestMessagesAreSignsOfLife: whoever gave the browser hears of every message
// to and from it.
func TestMessagesAreSignsOfLife(t *testing.T) {
	t.Parallel()
	s, err := sessionstest.Local(t, "browser", sessionstest.Options{}).Lease(t.Context(), sessions.Request{})
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{Session: s}
	p := openIn(t, w, chromium.Config{})
	before := w.messages.Load()
	url := serve(t, map[string]string{"/": "<title>x</title>"})
	if _, err := p.Navigate(within(t, patience), url); err != nil {
		t.Fatal(err)
	}
	// The command and its answer at the least.
	if n := w.messages.Load() - before; n < 2 {
		t.Errorf("got %d messages, want those of a navigation", n)
	}
}
