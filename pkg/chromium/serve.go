package chromium

import (
	"net/url"

	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/network"
)

// Origin is where a page finds what its program serves. The name can never
// exist (RFC 2606), and no request to it leaves the browser. A page of an http
// origin has no way to files of the machine.
const Origin = "http://page.invalid"

// Serve returns the resource at a path of Origin, such as "/index.html";
// false is a 404. It is called on goroutines of the page, several at once.
type Serve func(path string) (Resource, bool)

// Resource is one answer of a Serve.
type Resource struct {
	ContentType string
	// Policy is the Content-Security-Policy; empty: none.
	Policy string
	Body   []byte
}

// resolve lets a paused request go on, answers it or ends it.
func (p *Page) resolve(e *fetch.EventRequestPaused) {
	// An error means that the page is gone, and with it the request.
	switch path, verdict := judge(e.Request.URL); verdict {
	case ours:
		_, _ = call(p.alive, p, fetch.FulfillRequest, p.fulfil(e.RequestID, path))
	case outside:
		_, _ = call(p.alive, p, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: e.RequestID})
	case refused:
		_, _ = call(p.alive, p, fetch.FailRequest, fetch.FailRequestParams{
			RequestID: e.RequestID, ErrorReason: network.ErrorReasonBlockedByClient,
		})
	}
}

type verdict int

const (
	refused verdict = iota
	ours
	outside
)

// judge decides where a request of a confined page may go.
func judge(raw string) (path string, v verdict) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", refused
	}
	switch {
	case u.Scheme+"://"+u.Host == Origin:
		return u.Path, ours
	case u.Scheme == "http", u.Scheme == "https", u.Scheme == "data", u.Scheme == "blob":
		return "", outside
	}
	return "", refused
}

func (p *Page) fulfil(id fetch.RequestID, path string) fetch.FulfillRequestParams {
	r, ok := p.serve(path)
	if !ok {
		return fetch.FulfillRequestParams{
			RequestID: id, ResponseCode: 404,
			ResponseHeaders: []*fetch.HeaderEntry{{Name: "Content-Type", Value: "text/plain"}},
			Body:            []byte("not found"),
		}
	}
	headers := []*fetch.HeaderEntry{
		{Name: "Content-Type", Value: r.ContentType},
		{Name: "X-Content-Type-Options", Value: "nosniff"},
		{Name: "Cache-Control", Value: "no-store"},
	}
	if r.Policy != "" {
		headers = append(headers, &fetch.HeaderEntry{Name: "Content-Security-Policy", Value: r.Policy})
	}
	return fetch.FulfillRequestParams{RequestID: id, ResponseCode: 200, ResponseHeaders: headers, Body: r.Body}
}
