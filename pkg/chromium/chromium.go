// Package chromium drives the Chromium of a session over the DevTools
// protocol, one page at a time: open an address or a document of the program's
// own, evaluate, and take a picture or a PDF. It holds what every pack that
// shows pages needs against hostile ones: message boxes are dismissed, downloads are
// refused, a crash ends every wait, and no wait outlasts its context.
//
// It does not start Chromium, which the session does, and it opens no
// connection to the outside: Chromium's own go through the session's egress
// proxy.
//
//	page, err := chromium.Open(ctx, session, chromium.Config{})
//	defer page.Close()
//	visit, err := page.Navigate(ctx, "https://example.com/")
//	png, err := page.Screenshot(ctx, chromium.Shot{})
package chromium

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/css"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/fetch"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// Size of the viewport unless a Config says otherwise, in CSS pixels.
const (
	DefaultWidth  = 1280
	DefaultHeight = 720
)

// ErrCrashed ends every call on a page whose process died, for want of memory
// as a rule.
var ErrCrashed = errors.New("the page crashed")

// Host is what starts the browser; a sessions.Session is one.
type Host interface {
	Browser(ctx context.Context) (sessions.Browser, error)
}

// Config says how a page is opened.
type Config struct {
	// Width and Height of the viewport in CSS pixels; 0 is the default.
	Width, Height int
	// Scale is device pixels per CSS pixel; 0 is 1.
	Scale float64
	// Serve, when set, answers every request to Origin and confines the page:
	// beside Origin only http and https are loaded, through the proxy.
	Serve Serve
}

// Page is one page of a browser. Its methods are called one at a time.
type Page struct {
	tab    *chromedp.Context
	watch  *watch
	closed func()          // closes the tab, then the connection
	alive  context.Context // ends when the page crashed
	serve  Serve
	// tasks are the answers to message boxes and paused requests.
	tasks sync.WaitGroup
}

// Open starts the browser of h when it is not running and opens a blank page.
// The page is closed with Close. At most one page is open per session.
func Open(ctx context.Context, h Host, c Config) (*Page, error) {
	line, err := dial(ctx, h)
	if err != nil {
		return nil, err
	}
	alive, crash := context.WithCancelCause(context.WithoutCancel(ctx))
	p := &Page{alive: alive, serve: c.Serve}
	p.watch = newWatch(func() { crash(ErrCrashed) }, p.answer)

	// The connection outlives ctx, so that closing the page can use it.
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	alloc, _ := chromedp.NewAllocatorContext(base, line)
	tab, closeTab := chromedp.NewContext(alloc, chromedp.WithListener(p.watch.event),
		chromedp.WithLogf(quiet), chromedp.WithErrorf(quiet))
	p.closed = sync.OnceFunc(func() {
		stop()
		crash(errors.New("the page is closed"))
		closeTab()
		line.hangUp()
		cancel()
		p.tasks.Wait()
	})
	err = chromedp.Do(tab)
	p.tab = chromedp.FromContext(tab)
	if err == nil {
		stop()
		err = p.prepare(ctx, c)
	}
	if err != nil {
		err = fmt.Errorf("open page: %w", p.cause(ctx, err))
		p.Close()
		return nil, err
	}
	return p, nil
}

// quiet drops what chromedp would print: an error that matters is returned.
func quiet(string, ...any) {}

// Close closes the page and the connection to the browser. It takes at most a
// few seconds, whatever state the page is in.
func (p *Page) Close() { p.closed() }

// prepare sets the page up before anything is loaded into it.
func (p *Page) prepare(ctx context.Context, c Config) error {
	t := p.tab.Target
	p.watch.setMain(cdp.FrameID(t.TargetID))
	// chromedp follows the whole document for its queries, which are not used
	// here and cost much on a large or restless page.
	for _, method := range []string{runtime.Disable.Method, css.Disable.Method, dom.Disable.Method, cdplog.Disable.Method} {
		if err := t.Call(ctx, method, cdp.Empty{}, nil); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
	}
	if _, err := cdp.Call(ctx, t, target.SetAutoAttach, target.SetAutoAttachParams{Flatten: new(true)}); err != nil {
		return err
	}
	if _, err := cdp.Call(ctx, p.tab.Browser, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
		Behavior: browser.SetDownloadBehaviorBehaviorDeny, //nolint:misspell // the protocol spells it so
	}); err != nil {
		return fmt.Errorf("refuse downloads: %w", err)
	}
	if err := p.Resize(ctx, cmp.Or(c.Width, DefaultWidth), cmp.Or(c.Height, DefaultHeight), cmp.Or(c.Scale, 1)); err != nil {
		return err
	}
	if c.Serve != nil {
		if _, err := cdp.Call(ctx, t, fetch.Enable, fetch.EnableParams{
			Patterns: []*fetch.RequestPattern{{URLPattern: "*"}},
		}); err != nil {
			return fmt.Errorf("intercept requests: %w", err)
		}
	}
	return nil
}

// Resize sets the viewport in CSS pixels, with scale device pixels to each.
func (p *Page) Resize(ctx context.Context, width, height int, scale float64) error {
	if _, err := call(ctx, p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: int64(width), Height: int64(height), DeviceScaleFactor: scale,
	}); err != nil {
		return fmt.Errorf("set viewport: %w", err)
	}
	return nil
}

// call sends one command to p. It returns when ctx ended, the page crashed or
// the connection was lost, with an error that says which.
func call[P, R any](ctx context.Context, p *Page, c cdp.Command[P, R], params P) (R, error) {
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.alive, cancel)()
	r, err := cdp.Call(bounded, p.tab.Target, c, params)
	if err != nil {
		return r, fmt.Errorf("%s: %w", c.Method, p.cause(ctx, err))
	}
	return r, nil
}

// cause replaces err by what led to it: the end of ctx or a crash.
func (p *Page) cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	if c := context.Cause(p.alive); c != nil {
		return c
	}
	return err
}

// answer reacts to what stops a page until somebody does.
func (p *Page) answer(event any) {
	switch e := event.(type) {
	case *page.EventJavascriptDialogOpening:
		p.tasks.Go(func() {
			_, _ = call(p.alive, p, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: false})
		})
	case *fetch.EventRequestPaused:
		p.tasks.Go(func() { p.resolve(e) })
	}
}

// Evaluate runs a JavaScript expression in the page, waits for the promise it
// may be, and decodes its value, by way of JSON, into v unless v is nil.
func (p *Page) Evaluate(ctx context.Context, expression string, v any) error {
	res, err := call(ctx, p, runtime.Evaluate, runtime.EvaluateParams{
		Expression: expression, ReturnByValue: new(true), AwaitPromise: new(true),
	})
	if err != nil {
		return err
	}
	if e := res.ExceptionDetails; e != nil {
		return &ScriptError{Text: exceptionText(e)}
	}
	if v == nil {
		return nil
	}
	return decodeValue(res.Result, v)
}
