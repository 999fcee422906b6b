package audit

import (
	"time"

	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// LeaseChanged is the event of a lease that was granted or has ended.
func LeaseChanged(l sessions.Lease, action string) Event {
	e := Event{
		Kind: Lease, Severity: Info, Actor: l.Caller, SessionID: l.ID, JobID: l.JobID,
		Payload: map[string]any{
			"action": action, "image": l.Spec.Image, "host": l.Host, "worker": l.Worker, "attempt": l.Attempt, "generation": l.Generation,
		},
	}
	if l.Error != "" {
		e.Severity = Warning
		e.Payload["reason"] = l.Error
	}
	return e
}

// Connected is the event of a connection through the egress proxy, a refused
// one included.
func Connected(c egress.Connection) Event {
	e := Event{
		At: c.StartedAt, Kind: Egress, Severity: Info, Actor: identity.Caller{Subject: c.Caller}, TenantToken: c.Tenant,
		SessionID: c.Lease, JobID: c.Job,
		Payload: map[string]any{
			"host": c.Host, "port": int(c.Port), "tunnel": c.Tunnel, "verdict": string(c.Verdict),
			"bytes_up": c.Up, "bytes_down": c.Down, "elapsed_ms": c.Duration.Milliseconds(),
		},
	}
	if c.Addr.IsValid() {
		e.Payload["address"] = c.Addr.String()
	}
	if c.Reason != "" {
		e.Payload["reason"] = c.Reason
	}
	switch c.Verdict {
	case egress.Allowed:
	case egress.Denied:
		e.Kind, e.Severity = EgressRefused, Warning
		e.Payload["rule"] = string(c.Rule)
	case egress.Unauthenticated, egress.Malformed, egress.Busy:
		e.Kind, e.Severity = EgressRefused, Warning
	default:
		e.Severity = Warning
	}
	return e
}

// TokenChanged is the event of a token that was made ("created"), taken back
// ("revoked") or used to log in ("login"). The token itself is none of its
// arguments.
func TokenChanged(actor identity.Caller, action, id, name string, scopes []string, expires time.Time) Event {
	e := Event{Kind: Token, Severity: Info, Actor: actor, Payload: map[string]any{"action": action, "id": id, "name": name}}
	if len(scopes) > 0 {
		e.Payload["scopes"] = scopes
	}
	if !expires.IsZero() {
		e.Payload["expires_at"] = expires.UTC().Format(time.RFC3339)
	}
	return e
}

// PolicyChanged is the event of a rule of the installation that changed: which
// ("limits", "egress"), by whom when that is known, and how.
func PolicyChanged(actor identity.Caller, policy string, details map[string]any) Event {
	payload := map[string]any{"action": "changed", "policy": policy}
	for k, v := range details {
		payload[k] = v
	}
	return Event{Kind: Policy, Severity: Info, Actor: actor, Payload: payload}
}
