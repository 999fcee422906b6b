package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/pkg/client"
)

// memoryTrail seals events as they come.
type memoryTrail struct {
	mu      sync.Mutex
	records []audit.Record
	stored  [][]byte
	asked   []audit.Query
	err     error
}

// Record implements audit.Recorder.
func (m *memoryTrail) Record(e audit.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	prev := audit.NoHash
	if n := len(m.records); n > 0 {
		prev = m.records[n-1].Hash
	}
	r, stored, err := audit.Seal(audit.Redactor{}.Pending(e), uint64(len(m.records)+1), prev, time.Now())
	if err != nil {
		panic(err)
	}
	m.records, m.stored = append(m.records, r), append(m.stored, stored)
}

// List implements audit.Trail.
func (m *memoryTrail) List(_ context.Context, q audit.Query) ([]audit.Record, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, q)
	before := uint64(len(m.records) + 1)
	if q.Cursor != "" {
		var err error
		if before, err = strconv.ParseUint(q.Cursor, 10, 64); err != nil {
			return nil, "", audit.ErrBadCursor
		}
	}
	var out []audit.Record
	for i := int(before) - 2; i >= 0; i-- {
		if r := m.records[i]; q.Own == nil || r.ActorSubject == q.Own.Subject {
			if out = append(out, r); len(out) == q.Limit {
				return out, fmt.Sprint(r.ID), m.err
			}
		}
	}
	return out, "", m.err
}

// Export implements audit.Trail.
func (m *memoryTrail) Export(_ context.Context, q audit.Query, fn func([]byte) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, r := range m.records {
		if q.Own != nil && r.ActorSubject != q.Own.Subject {
			continue
		}
		if err := fn(m.stored[i]); err != nil {
			return err
		}
	}
	return m.err
}

// Verify implements audit.Trail.
func (m *memoryTrail) Verify(context.Context, time.Time, time.Time, uint64) (client.AuditReport, error) {
	return client.AuditReport{OK: true, Days: []client.AuditDay{}, Faults: []client.AuditFault{}}, m.err
}

// last waits for the record of a call of path.
func (m *memoryTrail) last(t *testing.T, path string) audit.Record {
	t.Helper()
	for deadline := time.After(patience); ; {
		m.mu.Lock()
		for i := len(m.records) - 1; i >= 0; i-- {
			if r := m.records[i]; r.Path == path {
				m.mu.Unlock()
				return r
			}
		}
		m.mu.Unlock()
		select {
		case <-deadline:
			t.Fatalf("no record of %s", path)
		case <-time.After(time.Millisecond):
		}
	}
}

// visit makes a request and returns its status and body.
func (r *rig) visit(method, path, token, body string) (int, string) {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("User-Agent", "auditor/1")
	res, err := r.http.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// TestCallsAreAudited: every call leaves a record, also one that was refused;
// what monitors ask does not.
func TestCallsAreAudited(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, tt := range []struct {
		method, path, token, body string
		want                      audit.Record
	}{
		{"GET", "/api/v1/packs", ann, "", audit.Record{Severity: "info", ActorSubject: "ann", StatusCode: 200}},
		{"GET", "/api/v1/limits?x=secret", ann, "", audit.Record{Severity: "warning", ActorSubject: "ann", StatusCode: 400}},
		{"GET", "/api/v1/jobs", "", "", audit.Record{Severity: "warning", StatusCode: 401}},
		{"GET", "/api/v1/pools", "token-of-nobody", "", audit.Record{Severity: "warning", StatusCode: 401}},
		{"POST", "/api/v1/jobs", reader, "{}", audit.Record{Severity: "warning", ActorSubject: "ann", StatusCode: 403}},
		{"GET", "/api/v1/jobs/nope", ann, "", audit.Record{Severity: "warning", ActorSubject: "ann", StatusCode: 404, JobID: "nope"}},
		{"GET", "/api/v1/no/such/path", bob, "", audit.Record{Severity: "warning", ActorSubject: "bob", StatusCode: 404}},
		{"GET", "/admin.php", "", "", audit.Record{Severity: "warning", StatusCode: 404}},
	} {
		r.visit(tt.method, tt.path, tt.token, tt.body)
		path, _, _ := strings.Cut(tt.path, "?")
		got := r.trail.last(t, path)
		var payload map[string]any
		if err := json.Unmarshal(got.Payload, &payload); err != nil {
			t.Fatal(err)
		}
		if payload["user_agent"] != "auditor/1" || payload["remote_ip"] != "127.0.0.1" || payload["request_id"] == "" {
			t.Errorf("%s: got payload %v", tt.path, payload)
		}
		want := tt.want
		want.EventType, want.Method, want.Path = "request", tt.method, path
		want.ID, want.Timestamp, want.SealedAt, want.Payload, want.PrevHash, want.Hash = got.ID, got.Timestamp, got.SealedAt, got.Payload, got.PrevHash, got.Hash
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.path, diff)
		}
	}
	job := r.submit(ann, `{"pack":"test.echo","input":{"text":"hi"}}`)
	if got := r.trail.last(t, "/api/v1/jobs"); got.JobID != job.ID {
		t.Errorf("a submit is of job %q, want %q", got.JobID, job.ID)
	}
	before := len(r.trail.records)
	for _, path := range []string{"/healthz", "/readyz", "/version", "/metrics", "/docs"} {
		r.visit("GET", path, admin, "")
	}
	r.visit("GET", "/api/v1/packs/test.echo", ann, "")
	r.trail.last(t, "/api/v1/packs/test.echo")
	if got := len(r.trail.records) - before; got != 1 {
		t.Errorf("%d records of five calls of monitors and one more, want 1", got)
	}
}

// TestAuditIsReadByItsActors: everybody sees what he did, administrators all.
func TestAuditIsReadByItsActors(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.visit("GET", "/api/v1/packs", ann, "")
	r.visit("GET", "/api/v1/limits", bob, "")
	r.trail.last(t, "/api/v1/packs")
	r.trail.last(t, "/api/v1/limits")
	for token, want := range map[string]string{ann: "ann", bob: "bob"} {
		status, body := r.visit("GET", "/api/v1/audit?limit=1000", token, "")
		var list client.AuditList
		if err := json.Unmarshal([]byte(body), &list); err != nil || status != http.StatusOK || list.Count == 0 || list.Count != len(list.Entries) {
			t.Fatalf("%s: got %d %s", want, status, body)
		}
		for _, e := range list.Entries {
			if e.ActorSubject != want {
				t.Errorf("%s sees a record of %q", want, e.ActorSubject)
			}
		}
		status, body = r.visit("GET", "/api/v1/audit/export", token, "")
		if status != http.StatusOK || !strings.Contains(body, `"actor_subject":"`+want+`"`) || strings.Count(body, `"actor_subject":"`+want+`"`) != strings.Count(body, "\n") {
			t.Errorf("%s exports %d %s", want, status, body)
		}
		if status, _ := r.visit("GET", "/api/v1/audit/verify", token, ""); status != http.StatusForbidden {
			t.Errorf("%s may verify: %d", want, status)
		}
	}
	_, body := r.visit("GET", "/api/v1/audit", admin, "")
	if !strings.Contains(body, `"actor_subject":"ann"`) || !strings.Contains(body, `"actor_subject":"bob"`) {
		t.Errorf("an administrator sees %s", body)
	}
	_, body = r.visit("GET", "/api/v1/audit/export", admin, "")
	for line := range strings.Lines(body) {
		if _, err := audit.Open([]byte(strings.TrimSpace(line))); err != nil {
			t.Errorf("line %s: %v", line, err)
		}
	}
	if status, body := r.visit("GET", "/api/v1/audit/verify?from=2026-01-01T00:00:00Z&after=5", admin, ""); status != http.StatusOK || !strings.Contains(body, `"ok":true`) {
		t.Errorf("verify answers %d %s", status, body)
	}
}

func TestAuditRefusesBadQueries(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, q := range []string{
		"?limit=0", "?limit=1001", "?limit=x", "?from=yesterday", "?event_type=coffee", "?severity=bad", "?cursor=x", "?colour=red",
		"/verify?after=-1", "/verify?limit=5", "/export?limit=5",
	} {
		if status, body := r.visit("GET", "/api/v1/audit"+q, admin, ""); status != http.StatusBadRequest || !strings.Contains(body, "invalid_input") {
			t.Errorf("%s: got %d %s", q, status, body)
		}
	}
	r.trail.mu.Lock()
	r.trail.err = audit.ErrUnavailable
	r.trail.mu.Unlock()
	for _, q := range []string{"", "/verify"} {
		if status, body := r.visit("GET", "/api/v1/audit"+q, admin, ""); status != http.StatusServiceUnavailable {
			t.Errorf("%s without a bus: got %d %s", q, status, body)
		}
	}
}
