package chromium

import (
	"strings"
	"sync"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/inspector"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
)

// VerdictHeader is set by the egress proxy on answers of its own.
const VerdictHeader = "X-Helmdeck-Egress"

// maxFailures bounds the failed requests that are remembered.
const maxFailures = 50

// document is what is known of one load of the main frame.
type document struct {
	loader  cdp.LoaderID
	request network.RequestID
	url     string
	status  int
	verdict string // of the proxy, when it answered in place of the server
	failure string // net::ERR_…
}

// watch follows the main frame and the requests of a page by its events.
type watch struct {
	crashed func()
	answer  func(event any)

	mu        sync.Mutex // guards the rest
	main      cdp.FrameID
	pending   *document             // asked for, nothing shown yet
	current   *document             // shown
	commits   map[cdp.LoaderID]bool // shown since begin, events of an earlier navigation included
	wanted    cdp.LoaderID          // what was navigated to; empty until the browser says
	loaded    cdp.LoaderID
	requests  map[network.RequestID]*network.Request // pictures under way
	failures  []Failure
	changed   chan struct{} // closed and replaced at every change
	following bool
}

func newWatch(crashed func(), answer func(any)) *watch {
	return &watch{crashed: crashed, answer: answer, changed: make(chan struct{})}
}

func (w *watch) setMain(id cdp.FrameID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.main = id
}

// begin forgets what was loaded before a new navigation.
func (w *watch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending, w.current, w.loaded, w.wanted, w.failures, w.following = nil, nil, "", "", nil, true
	w.commits = map[cdp.LoaderID]bool{}
	w.requests = map[network.RequestID]*network.Request{}
}

// expect names the load that begin was the beginning of.
func (w *watch) expect(id cdp.LoaderID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = id
}

// event is called with every event of the page, in order, and must not block.
func (w *watch) event(event any) {
	switch event.(type) {
	case *page.EventJavascriptDialogOpening, *fetch.EventRequestPaused:
		w.answer(event)
		return
	case *inspector.EventTargetCrashed:
		w.crashed()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.following && w.apply(event) {
		close(w.changed)
		w.changed = make(chan struct{})
	}
}

// apply reports whether the event changed what a navigation waits for.
func (w *watch) apply(event any) bool {
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		return w.sent(e)
	case *network.EventResponseReceived:
		if d := w.byRequest(e.RequestID); d != nil {
			d.url, d.status = e.Response.URL, int(e.Response.Status)
			d.verdict = verdictOf(e.Response)
		} else if verdictOf(e.Response) != "" || e.Response.Status >= 400 {
			w.failed(e.RequestID, e.Response.StatusText)
		}
		return false
	case *network.EventLoadingFailed:
		if d := w.byRequest(e.RequestID); d != nil {
			d.failure = e.ErrorText
			if d == w.pending && w.current != nil {
				w.pending = nil // such as a download: what is shown stays
			}
			return true
		}
		if !e.Canceled {
			w.failed(e.RequestID, e.ErrorText)
		}
		return false
	case *page.EventFrameNavigated:
		return w.navigated(e.Frame)
	case *page.EventLifecycleEvent:
		if e.FrameID == w.main && e.Name == "load" {
			w.loaded = e.LoaderID
			return true
		}
	}
	return false
}

func (w *watch) sent(e *network.EventRequestWillBeSent) bool {
	if e.Type == network.ResourceTypeDocument && e.FrameID == w.main {
		w.pending = &document{loader: e.LoaderID, request: e.RequestID, url: e.Request.URL}
		return true
	}
	if e.Type == network.ResourceTypeImage && len(w.requests) < 10*maxFailures {
		w.requests[e.RequestID] = e.Request
	}
	return false
}

func (w *watch) byRequest(id network.RequestID) *document {
	for _, d := range []*document{w.pending, w.current} {
		if d != nil && d.request == id {
			return d
		}
	}
	return nil
}

// failed remembers a picture that did not load.
func (w *watch) failed(id network.RequestID, text string) {
	r := w.requests[id]
	if r == nil || len(w.failures) >= maxFailures {
		return
	}
	delete(w.requests, id)
	w.failures = append(w.failures, Failure{URL: r.URL, Text: text})
}

func (w *watch) navigated(f *cdp.Frame) bool {
	if f.ID != w.main {
		return false
	}
	d := &document{loader: f.LoaderID, url: f.URL}
	if w.pending != nil && w.pending.loader == f.LoaderID {
		d, w.pending = w.pending, nil
	}
	if f.UnreachableURL != "" {
		d.url = f.UnreachableURL
		if d.failure == "" {
			d.failure = "net::ERR_FAILED"
		}
	}
	w.commits[d.loader] = true
	w.current = d
	return true
}

// state returns the document that is shown, whether it is loaded and no other
// is on its way, and a channel that is closed at the next change.
func (w *watch) state() (current *document, settled bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.current != nil {
		c := *w.current
		current = &c
	}
	settled = current != nil && w.commits[w.wanted] && w.pending == nil && (w.loaded == current.loader || current.failure != "")
	return current, settled, w.changed
}

// lastURL is the address asked for last.
func (w *watch) lastURL() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.pending != nil:
		return w.pending.url
	case w.current != nil:
		return w.current.url
	}
	return ""
}

// verdictOf returns what the proxy says in an answer of its own. Within a
// tunnel the header could only be the server's.
func verdictOf(r *network.Response) string {
	if !strings.HasPrefix(r.URL, "http://") {
		return ""
	}
	for name, value := range r.Headers {
		if s, ok := value.(string); ok && strings.EqualFold(name, VerdictHeader) {
			return s
		}
	}
	return ""
}
