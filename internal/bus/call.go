package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// bound gives ctx a deadline when it has none.
func (c *Conn) bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if c.server != nil && c.server.frozen.Load() {
		return context.WithTimeout(ctx, frozenTimeout)
	}
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// ready waits until a server is connected, ctx ends or late fires; late may
// be nil.
func (c *Conn) ready(ctx context.Context, late <-chan time.Time) error {
	c.mu.Lock()
	up := c.up
	c.mu.Unlock()
	select {
	case <-up:
		return nil
	default:
	}
	select {
	case <-up:
		return nil
	case <-c.closed:
		return ErrClosed
	case <-late:
		return c.translate(nats.ErrTimeout)
	case <-ctx.Done():
		return c.translate(ctx.Err())
	}
}

// send runs fn when connected, again when the connection went away before
// anything was sent. late bounds the wait for a connection beside ctx.
func (c *Conn) send(ctx context.Context, subject string, late <-chan time.Time, fn func() error) error {
	if c.deniedN.Load() > 0 {
		if _, ok := c.denied.Load(subject); ok {
			return fmt.Errorf("%w: publish to %s", ErrDenied, subject)
		}
	}
	for {
		if err := c.ready(ctx, late); err != nil {
			return err
		}
		err := fn()
		if !errors.Is(err, nats.ErrReconnectBufExceeded) && !errors.Is(err, nats.ErrConnectionReconnecting) {
			return err
		}
		select {
		case <-ctx.Done():
			return c.translate(ctx.Err())
		case <-time.After(5 * time.Millisecond): // the disconnect handler is about to run
		}
	}
}

// lostCause names the loss of the connection where err is the end of ctx.
func lostCause(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errLost) {
		return errLost
	}
	return err
}

// askAgain is how long a read waits for its answer before it is asked once
// more; each further wait is twice the one before. Any replica answers a direct
// get, also one whose server hangs or lost its power: until the others notice,
// which takes them a minute, every third read goes there and is never answered.
// What was asked of a leader is lost in the same way when the leader is.
const askAgain = time.Second

// call is one request with one reply. m gets the reply subject.
func (c *Conn) call(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	return c.exchange(ctx, m, 0)
}

// read is call for a request that changes nothing: it is made again until one
// of them is answered.
func (c *Conn) read(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	return c.exchange(ctx, m, askAgain)
}

// exchange makes a request, again after the time again unless that is 0.
func (c *Conn) exchange(ctx context.Context, m *nats.Msg, again time.Duration) (*nats.Msg, error) {
	var late <-chan time.Time
	if d, ok := c.patience(ctx); ok {
		timer := time.NewTimer(d)
		defer timer.Stop()
		late = timer.C
	}
	var reply *nats.Msg
	err := c.send(ctx, m.Subject, late, func() (err error) {
		reply, err = c.request(ctx, m, late, again)
		return err
	})
	if err == nil {
		return reply, nil
	}
	if _, ok := c.denied.Load(m.Subject); ok {
		return nil, fmt.Errorf("%w: publish to %s", ErrDenied, m.Subject)
	}
	return nil, c.translate(err)
}

// patience is how long a call may take beside what ctx says.
func (c *Conn) patience(ctx context.Context) (time.Duration, bool) {
	if c.server != nil && c.server.frozen.Load() {
		return frozenTimeout, true
	}
	_, bounded := ctx.Deadline()
	return c.timeout, !bounded
}

// request makes one try over the present connection.
func (c *Conn) request(ctx context.Context, m *nats.Msg, late <-chan time.Time, again time.Duration) (*nats.Msg, error) {
	lost := c.lost()
	token, subject, answer := c.replies.open()
	defer c.replies.drop(token)
	m.Reply = subject
	var silence <-chan time.Time
	var timer *time.Timer
	if again > 0 {
		timer = time.NewTimer(again)
		defer timer.Stop()
		silence = timer.C
	}
	for {
		if err := c.nc.PublishMsg(m); err != nil {
			return nil, err
		}
		select {
		case reply := <-answer: // of any of the tries
			if noResponders(reply) {
				return nil, nats.ErrNoResponders
			}
			return reply, nil
		case <-silence:
			again *= 2
			timer.Reset(again)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-late:
			return nil, nats.ErrTimeout
		case <-lost:
			return nil, errLost
		}
	}
}

func (c *Conn) setUp(up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.up:
		if !up {
			c.up = make(chan struct{})
			c.end()
		}
	default:
		if up {
			c.life, c.end = context.WithCancel(context.Background())
			close(c.up)
		}
	}
}

// lost is closed when the present connection goes, and is closed already when
// there is none.
func (c *Conn) lost() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.life.Done()
}

// errLost is the cause of a context that ended with the connection.
var errLost = errors.New("connection lost")

// whileUp ends ctx with the present connection: what was asked over it will
// not be answered, and waiting longer would only delay the caller's retry.
func (c *Conn) whileUp(ctx context.Context) (context.Context, context.CancelFunc) {
	c.mu.Lock()
	life := c.life
	c.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(errLost) })
	return ctx, func() { stop(); cancel(nil) }
}
