package chromium

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
)

const (
	// loadWithin is how long a page that is shown already may take to load the
	// rest, such as pictures of a slow server.
	loadWithin = 10 * time.Second
	// paintWithin bounds the wait for fonts and the first frame.
	paintWithin = 2 * time.Second
	// maxHops bounds pages that go on to another address by themselves.
	maxHops = 10
)

// Visit is where a navigation arrived.
type Visit struct {
	URL    string // after redirects, those by script included
	Title  string
	Status int // of HTTP
	// Complete is false when the page had not loaded all it asked for in time.
	Complete bool
}

// Failure is a picture of a page that did not load.
type Failure struct {
	URL  string
	Text string
}

// LoadError is an address that could not be opened.
type LoadError struct {
	URL string // of the hop that failed
	// Text is Chromium's name for the fault, such as net::ERR_CONNECTION_REFUSED.
	Text string
	// Denied: the egress proxy said that its guard refuses the address.
	Denied bool
	// Unclear: the proxy refused a tunnel without a reason that Chromium hands
	// on; the address may be denied or unreachable.
	Unclear bool
	// Download: the address leads to a file to be saved, not to a page.
	Download bool
}

// Error leaves the address out, which may hold a secret.
func (e *LoadError) Error() string { return "load page: " + e.Text }

// Navigate opens url and waits until it is loaded and painted. A page that is
// shown but whose parts do not all arrive within ten seconds counts as opened.
// Any HTTP status is a success. An address that cannot be opened is a
// *LoadError.
func (p *Page) Navigate(ctx context.Context, url string) (Visit, error) {
	p.watch.begin()
	res, err := call(ctx, p, page.Navigate, page.NavigateParams{URL: url})
	switch {
	case err != nil:
		return Visit{}, err
	case res.IsDownload:
		return Visit{}, &LoadError{URL: p.watch.lastURL(), Text: "the address leads to a download", Download: true}
	case res.ErrorText != "":
		return Visit{}, loadError(p.watch.lastURL(), res.ErrorText)
	}
	p.watch.expect(res.LoaderID)
	complete := false
	late := time.NewTimer(loadWithin)
	defer late.Stop()
	for range maxHops {
		if complete, err = p.settle(ctx, late.C); err != nil {
			return Visit{}, err
		}
		p.paint(ctx)
		if _, settled, _ := p.watch.state(); settled || !complete {
			break
		}
	}
	return p.arrived(ctx, complete)
}

// settle waits until the document is loaded and no other is on its way.
func (p *Page) settle(ctx context.Context, late <-chan time.Time) (bool, error) {
	for {
		_, settled, changed := p.watch.state()
		if settled {
			return true, nil
		}
		select {
		case <-changed:
		case <-late:
			return false, nil
		case <-p.alive.Done():
			return false, context.Cause(p.alive)
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// paint waits for fonts and a frame. It is not vital: a page that is busy or
// goes elsewhere meanwhile is dealt with by the next step.
func (p *Page) paint(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, paintWithin)
	defer cancel()
	_ = p.Evaluate(ctx, `document.fonts.ready.then(() => new Promise(done =>
		requestAnimationFrame(() => requestAnimationFrame(() => done(true)))))`, nil)
}

// arrived reads where the page is.
func (p *Page) arrived(ctx context.Context, complete bool) (Visit, error) {
	d, _, _ := p.watch.state()
	if d == nil {
		return Visit{}, errors.New("the page did not open")
	}
	if d.failure != "" && d.status == 0 {
		return Visit{}, loadError(d.url, d.failure)
	}
	switch d.verdict {
	case "", "allowed":
	case "denied":
		return Visit{}, &LoadError{URL: d.url, Text: "refused by the egress proxy", Denied: true}
	default:
		return Visit{}, &LoadError{URL: d.url, Text: "the egress proxy answered: " + d.verdict}
	}
	history, err := call(ctx, p, page.GetNavigationHistory, cdp.Empty{})
	if err != nil {
		return Visit{}, err
	}
	i := int(history.CurrentIndex)
	if i < 0 || i >= len(history.Entries) {
		return Visit{}, fmt.Errorf("read history: entry %d of %d", i, len(history.Entries))
	}
	return Visit{URL: history.Entries[i].URL, Title: history.Entries[i].Title, Status: d.status, Complete: complete}, nil
}

func loadError(url, text string) *LoadError {
	return &LoadError{
		URL: url, Text: text,
		Unclear: strings.Contains(text, "ERR_TUNNEL_CONNECTION_FAILED") || strings.Contains(text, "ERR_PROXY"),
	}
}

// Failures returns the pictures that the present page could not load, at most
// fifty.
func (p *Page) Failures() []Failure {
	p.watch.mu.Lock()
	defer p.watch.mu.Unlock()
	return append([]Failure(nil), p.watch.failures...)
}
