package auditstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/identity"
)

// list reads all pages of a query and returns the paths, newest first.
func (r *rig) list(q audit.Query) (paths []string, pages int) {
	r.Helper()
	for {
		page, next, err := r.trail.List(r.ctx, q)
		if err != nil {
			r.Fatal(err)
		}
		pages++
		for _, rec := range page {
			paths = append(paths, rec.Path)
		}
		if len(page) > max(q.Limit, 100) {
			r.Fatalf("a page of %d records", len(page))
		}
		if next == "" {
			return paths, pages
		}
		if next == q.Cursor {
			r.Fatal("the cursor does not move")
		}
		q.Cursor = next
	}
}

// TestQueriesSelect: for generated records, some sealed hours after they
// happened and some from clocks that are ahead, every combination of filters
// lists and exports exactly what it says, on pages of any size.
func TestQueriesSelect(t *testing.T) {
	t.Parallel()
	r := setup(t)
	rnd := rand.New(rand.NewPCG(7, 7))
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	kinds := []string{"request", "job_end", "lease", "egress"}
	start := time.Now().Truncate(time.Hour)
	var all []audit.Event
	stop := r.sealer(r.js)
	const rounds, each = 8, 50
	for round := range rounds {
		r.clock.Store(int64(round) * int64(47*time.Minute))
		b := audit.Batch{Source: "gen", N: uint64(round + 1)}
		for range each {
			at := r.now().Add(time.Duration(rnd.IntN(60)-60) * time.Second)
			switch rnd.IntN(20) {
			case 0: // out of a spool
				at = at.Add(-time.Duration(rnd.IntN(10)) * time.Hour)
			case 1: // a clock that is ahead
				at = at.Add(time.Duration(rnd.IntN(5)) * time.Hour)
			}
			e := audit.Event{
				At: at, Kind: audit.Kind(pick(kinds...)), Actor: identity.Caller{Subject: pick("ann", "bob", ""), Tenant: pick("", "blue", "Grün & Co")},
				Path: fmt.Sprint("/", len(all)), Status: []int{200, 404, 500}[rnd.IntN(3)], SessionID: pick("", "s1", "s2"), JobID: pick("", "j1"),
			}
			all = append(all, e)
			b.Events = append(b.Events, pending(e))
		}
		if err := r.queue.Put(r.ctx, b); err != nil {
			t.Fatal(err)
		}
		r.records(len(all))
	}
	stop()
	r.sound()
	for range 40 {
		q := audit.Query{AuditQuery: client.AuditQuery{
			EventType: pick("", "", "request", "job_end"), ActorSubject: pick("", "", "ann", "carl"), Tenant: pick("", "", "", "Grün & Co"),
			Severity: pick("", "", "error"), SessionID: pick("", "", "s1"), JobID: pick("", "", "j1"), Limit: 20 + rnd.IntN(200),
		}}
		if rnd.IntN(2) == 0 {
			q.From = start.Add(time.Duration(rnd.IntN(400)-60) * time.Minute)
		}
		if rnd.IntN(2) == 0 {
			q.To = start.Add(time.Duration(rnd.IntN(400)) * time.Minute)
		}
		if rnd.IntN(4) == 0 {
			q.Own = &identity.Caller{Subject: pick("ann", "bob"), Tenant: pick("", "Grün & Co")}
		}
		var want []string
		for _, e := range all {
			if wanted(q, e) {
				want = append(want, e.Path)
			}
		}
		if diff := cmp.Diff(want, r.paths(q)); diff != "" {
			t.Errorf("export of %+v (-want +got):\n%.1000s", q, diff)
		}
		slices.Reverse(want)
		got, _ := r.list(q)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("list of %+v (-want +got):\n%.1000s", q, diff)
		}
	}
}

// wanted says what a query means, one record at a time.
func wanted(q audit.Query, e audit.Event) bool {
	severity := map[int]string{200: "info", 404: "warning", 500: "error"}[e.Status]
	is := func(want, got string) bool { return want == "" || want == got }
	if q.Own != nil && (q.Own.Subject != e.Actor.Subject || q.Own.TenantToken() != e.Actor.TenantToken()) {
		return false
	}
	return (q.From.IsZero() || !e.At.Before(q.From)) && (q.To.IsZero() || e.At.Before(q.To)) &&
		is(q.EventType, string(e.Kind)) && is(q.ActorSubject, e.Actor.Subject) && is(q.Tenant, e.Actor.Tenant) &&
		is(q.Severity, severity) && is(q.SessionID, e.SessionID) && is(q.JobID, e.JobID)
}

// TestRareRecordIsFoundAtABoundedCost: the one record of an actor among very
// many costs a few reads; one that no subject tells apart is found page by
// page, none of which reads without a bound.
func TestRareRecordIsFoundAtABoundedCost(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const n = 4000
	rare := pending(audit.Event{At: r.now(), Kind: audit.Request, Actor: identity.Caller{Subject: "carl"}, SessionID: "s9", Path: "/rare"})
	if err := r.queue.Put(r.ctx, audit.Batch{Source: "r", N: 1, Events: []audit.Pending{rare}}); err != nil {
		t.Fatal(err)
	}
	paths := make([]string, 250)
	for i := range paths {
		paths[i] = "/x"
	}
	for i := range n / len(paths) {
		r.put("a", uint64(i+1), paths...)
	}
	stop := r.sealer(r.js)
	r.await("all records", func() bool {
		st, err := r.js.Stream(r.ctx, bus.StreamTrail, "")
		return err == nil && st.Last == n+1
	})
	stop()
	counted := bustest.NewFaults(r.js)
	r.trail.JS, r.trail.Budget = counted, 1000
	read := 0
	counted.Add(bustest.Rule{Op: bustest.OpScan, Kind: bustest.Delayed, Do: func() { read++ }})
	got, pages := r.list(audit.Query{AuditQuery: client.AuditQuery{ActorSubject: "carl"}})
	if diff := cmp.Diff([]string{"/rare"}, got); diff != "" || pages != 1 || read > 20 {
		t.Errorf("got %q in %d pages and %d scans, want one page and few scans", got, pages, read)
	}
	got, pages = r.list(audit.Query{AuditQuery: client.AuditQuery{SessionID: "s9"}})
	if diff := cmp.Diff([]string{"/rare"}, got); diff != "" || pages < 2 {
		t.Errorf("got %q in %d pages, want several", got, pages)
	}
	r.sound()
}

func TestBadCursorIsRefused(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for _, c := range []string{"x", "-1", "0", "1.5"} {
		if _, _, err := r.trail.List(r.ctx, audit.Query{AuditQuery: client.AuditQuery{Cursor: c}}); !errors.Is(err, audit.ErrBadCursor) {
			t.Errorf("%q: got %v, want %v", c, err, audit.ErrBadCursor)
		}
	}
	if got, _ := r.list(audit.Query{}); len(got) != 0 {
		t.Errorf("an empty trail lists %q", got)
	}
	r.sound()
}
