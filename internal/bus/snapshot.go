package bus

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// snapshotChunk is the size of a piece of a snapshot on its way; the
	// server sends windows of 8 MiB.
	snapshotChunk = 128 << 10
	// snapshotStall ends a snapshot or restore of which nothing comes. The
	// server gives up earlier.
	snapshotStall = 30 * time.Second
	// restoreFinish bounds the wait for the server to open a restored stream.
	restoreFinish = 5 * time.Minute
)

// CopiedStream is one stream of the installation as the server describes it.
type CopiedStream struct {
	// Stream is the name on the wire, with the installation's prefix.
	Stream string
	// Config and State are the server's own words, which a restore repeats.
	Config, State json.RawMessage
	Messages      uint64
	LastSequence  uint64
	Consumers     int
}

// RawMessage is a stored message as it lies on the server: wire subject, all
// headers that were published with it.
type RawMessage struct {
	Subject  string              `json:"subject"`
	Header   map[string][]string `json:"header,omitempty"`
	Data     []byte              `json:"data,omitempty"`
	Sequence uint64              `json:"sequence"`
}

// backupClass orders the streams for a backup so that jobs flow from what is
// read earlier to what is read later: queues, what holds jobs back, schedules,
// then the events that tell what became of them, then what follows from events,
// then buckets.
func (n names) backupClass(stream string) int {
	if stream == n.stream(StreamTrailIn) || stream == n.kvStream(BucketTrail) {
		// Before the trail: what is sealed meanwhile is in both, and an anchor
		// never speaks of a record the copy lacks.
		return 3
	}
	if n.prefix != DefaultPrefix {
		stream = strings.TrimPrefix(stream, n.prefix+"_")
	}
	for i, prefix := range []string{"JOBS_", "HOLD_", StreamSchedule, StreamEvents} {
		if strings.HasPrefix(stream, prefix) {
			return i
		}
	}
	switch {
	case strings.HasPrefix(stream, "OBJ_"):
		return 6
	case strings.HasPrefix(stream, "KV_"):
		return 5
	}
	return 4
}

// BeforeEvents reports whether a backup reads the stream before the events.
func (c *Conn) BeforeEvents(stream string) bool {
	return c.names.backupClass(stream) < c.names.backupClass(c.names.stream(StreamEvents))
}

// AppendOnly reports whether messages of the stream go only by age, so that a
// snapshot lacks nothing that was there when it began.
func (c *Conn) AppendOnly(stream string) bool {
	for _, s := range []string{StreamEvents, StreamProgress, StreamAudit, StreamTrail} {
		if stream == c.names.stream(s) {
			return true
		}
	}
	return false
}

// Streams lists the streams of the installation that exist, in the order in
// which a backup reads them.
func (c *Conn) Streams(ctx context.Context) ([]CopiedStream, error) {
	_, all, err := c.survey(ctx)
	if err != nil {
		return nil, err
	}
	var out []CopiedStream
	for _, f := range all {
		if f.stream == nil {
			continue
		}
		s, err := c.copiedStream(ctx, f.stream.Name)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b CopiedStream) int {
		return cmp.Compare(c.names.backupClass(a.Stream), c.names.backupClass(b.Stream))
	})
	return out, nil
}

type streamDescription struct {
	answer
	Config json.RawMessage `json:"config"`
	State  json.RawMessage `json:"state"`
}

func (d streamDescription) decode(stream string) (CopiedStream, error) {
	var s struct {
		Messages  uint64 `json:"messages"`
		LastSeq   uint64 `json:"last_seq"`
		Consumers int    `json:"consumer_count"`
	}
	if err := json.Unmarshal(d.State, &s); err != nil {
		return CopiedStream{}, fmt.Errorf("malformed state of stream %s: %w", stream, err)
	}
	return CopiedStream{
		Stream: stream, Config: d.Config, State: d.State,
		Messages: s.Messages, LastSequence: s.LastSeq, Consumers: s.Consumers,
	}, nil
}

func (c *Conn) copiedStream(ctx context.Context, stream string) (CopiedStream, error) {
	var d streamDescription
	if err := c.inquire(ctx, "STREAM.INFO."+stream, nil, &d); err != nil {
		return CopiedStream{}, fmt.Errorf("look at stream %s: %w", stream, err)
	}
	return d.decode(stream)
}

// Snapshot writes a stream with the state of its consumers to w, in the
// server's own format, and returns the state it describes: messages above its
// LastSequence are not in it, and neither are those removed meanwhile. It needs
// the admin role.
func (c *Conn) Snapshot(ctx context.Context, stream string, w io.Writer) (CopiedStream, error) {
	inbox := c.nc.NewInbox()
	sub, err := c.nc.SubscribeSync(inbox)
	if err != nil {
		return CopiedStream{}, fmt.Errorf("snapshot stream %s: %w", stream, c.translate(err))
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	var d streamDescription
	req := map[string]any{"deliver_subject": inbox, "chunk_size": snapshotChunk}
	if err := c.ask(ctx, "STREAM.SNAPSHOT."+stream, req, &d); err != nil {
		return CopiedStream{}, fmt.Errorf("snapshot stream %s: %w", stream, err)
	}
	if err := c.receive(ctx, sub, w); err != nil {
		return CopiedStream{}, fmt.Errorf("snapshot stream %s: %w", stream, err)
	}
	return d.decode(stream)
}

// receive writes the pieces of a snapshot in order, acknowledging each. The
// last token of a piece's reply subject is its number.
func (c *Conn) receive(ctx context.Context, sub *nats.Subscription, w io.Writer) error {
	for next := 1; ; next++ {
		m, err := c.nextPiece(ctx, sub)
		if err != nil {
			return err
		}
		if len(m.Data) == 0 {
			if status := m.Header.Get("Status"); status != "" && status != "204" {
				return fmt.Errorf("%w: the server broke off: %s %s", ErrUnavailable, status, m.Header.Get("Description"))
			}
			if lost, err := sub.Dropped(); err != nil || lost > 0 {
				return fmt.Errorf("%w: %d pieces were lost", ErrUnavailable, lost)
			}
			return nil
		}
		if m.Reply != "" {
			if n := m.Reply[strings.LastIndexByte(m.Reply, '.')+1:]; n != strconv.Itoa(next) {
				return fmt.Errorf("%w: piece %s came in place of %d", ErrUnavailable, n, next)
			}
		}
		if _, err := w.Write(m.Data); err != nil {
			return err
		}
		if m.Reply == "" {
			continue // the last one
		}
		if err := c.nc.Publish(m.Reply, nil); err != nil {
			return c.translate(err)
		}
	}
}

func (c *Conn) nextPiece(ctx context.Context, sub *nats.Subscription) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotStall)
	defer cancel()
	ctx, done := c.whileUp(ctx)
	defer done()
	m, err := sub.NextMsgWithContext(ctx)
	if err != nil {
		return nil, c.translate(lostCause(ctx, err))
	}
	return m, nil
}

// Restore makes a stream, which must not exist, from what Snapshot wrote.
func (c *Conn) Restore(ctx context.Context, s CopiedStream, r io.Reader) error {
	var begun struct {
		answer
		Deliver string `json:"deliver_subject"`
	}
	req := map[string]any{"config": s.Config, "state": s.State}
	if err := c.ask(ctx, "STREAM.RESTORE."+s.Stream, req, &begun); err != nil {
		return fmt.Errorf("restore stream %s: %w", s.Stream, err)
	}
	buf := make([]byte, snapshotChunk)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if err := c.deliver(ctx, begun.Deliver, bytes.Clone(buf[:n]), snapshotStall); err != nil {
				return fmt.Errorf("restore stream %s: %w", s.Stream, err)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("restore stream %s: %w", s.Stream, err)
		}
	}
	if err := c.deliver(ctx, begun.Deliver, nil, restoreFinish); err != nil {
		return fmt.Errorf("restore stream %s: %w", s.Stream, err)
	}
	return nil
}

// deliver sends one piece; an empty one ends the restore.
func (c *Conn) deliver(ctx context.Context, subject string, piece []byte, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	reply, err := c.call(ctx, &nats.Msg{Subject: subject, Data: piece})
	if err != nil {
		return err
	}
	if len(reply.Data) == 0 {
		return nil
	}
	var a answer
	if err := json.Unmarshal(reply.Data, &a); err != nil {
		return fmt.Errorf("malformed answer: %w", err)
	}
	return a.failure()
}

// Since calls fn for the messages of a stream above a sequence, oldest first,
// and returns the highest sequence it has seen.
func (c *Conn) Since(ctx context.Context, stream string, after uint64, fn func(RawMessage) error) (uint64, error) {
	// A page of answers may bear the messages' own mirror of these headers.
	own := []string{"Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence"}
	err := c.scan(ctx, stream, []string{">"}, after+1, func(s stored) error {
		after = s.sequence
		if s.header.Get(headerMarker) != "" {
			return nil // the server's note that something is gone
		}
		h := map[string][]string{}
		for k, v := range s.header {
			if !slices.Contains(own, k) {
				h[k] = v
			}
		}
		return fn(RawMessage{Subject: s.subject, Header: h, Data: s.data, Sequence: s.sequence})
	})
	if err != nil {
		return after, fmt.Errorf("read stream %s: %w", stream, err)
	}
	return after, nil
}

// onceHeaders tell how a message was published the first time, or come from
// the server. They must not bind its copy.
var onceHeaders = []string{
	headerMsgID, headerExpect, "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Msg-Id", "Nats-Expected-Stream",
	"Nats-Expected-Last-Subject-Sequence-Subject", headerBatchID, headerBatchSequence, headerBatchCommit,
	"Nats-Scheduler", "Nats-Schedule-Next",
}

// Replay publishes a message that Since read. A subject that holds its one
// message already is left as it is.
func (c *Conn) Replay(ctx context.Context, m RawMessage) error {
	h := nats.Header{}
	for k, v := range m.Header {
		if !slices.Contains(onceHeaders, k) {
			h[k] = v
		}
	}
	_, err := c.store(ctx, &nats.Msg{Subject: m.Subject, Header: h, Data: m.Data})
	if err != nil && !errors.Is(err, ErrSubjectTaken) {
		return fmt.Errorf("publish to %s: %w", m.Subject, err)
	}
	return nil
}

// DeleteStream removes a stream with all it holds.
func (c *Conn) DeleteStream(ctx context.Context, stream string) error {
	if err := c.js.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("delete stream %s: %w", stream, c.translate(err))
	}
	return nil
}

// Pulling counts the pull requests that wait at the installation's consumers:
// more than none means that API replicas or workers are running.
func (c *Conn) Pulling(ctx context.Context) (int, error) {
	ctx, cancel := c.bound(ctx, surveyTimeout)
	defer cancel()
	total := 0
	for _, spec := range topology(c.names, c.profile) {
		if len(spec.consumers) == 0 {
			continue
		}
		s, err := c.js.Stream(ctx, spec.config.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("look at stream %s: %w", spec.config.Name, c.translate(err))
		}
		list := s.ListConsumers(ctx)
		for i := range list.Info() {
			total += i.NumWaiting
		}
		if err := list.Err(); err != nil {
			return 0, fmt.Errorf("look at consumers of %s: %w", spec.config.Name, c.translate(err))
		}
	}
	return total, nil
}
