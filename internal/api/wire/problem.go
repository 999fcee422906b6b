// Package wire holds the forms in which the HTTP surface reads and writes:
// the one error body, JSON bodies with all faults at once, query parameters
// and the Prefer header.
package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// defaultRetryAfter is what callers are told when nobody knows better: long
// enough for a leader election, short enough not to be noticed.
const defaultRetryAfter = 5 * time.Second

// ErrClientGone is the error of a request nobody waits for any more.
var ErrClientGone = errors.New("client went away")

// AsError turns any error into the one that is answered. What nobody typed
// becomes internal: its text is for the log.
func AsError(err error) *packs.Error {
	var pe *packs.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &pe):
		if pe.Code.Known() {
			return pe
		}
		return internal(err)
	case errors.As(err, &tooLarge):
		return TooLarge(tooLarge.Limit)
	case errors.Is(err, artifacts.ErrNotFound):
		return packs.Fail(packs.NotFound, err, "no such artifact; list artifacts with GET /api/v1/artifacts")
	case errors.Is(err, artifacts.ErrBadCursor):
		return packs.Fail(packs.InvalidInput, err, "the cursor is none this list handed out; start without one")
	case errors.Is(err, artifacts.ErrBadLink):
		return packs.Fail(packs.Forbidden, err,
			"this download link is altered or has expired; read the job or the artifact list again for a fresh one, or send a bearer token")
	case errors.Is(err, artifacts.ErrNoSpace):
		return packs.Fail(packs.ArtifactFailed, err,
			"the artifact store is full and nothing was stored; delete artifacts or give it more space, then try again")
	case errors.Is(err, artifacts.ErrTooLarge):
		return packs.Fail(packs.PayloadTooLarge, err, "the file is larger than the artifact store takes; split it")
	case errors.Is(err, artifacts.ErrUnavailable):
		return packs.Fail(packs.ArtifactFailed, err,
			"the artifact store cannot be reached now; try again shortly, and see GET /readyz")
	case errors.Is(err, ErrClientGone), errors.Is(err, context.Canceled):
		return packs.Fail(packs.Cancelled, err, "the client hung up before the answer was there")
	case errors.Is(err, context.DeadlineExceeded):
		return packs.Fail(packs.Timeout, err, "the answer was not there in time; try again")
	}
	return internal(err)
}

func internal(err error) *packs.Error {
	return packs.Fail(packs.Internal, err, "internal error; the server's log has the details under this answer's X-Request-Id")
}

// TooLarge is the error for a body over limit bytes.
func TooLarge(limit int64) *packs.Error {
	return packs.Errorf(packs.PayloadTooLarge,
		"the body is larger than the %d bytes allowed; upload large content with POST /api/v1/artifacts/upload and pass its key", limit)
}

// ProblemOf returns the body for e.
func ProblemOf(e *packs.Error) client.Problem {
	p := client.Problem{Error: e.Code, Message: e.Message, Retryable: e.Code.Retryable(), Details: e.Details}
	after := e.Pause()
	if after <= 0 && (e.Code == packs.SessionUnavailable || e.Code == packs.RateLimited) {
		after = defaultRetryAfter
	}
	if after > 0 {
		p.RetryAfterS = int(math.Ceil(after.Seconds()))
	}
	return p
}

// WriteError answers with err; jobID is named in the body when not empty.
func WriteError(w http.ResponseWriter, err error, jobID string) {
	e := AsError(err)
	p := ProblemOf(e)
	p.JobID = jobID
	if p.RetryAfterS > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.RetryAfterS))
	}
	switch e.Code {
	case packs.MissingBearer:
		w.Header().Set("WWW-Authenticate", `Bearer realm="helmdeck"`)
	case packs.InvalidToken:
		w.Header().Set("WWW-Authenticate", `Bearer realm="helmdeck", error="invalid_token"`)
	}
	// WriteJSON cannot fail to encode a Problem, and a client that does not
	// take the answer is none of ours to report.
	_ = WriteJSON(w, e.Code.HTTPStatus(), p)
}

// WriteJSON answers with v. The error is one of encoding, before anything is
// written, or of a client that went away.
func WriteJSON(w http.ResponseWriter, status int, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	h.Set("X-Content-Type-Options", "nosniff")
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	w.WriteHeader(status)
	if _, err := io.Copy(w, &b); err != nil {
		return fmt.Errorf("%w: %w", ErrClientGone, err)
	}
	return nil
}
