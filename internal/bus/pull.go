package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// pullHeartbeat is how often the server says that a waiting pull lives.
	pullHeartbeat = 5 * time.Second
	// quiet is how long a pull that has messages waits for the server to say
	// that there are no more; only a consumer at its MaxAckPending does not.
	quiet = 250 * time.Millisecond
	// handBack bounds the drain of a pull that was given up.
	handBack = 500 * time.Millisecond
	// pullSpare is room for the status that ends a pull and for heartbeats
	// that nobody reads while it is handed back.
	pullSpare = 16
)

// pullRequest is the body of CONSUMER.MSG.NEXT, durations in nanoseconds.
type pullRequest struct {
	Batch     int           `json:"batch"`
	Expires   time.Duration `json:"expires,omitempty"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
	NoWait    bool          `json:"no_wait,omitempty"`
}

func (j *jetStream) Pull(ctx context.Context, stream, consumer string, batch int, expires time.Duration) ([]Delivery, error) {
	c := (*Conn)(j)
	p := puller{conn: c, stream: stream, subject: apiPrefix + "CONSUMER.MSG.NEXT." + c.names.stream(stream) + "." + consumer}
	ds, err := p.pull(ctx, max(batch, 1), expires)
	if err != nil {
		return nil, fmt.Errorf("pull from %s/%s: %w", stream, consumer, err)
	}
	return ds, nil
}

type puller struct {
	conn    *Conn
	stream  string
	subject string
}

func (p *puller) pull(ctx context.Context, batch int, expires time.Duration) ([]Delivery, error) {
	end := time.Now().Add(expires)
	// With no_wait and an expiry the server hands out what is there and ends
	// the request, or keeps it until the first message comes.
	ds, again, err := p.once(ctx, pullRequest{Batch: batch, Expires: expires, NoWait: true})
	if err != nil || !again {
		return ds, err
	}
	// Others wait for more than there is: queue up behind them. For one
	// message only, since nothing would end a longer request early, and a
	// request given up can take a message with it.
	if expires = time.Until(end); expires <= 0 {
		return nil, nil
	}
	ds, _, err = p.once(ctx, pullRequest{Batch: 1, Expires: expires})
	return ds, err
}

// once makes one request. again: the server turned it down because earlier
// requests wait.
func (p *puller) once(ctx context.Context, req pullRequest) (ds []Delivery, again bool, err error) {
	c := p.conn
	if req.Expires > 2*time.Second {
		req.Heartbeat = min(pullHeartbeat, req.Expires/2)
	}
	body, err := json.Marshal(req)
	if err != nil {
		return nil, false, err
	}
	// The server ends the request; the bound is for a server that is gone.
	wait, cancel := context.WithTimeout(ctx, req.Expires+time.Second)
	defer cancel()
	if err := c.ready(wait, nil); err != nil {
		return nil, false, waitEnded(ctx, err)
	}
	wait, release := c.whileUp(wait)
	defer release()
	inbox := c.nc.NewInbox()
	// Room for all the server may send, so that nothing is ever lost here; the
	// library's own channel would be half a megabyte.
	arrived := make(chan *nats.Msg, req.Batch+pullSpare)
	sub, err := c.nc.ChanSubscribe(inbox, arrived)
	if err != nil {
		return nil, false, c.translate(err)
	}
	done := false
	defer func() {
		if done || errors.Is(context.Cause(wait), errLost) {
			_ = sub.Unsubscribe() // fails only on a closed connection
		} else {
			p.abandon(sub, arrived)
		}
	}()
	if err := c.send(wait, p.subject, nil, func() error { return c.nc.PublishRequest(p.subject, inbox, body) }); err != nil {
		return nil, false, waitEnded(ctx, c.translate(lostCause(wait, err)))
	}
	for len(ds) < req.Batch {
		m, err := p.next(wait, arrived, req, len(ds) > 0)
		if err != nil {
			return p.interrupted(ctx, ds, lostCause(wait, err))
		}
		switch status := m.Header.Get("Status"); status {
		case "":
			ds = append(ds, c.delivery(p.stream, m))
		case "100": // heartbeat
		default:
			done = true
			return p.ended(ds, status, m.Header.Get("Description"))
		}
	}
	done = true
	return ds, false, nil
}

// next waits for a message or for the silence that means none will come.
func (p *puller) next(ctx context.Context, arrived <-chan *nats.Msg, req pullRequest, some bool) (*nats.Msg, error) {
	select {
	case m := <-arrived:
		return m, nil
	default:
	}
	limit := req.Expires + time.Second
	switch {
	case some:
		limit = quiet
	case req.Heartbeat > 0:
		limit = 2*req.Heartbeat + time.Second
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case m := <-arrived:
		return m, nil
	case <-timer.C:
		return nil, nats.ErrTimeout
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// interrupted decides what a pull whose wait broke off returns.
func (p *puller) interrupted(ctx context.Context, ds []Delivery, err error) ([]Delivery, bool, error) {
	switch {
	case len(ds) > 0:
		return ds, false, nil
	case ctx.Err() != nil:
		return nil, false, ctx.Err()
	case errors.Is(err, errLost), errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		if _, ok := p.conn.denied.Load(p.subject); ok {
			return nil, false, fmt.Errorf("%w: publish to %s", ErrDenied, p.subject)
		}
		return nil, false, nil // heartbeats or the connection stopped: the caller pulls anew
	}
	return nil, false, p.conn.translate(err)
}

// ended reads the status with which the server ended a request.
func (p *puller) ended(ds []Delivery, status, description string) ([]Delivery, bool, error) {
	switch {
	case len(ds) > 0, status == "404":
		return ds, false, nil
	case status == "408":
		return nil, description == "Requests Pending", nil
	case status == "409" && (strings.Contains(description, "Server Shutdown") || strings.Contains(description, "Leadership Change")):
		return nil, false, nil
	}
	return nil, false, fmt.Errorf("%w: %s %s", ErrUnavailable, status, description)
}

// waitEnded is the outcome of a pull during which no server was connected:
// nothing, unless the caller's own ctx ended.
func waitEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, ErrUnavailable) {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// abandon ends the request on the server by dropping its inbox, and hands back
// at once what was on its way: it would otherwise come again only after
// AckWait.
func (p *puller) abandon(sub *nats.Subscription, arrived <-chan *nats.Msg) {
	if err := sub.Drain(); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), handBack)
	defer cancel()
	// The server answers after all that it had sent to the inbox.
	_ = p.conn.nc.FlushWithContext(ctx) // or the connection went, and all with it
	for {
		select {
		case m := <-arrived:
			if m.Reply != "" {
				_ = p.conn.nc.Publish(m.Reply, nak(0)) // lost: AckWait brings it back
			}
		default:
			return
		}
	}
}

// delivery is one message of a durable consumer.
type delivery struct {
	conn      *Conn
	reply     string
	msg       Message
	delivered uint64
}

// delivery reads what the acknowledgement subject carries:
// $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<n>.<time>.<pending>, with
// <domain>.<account> before the stream in the second format.
func (c *Conn) delivery(stream string, m *nats.Msg) *delivery {
	d := &delivery{conn: c, reply: m.Reply, msg: Message{
		Stream: stream, Subject: c.names.plain(m.Subject), Header: plainHeader(m.Header), Data: m.Data,
	}}
	var tokens [16]string
	t := splitInto(tokens[:0], m.Reply)
	at := 4
	if len(t) > 9 {
		at = 6
	}
	if len(t) < at+5 {
		return d // not from JetStream; cannot be acknowledged either
	}
	d.delivered = parseUint(t[at])
	d.msg.Sequence = parseUint(t[at+1])
	d.msg.Time = time.Unix(0, int64(parseUint(t[at+3])))
	return d
}

// splitInto is strings.Split by dots into an array of the caller's.
func splitInto(t []string, s string) []string {
	for {
		head, rest, more := strings.Cut(s, ".")
		if t = append(t, head); !more {
			return t
		}
		s = rest
	}
}

func parseUint(s string) uint64 {
	n, _ := strconv.ParseUint(s, 10, 64) // the server wrote it
	return n
}

func (d *delivery) Message() Message  { return d.msg }
func (d *delivery) Delivered() uint64 { return d.delivered }

func (d *delivery) Ack(ctx context.Context) error {
	return d.confirm(ctx, "acknowledge", []byte("+ACK"))
}

func (d *delivery) AckLater(ctx context.Context) error {
	return d.tell(ctx, "acknowledge", []byte("+ACK"))
}

func (d *delivery) Term(ctx context.Context, reason string) error {
	return d.confirm(ctx, "end", []byte("+TERM "+reason))
}

func (d *delivery) confirm(ctx context.Context, verb string, body []byte) error {
	reply, err := d.conn.call(ctx, &nats.Msg{Subject: d.reply, Data: body})
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, d.msg.Subject, err)
	}
	if len(reply.Data) > 0 { // the server confirms with an empty message
		var a answer
		if json.Unmarshal(reply.Data, &a) == nil && a.failure() != nil {
			return fmt.Errorf("%s %s: %w", verb, d.msg.Subject, a.failure())
		}
	}
	return nil
}

func (d *delivery) Nak(ctx context.Context, delay time.Duration) error {
	return d.tell(ctx, "hand back", nak(delay))
}

func (d *delivery) Working(ctx context.Context) error {
	return d.tell(ctx, "keep", []byte("+WPI"))
}

func (d *delivery) tell(ctx context.Context, verb string, body []byte) error {
	c := d.conn
	if c.deniedN.Load() == 0 && ctx.Err() == nil && c.nc.Publish(d.reply, body) == nil {
		return nil
	}
	ctx, cancel := c.bound(ctx, c.timeout)
	defer cancel()
	err := d.conn.send(ctx, d.reply, nil, func() error { return d.conn.nc.Publish(d.reply, body) })
	if err != nil {
		return fmt.Errorf("%s %s: %w", verb, d.msg.Subject, d.conn.translate(err))
	}
	return nil
}

func nak(delay time.Duration) []byte {
	if delay <= 0 {
		return []byte("-NAK")
	}
	return []byte(`-NAK {"delay":` + strconv.FormatInt(int64(delay), 10) + `}`)
}
