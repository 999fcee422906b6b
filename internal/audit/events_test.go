package audit_test

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// TestEventsSayWhatHappened: what each part of the system tells becomes the
// record it should.
func TestEventsSayWhatHappened(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 12, 0, 0, 5, time.UTC)
	ann := identity.Caller{Subject: "ann", Tenant: "Grün & Co", Client: "cli"}
	token := ann.TenantToken()
	conn := egress.Connection{
		Identity: egress.Identity{Tenant: token, Caller: "ann", Lease: "l1", Job: "j1"}, Host: "deck.example", Port: 443,
		Addr: netip.MustParseAddrPort("192.0.2.1:443"), Verdict: egress.Allowed, Up: 1, Down: 2, StartedAt: at, Duration: time.Second,
	}
	refused := conn
	refused.Verdict, refused.Rule, refused.Reason = egress.Denied, "private", "refused"
	away := conn
	away.Verdict, away.Reason = egress.Unreachable, "nobody answers"
	var ended []audit.Event
	ends := audit.JobEnds{Store: func(e audit.Event, stored func(error)) { ended = append(ended, e); stored(nil) }}
	safe := 0
	for _, state := range []jobs.State{jobs.Succeeded, jobs.Failed, jobs.Cancelled} {
		job := jobs.Job{ID: "j1", Pack: "test.echo", Version: "v1", State: state, Attempt: 1, Caller: ann, SessionID: "l1", FinishedAt: at, DurationMS: 7, Worker: "w"}
		if state == jobs.Failed {
			job.Error = &jobs.Failure{Code: "timeout", Message: "a secret text"}
		}
		ends.Ended(job, 9, true, func(error) { safe++ })
	}
	if safe != 3 || ended[0].Once != 9 || !ended[0].Repeated {
		t.Errorf("%d ends are safe, the first is %+v", safe, ended[0])
	}
	lease := sessions.Lease{ID: "l1", JobID: "j1", Caller: ann, Host: "h", Worker: "w", Attempt: 1, Generation: 2, Spec: sessions.Spec{Image: "base"}, Error: "gone"}
	type row struct {
		Type, Severity, Subject, Tenant, TenantToken, Session, Job string
		Payload                                                    map[string]any
	}
	bytes := map[string]any{"host": "deck.example", "port": 443., "tunnel": false, "address": "192.0.2.1:443", "bytes_up": 1., "bytes_down": 2., "elapsed_ms": 1000.}
	with := func(base map[string]any, pairs ...any) map[string]any {
		out := map[string]any{}
		for k, v := range base {
			out[k] = v
		}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i].(string)] = pairs[i+1]
		}
		return out
	}
	end := map[string]any{"pack": "test.echo", "version": "v1", "attempts": 1., "duration_ms": 7., "sequence": 9., "worker": "w"}
	for name, tt := range map[string]struct {
		event audit.Event
		want  row
	}{
		"allowed":   {audit.Connected(conn), row{"egress", "info", "ann", token, token, "l1", "j1", with(bytes, "verdict", "allowed")}},
		"refused":   {audit.Connected(refused), row{"egress_refused", "warning", "ann", token, token, "l1", "j1", with(bytes, "verdict", "denied", "rule", "private", "reason", "refused")}},
		"away":      {audit.Connected(away), row{"egress", "warning", "ann", token, token, "l1", "j1", with(bytes, "verdict", "unreachable", "reason", "nobody answers")}},
		"succeeded": {ended[0], row{"job_end", "info", "ann", "Grün & Co", token, "l1", "j1", with(end, "state", "succeeded")}},
		"failed":    {ended[1], row{"job_end", "error", "ann", "Grün & Co", token, "l1", "j1", with(end, "state", "failed", "code", "timeout")}},
		"cancelled": {ended[2], row{"job_end", "warning", "ann", "Grün & Co", token, "l1", "j1", with(end, "state", "cancelled")}},
		"lease": {audit.LeaseChanged(lease, "lost"), row{"lease", "warning", "ann", "Grün & Co", token, "l1", "j1", map[string]any{
			"action": "lost", "image": "base", "host": "h", "worker": "w", "attempt": 1., "generation": 2., "reason": "gone"}}},
		"token": {audit.TokenChanged(ann, "created", "t1", "ci", []string{"packs:*"}, at), row{"token", "info", "ann", "Grün & Co", token, "", "", map[string]any{
			"action": "created", "id": "t1", "name": "ci", "scopes": []any{"packs:*"}, "expires_at": "2026-01-31T12:00:00Z"}}},
		"policy": {audit.PolicyChanged(identity.Caller{}, "limits", map[string]any{"file": "l.yaml"}), row{"policy", "info", "", "", "default", "", "", map[string]any{
			"action": "changed", "policy": "limits", "file": "l.yaml"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := audit.Redactor{}.Pending(tt.event)
			got := row{p.EventType, p.Severity, p.ActorSubject, p.Tenant, p.TenantToken, p.SessionID, p.JobID, nil}
			if err := json.Unmarshal(p.Payload, &got.Payload); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
			if !audit.Kind(p.EventType).Known() || p.Owner != audit.OwnerOf(p.ActorSubject) {
				t.Errorf("filed as %s of %s", p.EventType, p.Owner)
			}
		})
	}
}
