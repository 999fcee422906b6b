package auditstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/identity"
)

// Trail implements audit.Trail.
type Trail struct {
	JS     bus.JetStream
	Secret []byte // as of the Sealer
	// Budget is how many records one page may cost to read, and some more; 0:
	// 20,000.
	Budget int
	Now    func() time.Time // nil: time.Now
}

const (
	defaultPage   = 100
	defaultBudget = 20_000
	// A page is looked for in windows from the newest record back, each wider
	// than the one before, as long as a window has no more than windowRecords.
	firstWindow   = 512
	widestWindow  = 1 << 22
	windowRecords = 2048
	windowCost    = 64 // of a window without records
)

// stretch is a part of the trail, both ends included.
type stretch struct {
	from, to uint64
	filter   string
}

// stretches are the parts that may hold what q selects, oldest first. A record
// that was sealed in time is near its own time; others are found by their
// subject, wherever they are.
func (t *Trail) stretches(ctx context.Context, q audit.Query, state bus.StreamState) ([]stretch, error) {
	tenant, kind, owner := "*", "*", "*"
	if q.Tenant != "" {
		tenant = identity.Caller{Tenant: q.Tenant}.TenantToken()
	}
	if q.EventType != "" {
		kind = q.EventType
	}
	if q.ActorSubject != "" {
		owner = audit.OwnerOf(q.ActorSubject)
	}
	if q.Own != nil {
		tenant, owner = q.Own.TenantToken(), audit.OwnerOf(q.Own.Subject)
	}
	first, last := state.First, state.Last
	low, high := first, last
	if !q.From.IsZero() {
		at, err := sealedSince(ctx, t.JS, q.From.Add(-lateness))
		if err != nil {
			return nil, err
		}
		if low = at; at == 0 {
			low = last + 1
		}
	}
	if !q.To.IsZero() {
		at, err := sealedSince(ctx, t.JS, q.To.Add(lateness))
		if err != nil {
			return nil, err
		}
		if at > 0 {
			high = at - 1
		}
	}
	return []stretch{
		{first, low - 1, subjectOf(tenant, kind, owner, late)},
		{low, high, subjectOf(tenant, kind, owner, "*")},
		{max(high+1, low), last, subjectOf(tenant, kind, owner, late)},
	}, nil
}

// selects reports whether q selects r.
func selects(q *audit.Query, r *audit.Record) bool {
	same := func(want, got string) bool { return want == "" || want == got }
	switch {
	case q.Own != nil && q.Own.Subject != r.ActorSubject && audit.FiledRight(*r, r.EventType, ""):
		return false
	case !q.From.IsZero() && r.Timestamp.Before(q.From), !q.To.IsZero() && !r.Timestamp.Before(q.To):
		return false
	}
	return same(q.EventType, r.EventType) && same(q.SessionID, r.SessionID) && same(q.JobID, r.JobID) &&
		same(q.ActorSubject, r.ActorSubject) && sameTenant(q.Tenant, r.Tenant) && same(q.Severity, r.Severity)
}

// sameTenant reports whether a record's tenant, its name or its token, is the
// one wanted.
func sameTenant(want, got string) bool {
	token := identity.Caller{Tenant: want}.TenantToken()
	return want == "" || want == got || token == got || token == identity.Caller{Tenant: got}.TenantToken()
}

// List implements audit.Trail.
func (t *Trail) List(ctx context.Context, q audit.Query) ([]audit.Record, string, error) {
	before, err := parseCursor(q.Cursor)
	if err != nil {
		return nil, "", err
	}
	if q.Limit == 0 {
		q.Limit = defaultPage
	}
	state, err := t.JS.Stream(ctx, bus.StreamTrail, "")
	if err != nil || state.Messages == 0 {
		return nil, "", busError(err)
	}
	parts, err := t.stretches(ctx, q, state)
	if err != nil {
		return nil, "", busError(err)
	}
	p := page{trail: t, q: q, left: t.Budget}
	if p.left == 0 {
		p.left = defaultBudget
	}
	for i := len(parts) - 1; i >= 0; i-- {
		s := parts[i]
		if before > 0 {
			s.to = min(s.to, before-1)
		}
		if done, err := p.back(ctx, s); err != nil || done {
			return p.found, p.next(state.First), busError(err)
		}
	}
	return p.found, "", nil
}

func parseCursor(s string) (before uint64, err error) {
	if s == "" {
		return 0, nil
	}
	if before, err = strconv.ParseUint(s, 10, 64); err != nil || before == 0 {
		return 0, audit.ErrBadCursor
	}
	return before, nil
}

// page collects records from the newest back.
type page struct {
	trail *Trail
	q     audit.Query
	left  int // of the budget
	found []audit.Record
	at    uint64 // everything from here on was looked at
}

func (p *page) next(first uint64) string {
	if p.at <= first {
		return ""
	}
	return strconv.FormatUint(p.at, 10)
}

// back looks through s from its end. done: the page is full, or its budget
// used up.
func (p *page) back(ctx context.Context, s stretch) (done bool, err error) {
	width := uint64(firstWindow)
	for to := s.to; to >= s.from && to > 0 && s.from > 0; {
		from := s.from
		if to-s.from >= width {
			from = to - width + 1
		}
		window, full, err := p.trail.window(ctx, stretch{from, to, s.filter})
		if err != nil {
			return false, err
		}
		if p.left -= windowCost + len(window); full {
			width = max(width/8, windowRecords)
			continue
		}
		for i := len(window) - 1; i >= 0; i-- {
			r := window[i]
			p.at = r.ID
			if selects(&p.q, &r) {
				if p.found = append(p.found, r); len(p.found) == p.q.Limit {
					return true, nil
				}
			}
		}
		p.at = from
		if p.left <= 0 {
			return true, nil
		}
		to, width = from-1, min(4*width, widestWindow)
	}
	return false, nil
}

// window reads the records of s, oldest first; full means that there are more
// than a window may have, and not all were read.
func (t *Trail) window(ctx context.Context, s stretch) (records []audit.Record, full bool, err error) {
	err = t.scan(ctx, s, func(m bus.Message) error {
		if len(records) == windowRecords {
			full = true
			return errEnough
		}
		var r audit.Record
		if json.Unmarshal(m.Data, &r) != nil {
			return nil // a check of the trail tells of it
		}
		r.ID = m.Sequence
		records = append(records, r)
		return nil
	})
	return records, full, err
}

// scan calls fn for the messages of s until it returns errEnough.
func (t *Trail) scan(ctx context.Context, s stretch, fn func(bus.Message) error) error {
	if s.from > s.to || s.from == 0 {
		return nil
	}
	err := t.JS.Scan(ctx, bus.StreamTrail, []string{s.filter}, s.from, func(m bus.Message) error {
		if m.Sequence > s.to {
			return errEnough
		}
		return fn(m)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// Export implements audit.Trail.
func (t *Trail) Export(ctx context.Context, q audit.Query, fn func(stored []byte) error) error {
	state, err := t.JS.Stream(ctx, bus.StreamTrail, "")
	if err != nil || state.Messages == 0 {
		return busError(err)
	}
	parts, err := t.stretches(ctx, q, state)
	if err != nil {
		return busError(err)
	}
	for _, s := range parts {
		err := t.scan(ctx, s, func(m bus.Message) error {
			var r audit.Record
			if json.Unmarshal(m.Data, &r) != nil || !selects(&q, &r) {
				return nil // a check of the trail tells of records that are none
			}
			return fn(m.Data)
		})
		if err != nil {
			return busError(err)
		}
	}
	return nil
}

// sealedSince returns the first record sealed at or after a time, 0 when there
// is none. Records are in the order of that time.
func sealedSince(ctx context.Context, js bus.JetStream, since time.Time) (uint64, error) {
	state, err := js.Stream(ctx, bus.StreamTrail, "")
	if err != nil || state.Messages == 0 {
		return 0, err
	}
	low, high := state.First, state.Last+1 // the answer is one of them or between
	for low < high {
		middle := low + (high-low)/2
		m, err := js.Next(ctx, bus.StreamTrail, everyRecord, middle)
		if errors.Is(err, bus.ErrNoMessage) {
			high = middle
			continue
		}
		if err != nil {
			return 0, err
		}
		at, err := sealedAt(m)
		if err != nil {
			return 0, err
		}
		if at.Before(since) {
			low = m.Sequence + 1
		} else {
			high = middle
		}
	}
	if low > state.Last {
		return 0, nil
	}
	return low, nil
}

// sealedAt is when a record was sealed; the server's time of a record that
// cannot be read.
func sealedAt(m bus.Message) (time.Time, error) {
	var r struct {
		SealedAt time.Time `json:"sealed_at"`
	}
	if json.Unmarshal(m.Data, &r) != nil || r.SealedAt.IsZero() {
		if m.Time.IsZero() {
			return m.Time, fmt.Errorf("record %d has no time", m.Sequence)
		}
		return m.Time, nil
	}
	return r.SealedAt, nil
}
