// Package auditstore is the JetStream side of the audit trail: the queue of
// events to be sealed (Queue), the sealer that chains them (Sealer), and the
// reading and checking of the trail (Trail), over the narrow interface of
// internal/bus.
//
// A record is one message of TRAIL, filed by tenant, kind, owner and lateness,
// and its id is its sequence. The sealer appends a batch only when the stream
// ends where its chain does, so any number of sealers may run: all but one
// lose. The last message of a batch says, in a header, how far the queue is
// sealed, so that what was sealed once is never sealed again, whoever dies
// when.
package auditstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
)

const (
	everyRecord = "trail.>"
	everyBatch  = "trailin.>"

	// The last token of a record's subject: whether it was sealed within an
	// hour of when it happened.
	inTime, late = "n", "l"
	lateness     = time.Hour
)

// subjectOf is where a record is filed.
func subjectOf(tenant, kind, owner, when string) string {
	return "trail." + tenant + "." + kind + "." + owner + "." + when
}

var fileToken = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// filed is the subject of p when it is sealed at now. Names that cannot stand
// in a subject come from a process that is not ours.
func filed(p audit.Pending, now time.Time) string {
	tenant, owner, when := p.TenantToken, p.Owner, inTime
	if !fileToken.MatchString(tenant) {
		tenant = "default"
	}
	if !fileToken.MatchString(owner) {
		owner = audit.Nobody
	}
	if d := now.Sub(p.Timestamp); d > lateness || d < -lateness {
		when = late
	}
	return subjectOf(tenant, p.EventType, owner, when)
}

// Queue implements audit.Queue.
type Queue struct {
	JS bus.JetStream
	// Stored is called after each batch; may be nil.
	Stored func()
}

// Put implements audit.Queue.
func (q Queue) Put(ctx context.Context, b audit.Batch) error {
	data, err := json.Marshal(b)
	if err != nil {
		return fmt.Errorf("encode audit batch: %w", err)
	}
	_, err = q.JS.Publish(ctx, bus.Outgoing{
		Subject: "trailin." + strings.TrimSuffix(b.Source, "+"), Data: data, MsgID: b.Source + "." + strconv.FormatUint(b.N, 10),
	})
	if err == nil && q.Stored != nil {
		q.Stored()
	}
	return err
}

// headerHead is on the last record of a batch: progress as JSON.
const headerHead = "Hd-Trail"

// progress says how far the queue is sealed.
type progress struct {
	// In is the last message of TRAILIN that is sealed.
	In uint64 `json:"in"`
	// Sources are the numbers of the last batches sealed, by source.
	Sources map[string]lastBatch `json:"sources"`
}

type lastBatch struct {
	N  uint64 `json:"n"`
	At int64  `json:"at"` // Unix seconds, when it was sealed
}

// A source that was silent for so long, or that others pushed out, can send no
// batch again: it was a process that ended, and what it spooled is replayed.
const (
	sourceAge  = 7 * 24 * time.Hour
	maxSources = 500
)

func busError(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, bus.ErrUnavailable), errors.Is(err, bus.ErrFrozen), errors.Is(err, bus.ErrClosed), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", audit.ErrUnavailable, err)
	}
	return err
}
