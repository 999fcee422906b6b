package api

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/identity"
)

// statusClientGone is what the log shows for a request whose client left; it
// never goes over the wire.
const statusClientGone = 499

// exchange is one request and its answer: a ResponseWriter that remembers
// what the log line and the metrics need. It is not for concurrent use.
type exchange struct {
	http.ResponseWriter
	deadlines *http.ResponseController // of the wrapped writer
	stall     time.Duration
	start     time.Time
	id        string

	status int // 0: nothing is written yet
	bytes  int64
	route  string
	caller identity.Caller
	// failedJob is the job whose failure err is.
	failedJob string
	err       error
	gone      bool
}

func newExchange(w http.ResponseWriter, r *http.Request, stall time.Duration) *exchange {
	x := &exchange{
		ResponseWriter: w, deadlines: http.NewResponseController(w),
		stall: stall, start: time.Now(), id: requestID(r),
	}
	w.Header().Set("X-Request-Id", x.id)
	return x
}

// requestID takes over the id a proxy gave, when it is one.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	bad := func(c rune) bool { return c <= ' ' || c > '~' }
	if id == "" || len(id) > 64 || strings.ContainsFunc(id, bad) {
		return uuid.NewString()
	}
	return id
}

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	if x.status == 0 && status >= 200 {
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. A client that takes nothing for the
// stall limit loses its connection.
func (x *exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		x.status = http.StatusOK
	}
	// Connections without deadlines are those of tests.
	_ = x.deadlines.SetWriteDeadline(time.Now().Add(x.stall))
	n, err := x.ResponseWriter.Write(b)
	x.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// recovered turns a panic of a handler into an error, and reports whether the
// handler asked for the connection to be closed.
func (x *exchange) recovered(v any) (aborted bool) {
	if v == nil {
		return false
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		return true
	}
	x.err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
	return x.status != 0 // too late for an error body
}

// quiet are the paths that monitors ask all day long.
func quiet(path string) bool {
	return path == "/healthz" || path == "/readyz" || path == "/metrics"
}

// record writes the one log line of a request and counts it.
func (a *API) record(x *exchange, r *http.Request) {
	status := x.status
	switch {
	case x.gone:
		status = statusClientGone
	case status == 0: // a handler that wrote nothing means 200
		status = http.StatusOK
	}
	took := time.Since(x.start)
	a.metrics.observe(x.route, r.Method, status, took)
	a.audit(x, r, status, took)
	level := zerolog.InfoLevel
	switch {
	case status == http.StatusInternalServerError:
		level = zerolog.ErrorLevel
	case quiet(r.URL.Path) && status == http.StatusOK:
		level = zerolog.DebugLevel
	}
	line := a.cfg.Log.WithLevel(level)
	if x.err != nil {
		line = line.AnErr("error", x.err).Str("code", string(wire.AsError(x.err).Code))
	}
	if x.failedJob != "" {
		line = line.Str("job", x.failedJob)
	}
	if s := trace.SpanContextFromContext(r.Context()); s.IsValid() {
		line = line.Str("trace", s.TraceID().String())
	}
	// The path only: queries may hold the signature of a link.
	line.Str("request", x.id).Str("method", r.Method).Str("path", r.URL.Path).Int("status", status).
		Int64("bytes", x.bytes).Dur("took_ms", took).Str("caller", x.caller.Subject).Msg("request")
}

// writeJSON answers with v.
func (x *exchange) writeJSON(status int, v any) error { return wire.WriteJSON(x, status, v) }

// noContent answers with the header alone.
func (x *exchange) noContent() error {
	x.WriteHeader(http.StatusNoContent)
	return nil
}
