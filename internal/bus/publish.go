package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

// Headers of the server's protocol.
const (
	headerPrefix        = "Nats-"
	headerMsgID         = "Nats-Msg-Id"
	headerExpect        = "Nats-Expected-Last-Subject-Sequence"
	headerExpectStream  = "Nats-Expected-Last-Sequence"
	headerTTL           = "Nats-TTL"
	headerSchedule      = "Nats-Schedule"
	headerTarget        = "Nats-Schedule-Target"
	headerTargetTTL     = "Nats-Schedule-TTL"
	headerRollup        = "Nats-Rollup"
	headerMarker        = "Nats-Marker-Reason"
	headerBatchID       = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

// MaxBatch is how many messages one PublishBatch may hold.
const MaxBatch = 1000

// jetStream is the durable side of a Conn. It asks the server directly
// instead of through the library's stream and consumer objects, which look
// themselves up first.
type jetStream Conn

func (j *jetStream) Publish(ctx context.Context, m Outgoing) (uint64, error) {
	c := (*Conn)(j)
	began := time.Now()
	var sequence uint64
	var err error
	if g := c.groupOf(m.Subject); g != nil {
		sequence, err = g.store(ctx, []Outgoing{m})
	} else {
		sequence, err = c.storeOne(ctx, m)
	}
	c.observe(family(m.Subject), time.Since(began), err)
	if err != nil {
		return 0, fmt.Errorf("publish to %s: %w", m.Subject, err)
	}
	return sequence, nil
}

func (j *jetStream) PublishBatch(ctx context.Context, ms []Outgoing) (uint64, error) {
	c := (*Conn)(j)
	switch {
	case len(ms) == 0:
		return 0, errors.New("publish batch: no messages")
	case len(ms) == 1:
		return j.Publish(ctx, ms[0])
	case len(ms) > MaxBatch:
		return 0, fmt.Errorf("publish batch: %d messages, at most %d", len(ms), MaxBatch)
	}
	began := time.Now()
	var sequence uint64
	var err error
	if g := c.groupOf(ms[0].Subject); g != nil {
		sequence, err = g.store(ctx, ms)
	} else {
		sequence, err = c.storeBatch(ctx, ms)
	}
	c.observe(family(ms[0].Subject), time.Since(began), err)
	if err != nil {
		return 0, fmt.Errorf("publish batch to %s: %w", ms[len(ms)-1].Subject, err)
	}
	return sequence, nil
}

// family is the first token of a subject.
func family(subject string) string {
	f, _, _ := strings.Cut(subject, ".")
	return f
}

// storeAlone stores what one caller wants stored, and nothing else with it.
func (c *Conn) storeAlone(ctx context.Context, ms []Outgoing) (uint64, error) {
	if len(ms) == 1 {
		return c.storeOne(ctx, ms[0])
	}
	return c.storeBatch(ctx, ms)
}

func (c *Conn) storeOne(ctx context.Context, m Outgoing) (uint64, error) {
	ack, err := c.store(ctx, c.outgoing(m))
	return ack.Sequence, err
}

// storeBatch stores all messages or none and returns the sequence of the
// last; the others have those before it.
func (c *Conn) storeBatch(ctx context.Context, ms []Outgoing) (uint64, error) {
	ctx, cancel := c.bound(ctx, c.timeout)
	defer cancel()
	id := nuid.Next()
	last := len(ms) - 1
	for i, m := range ms[:last] {
		out := c.inBatch(m, id, i+1)
		// Refusals show at the commit, which fails as a whole.
		if err := c.send(ctx, out.Subject, nil, func() error { return c.nc.PublishMsg(out) }); err != nil {
			return 0, c.translate(err)
		}
	}
	out := c.inBatch(ms[last], id, len(ms))
	out.Header[headerBatchCommit] = []string{"1"}
	ack, err := c.store(ctx, out)
	return ack.Sequence, err
}

func (c *Conn) inBatch(m Outgoing, id string, n int) *nats.Msg {
	out := c.outgoing(m)
	out.Header[headerBatchID] = []string{id}
	out.Header[headerBatchSequence] = []string{strconv.Itoa(n)}
	return out
}

func (c *Conn) outgoing(m Outgoing) *nats.Msg {
	h := make(nats.Header, len(m.Header)+4)
	for k, v := range m.Header {
		h[k] = v
	}
	if m.MsgID != "" {
		h[headerMsgID] = []string{m.MsgID}
	}
	if m.Expect != nil {
		h[headerExpect] = []string{strconv.FormatUint(*m.Expect, 10)}
	}
	if m.ExpectStream != nil {
		h[headerExpectStream] = []string{strconv.FormatUint(*m.ExpectStream, 10)}
	}
	if m.TTL > 0 {
		h[headerTTL] = []string{ttlValue(m.TTL)}
	}
	if !m.At.IsZero() {
		h[headerSchedule] = []string{"@at " + m.At.UTC().Format(time.RFC3339Nano)}
		h[headerTarget] = []string{c.names.subject(m.Target)}
		if m.TargetTTL > 0 {
			h[headerTargetTTL] = []string{ttlValue(m.TargetTTL)}
		}
	}
	return &nats.Msg{Subject: c.names.subject(m.Subject), Header: h, Data: m.Data}
}

// ttlValue rounds up to the second, the server's least TTL.
func ttlValue(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10) + "s"
}

type pubAck struct {
	answer
	Sequence uint64 `json:"seq"`
}

// store publishes m and waits for the server's acknowledgement.
func (c *Conn) store(ctx context.Context, m *nats.Msg) (pubAck, error) {
	reply, err := c.call(ctx, m)
	if err != nil {
		return pubAck{}, err
	}
	if seq, ok := plainAck(reply.Data); ok {
		return pubAck{Sequence: seq}, nil
	}
	var ack pubAck
	if err := json.Unmarshal(reply.Data, &ack); err != nil {
		return pubAck{}, fmt.Errorf("malformed acknowledgement: %w", err)
	}
	return ack, ack.failure()
}

// answer is the part every answer of the JetStream API has.
type answer struct {
	Error *jetstream.APIError `json:"error"`
}

func (a *answer) failure() error {
	if a.Error == nil {
		return nil
	}
	return apiError(a.Error)
}

// plainAck reads the acknowledgement of an ordinary write,
// {"stream":"S","seq":N}, which is all but a few of them.
func plainAck(b []byte) (seq uint64, ok bool) {
	const key = `,"seq":`
	i := bytes.LastIndex(b, []byte(key))
	if i < 0 || !bytes.HasPrefix(b, []byte(`{"stream":"`)) || bytes.Count(b, []byte(`":`)) != 2 || !bytes.HasSuffix(b, []byte("}")) {
		return 0, false
	}
	seq, err := strconv.ParseUint(strings.TrimSpace(string(b[i+len(key):len(b)-1])), 10, 64)
	return seq, err == nil
}

// ask makes a request of the JetStream API and decodes its answer into out.
func (c *Conn) ask(ctx context.Context, subject string, in any, out interface{ failure() error }) error {
	return c.askBy(ctx, c.call, subject, in, out)
}

// inquire is ask for a request that changes nothing, see read.
func (c *Conn) inquire(ctx context.Context, subject string, in any, out interface{ failure() error }) error {
	return c.askBy(ctx, c.read, subject, in, out)
}

func (c *Conn) askBy(
	ctx context.Context, call func(context.Context, *nats.Msg) (*nats.Msg, error), subject string, in any, out interface{ failure() error },
) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	reply, err := call(ctx, &nats.Msg{Subject: apiPrefix + subject, Data: body})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(reply.Data, out); err != nil {
		return fmt.Errorf("malformed answer of %s: %w", subject, err)
	}
	return out.failure()
}

func (j *jetStream) Purge(ctx context.Context, stream, filter string, upTo uint64) error {
	c := (*Conn)(j)
	_, err := c.purge(ctx, c.names.stream(stream), c.names.subject(filter), upTo)
	if err != nil {
		return fmt.Errorf("purge %s from %s: %w", filter, stream, err)
	}
	return nil
}

func (c *Conn) purge(ctx context.Context, stream, filter string, upTo uint64) (int, error) {
	req := struct {
		Filter   string `json:"filter,omitempty"`
		Sequence uint64 `json:"seq,omitempty"`
	}{filter, upTo}
	var resp struct {
		answer
		Purged int `json:"purged"`
	}
	err := c.ask(ctx, "STREAM.PURGE."+stream, req, &resp)
	return resp.Purged, err
}
