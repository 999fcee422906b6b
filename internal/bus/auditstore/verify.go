package auditstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/client"
)

// The kinds of faults of a trail.
const (
	faultRemoved   = "removed"
	faultEdited    = "edited"
	faultReordered = "reordered"
	faultMisfiled  = "misfiled"
	faultTruncated = "truncated"
	faultAnchor    = "anchor"
)

const (
	// maxFaults bounds a report.
	maxFaults = 100
	// checkRecords and checkTime bound one call of Verify.
	checkRecords = 200_000
	checkTime    = 20 * time.Second
	// ageSlack is how much younger than the retention a record may be that age
	// has removed: the server looks now and then.
	ageSlack = time.Hour
	// nearlyFull is how full the stream is, in percent, when the oldest records
	// may have made room.
	nearlyFull = 90
)

// Verify implements audit.Trail.
func (t *Trail) Verify(ctx context.Context, from, to time.Time, after uint64) (client.AuditReport, error) {
	c := check{trail: t, report: client.AuditReport{Days: []client.AuditDay{}, Faults: []client.AuditFault{}}}
	now := time.Now
	if t.Now != nil {
		now = t.Now
	}
	c.now = now()
	if err := c.begin(ctx, from, to, after); err != nil {
		return c.report, busError(err)
	}
	deadline := now().Add(checkTime)
	err := t.scan(ctx, stretch{c.next, c.last, everyRecord}, func(m bus.Message) error {
		c.record(m)
		if c.report.Checked%1000 == 0 && now().After(deadline) || c.report.Checked == checkRecords {
			if m.Sequence < c.last {
				c.report.Next = m.Sequence
				return errEnough
			}
		}
		return nil
	})
	if err != nil {
		return c.report, busError(err)
	}
	if c.report.Next == 0 {
		c.end(to.IsZero())
	}
	c.endDay(false)
	c.report.OK = len(c.report.Faults) == 0
	return c.report, nil
}

// check is one walk along the trail.
type check struct {
	trail *Trail
	book  book
	state bus.StreamState
	now   time.Time

	next, last uint64 // ids: the next one expected, and where to end
	prev       string // hash of the record before next; "" when it is not known
	prevAt     time.Time
	day        client.AuditDay
	report     client.AuditReport
}

func (c *check) fault(kind string, id, to uint64, format string, args ...any) {
	if len(c.report.Faults) < maxFaults {
		c.report.Faults = append(c.report.Faults, client.AuditFault{Kind: kind, ID: id, To: to, Message: fmt.Sprintf(format, args...)})
	}
}

func (c *check) begin(ctx context.Context, from, to time.Time, after uint64) (err error) {
	// The anchors first: what they speak of is in the trail by then.
	if c.book, err = (anchors{c.trail.JS, c.trail.Secret}).all(ctx); err != nil {
		return err
	}
	if c.state, err = c.trail.JS.Stream(ctx, bus.StreamTrail, ""); err != nil {
		return err
	}
	c.next, c.last = max(c.state.First, 1), c.state.Last
	if !to.IsZero() {
		at, err := sealedSince(ctx, c.trail.JS, to)
		if err != nil {
			return err
		}
		if at > 0 {
			c.last = at - 1
		}
	}
	switch {
	case after > 0:
		c.next = max(after+1, c.next)
		return c.link(ctx)
	case !from.IsZero():
		at, err := sealedSince(ctx, c.trail.JS, from)
		if err != nil {
			return err
		}
		if c.next = at; at == 0 {
			c.next = c.last + 1
		}
	}
	c.standing()
	if c.next == c.state.First {
		return c.oldest(ctx)
	}
	return c.link(ctx)
}

// standing tells of what is wrong wherever one looks.
func (c *check) standing() {
	for _, key := range c.book.forged {
		c.fault(faultAnchor, 0, 0, "the anchor %s was not written with the keys of this installation", key)
	}
	for _, a := range c.book.cuts {
		c.fault(faultTruncated, min(a.Found+1, a.ID), a.ID,
			"record %d had the hash %s and was gone or another one when the trail was read anew; an older backup that was restored explains it", a.ID, a.Hash)
	}
}

// oldest judges what is missing before the first record that is there.
func (c *check) oldest(ctx context.Context) error {
	first := c.state.First
	if first <= 1 {
		c.prev = audit.NoHash
		return nil
	}
	for _, a := range c.book.days {
		if a.ID == first-1 {
			c.prev = a.Hash
		}
	}
	var at time.Time
	if c.state.Messages == 0 {
		if c.book.head == nil {
			return nil
		}
		at = c.book.head.At
	} else {
		m, err := c.trail.JS.Next(ctx, bus.StreamTrail, everyRecord, first)
		if err != nil {
			return err
		}
		if at, err = sealedAt(m); err != nil {
			return err
		}
	}
	aged := c.state.MaxAge > 0 && c.now.Sub(at) > c.state.MaxAge-ageSlack
	full := c.state.MaxBytes > 0 && c.state.Bytes > uint64(c.state.MaxBytes)/100*nearlyFull
	if !aged && !full {
		c.fault(faultRemoved, 1, first-1, "the oldest records are gone, and neither their age nor the size of the trail explains it")
	}
	return nil
}

// link finds the hash of the record before the next one.
func (c *check) link(ctx context.Context) error {
	if c.next <= 1 {
		c.prev = audit.NoHash
		return nil
	}
	m, err := c.trail.JS.Next(ctx, bus.StreamTrail, everyRecord, c.next-1)
	if errors.Is(err, bus.ErrNoMessage) || err == nil && m.Sequence != c.next-1 {
		return nil
	}
	if err != nil {
		return err
	}
	r, _ := audit.Open(m.Data) // when it was changed, its own check tells
	c.prev, c.prevAt = r.Hash, r.SealedAt
	return nil
}

// record checks one record.
func (c *check) record(m bus.Message) {
	id := m.Sequence
	if id > c.next {
		c.fault(faultRemoved, c.next, id-1, "records are missing before record %d", id)
		c.prev = ""
	}
	c.report.Checked++
	r, err := audit.Open(m.Data)
	if err != nil {
		c.fault(faultEdited, id, 0, "its content is not what its hash was made of")
	} else {
		c.placed(m, r)
	}
	c.anchored(id, r.Hash)
	if day := audit.DayOf(r); day != c.day.Day {
		c.endDay(true)
		c.day = client.AuditDay{Day: day, First: id}
	}
	c.day.Last, c.day.Hash = id, r.Hash
	c.next, c.prev, c.prevAt = id+1, r.Hash, r.SealedAt
	c.report.HeadID, c.report.HeadHash = id, r.Hash
}

// placed checks that an unchanged record is where it belongs.
func (c *check) placed(m bus.Message, r audit.Record) {
	switch {
	case r.ID != m.Sequence:
		c.fault(faultReordered, m.Sequence, 0, "it was sealed as record %d", r.ID)
	case c.prev != "" && r.PrevHash != c.prev:
		c.fault(faultEdited, m.Sequence, 0, "it does not follow record %d as that is now: one of both was replaced", m.Sequence-1)
	case r.SealedAt.Before(c.prevAt):
		c.fault(faultReordered, m.Sequence, 0, "it is older than the record before")
	}
	tokens := strings.Split(m.Subject, ".")
	if len(tokens) != 5 || !audit.FiledRight(r, tokens[2], tokens[3]) {
		c.fault(faultMisfiled, m.Sequence, 0, "it lies under %s, where searches for its actor or kind miss it", m.Subject)
	}
}

// anchored compares a record with the anchor of the newest one.
func (c *check) anchored(id uint64, hash string) {
	if a := c.book.head; a != nil && a.ID == id && a.Hash != hash {
		c.fault(faultAnchor, id, 0, "its anchor has the hash %s: the trail was rewritten", a.Hash)
	}
}

// endDay reports the day that was walked; over says that a later record was
// met.
func (c *check) endDay(over bool) {
	if c.day.Day == "" {
		return
	}
	a, ok := c.book.days[c.day.Day]
	switch {
	case over && !ok:
		c.fault(faultAnchor, c.day.Last, 0, "the day %s is over and has no anchor", c.day.Day)
	case over && (a.ID != c.day.Last || a.Hash != c.day.Hash):
		c.fault(faultAnchor, c.day.Last, 0, "the day %s ended with record %d and the hash %s by its anchor", c.day.Day, a.ID, a.Hash)
	default:
		c.day.Anchored = over
	}
	c.report.Days = append(c.report.Days, c.day)
	c.day = client.AuditDay{}
}

// end checks that nothing is missing behind the last record; whole says that
// the newest records belong to what was asked for.
func (c *check) end(whole bool) {
	if c.next <= c.last {
		c.fault(faultRemoved, c.next, c.last, "records are missing at the end")
	}
	a := c.book.head
	if whole && a != nil && a.ID > c.state.Last {
		c.fault(faultTruncated, c.state.Last+1, a.ID, "the trail ends before the newest record by its anchor, whose hash is %s", a.Hash)
	}
}
