package bus

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
)

// core is the fire-and-forget side of a Conn.
type core Conn

func (k *core) Publish(ctx context.Context, subject string, header map[string][]string, data []byte) error {
	c := (*Conn)(k)
	ctx, cancel := c.bound(ctx, c.timeout)
	defer cancel()
	m := &nats.Msg{Subject: c.names.subject(subject), Header: header, Data: data}
	if err := c.send(ctx, m.Subject, nil, func() error { return c.nc.PublishMsg(m) }); err != nil {
		return fmt.Errorf("publish to %s: %w", subject, c.translate(err))
	}
	return nil
}

func (k *core) Subscribe(subject string, fn func(CoreMessage)) (func(), error) {
	c := (*Conn)(k)
	sub, err := c.nc.Subscribe(c.names.subject(subject), func(m *nats.Msg) { fn(c.coreMessage(m)) })
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, c.translate(err))
	}
	return func() { _ = sub.Unsubscribe() }, nil // fails only on a closed connection
}

func (k *core) Losses() uint64 { return k.losses.Load() }

func (k *core) Request(ctx context.Context, subject string, data []byte) (CoreMessage, error) {
	c := (*Conn)(k)
	m, err := c.call(ctx, &nats.Msg{Subject: c.names.subject(subject), Data: data})
	if errors.Is(err, nats.ErrNoResponders) {
		err = fmt.Errorf("%w: %w", ErrNoListener, err)
	}
	if err != nil {
		return CoreMessage{}, fmt.Errorf("request %s: %w", subject, err)
	}
	return c.coreMessage(m), nil
}

func (c *Conn) coreMessage(m *nats.Msg) CoreMessage {
	out := CoreMessage{Subject: c.names.plain(m.Subject), Header: m.Header, Data: m.Data}
	if m.Reply != "" {
		out.Reply = func(data []byte) error { return c.translate(c.nc.Publish(m.Reply, data)) }
	}
	return out
}
