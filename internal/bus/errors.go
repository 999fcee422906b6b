package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// More errors a caller may branch on.
var (
	// ErrUnavailable: no server, or no answer within the bound. Whether a
	// write was made is not known.
	ErrUnavailable = errors.New("bus unavailable")
	// ErrDenied: the role may not use the subject.
	ErrDenied = errors.New("not permitted for this role")
	// ErrDuplicate: a message of the batch was stored before, so none of it is.
	ErrDuplicate = errors.New("batch holds a message stored before")
	// ErrNoListener: nobody subscribes to the subject of a request.
	ErrNoListener = errors.New("nobody listens")
	// ErrClosed: the connection was closed.
	ErrClosed = errors.New("bus connection closed")
)

// errNoBatches: the stream was made without atomic batches, or as many as the
// server allows are open at once.
var errNoBatches = errors.New("no atomic batch possible")

// Error codes of the server that say more than their text.
const (
	codeNoCluster             = 10008 // the server is cut off from its peers
	codeNotLeader             = 10009
	codeNotReady              = 10163 // the sequence of the subject is not known yet
	codeInsufficientResources = 10023 // JetStream was shut down for want of space
	codeMemoryExceeded        = 10028
	codeNoMessage             = 10037
	codeStorageExceeded       = 10047 // the server's own limit
	codeWrongSequence         = 10071
	codeStoreFailed           = 10077 // the text says why
	codeWrongSequenceInFlight = 10164
	codeBatchDisabled         = 10174
	codeBatchIncomplete       = 10176 // a part was lost on the way; nothing is stored
	codeBatchDuplicate        = 10201
	codeBatchTooMany          = 10210
)

// apiError maps an error the server answered with onto a sentinel, keeping the
// original in the chain.
func apiError(e *jetstream.APIError) error {
	var sentinel error
	switch e.ErrorCode {
	case codeWrongSequence, codeWrongSequenceInFlight:
		sentinel = ErrWrongSequence
	case codeNoMessage:
		sentinel = ErrNoMessage
	case codeStorageExceeded, codeMemoryExceeded:
		sentinel = ErrFull
	case codeInsufficientResources:
		sentinel = ErrFrozen
	case codeBatchIncomplete, codeNoCluster, codeNotLeader, codeNotReady:
		sentinel = ErrUnavailable
	case codeBatchDisabled, codeBatchTooMany:
		sentinel = errNoBatches
	case codeBatchDuplicate:
		sentinel = ErrDuplicate
	case codeStoreFailed:
		sentinel = storeFailure(e.Description)
	}
	if sentinel == nil {
		return e
	}
	return fmt.Errorf("%w: %w", sentinel, e)
}

// storeFailure tells the three refusals of one code apart by their text.
func storeFailure(text string) error {
	switch {
	case strings.Contains(text, "maximum messages per subject"):
		return ErrSubjectTaken
	case strings.Contains(text, "maximum messages"), strings.Contains(text, "maximum bytes"):
		return ErrFull
	}
	return ErrFrozen
}

// translate turns errors of the client library into those of this package.
func (c *Conn) translate(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*jetstream.APIError](err); ok {
		return apiError(e)
	}
	switch {
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case errors.Is(err, nats.ErrPermissionViolation):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	case errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrConnectionReconnecting),
		errors.Is(err, nats.ErrDisconnected), errors.Is(err, errLost):
		if c.server != nil && c.server.frozen.Load() {
			// The server answers nothing to a write its storage refused.
			return fmt.Errorf("%w: %w", ErrFrozen, err)
		}
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}
