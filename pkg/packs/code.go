package packs

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Code is one of the closed set of error codes every surface answers with.
type Code string

// The codes a job may end with. Surfaces add those of their own transport
// (missing_bearer, method_not_allowed, payload_too_large, …).
const (
	InvalidInput        Code = "invalid_input"
	CredentialInvalid   Code = "credential_invalid"
	SchemaMismatch      Code = "schema_mismatch"
	SessionUnavailable  Code = "session_unavailable"
	ResourceExhausted   Code = "resource_exhausted"
	RateLimited         Code = "rate_limited"
	Timeout             Code = "timeout"
	ArtifactFailed      Code = "artifact_failed"
	HandlerFailed       Code = "handler_failed"
	InvalidOutput       Code = "invalid_output"
	Cancelled           Code = "cancelled"
	IdempotencyConflict Code = "idempotency_conflict"
	OutcomeUnknown      Code = "outcome_unknown"
	MissingBearer       Code = "missing_bearer"
	InvalidToken        Code = "invalid_token"
	MethodNotAllowed    Code = "method_not_allowed"
	PayloadTooLarge     Code = "payload_too_large"
	Forbidden           Code = "forbidden"
	NotFound            Code = "not_found"
	Internal            Code = "internal"
)

type codeFacts struct {
	status    int
	retryable bool
	automatic bool // the system retries it by itself
}

var codes = map[Code]codeFacts{
	InvalidInput:        {status: http.StatusBadRequest},
	CredentialInvalid:   {status: http.StatusFailedDependency},
	SchemaMismatch:      {status: http.StatusConflict, retryable: true},
	SessionUnavailable:  {status: http.StatusServiceUnavailable, retryable: true, automatic: true},
	ResourceExhausted:   {status: http.StatusServiceUnavailable, retryable: true, automatic: true},
	RateLimited:         {status: http.StatusTooManyRequests, retryable: true, automatic: true},
	Timeout:             {status: http.StatusGatewayTimeout, retryable: true},
	ArtifactFailed:      {status: http.StatusBadGateway, retryable: true, automatic: true},
	HandlerFailed:       {status: http.StatusBadGateway},
	InvalidOutput:       {status: http.StatusBadGateway},
	Cancelled:           {status: http.StatusConflict},
	IdempotencyConflict: {status: http.StatusConflict},
	OutcomeUnknown:      {status: http.StatusBadGateway},
	MissingBearer:       {status: http.StatusUnauthorized},
	InvalidToken:        {status: http.StatusUnauthorized},
	MethodNotAllowed:    {status: http.StatusMethodNotAllowed},
	PayloadTooLarge:     {status: http.StatusRequestEntityTooLarge},
	Forbidden:           {status: http.StatusForbidden},
	NotFound:            {status: http.StatusNotFound},
	Internal:            {status: http.StatusInternalServerError},
}

// Known reports whether c belongs to the closed set.
func (c Code) Known() bool { _, ok := codes[c]; return ok }

// HTTPStatus is the status a surface answers with; 500 for an unknown code.
func (c Code) HTTPStatus() int {
	if f, ok := codes[c]; ok {
		return f.status
	}
	return http.StatusInternalServerError
}

// Retryable reports whether the same call may succeed later, which is what a
// caller is told.
func (c Code) Retryable() bool { return codes[c].retryable }

// Automatic reports whether the job system retries the code by itself.
func (c Code) Automatic() bool { return codes[c].automatic }

// Detail is one fault of an input, with the JSON pointer of the value.
type Detail struct {
	Pointer string `json:"pointer"`
	Message string `json:"message"`
}

// Error is the only error that crosses an edge of the system. Message is for
// the caller and says what to do next; Err is for the log.
type Error struct {
	Code    Code
	Message string
	Details []Detail
	// RetryAfter asks for a pause before the next try; zero leaves it open.
	RetryAfter time.Duration
	// Retry forces (true) or forbids (false) an automatic retry; nil leaves
	// it to the code.
	Retry *bool
	Err   error
}

// Error returns the code, the message and the cause.
func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Err)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an Error for the caller. A %w verb keeps the cause.
func Errorf(c Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: c, Message: err.Error(), Err: errors.Unwrap(err)}
}

// Fail makes an Error whose cause is only for the log.
func Fail(c Code, err error, message string) *Error {
	return &Error{Code: c, Message: message, Err: err}
}

// Fatal returns err as an Error no automatic retry follows. An err that is no
// Error yet becomes handler_failed.
func Fatal(err error) *Error { return withRetry(err, false) }

// MaxRetryAfter caps every pause an error asks for: a day, the longest window
// that upstream quotas have. More would keep a job waiting that nobody expects
// to run any more.
const MaxRetryAfter = 24 * time.Hour

// Pause is RetryAfter within its bounds, 0 to MaxRetryAfter.
func (e *Error) Pause() time.Duration { return min(max(e.RetryAfter, 0), MaxRetryAfter) }

// Retry returns err as an Error that is retried automatically, not before
// after. An err that is no Error yet becomes handler_failed.
func Retry(err error, after time.Duration) *Error {
	e := withRetry(err, true)
	e.RetryAfter = after
	return e
}

func withRetry(err error, retry bool) *Error {
	var e Error
	if typed, ok := errors.AsType[*Error](err); ok {
		e = *typed
	} else {
		e = *Fail(HandlerFailed, err, "the pack could not do its work")
	}
	e.Retry = &retry
	return &e
}
