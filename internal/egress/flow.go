package egress

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

var (
	errByteCap = errors.New("byte cap reached")
	errIdle    = errors.New("connection idle for too long")
	errTimeCap = errors.New("time cap reached")
	errClosed  = errors.New("proxy listener closed")
)

// flow is the account of one connection through the proxy: how much went each
// way, when something last moved, and what ended it.
type flow struct {
	startedAt time.Time
	maxBytes  int64 // up and down together
	idle      time.Duration
	up, down  atomic.Int64 // bytes written to and read from the destination
	moved     atomic.Int64 // nanoseconds after startedAt of the last movement
	cut       atomic.Value // error: the first bound that was hit
}

func (f *flow) end(err error) error {
	f.cut.CompareAndSwap(nil, err)
	return err
}

func (f *flow) touch() { f.moved.Store(int64(time.Since(f.startedAt))) }

// quiet tells whether neither direction has moved for the idle limit.
func (f *flow) quiet() bool {
	return time.Since(f.startedAt)-time.Duration(f.moved.Load()) >= f.idle
}

func (f *flow) room() int64 { return f.maxBytes - f.up.Load() - f.down.Load() }

// meter is one end of a connection with the bounds of its flow. A direction that
// is silent is fine as long as the other one moves.
type meter struct {
	net.Conn
	flow   *flow
	counts bool // the destination's end counts; the client's end would count twice
}

// Read reads until bytes, an error, the idle limit or the byte cap arrive.
func (m *meter) Read(b []byte) (int, error) {
	for {
		if err := m.SetReadDeadline(time.Now().Add(m.flow.idle)); err != nil {
			return 0, err
		}
		n, err := m.Conn.Read(b)
		if n > 0 {
			m.flow.touch()
			if m.counts {
				if int64(n) > m.flow.room() {
					return 0, m.flow.end(errByteCap)
				}
				m.flow.down.Add(int64(n))
			}
			return n, err
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		if m.flow.quiet() {
			return 0, m.flow.end(errIdle)
		}
	}
}

// Write writes b, or fails at the byte cap or when the peer stops reading for
// the idle limit.
func (m *meter) Write(b []byte) (int, error) {
	if m.counts && int64(len(b)) > m.flow.room() {
		return 0, m.flow.end(errByteCap)
	}
	if err := m.SetWriteDeadline(time.Now().Add(m.flow.idle)); err != nil {
		return 0, err
	}
	n, err := m.Conn.Write(b)
	if n > 0 {
		m.flow.touch()
		if m.counts {
			m.flow.up.Add(int64(n))
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, m.flow.end(errIdle)
	}
	return n, err
}

// CloseWrite passes an end of input on, where the connection can.
func (m *meter) CloseWrite() error {
	if c, ok := m.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// closeWith closes conns when ctx ends, and returns a function that stops
// watching.
func closeWith(ctx context.Context, conns ...net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		for _, c := range conns {
			_ = c.Close()
		}
	})
}
