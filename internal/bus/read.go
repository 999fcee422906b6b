package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const apiPrefix = "$JS.API."

// A page of a scan: enough to hide the round trip, small enough for memory.
const (
	pageMessages = 512
	pageBytes    = 2 << 20
)

// stored is a message as the server holds it, with its own headers.
type stored struct {
	subject  string // on the wire
	header   nats.Header
	data     []byte
	sequence uint64
	time     time.Time
}

// getRequest is the body of a direct or leader get.
type getRequest struct {
	Sequence uint64 `json:"seq,omitempty"`
	LastFor  string `json:"last_by_subj,omitempty"`
	NextFor  string `json:"next_by_subj,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	MaxBytes int    `json:"max_bytes,omitempty"`
}

func (j *jetStream) Last(ctx context.Context, stream, filter string, leader bool) (Message, error) {
	c := (*Conn)(j)
	s, err := c.last(ctx, c.names.stream(stream), c.names.subject(filter), leader)
	if err != nil {
		return Message{}, fmt.Errorf("read last of %s in %s: %w", filter, stream, err)
	}
	return c.message(stream, s), nil
}

func (c *Conn) last(ctx context.Context, stream, filter string, leader bool) (stored, error) {
	if leader {
		return c.lastOfLeader(ctx, stream, filter)
	}
	body, err := json.Marshal(getRequest{LastFor: filter})
	if err != nil {
		return stored{}, err
	}
	m, err := c.read(ctx, &nats.Msg{Subject: apiPrefix + "DIRECT.GET." + stream, Data: body})
	if err != nil {
		return stored{}, err
	}
	return direct(m)
}

func (c *Conn) lastOfLeader(ctx context.Context, stream, filter string) (stored, error) {
	var resp struct {
		answer
		Message struct {
			Subject  string    `json:"subject"`
			Sequence uint64    `json:"seq"`
			Header   []byte    `json:"hdrs"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	if err := c.inquire(ctx, "STREAM.MSG.GET."+stream, getRequest{LastFor: filter}, &resp); err != nil {
		return stored{}, err
	}
	m := resp.Message
	s := stored{subject: m.Subject, sequence: m.Sequence, data: m.Data, time: m.Time}
	if len(m.Header) > 0 {
		h, err := nats.DecodeHeadersMsg(m.Header)
		if err != nil {
			return stored{}, fmt.Errorf("malformed header: %w", err)
		}
		s.header = h
	}
	return s, nil
}

// direct reads the answer of a direct get.
func direct(m *nats.Msg) (stored, error) {
	h := m.Header
	switch status := h.Get("Status"); status {
	case "":
	case "404":
		return stored{}, ErrNoMessage
	default:
		return stored{}, fmt.Errorf("%w: direct get answered %s %s", ErrUnavailable, status, h.Get("Description"))
	}
	seq, err := strconv.ParseUint(h.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return stored{}, fmt.Errorf("malformed direct get: sequence: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, h.Get("Nats-Time-Stamp"))
	if err != nil {
		return stored{}, fmt.Errorf("malformed direct get: time: %w", err)
	}
	return stored{subject: h.Get("Nats-Subject"), header: h, data: m.Data, sequence: seq, time: at}, nil
}

// message drops the server's own headers: a reader that stores a message
// elsewhere must not repeat an expectation or a schedule by accident.
func (c *Conn) message(stream string, s stored) Message {
	return Message{
		Stream: stream, Subject: c.names.plain(s.subject), Header: plainHeader(s.header),
		Data: s.data, Sequence: s.sequence, Time: s.time,
	}
}

// plainHeader drops the server's own headers from h.
func plainHeader(h nats.Header) map[string][]string {
	for k := range h {
		if strings.HasPrefix(k, headerPrefix) {
			delete(h, k)
		}
	}
	return h
}

func (j *jetStream) Scan(ctx context.Context, stream string, filters []string, from uint64, fn func(Message) error) error {
	c := (*Conn)(j)
	wire := make([]string, len(filters))
	for i, f := range filters {
		wire[i] = c.names.subject(f)
	}
	err := c.scan(ctx, c.names.stream(stream), wire, from, func(s stored) error { return fn(c.message(stream, s)) })
	if err != nil {
		return fmt.Errorf("scan %s: %w", stream, err)
	}
	return nil
}

func (j *jetStream) Count(ctx context.Context, stream, filter string) (int, error) {
	c := (*Conn)(j)
	page, pending, err := c.getBatch(ctx, c.names.stream(stream), getRequest{Sequence: 1, NextFor: c.names.subject(filter), Batch: 1})
	if err != nil {
		return 0, fmt.Errorf("count %s in %s: %w", filter, stream, err)
	}
	return len(page) + pending, nil
}

// scan merges one cursor per filter by sequence.
func (c *Conn) scan(ctx context.Context, stream string, filters []string, from uint64, fn func(stored) error) error {
	cursors := make([]*cursor, len(filters))
	for i, f := range filters {
		cursors[i] = &cursor{conn: c, stream: stream, filter: f, next: max(from, 1), left: -1}
	}
	for {
		var lowest *cursor
		for _, cur := range cursors {
			if err := cur.fill(ctx); err != nil {
				return err
			}
			if len(cur.page) > 0 && (lowest == nil || cur.page[0].sequence < lowest.page[0].sequence) {
				lowest = cur
			}
		}
		if lowest == nil {
			return nil
		}
		s := lowest.page[0]
		for _, cur := range cursors { // filters may overlap
			if len(cur.page) > 0 && cur.page[0].sequence == s.sequence {
				cur.page = cur.page[1:]
			}
		}
		if err := fn(s); err != nil {
			return err
		}
	}
}

// cursor pages through the messages of one filter by batch direct get, which
// leaves nothing behind on the server.
type cursor struct {
	conn           *Conn
	stream, filter string
	next           uint64
	page           []stored
	left           int // messages still to come, as counted with the first page; -1 before it
}

func (u *cursor) fill(ctx context.Context) error {
	if len(u.page) > 0 || u.left == 0 {
		return nil
	}
	page, pending, err := u.conn.getBatch(ctx, u.stream, getRequest{
		Sequence: u.next, NextFor: u.filter, Batch: pageMessages, MaxBytes: pageBytes,
	})
	if err != nil {
		return err
	}
	switch {
	case len(page) == 0:
		u.left = 0
		return nil
	case u.left < 0:
		// What is stored later is not of this scan: a busy stream would
		// otherwise never let it end.
		u.left = pending
	default:
		page = page[:min(len(page), u.left)]
		u.left = min(u.left-len(page), pending)
	}
	u.page, u.next = page, page[len(page)-1].sequence+1
	return nil
}
