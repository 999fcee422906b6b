package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// ErrCursor is wrapped by ParseCursor.
var ErrCursor = errors.New("malformed cursor")

// The streams whose events have a history.
const (
	StreamEvents   = "EVT"
	StreamProgress = "PROG"
)

// Cursor is a place in the events of a job or an owner: for each stream the
// sequence of the last event seen. A stream that is absent stands before its
// first event; so does the nil Cursor.
type Cursor map[string]uint64

// maxCursorStreams bounds what ParseCursor accepts.
const maxCursorStreams = 64

// ParseCursor reads "EVT:12,PROG:40", or "EVT:12" alone; "" is the nil
// Cursor. Errors wrap ErrCursor.
func ParseCursor(text string) (Cursor, error) {
	if text == "" {
		return nil, nil
	}
	c := Cursor{}
	for part := range strings.SplitSeq(text, ",") {
		stream, digits, ok := strings.Cut(part, ":")
		n, err := strconv.ParseUint(digits, 10, 64)
		if _, twice := c[stream]; !ok || err != nil || twice || !ValidToken(stream) || len(c) == maxCursorStreams {
			return nil, fmt.Errorf("%w: %q", ErrCursor, text)
		}
		c[stream] = n
	}
	return c, nil
}

// String is the form that ParseCursor reads: printable ASCII without spaces,
// fit for the id of a server-sent event.
func (c Cursor) String() string {
	var b strings.Builder
	for _, stream := range slices.Sorted(maps.Keys(c)) {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(stream)
		b.WriteByte(':')
		b.WriteString(strconv.FormatUint(c[stream], 10))
	}
	return b.String()
}

// after returns a copy of c that has moved on to sequence n of stream.
func (c Cursor) after(stream string, n uint64) Cursor {
	next := make(Cursor, len(c)+1)
	maps.Copy(next, c)
	next[stream] = max(next[stream], n)
	return next
}

// The bounds of one page of history. A page holds at least one event, which
// may be larger than maxPageBytes by itself.
const (
	defaultPage  = 200
	maxPage      = 1000
	maxPageBytes = 512 << 10
)

// HistoryRequest asks for past events; it is the body of a request on
// req.<tenant>.<owner>.history. Whose events are meant stands in the subject
// alone, for that is what the permissions of the bus guard.
type HistoryRequest struct {
	// JobID limits the answer to one job.
	JobID string `json:"job_id,omitempty"`
	// After is the last event already known, per stream.
	After Cursor `json:"after,omitempty"`
	// Limit is the most events wanted, 1 to 1000; 0 means 200.
	Limit int `json:"limit,omitempty"`
}

// HistoryEvent is one past event.
type HistoryEvent struct {
	Stream   string    `json:"stream"`
	Sequence uint64    `json:"sequence"`
	Subject  string    `json:"subject"` // without the installation prefix
	StoredAt time.Time `json:"stored_at"`
	// Event is in structured mode.
	Event event.Event `json:"event"`
}

// HistoryPage is the answer, oldest event first.
type HistoryPage struct {
	Events []HistoryEvent `json:"events"`
	// Next goes into the After of the next request.
	Next Cursor `json:"next,omitempty"`
	// Done is set when nothing more was stored at the time of the answer.
	Done bool `json:"done"`
	// Error says why there is no answer; everything else is empty then.
	Error string `json:"error,omitempty"`
	// Retry is set when asking again may help.
	Retry bool `json:"retry,omitempty"`
}

// Stored is a message of a stream.
type Stored struct {
	Subject  string // without the installation prefix
	Header   map[string][]string
	Data     []byte
	Sequence uint64
	Time     time.Time
}

// ScanFunc calls fn for the messages of stream that match any filter, from
// sequence from on, oldest first. It returns fn's error as it is or wrapped.
type ScanFunc func(ctx context.Context, stream string, filters []string, from uint64, fn func(Stored) error) error

// HistoryFunc answers one request of an owner.
type HistoryFunc func(ctx context.Context, tenant, owner string, r HistoryRequest) (HistoryPage, error)

// ErrBadRequest is wrapped by ReadHistory for a request that can never
// succeed; its text is safe to show.
var ErrBadRequest = errors.New("bad history request")

var errPageFull = errors.New("page is full")

// NewHistory returns the HistoryFunc that reads through scan: lifecycle and
// artifact events of EVT, progress and log events of PROG, merged by time.
// Inputs are never part of it.
func NewHistory(scan ScanFunc) HistoryFunc {
	return func(ctx context.Context, tenant, owner string, r HistoryRequest) (HistoryPage, error) {
		limit := min(r.Limit, maxPage)
		if r.Limit == 0 {
			limit = defaultPage
		}
		k := jobs.Key{Tenant: tenant, Owner: owner, ID: r.JobID}
		if limit < 0 || !ValidToken(tenant) || !ValidToken(owner) || (r.JobID != "" && !ValidToken(r.JobID)) {
			return HistoryPage{}, fmt.Errorf("%w: limit %d of job %q", ErrBadRequest, r.Limit, r.JobID)
		}
		// The kinds are fixed and the tokens were checked: no filter can fail.
		lc, _ := EvtFilter(k, KindLifecycle)
		art, _ := EvtFilter(k, KindArtifacts)
		prog, _ := ProgFilter(k, "")
		// EVT first: what a worker reported before it finished is in PROG by
		// the time its last event is in EVT.
		evt, evtAll, err := scanPage(ctx, scan, StreamEvents, []string{lc, art}, r.After[StreamEvents], limit)
		if err != nil {
			return HistoryPage{}, err
		}
		progress, progAll, err := scanPage(ctx, scan, StreamProgress, []string{prog}, r.After[StreamProgress], limit)
		if err != nil {
			return HistoryPage{}, err
		}
		page := merge(evt, progress, r.After, limit)
		page.Done = page.Done && evtAll && progAll
		return page, nil
	}
}

// pending is a message on its way into a page; bad ones only move the cursor.
type pending struct {
	HistoryEvent
	size int
	bad  bool
}

// scanPage reads at most one page of one stream; all is set when it reached
// the end.
func scanPage(ctx context.Context, scan ScanFunc, stream string, filters []string, after uint64, limit int) (list []pending, all bool, err error) {
	bytes := 0
	err = scan(ctx, stream, filters, after+1, func(m Stored) error {
		if m.Sequence <= after {
			return nil
		}
		if len(list) == limit || bytes > maxPageBytes {
			return errPageFull
		}
		p := pending{HistoryEvent: HistoryEvent{
			Stream: stream, Sequence: m.Sequence, Subject: m.Subject, StoredAt: m.Time.UTC()}}
		// Encoding it here measures it and finds what would spoil the page.
		ev, err := Decode(m.Header, m.Data)
		if err == nil {
			var body []byte
			body, err = json.Marshal(ev)
			p.Event, p.size = ev, len(body)+len(m.Subject)+128
		}
		p.bad = err != nil
		bytes += p.size
		list = append(list, p)
		return nil
	})
	if errors.Is(err, errPageFull) {
		return list, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read history of %s: %w", stream, err)
	}
	return list, true, nil
}

// merge orders two streams by time and cuts the page. Each list is complete
// or holds a full page, so the first page of the merged list is always right.
func merge(a, b []pending, after Cursor, limit int) HistoryPage {
	page := HistoryPage{Events: []HistoryEvent{}, Next: after.after(StreamEvents, 0)}
	bytes := 0
	for len(a)+len(b) > 0 {
		from := &a
		if len(a) == 0 || len(b) > 0 && b[0].StoredAt.Before(a[0].StoredAt) {
			from = &b
		}
		p := (*from)[0]
		if len(page.Events) > 0 && (len(page.Events) == limit || bytes+p.size > maxPageBytes) {
			return page
		}
		*from = (*from)[1:]
		page.Next[p.Stream] = p.Sequence
		if !p.bad {
			bytes += p.size
			page.Events = append(page.Events, p.HistoryEvent)
		}
	}
	page.Done = true
	return page
}

// ServeHistory answers the request data that came in on subject (without
// prefix) and returns the reply to send. A non-nil error is for the log; the
// reply then says only that there is no history, or what is wrong with the
// request.
func ServeHistory(ctx context.Context, subject string, data []byte, read HistoryFunc) (reply []byte, err error) {
	page, err := serve(ctx, subject, data, read)
	switch {
	case errors.Is(err, ErrBadRequest):
		page = HistoryPage{Error: err.Error()}
	case err != nil:
		page = HistoryPage{Error: "history is not available", Retry: true}
	}
	reply, merr := json.Marshal(page)
	if merr != nil {
		return []byte(`{"events":[],"done":false,"error":"history is not available","retry":true}`), fmt.Errorf("answer %s: %w", subject, merr)
	}
	return reply, err
}

func serve(ctx context.Context, subject string, data []byte, read HistoryFunc) (HistoryPage, error) {
	s, err := Parse(subject)
	if err != nil || s.Family != FamilyReq {
		return HistoryPage{}, fmt.Errorf("%w: subject", ErrBadRequest)
	}
	var r HistoryRequest
	if len(data) > 0 {
		if err := json.Unmarshal(data, &r); err != nil {
			return HistoryPage{}, fmt.Errorf("%w: body is not a JSON object of job_id, after and limit", ErrBadRequest)
		}
	}
	return read(ctx, s.Tenant, s.Owner, r)
}
