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

// getBatch makes one batch direct get. pending counts the messages after the
// last one returned.
func (c *Conn) getBatch(ctx context.Context, stream string, req getRequest) (page []stored, pending int, err error) {
	ctx, cancel := c.bound(ctx, c.timeout)
	defer cancel()
	body, err := json.Marshal(req)
	if err != nil {
		return nil, 0, err
	}
	if err := c.ready(ctx, nil); err != nil {
		return nil, 0, err
	}
	b := batchGet{conn: c, subject: apiPrefix + "DIRECT.GET." + stream, inbox: c.nc.NewInbox() + ".", body: body}
	if b.sub, err = c.nc.SubscribeSync(b.inbox + "*"); err != nil {
		return nil, 0, c.translate(err)
	}
	defer func() { _ = b.sub.Unsubscribe() }() // fails only on a closed connection
	ctx, done := c.whileUp(ctx)
	defer done()
	page, pending, err = b.run(ctx)
	if _, ok := c.denied.Load(b.subject); ok && err != nil {
		return nil, 0, fmt.Errorf("%w: publish to %s", ErrDenied, b.subject)
	}
	return page, pending, c.translate(lostCause(ctx, err))
}

// batchGet is a batch direct get that is asked again when nothing comes, see
// askAgain. Each try has a reply subject of its own; what comes for one is
// dropped once a later one is answered.
type batchGet struct {
	conn           *Conn
	subject, inbox string
	body           []byte
	sub            *nats.Subscription
	asked, taken   int // tries made; the one that page comes from
	page           []stored
}

func (b *batchGet) run(ctx context.Context) ([]stored, int, error) {
	if err := b.ask(ctx); err != nil {
		return nil, 0, err
	}
	for wait := askAgain; ; {
		m, err := b.next(ctx, wait)
		if err != nil {
			return nil, 0, err
		}
		if m == nil { // silence
			wait *= 2
			if err := b.ask(ctx); err != nil {
				return nil, 0, err
			}
			continue
		}
		n, err := strconv.Atoi(strings.TrimPrefix(m.Subject, b.inbox))
		if err != nil || n < b.taken {
			continue
		}
		if n > b.taken {
			b.taken, b.page = n, nil
		}
		if m.Header.Get("Status") == "204" { // end of batch
			pending, err := strconv.Atoi(m.Header.Get("Nats-Num-Pending"))
			return b.page, pending, err
		}
		if noResponders(m) {
			return nil, 0, nats.ErrNoResponders
		}
		s, err := direct(m)
		if errors.Is(err, ErrNoMessage) {
			return b.page, 0, nil
		}
		if err != nil {
			return nil, 0, err
		}
		b.page = append(b.page, s)
	}
}

func (b *batchGet) ask(ctx context.Context) error {
	b.asked++
	reply := b.inbox + strconv.Itoa(b.asked)
	return b.conn.send(ctx, b.subject, nil, func() error { return b.conn.nc.PublishRequest(b.subject, reply, b.body) })
}

// next returns the next message, or nil after a silence.
func (b *batchGet) next(ctx context.Context, silence time.Duration) (*nats.Msg, error) {
	short, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	m, err := b.sub.NextMsgWithContext(short)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil, nil
	}
	return m, err
}
