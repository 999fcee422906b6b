package bus

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// uploader keeps a window of chunks in flight and their order.
type uploader struct {
	conn    *Conn
	subject string
	window  []jetstream.PubAckFuture
	last    uint64
}

func (u *uploader) send(ctx context.Context, chunk []byte) error {
	if len(u.window) == chunksInFlight {
		if err := u.await(ctx); err != nil {
			return err
		}
	}
	bound, cancel := u.conn.bound(ctx, u.conn.timeout)
	defer cancel()
	var f jetstream.PubAckFuture
	err := u.conn.send(bound, u.subject, nil, func() (err error) {
		f, err = u.conn.js.PublishMsgAsync(&nats.Msg{Subject: u.subject, Data: chunk}, jetstream.WithRetryAttempts(0))
		return err
	})
	if err != nil {
		return u.conn.translate(err)
	}
	u.window = append(u.window, f)
	return nil
}

// await waits for the oldest chunk in flight.
func (u *uploader) await(ctx context.Context) error {
	f := u.window[0]
	u.window = u.window[1:]
	// A stalled server must not hold an upload whose ctx is long.
	bound, cancel := context.WithTimeout(ctx, u.conn.timeout)
	defer cancel()
	select {
	case ack := <-f.Ok():
		if ack.Sequence <= u.last {
			return fmt.Errorf("%w: chunks were stored out of order", ErrUnavailable)
		}
		u.last = ack.Sequence
		return nil
	case err := <-f.Err():
		return u.conn.translate(err)
	case <-bound.Done():
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return u.conn.translate(bound.Err())
	}
}

// settle waits until nothing is in flight any more, whatever came of it: a
// chunk stored after the purge of a failed upload would stay.
func (u *uploader) settle() {
	expired := time.After(u.conn.timeout)
	for _, f := range u.window {
		select {
		case <-f.Ok():
		case err := <-f.Err():
			_ = err // the upload has failed already
		case <-expired:
			return
		}
	}
}

func (u *uploader) flush(ctx context.Context) error {
	for len(u.window) > 0 {
		if err := u.await(ctx); err != nil {
			return err
		}
	}
	return nil
}
