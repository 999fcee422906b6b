package webhooks

import "time"

// Outcome is what became of an attempt.
type Outcome string

// The outcomes.
const (
	Delivered Outcome = "delivered" // a 2xx answer
	Retrying  Outcome = "retrying"  // not delivered, NextAt is the next attempt
	Failed    Outcome = "failed"    // not delivered, and the last attempt
	Gone      Outcome = "gone"      // 410: the receiver wants nothing more
	Dropped   Outcome = "dropped"   // not sent: the endpoint is disabled
)

// Outcomes lists them all.
var Outcomes = []Outcome{Delivered, Retrying, Failed, Gone, Dropped}

// Delivery is one event on its way to one endpoint, as the queue holds it.
type Delivery struct {
	// ID is the event's id, which receivers see as webhook-id. It is the same
	// at every attempt and every replay.
	ID string `json:"id"`
	// Endpoint is the id of an endpoint, or of the job whose own webhook it is.
	Endpoint string `json:"endpoint"`
	Tenant   string `json:"tenant"` // token
	Owner    string `json:"owner"`  // token
	JobID    string `json:"job_id,omitempty"`
	Event    string `json:"event"`
	// Kind is the X-Helmdeck-Event header: pack.complete, pack.failed, ….
	Kind string `json:"kind"`
	// URL and Secret (sealed) are those of a job's own webhook; empty when the
	// endpoint has them.
	URL    string `json:"url,omitempty"`
	Secret string `json:"secret,omitempty"`
	Format Format `json:"format"`
	Body   []byte `json:"body"`
	// Attempt counts the attempts made.
	Attempt   int       `json:"attempt"`
	CreatedAt time.Time `json:"created_at"`
}

// OfJob reports whether d is of a job's own webhook.
func (d *Delivery) OfJob() bool { return d.URL != "" }

// Attempt is one entry of the log of deliveries.
type Attempt struct {
	// Delivery is the id of the event, by which it can be replayed.
	Delivery string    `json:"delivery"`
	Event    string    `json:"event"`
	JobID    string    `json:"job_id,omitempty"`
	Attempt  int       `json:"attempt"` // 1 for the first
	Outcome  Outcome   `json:"outcome"`
	Status   int       `json:"status,omitempty"` // of the answer; 0: there was none
	At       time.Time `json:"at"`
	// LatencyMS is the time to the answer, or to giving up, in milliseconds.
	LatencyMS int64 `json:"latency_ms"`
	// Response is the beginning of the answer's body, at most 1 KiB.
	Response string `json:"response,omitempty"`
	Error    string `json:"error,omitempty"`
	// NextAt is when it is tried again.
	NextAt time.Time `json:"next_at,omitzero"`
}

// LogQuery selects a page of the log, newest first.
type LogQuery struct {
	// Delivery selects the attempts of one; empty: all.
	Delivery string
	Limit    int // 1 to 200; 0: 50
	Cursor   string
}
