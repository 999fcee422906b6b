package egress

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// maxRedirects is the standard client's limit.
const maxRedirects = 10

// maxResponseHeader bounds the header of one response, in bytes.
const maxResponseHeader = 256 << 10

// Timeouts bound the phases of a request. A zero field takes the default.
type Timeouts struct {
	TLSHandshake   time.Duration // default 10 s
	ResponseHeader time.Duration // from the request's last byte to the response's header; default 60 s
	Idle           time.Duration // how long an unused connection is kept; default 60 s
	Total          time.Duration // the whole exchange with its redirects and body; default: the request's context alone
}

func (t Timeouts) withDefaults() Timeouts {
	if t.TLSHandshake <= 0 {
		t.TLSHandshake = 10 * time.Second
	}
	if t.ResponseHeader <= 0 {
		t.ResponseHeader = 60 * time.Second
	}
	if t.Idle <= 0 {
		t.Idle = 60 * time.Second
	}
	return t
}

// Client returns an HTTP client that reaches only what g allows. Every hop of a
// redirect is judged afresh, at most ten are followed, and once a hop leaves the
// first request's host all headers are dropped but those that describe the
// content wanted (see [KeptAcrossHosts]). Proxy settings of the environment are
// not read. Build one client and keep it: each has its own connection pool.
// Errors wrap a [*Refusal] or [*LookupError]. Bodies are not bounded here.
func (g *Guard) Client(timeouts Timeouts) *http.Client {
	return &http.Client{
		Transport:     g.Transport(timeouts),
		CheckRedirect: checkRedirect,
		Timeout:       timeouts.Total,
	}
}

// Transport is the round tripper of [Guard.Client], for callers with a client of
// their own. It checks each URL and address, but such a client must drop its own
// secrets across hosts. Timeouts.Total is not applied.
func (g *Guard) Transport(timeouts Timeouts) http.RoundTripper {
	timeouts = timeouts.withDefaults()
	return &transport{base: &http.Transport{
		Proxy:                  nil,
		DialContext:            g.DialContext,
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           100,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        timeouts.Idle,
		TLSHandshakeTimeout:    timeouts.TLSHandshake,
		ResponseHeaderTimeout:  timeouts.ResponseHeader,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
	}}
}

// transport checks the URL of each hop before the dialler checks its address.
type transport struct{ base *http.Transport }

// RoundTrip sends one request, or returns a [*Refusal].
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, refusal := checkURL(r.URL, "http", "https"); refusal != nil {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper closes the body on errors too
		}
		return nil, refusal
	}
	return t.base.RoundTrip(r)
}

// CloseIdleConnections closes the pool's unused connections.
func (t *transport) CloseIdleConnections() { t.base.CloseIdleConnections() }

func checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return errors.New("stopped after 10 redirects")
	}
	// Coming back to the first host does not bring the secrets back: the host
	// in between chose where to send us.
	hops := append(slices.Clone(via[1:]), r)
	if slices.ContainsFunc(hops, func(hop *http.Request) bool { return !sameOrigin(via[0].URL, hop.URL) }) {
		for name := range r.Header {
			if !KeptAcrossHosts(name) {
				r.Header.Del(name)
				delete(r.Header, name) // a name set without canonical case
			}
		}
	}
	return nil
}

// KeptAcrossHosts tells whether a request header survives a redirect to another
// host. Anything a caller may have put a secret in does not.
func KeptAcrossHosts(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Accept", "Accept-Charset", "Accept-Encoding", "Accept-Language",
		"Content-Type", "Content-Encoding", "Content-Language", "Range", "User-Agent":
		return true
	}
	return false
}

// sameOrigin tells whether secrets meant for a may go to b: the same host and
// port, or the step from http to https on the default ports.
func sameOrigin(a, b *url.URL) bool {
	if !strings.EqualFold(a.Hostname(), b.Hostname()) {
		return false
	}
	upgrade := a.Scheme == "http" && b.Scheme == "https" && portOf(a) == "80" && portOf(b) == "443"
	return upgrade || a.Scheme == b.Scheme && portOf(a) == portOf(b)
}

func portOf(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}
