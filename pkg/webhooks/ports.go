package webhooks

import (
	"context"
	"errors"
)

// Errors of the ports a caller may branch on.
var (
	// ErrNotFound: no such endpoint, delivery or event.
	ErrNotFound = errors.New("webhook not found")
	// ErrConflict: the endpoint changed since it was read.
	ErrConflict = errors.New("endpoint changed")
	// ErrTooMany: the owner has MaxPerOwner endpoints.
	ErrTooMany = errors.New("too many endpoints")
	// ErrPending: the delivery waits for its attempt already.
	ErrPending = errors.New("delivery pending")
	// ErrUnavailable: the bus cannot be reached or its storage failed.
	ErrUnavailable = errors.New("bus unavailable")
)

// Registry keeps endpoints. What it reads is never older than a write that was
// answered before the read began, on whatever replica.
type Registry interface {
	// Create stores r, or ErrTooMany.
	Create(ctx context.Context, r Record) (Record, error)
	// Update replaces the record r was read from, or ErrConflict.
	Update(ctx context.Context, r Record) (Record, error)
	// Delete removes r and everything that waits for it.
	Delete(ctx context.Context, r Record) error
	// Of lists the endpoints of an owner, both tokens, oldest first; both
	// empty: all.
	Of(ctx context.Context, tenant, owner string) ([]Record, error)
	// Find returns the endpoint id, or ErrNotFound.
	Find(ctx context.Context, id string) (Record, error)
}

// Queue holds the deliveries that wait for an attempt.
type Queue interface {
	// Enqueue stores d; nil only when the bus has it safe, ErrPending when it
	// waits there already. once de-duplicates: the same delivery twice within
	// the bus's window is stored once.
	Enqueue(ctx context.Context, d Delivery, once bool) error
	// Recall takes d off the retry ladder; absent is no error.
	Recall(ctx context.Context, d Delivery) error
}

// Log keeps what became of attempts, bounded: see the bus's topology.
type Log interface {
	// Append adds an entry under an endpoint, or a job with a webhook.
	Append(ctx context.Context, tenant, endpoint string, a Attempt) error
	// List returns entries newest first.
	List(ctx context.Context, tenant, endpoint string, q LogQuery) (page []Attempt, next string, err error)
}

// Courier makes deliveries on request.
type Courier interface {
	// Test queues a delivery of EventTest and returns its id.
	Test(ctx context.Context, r Record) (id string, err error)
	// Again queues the delivery of an event of a job once more: to the
	// endpoint r, or to the job's own webhook when r is nil. ErrNotFound when
	// the event is no longer kept.
	Again(ctx context.Context, o Origin, r *Record) error
}

// Origin locates an event of a job.
type Origin struct {
	Tenant, Owner string // tokens
	JobID, Event  string // id of the job, id of the event
}
