package events

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// Errors of Dial.
var (
	// ErrUnreachable: no server answered.
	ErrUnreachable = errors.New("NATS server cannot be reached")
	// ErrLogin: the server refused the user or the password.
	ErrLogin = errors.New("NATS login refused")
)

// Login is how an outside program gets onto the bus.
type Login struct {
	URL            string // nats://host:port, several separated by commas
	User, Password string
	// Name shows in the server's list of connections.
	Name string
}

// dialTimeout bounds Dial when its ctx has no deadline.
const dialTimeout = 5 * time.Second

// Dial connects and follows the events of the options' caller, with the inbox
// that such a program may use. It fails with ErrUnreachable or ErrLogin; later
// losses of the connection heal by themselves. The caller calls hangUp when it
// is done.
func Dial(ctx context.Context, l Login, o Options) (sub *Subscriber, hangUp func(), err error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, nil, fmt.Errorf("make subscriber: %w", err)
	}
	within := dialTimeout
	if deadline, ok := ctx.Deadline(); ok {
		within = max(time.Until(deadline), time.Millisecond)
	}
	nc, err := nats.Connect(l.URL,
		nats.Name(l.Name), nats.UserInfo(l.User, l.Password), nats.CustomInboxPrefix(InboxPrefix(o.Owner)),
		nats.MaxReconnects(-1), nats.Timeout(within), nats.ReconnectWait(250*time.Millisecond))
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return nil, nil, fmt.Errorf("connect to %s as %s: %w: %w", l.URL, l.User, ErrLogin, err)
	case err != nil:
		return nil, nil, fmt.Errorf("connect to %s: %w: %w", l.URL, ErrUnreachable, err)
	}
	sub, err = NewSubscriber(nc, o)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return sub, nc.Close, nil
}
