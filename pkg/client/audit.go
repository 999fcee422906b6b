package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// AuditEntry is one record of the audit trail.
type AuditEntry struct {
	// ID rises by one from record to record.
	ID uint64 `json:"id"`
	// Timestamp is when it happened, in UTC.
	Timestamp time.Time `json:"timestamp"`
	// Severity is info, warning or error; of a request by its status.
	Severity string `json:"severity"`
	// EventType is request, tool_call, job_end, vault_use, vault_refused, lease,
	// egress, egress_refused, token or policy.
	EventType string `json:"event_type"`
	// ActorSubject is who did it, empty when nobody was authenticated, and
	// ActorClient by which program.
	ActorSubject string `json:"actor_subject"`
	ActorClient  string `json:"actor_client,omitempty"`
	Tenant       string `json:"tenant,omitempty"`
	SessionID    string `json:"session_id,omitempty"`
	JobID        string `json:"job_id,omitempty"`
	Method       string `json:"method,omitempty"`
	Path         string `json:"path,omitempty"` // without the query
	StatusCode   int    `json:"status_code,omitempty"`
	// Payload is an object that depends on the event type; redacted.
	Payload json.RawMessage `json:"payload,omitempty"`
	// SealedAt is when the record joined the chain; its day, in UTC, is the day
	// of the chain it belongs to.
	SealedAt time.Time `json:"sealed_at"`
	// PrevHash is the hash of the record before, and Hash the SHA-256, in hex,
	// of this record as compact JSON in this order of keys, without hash.
	PrevHash string `json:"prev_hash"`
	Hash     string `json:"hash"`
}

// AuditList is one page of the trail, newest first.
type AuditList struct {
	Entries []AuditEntry `json:"entries"`
	Count   int          `json:"count"` // entries on this page
	// NextCursor is there when older records may match. A page may hold fewer
	// entries than asked for, or none, and still have it: a call reads a
	// bounded number of records.
	NextCursor string `json:"next_cursor,omitempty"`
}

// AuditQuery selects records. Zero fields select everything.
type AuditQuery struct {
	From, To     time.Time // timestamps in [From, To)
	EventType    string
	SessionID    string
	JobID        string
	ActorSubject string
	Tenant       string
	Severity     string
	Limit        int // of a page, 1 to 1000; 0: 100
	Cursor       string
}

// AuditFault is one thing that is wrong with the trail.
type AuditFault struct {
	// Kind is removed, edited, reordered, misfiled, truncated or anchor.
	Kind string `json:"kind"`
	// ID is the record at fault, the first one when To is set.
	ID      uint64 `json:"id"`
	To      uint64 `json:"to,omitempty"` // the last record at fault
	Message string `json:"message"`
}

// AuditDay is the chain of one day.
type AuditDay struct {
	Day   string `json:"day"`   // 2006-01-02, UTC
	First uint64 `json:"first"` // ids of the first and last record checked
	Last  uint64 `json:"last"`
	// Hash is that of the last record.
	Hash string `json:"hash"`
	// Anchored: the day is over, and its end agrees with the anchor that is
	// kept apart from the trail.
	Anchored bool `json:"anchored"`
}

// AuditReport is the outcome of a check of the trail.
type AuditReport struct {
	// OK: no fault was found in what was checked.
	OK      bool         `json:"ok"`
	Checked int          `json:"checked"` // records
	Days    []AuditDay   `json:"days"`
	Faults  []AuditFault `json:"faults"` // at most 100
	// Next is where the check goes on when it did not come to the end within
	// one call: the after of the next one.
	Next uint64 `json:"next,omitempty"`
	// Head is the newest record as its anchor has it, for keeping elsewhere.
	HeadID   uint64 `json:"head_id"`
	HeadHash string `json:"head_hash"`
}

func (q AuditQuery) values() url.Values {
	return values("from", timestamp(q.From), "to", timestamp(q.To), "event_type", q.EventType, "session_id", q.SessionID,
		"job_id", q.JobID, "actor_subject", q.ActorSubject, "tenant", q.Tenant, "severity", q.Severity,
		"limit", number(q.Limit), "cursor", q.Cursor)
}

// Audit lists records of the audit trail, newest first: all for
// administrators, the caller's own for others.
func (c *Client) Audit(ctx context.Context, q AuditQuery) (list AuditList, err error) {
	err = c.get(ctx, pathOf("audit"), q.values(), &list)
	return list, err
}

// VerifyAudit checks the chain of the records sealed from from to to; zero
// times are no bounds. It goes on after record after, for which it wants the
// Next of the report before; 0 begins.
func (c *Client) VerifyAudit(ctx context.Context, from, to time.Time, after uint64) (r AuditReport, err error) {
	v := values("from", timestamp(from), "to", timestamp(to))
	if after > 0 {
		v.Set("after", strconv.FormatUint(after, 10))
	}
	err = c.get(ctx, pathOf("audit", "verify"), v, &r)
	return r, err
}

// ExportAudit streams the records that q selects, oldest first, one JSON
// object a line, byte for byte as they were sealed. The caller closes it.
// Limit and Cursor of q are of no account.
func (c *Client) ExportAudit(ctx context.Context, q AuditQuery) (io.ReadCloser, error) {
	q.Limit, q.Cursor = 0, ""
	res, err := c.send(ctx, call{method: http.MethodGet, path: pathOf("audit", "export"), query: q.values(), repeat: true})
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}
