// Package client is the Go client of helmdeck's REST surface. The command
// line is built on it.
//
//	c, err := client.New("http://127.0.0.1:3000", token)
//	result, err := c.RunPack(ctx, "slides.render", input, client.RunOptions{})
//
// Every call is bounded by its context and by nothing else. Answers that are
// errors come back as *Error; a server that cannot be reached is
// ErrUnreachable. Calls that may be repeated are, for a while, when the server
// is away or asks for it. A Client is safe for concurrent use.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// ErrUnreachable is wrapped by errors of calls that got no answer.
var ErrUnreachable = errors.New("helmdeck cannot be reached")

const (
	// tries bounds how often a call is sent. With the pauses between, a
	// server has about ten seconds to come back, enough for a restart.
	tries      = 6
	firstPause = 250 * time.Millisecond
	maxPause   = 4 * time.Second
	// maxErrorBody bounds what is read of an error answer.
	maxErrorBody = 1 << 20
)

// Error is an error answer.
type Error struct {
	Status  int // HTTP status
	Code    packs.Code
	Message string
	// Retryable: the same call may succeed later, after RetryAfter when that
	// is not zero.
	Retryable  bool
	RetryAfter time.Duration
	Details    []packs.Detail
	// JobID is set when the error is the failure of a job.
	JobID string
	// RequestID finds the call in the server's log.
	RequestID string
}

// Error returns the code and the message.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Client calls one server.
type Client struct {
	base  *url.URL
	token string
	http  *http.Client
}

// New returns a client for the server at rawURL, which must begin with http://
// or https:// and may have a path. token may be empty for the few public
// calls. It does not connect.
func New(rawURL, token string) (*Client, error) {
	u, err := url.Parse(strings.TrimSuffix(rawURL, "/"))
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("server address %q is no URL such as http://127.0.0.1:3000", rawURL)
	}
	return &Client{base: u, token: token, http: &http.Client{Transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     90 * time.Second,
		ForceAttemptHTTP2:   true,
	}}}, nil
}

// Close drops idle connections. The client stays usable.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request; it can be sent many times.
type call struct {
	method string
	path   string // escaped, below the server's address
	query  url.Values
	header map[string]string
	// body is JSON unless stream is set, which is sent once only.
	body   []byte
	stream io.Reader
	// repeat: sending it again does no harm.
	repeat bool
	// accept lists the statuses beside 2xx that are no errors.
	accept []int
}

// send sends the call, again if that may help, and returns the answer, whose
// body the caller closes.
func (c *Client) send(ctx context.Context, rq call) (*http.Response, error) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = firstPause, maxPause
	for try := 1; ; try++ {
		res, err := c.once(ctx, rq)
		if err == nil || !rq.repeat || try == tries || !worthRepeating(err) {
			return res, err
		}
		wait := pause.NextBackOff()
		var answer *Error
		if errors.As(err, &answer) && answer.RetryAfter > wait {
			wait = min(answer.RetryAfter, maxPause)
		}
		if sleep(ctx, wait) != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// worthRepeating: nobody answered, or the server is not able to right now.
// The failure of a job is an answer like any other.
func worthRepeating(err error) bool {
	var answer *Error
	if errors.As(err, &answer) {
		return answer.Status == http.StatusServiceUnavailable && answer.JobID == ""
	}
	return errors.Is(err, ErrUnreachable)
}

func (c *Client) once(ctx context.Context, rq call) (*http.Response, error) {
	u := c.base.String() + rq.path
	if len(rq.query) > 0 {
		u += "?" + rq.query.Encode()
	}
	body := rq.stream
	if body == nil && rq.body != nil {
		body = bytes.NewReader(rq.body)
	}
	req, err := http.NewRequestWithContext(ctx, rq.method, u, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if rq.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range rq.header {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	res, err := c.http.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s %s: %w", rq.method, rq.path, ctx.Err())
		}
		return nil, fmt.Errorf("%w at %s: %w", ErrUnreachable, c.base.Redacted(), err)
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	for _, status := range rq.accept {
		if res.StatusCode == status {
			return res, nil
		}
	}
	defer func() { _ = res.Body.Close() }() // read-only
	return nil, readError(res)
}

// readError reads an error answer, also one that a proxy wrote.
func readError(res *http.Response) error {
	b, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody)) // half an answer says something, too
	e := &Error{Status: res.StatusCode, RequestID: res.Header.Get("X-Request-Id")}
	var p Problem
	if json.Unmarshal(b, &p) == nil && p.Error != "" {
		e.Code, e.Message, e.Retryable, e.Details, e.JobID = p.Error, p.Message, p.Retryable, p.Details, p.JobID
	} else {
		e.Code = codeOf(res.StatusCode)
		e.Retryable = e.Code.Retryable()
		e.Message = fmt.Sprintf("the server answered %s: %.200s", res.Status, strings.TrimSpace(string(b)))
	}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && n > 0 {
		e.RetryAfter = time.Duration(n) * time.Second
	}
	return e
}

// codeOf is the nearest code for an answer without one.
func codeOf(status int) packs.Code {
	for _, code := range []packs.Code{
		packs.InvalidInput, packs.InvalidToken, packs.Forbidden, packs.NotFound, packs.MethodNotAllowed, packs.PayloadTooLarge,
		packs.RateLimited, packs.SessionUnavailable, packs.Timeout,
	} {
		if code.HTTPStatus() == status {
			return code
		}
	}
	return packs.Internal
}

// get reads the answer of a GET into out.
func (c *Client) get(ctx context.Context, path string, query url.Values, out any) error {
	return c.exchange(ctx, call{method: http.MethodGet, path: path, query: query, repeat: true}, out)
}

// exchange sends the call and reads the answer into out.
func (c *Client) exchange(ctx context.Context, rq call, out any) error {
	_, err := c.answer(ctx, rq, out)
	return err
}

// answer is exchange with the status of the answer.
func (c *Client) answer(ctx context.Context, rq call, out any) (status int, err error) {
	res, err := c.send(ctx, rq)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }() // read-only
	if out == nil {
		return res.StatusCode, nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return 0, fmt.Errorf("read the answer of %s %s: %w", rq.method, rq.path, err)
	}
	return res.StatusCode, nil
}

// pathOf joins escaped segments below /api/v1.
func pathOf(segments ...string) string {
	var b strings.Builder
	b.WriteString("/api/v1")
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}

// values makes a query of pairs, leaving out what is empty.
func values(pairs ...string) url.Values {
	v := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// encode makes a JSON body.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return b, nil
}
