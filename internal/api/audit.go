package api

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/api/openapi"
	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

const maxAuditPage = 1000

func (a *API) auditRoutes() []*route {
	op := func(path, id, scope, summary string) openapi.Operation {
		return openapi.Operation{Method: get, Path: path, ID: id, Tag: "audit", Scope: scope, Summary: summary}
	}
	kinds := make([]string, len(audit.Kinds))
	for i, k := range audit.Kinds {
		kinds[i] = string(k)
	}
	filters := []openapi.Param{
		query("from", "", "Happened at or after this time (RFC 3339)."), query("to", "", "Happened before this time (RFC 3339)."),
		query("event_type", "", strings.Join(kinds, ", ")+"."), query("session_id", "", "Id of the session."), query("job_id", "", "Id of the job."),
		query("actor_subject", "", "Who did it."), query("tenant", "", "Tenant of who did it."), query("severity", "", "info, warning or error."),
	}
	const whose = "Administrators see every record, others those of which they are the actor. "

	list := op("/api/v1/audit", "list_audit", readPacks, "List audit records, newest first")
	list.Description = whose + "A page costs a bounded number of reads, so it may be short, or empty, and still have a next_cursor."
	list.Params = append(append([]openapi.Param{}, filters...),
		query("limit", "integer", "Records on a page, 1 to 1000; 100 by default."), cursorParam)
	list.Answers = []openapi.Answer{{Status: ok, Description: "One page.", Body: client.AuditList{}}}

	export := op("/api/v1/audit/export", "export_audit", readPacks, "Stream audit records, oldest first")
	export.Description = whose + "One JSON object a line, byte for byte as it was sealed, so that the chain can be checked without this server (see docs/audit.md)."
	export.Params = filters
	export.Answers = []openapi.Answer{{Status: ok, Description: "The records.", Type: "application/x-ndjson"}}

	verify := op("/api/v1/audit/verify", "verify_audit", adminOnly, "Check the chain of the audit trail")
	verify.Description = "Names what was removed, edited, reordered, filed wrongly or cut off. One call checks at most 200,000 records or 20 s; " +
		"when next is there, ask again with it as after."
	verify.Params = []openapi.Param{
		query("from", "", "Sealed at or after this time (RFC 3339)."), query("to", "", "Sealed before this time (RFC 3339)."),
		query("after", "integer", "next of the report before."),
	}
	verify.Answers = []openapi.Answer{{Status: ok, Description: "What was found.", Body: client.AuditReport{}}}
	return []*route{{list, false, a.listAudit}, {export, false, a.exportAudit}, {verify, false, a.verifyAudit}}
}

var auditFilters = []string{"from", "to", "event_type", "session_id", "job_id", "actor_subject", "tenant", "severity"}

// auditQuery reads the filters; somebody who is no administrator gets his own.
func auditQuery(r *http.Request, q *wire.Query) audit.Query {
	kinds := make([]string, len(audit.Kinds))
	for i, k := range audit.Kinds {
		kinds[i] = string(k)
	}
	out := audit.Query{AuditQuery: client.AuditQuery{
		From: q.Time("from"), To: q.Time("to"), EventType: q.OneOf("event_type", kinds...),
		SessionID: q.Text("session_id"), JobID: q.Text("job_id"), ActorSubject: q.Text("actor_subject"), Tenant: q.Text("tenant"),
		Severity: q.OneOf("severity", audit.Info, audit.Warning, audit.Error),
	}}
	if c := callerOf(r.Context()); !c.Admin() {
		out.Own = &c
	}
	return out
}

func (a *API) listAudit(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, append([]string{"limit", "cursor"}, auditFilters...)...)
	query := auditQuery(r, q)
	query.Limit, query.Cursor = q.Int("limit", 1, maxAuditPage, 0), q.Text("cursor")
	if err := q.Err(); err != nil {
		return err
	}
	page, next, err := a.cfg.Trail.List(r.Context(), query)
	if err != nil {
		return trailError(err)
	}
	if page == nil {
		page = []client.AuditEntry{}
	}
	return x.writeJSON(http.StatusOK, client.AuditList{Entries: page, Count: len(page), NextCursor: next})
}

func (a *API) exportAudit(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, auditFilters...)
	query := auditQuery(r, q)
	if err := q.Err(); err != nil {
		return err
	}
	h := x.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	err := a.cfg.Trail.Export(r.Context(), query, func(stored []byte) error {
		if err := a.life.Err(); err != nil {
			return err
		}
		if _, err := x.Write(append(stored, '\n')); err != nil {
			return fmt.Errorf("%w: %w", wire.ErrClientGone, err)
		}
		return nil
	})
	if err != nil && x.status == 0 {
		h.Del("Content-Type")
		return trailError(err)
	}
	if err != nil {
		x.err = err
		// A cut connection is the only way to say that there would be more.
		panic(http.ErrAbortHandler)
	}
	return nil
}

func (a *API) verifyAudit(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "from", "to", "after")
	from, to := q.Time("from"), q.Time("to")
	after, err := strconv.ParseUint(q.Text("after"), 10, 64)
	if q.Text("after") != "" && err != nil {
		return packs.Fail(packs.InvalidInput, err, "after must be the next of the report before")
	}
	if err := q.Err(); err != nil {
		return err
	}
	report, err := a.cfg.Trail.Verify(r.Context(), from, to, after)
	if err != nil {
		return trailError(err)
	}
	return x.writeJSON(http.StatusOK, report)
}

func trailError(err error) error {
	switch {
	case errors.Is(err, audit.ErrBadCursor):
		return packs.Fail(packs.InvalidInput, err, "the cursor is none this list handed out; start without one")
	case errors.Is(err, audit.ErrUnavailable):
		return packs.Fail(packs.SessionUnavailable, err, "the audit trail cannot be read now; nothing is lost, try again shortly, and see GET /readyz")
	}
	return err
}

// unaudited are the paths whose calls leave no record: what monitors ask all
// day long, and the pages of the documentation.
func unaudited(path string) bool {
	return quiet(path) || path == "/version" || path == "/" || path == "/docs" || strings.HasPrefix(path, "/docs/")
}

// audit records a call.
func (a *API) audit(x *exchange, r *http.Request, status int, took time.Duration) {
	if a.cfg.Audit == nil || unaudited(r.URL.Path) {
		return
	}
	payload := map[string]any{"elapsed_ms": took.Milliseconds(), "request_id": x.id, "bytes": x.bytes}
	if agent := r.UserAgent(); agent != "" {
		payload["user_agent"] = agent
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		payload["remote_ip"] = host
	}
	if x.err != nil {
		payload["code"] = string(wire.AsError(x.err).Code)
	}
	a.cfg.Audit.Record(audit.Event{
		At: x.start, Kind: audit.Request, Actor: x.caller, JobID: x.job(r), Method: r.Method, Path: r.URL.Path, Status: status, Payload: payload,
	})
}

// job is the job that a call was about, "" when it was about none or many.
func (x *exchange) job(r *http.Request) string {
	const jobs = "/api/v1/jobs/"
	if x.failedJob != "" {
		return x.failedJob
	}
	if strings.HasPrefix(x.route, jobs+"{id}") {
		return r.PathValue("id")
	}
	if _, id, ok := strings.Cut(x.Header().Get("Location"), jobs); ok {
		return id
	}
	return ""
}
