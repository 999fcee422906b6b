// Package audit keeps the trail of who did what: it turns events into redacted
// records, carries them to the bus without ever making anybody wait, and chains
// them by their hashes.
//
// A Writer, one in each process, takes events into memory and hands them to a
// Queue in batches; while the bus is away they go to a spool file and follow in
// order. One sealer among the API replicas (internal/bus/auditstore) reads the
// queue and appends to the trail, where each record carries the hash of the one
// before. What may be lost when, and how a change shows, is in docs/audit.md.
package audit

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/identity"
)

// Kind is what an event is about: the event_type of its record.
type Kind string

// The kinds of events.
const (
	Request       Kind = "request"        // a call of the API, refused ones included
	ToolCall      Kind = "tool_call"      // a call of a tool
	JobEnd        Kind = "job_end"        // a job succeeded, failed or was cancelled
	VaultUse      Kind = "vault_use"      // a credential was used
	VaultRefused  Kind = "vault_refused"  // a credential was asked for in vain
	Lease         Kind = "lease"          // a sidecar was granted or given back
	Egress        Kind = "egress"         // a connection to the outside
	EgressRefused Kind = "egress_refused" // one that the guard refused
	Token         Kind = "token"          // a token was made, used to log in, or revoked
	Policy        Kind = "policy"         // a rule of the installation changed
)

// Kinds lists all kinds.
var Kinds = []Kind{Request, ToolCall, JobEnd, VaultUse, VaultRefused, Lease, Egress, EgressRefused, Token, Policy}

// Known reports whether k is one of Kinds.
func (k Kind) Known() bool {
	for _, known := range Kinds {
		if k == known {
			return true
		}
	}
	return false
}

// The severities.
const (
	Info    = "info"
	Warning = "warning"
	Error   = "error"
)

// Event is something that happened. Whoever records it gives its payload away.
type Event struct {
	At   time.Time // zero: now
	Kind Kind
	// Severity is Info, Warning or Error; empty: by Status.
	Severity string
	Actor    identity.Caller // its scopes are not recorded
	// TenantToken is the token of the actor's tenant, where nothing else is
	// known of it.
	TenantToken string
	SessionID   string
	JobID       string
	Method      string
	Path        string // without the query
	Status      int    // HTTP status, 0: none
	Payload     map[string]any
	// Once makes a job's end one record however often it is recorded: the
	// sequence of its event in the lifecycle stream. Repeated says that it may
	// have been recorded before.
	Once     uint64
	Repeated bool
}

// Recorder takes events. Record returns at once, whatever the state of the bus
// and of the disk.
type Recorder interface {
	Record(e Event)
}

// Discard is a Recorder that keeps nothing.
type Discard struct{}

// Record implements Recorder.
func (Discard) Record(Event) {}

// Record is a record of the trail.
type Record = client.AuditEntry

// Pending is an event on its way to the trail: redacted, without a place.
type Pending struct {
	Record
	// TenantToken and Owner are where the record is filed.
	TenantToken string `json:"tenant_token"`
	Owner       string `json:"owner"`
	Once        uint64 `json:"once,omitempty"`
	Repeated    bool   `json:"repeated,omitempty"`
}

// Errors of a Trail.
var (
	// ErrBadCursor: the cursor is none that the list handed out.
	ErrBadCursor = errors.New("malformed cursor of the audit trail")
	// ErrUnavailable: the bus does not answer now.
	ErrUnavailable = errors.New("audit trail unavailable")
)

// Query selects records.
type Query struct {
	client.AuditQuery
	// Own, when set, selects the records whose actor this caller is.
	Own *identity.Caller
}

// Trail is the trail as readers see it.
type Trail interface {
	// List returns a page of what q selects, newest first, and the cursor of
	// the next one, "" after the last. It reads a bounded number of records, so
	// a page may be short and still have a next one.
	List(ctx context.Context, q Query) ([]Record, string, error)
	// Export calls fn with what q selects as it is stored, oldest first. Limit
	// and Cursor are of no account.
	Export(ctx context.Context, q Query, fn func(stored []byte) error) error
	// Verify checks the records sealed in [from, to), zero times being no
	// bounds, or goes on behind the record after.
	Verify(ctx context.Context, from, to time.Time, after uint64) (client.AuditReport, error)
}

// severityOf is the severity of an HTTP status.
func severityOf(status int) string {
	switch {
	case status >= http.StatusInternalServerError:
		return Error
	case status >= http.StatusBadRequest:
		return Warning
	}
	return Info
}
