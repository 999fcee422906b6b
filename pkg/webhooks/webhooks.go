// Package webhooks is how outside programs are told of events by HTTP: what an
// endpoint is, how a delivery is signed and verified, and how endpoints are
// made, changed and looked into.
//
// Signatures follow Standard Webhooks 1.0
// (https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md).
// A program that receives deliveries needs a [Verifier] and nothing else:
//
//	v, err := webhooks.NewVerifier(os.Getenv("WEBHOOK_SECRET"))
//	…
//	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, webhooks.MaxBody))
//	if err := v.Verify(r.Header, body); err != nil {
//		http.Error(w, "bad signature", http.StatusUnauthorized)
//		return
//	}
//
// Making deliveries of lifecycle events and sending them is the business of
// internal/webhooks; the durable side stands behind Registry, Queue and Log.
package webhooks

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Limits of what a caller may ask for.
const (
	// MaxURL, MaxDescription and MaxSecret are in bytes.
	MaxURL, MaxDescription, MaxSecret = 2048, 256, 256
	// MaxEvents, MaxPacks and MaxLabels bound the filters of an endpoint.
	MaxEvents, MaxPacks, MaxLabels = 16, 32, 32
	// MaxFilter is the longest pack or label of a filter in bytes.
	MaxFilter = 256
	// MaxBody is less than the 20 kB Standard Webhooks asks for, in bytes: a
	// larger output is left out of a delivery and linked.
	MaxBody = 20_000
	// MaxPerOwner is how many endpoints one owner may have.
	MaxPerOwner = 50
)

// Format is what the body of a delivery is.
type Format string

// The formats.
const (
	// CloudEvent is a CloudEvent 1.0 in structured JSON, the default.
	CloudEvent Format = "cloudevent"
	// Plain is the object in the CloudEvent's data alone.
	Plain Format = "plain"
)

// Names of the events an endpoint can ask for: the types of lifecycle events
// without their common prefix.
const (
	EventScheduled       = "job.scheduled"
	EventStarted         = "job.started"
	EventRetrying        = "job.retrying"
	EventCancelRequested = "job.cancel_requested"
	EventSucceeded       = "job.succeeded"
	EventFailed          = "job.failed"
	EventCancelled       = "job.cancelled"
	// EventTest is sent on request only.
	EventTest = "webhook.test"
	// EventAny stands for all events of jobs.
	EventAny = "*"
)

// Events lists the events that can be asked for, in the order of a job's life.
var Events = []string{
	EventScheduled, EventStarted, EventRetrying, EventCancelRequested, EventSucceeded, EventFailed, EventCancelled,
}

// Terminal are the events an endpoint gets that asks for none: the ends of jobs.
var Terminal = []string{EventSucceeded, EventFailed, EventCancelled}

// typePrefix begins the CloudEvents type of every event.
const typePrefix = "dev.helmdeck."

// EventOf is the name of an event by its CloudEvents type.
func EventOf(typ string) string { return strings.TrimPrefix(typ, typePrefix) }

// TypeOf is the CloudEvents type of an event by its name.
func TypeOf(event string) string { return typePrefix + event }

// Target is a webhook of one job, as a request names it.
type Target struct {
	// URL is where deliveries are posted to.
	URL string `json:"url"`
	// Secret signs them: "whsec_" and base64 of 24 to 64 bytes, or a text of at
	// most 256 bytes whose bytes are the key. Empty: they are not signed.
	Secret string `json:"secret,omitempty"`
	// Events are the names of the events wanted; none: the terminal ones.
	Events []string `json:"events,omitempty"`
	// Format is CloudEvent or Plain; empty: CloudEvent.
	Format Format `json:"format,omitempty"`
}

// Hook is a Target in the record of its job, where the secret is not.
type Hook struct {
	URL    string   `json:"url"`
	Events []string `json:"events"`
	Format Format   `json:"format"`
	// Signed is set when a secret was given.
	Signed bool `json:"signed,omitempty"`
}

// Hook returns what the record of the job keeps of t.
func (t Target) Hook() *Hook {
	return &Hook{URL: t.URL, Events: eventsOr(t.Events), Format: formatOr(t.Format), Signed: t.Secret != ""}
}

// Faults lists what is wrong with t, with pointers below at.
func (t Target) Faults(at string) []packs.Detail {
	var f faults
	f.url(at+"/url", t.URL)
	f.events(at+"/events", t.Events)
	f.format(at+"/format", t.Format)
	if t.Secret != "" {
		if _, err := ParseSecret(t.Secret); err != nil {
			f.add(at+"/secret", "%v", err)
		}
	}
	return f
}

// Wants reports whether events, a list as Target has it, holds event.
func Wants(events []string, event string) bool {
	return slices.Contains(events, event) || slices.Contains(events, EventAny)
}

// eventsOr returns the names in events without prefix, or the terminal ones.
func eventsOr(events []string) []string {
	if len(events) == 0 {
		return slices.Clone(Terminal)
	}
	out := make([]string, 0, len(events))
	for _, e := range events {
		if e = EventOf(e); !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}

func formatOr(f Format) Format {
	if f == "" {
		return CloudEvent
	}
	return f
}

// faults collects what is wrong with a request.
type faults []packs.Detail

func (f *faults) add(pointer, format string, args ...any) {
	*f = append(*f, packs.Detail{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
}

func (f *faults) url(pointer, raw string) {
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		f.add(pointer, "is required: the http or https URL to post deliveries to")
	case len(raw) > MaxURL:
		f.add(pointer, "must be at most %d bytes, got %d", MaxURL, len(raw))
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		f.add(pointer, "must be an absolute http or https URL such as https://example.com/hooks")
	case u.User != nil:
		f.add(pointer, "must hold no user name or password; deliveries are signed instead, see secret")
	case u.Fragment != "":
		f.add(pointer, "must have no fragment (#…)")
	}
}

func (f *faults) events(pointer string, events []string) {
	if len(events) > MaxEvents {
		f.add(pointer, "at most %d events, got %d", MaxEvents, len(events))
		return
	}
	for i, e := range events {
		if e != EventAny && !slices.Contains(Events, EventOf(e)) {
			f.add(fmt.Sprintf("%s/%d", pointer, i), "unknown event %.40q; choose from %s, or * for all", e, strings.Join(Events, ", "))
		}
	}
}

func (f *faults) format(pointer string, format Format) {
	if format != "" && format != CloudEvent && format != Plain {
		f.add(pointer, "must be %s or %s, got %.40q", CloudEvent, Plain, format)
	}
}

func (f *faults) text(pointer, value string, most int) {
	if len(value) > most || !utf8.ValidString(value) {
		f.add(pointer, "must be valid UTF-8 of at most %d bytes", most)
	}
}
