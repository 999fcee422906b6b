package webhooks

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

const (
	// excerpt is how much of an answer the log keeps, in bytes.
	excerpt = 1 << 10
	// drained is how much more is read, so that the connection can be used
	// again.
	drained = 16 << 10
	// MaxRetryAfter bounds what a receiver can ask for.
	MaxRetryAfter = 24 * time.Hour
	// throttle is the pause after an answer that says too much is sent, unless
	// it says how long.
	throttle = 10 * time.Second

	userAgent = "helmdeck-webhook/1.0"
)

// target is where a delivery goes, and by which secrets it is signed.
type target struct {
	url     string
	secrets []webhooks.Secret // newest first
}

// answer is what became of one attempt to post.
type answer struct {
	status     int // 0: there was no answer
	response   string
	problem    string // what went wrong, for the owner of the endpoint
	retryAfter time.Duration
	took       time.Duration
}

func (a answer) delivered() bool { return a.status >= 200 && a.status < 300 }

// pause is how long the endpoint asks not to be called.
func (a answer) pause() time.Duration {
	switch a.status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusGatewayTimeout:
		if a.retryAfter > 0 {
			return a.retryAfter
		}
		return throttle
	}
	return a.retryAfter
}

// noRedirects is a copy of c that follows none: where an endpoint redirects to
// was not asked for, and a signed body is not for it.
func noRedirects(c *http.Client, timeout time.Duration) *http.Client {
	own := *c
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	own.Timeout = timeout
	return &own
}

// post makes one attempt.
func (s *Sender) post(ctx context.Context, t target, d webhooks.Delivery) (a answer) {
	start := time.Now()
	defer func() { a.took = time.Since(start) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(d.Body))
	if err != nil {
		return answer{problem: plain(err)}
	}
	setHeaders(req.Header, d)
	webhooks.Sign(req.Header, d.ID, start, d.Body, t.secrets...)
	resp, err := s.client.Do(req)
	if err != nil {
		return answer{problem: s.explain(err)}
	}
	defer func() { _ = resp.Body.Close() }()                  // read as far as wanted
	head, _ := io.ReadAll(io.LimitReader(resp.Body, excerpt)) // an answer cut short is still an answer
	_, _ = io.CopyN(io.Discard, resp.Body, drained)           // courtesy to the connection
	a = answer{
		status: resp.StatusCode, response: strings.ToValidUTF8(string(head), "\uFFFD"),
		retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}
	if len(a.response) > excerpt { // the replacement is longer than what it replaces
		a.response = strings.ToValidUTF8(a.response[:excerpt], "")
	}
	switch {
	case a.delivered():
	case a.status == http.StatusGone:
		a.problem = "410 Gone: the receiver wants no more deliveries"
	case a.status >= 300 && a.status < 400:
		a.problem = "redirects are not followed; give the webhook the address it leads to"
	default:
		a.problem = "the receiver answered " + resp.Status + "; only 2xx is a success"
	}
	return a
}

func setHeaders(h http.Header, d webhooks.Delivery) {
	h.Set("Content-Type", events.StructuredType)
	if d.Format == webhooks.Plain {
		h.Set("Content-Type", "application/json")
	}
	h.Set("User-Agent", userAgent)
	h.Set(webhooks.HeaderEvent, d.Kind)
	h.Set(webhooks.HeaderDeliveryAttempt, strconv.Itoa(d.Attempt+1))
	if d.JobID != "" {
		h.Set(webhooks.HeaderJobID, d.JobID)
		h.Set(webhooks.HeaderTaskID, "pack_"+d.JobID)
	}
}

// explain turns an error of the HTTP client into words for the owner.
func (s *Sender) explain(err error) string {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "no answer within " + s.cfg.Timeout.String()
	}
	return plain(err)
}

// plain is the text of err without the URL, which the owner knows.
func plain(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	text := err.Error()
	if len(text) > excerpt {
		text = text[:excerpt]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// retryAfter reads the header of that name (RFC 9110, 10.2.3): seconds or a
// date; 0 when there is none worth the name.
func retryAfter(v string, now time.Time) time.Duration {
	v = strings.TrimSpace(v)
	if v == "" {
		return 0
	}
	if n, err := strconv.ParseInt(v, 10, 64); err == nil {
		return time.Duration(min(max(n, 0), int64(MaxRetryAfter/time.Second))) * time.Second
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), MaxRetryAfter)
}
