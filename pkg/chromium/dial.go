package chromium

import (
	"context"
	"fmt"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/remote"
)

const (
	// dialWithin bounds the wait for a running browser to be free: it has one
	// client at a time, and is tidied up after each.
	dialWithin = 10 * time.Second
	// dialPause lies between two tries.
	dialPause = 50 * time.Millisecond
)

// dial starts the browser of h, when it is not running, and connects to it.
func dial(ctx context.Context, h Host) (*line, error) {
	var late <-chan time.Time
	for {
		// Asked every time: the browser may have been replaced meanwhile.
		b, err := h.Browser(ctx)
		if err != nil {
			return nil, fmt.Errorf("start browser: %w", err)
		}
		if late == nil {
			timer := time.NewTimer(dialWithin)
			defer timer.Stop()
			late = timer.C
		}
		conn, err := remote.DialContext(ctx, b.URL, remote.WithConnHTTPHeader(b.Header))
		if err == nil {
			return &line{conn: transport{conn, b.Alive}}, nil
		}
		select {
		case <-time.After(dialPause):
		case <-late:
			return nil, fmt.Errorf("connect to browser: %w", err)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// transport is a connection that tells of every message that passes.
type transport struct {
	*remote.Conn
	alive func() // may be nil
}

// Read implements chromedp.Transport.
func (t transport) Read(ctx context.Context, m *cdproto.Message) error {
	err := t.Conn.Read(ctx, m)
	t.tell()
	return err
}

// Write implements chromedp.Transport.
func (t transport) Write(ctx context.Context, m *cdproto.Message) error {
	t.tell()
	return t.Conn.Write(ctx, m)
}

func (t transport) tell() {
	if t.alive != nil {
		t.alive()
	}
}

// line is one connection to a browser, as chromedp wants it.
type line struct {
	conn    transport
	browser *chromedp.Browser // nil until it is allocated
	stop    func()            // ends the browser's loop
}

// Allocate implements chromedp.Allocator.
func (l *line) Allocate(ctx context.Context, opts ...chromedp.BrowserOption) (*chromedp.Browser, error) {
	// The loop outlives ctx, so that the tab can be closed over it.
	loop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b, err := chromedp.NewBrowserTransport(loop, l.conn, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	l.browser, l.stop = b, cancel
	return b, nil
}

// Wait implements chromedp.Allocator.
func (l *line) Wait() {}

// Attaches tells chromedp that the browser is not its own to stop.
func (l *line) Attaches() bool { return true }

// hangUp ends the connection and what reads from it.
func (l *line) hangUp() {
	_ = l.conn.Close()
	if l.browser != nil {
		l.stop()
		<-l.browser.LostConnection
	}
}
