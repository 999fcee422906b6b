package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"time"
)

// relay is the proxy the sidecar's programs know: a loopback port whose
// connections go on to the scheduler's egress proxy. The programs' setting
// never changes; where it leads does, when another scheduler adopts the
// sidecar.
type relay struct {
	listener net.Listener
	done     sync.WaitGroup

	mu       sync.Mutex // guards the rest
	upstream string     // host:port; empty: connections are dropped
	open     map[net.Conn]bool
	closed   bool
}

func newRelay(ctx context.Context, proxyURL string) (*relay, error) {
	r := &relay{open: map[net.Conn]bool{}}
	if err := r.set(proxyURL); err != nil {
		return nil, err
	}
	var err error
	if r.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("listen for the sidecar's traffic: %w", err)
	}
	r.done.Go(r.accept)
	return r, nil
}

// URL is the proxy's address for programs.
func (r *relay) URL() string { return "http://" + r.listener.Addr().String() }

func (r *relay) set(proxyURL string) error {
	host := ""
	if proxyURL != "" {
		u, err := url.Parse(proxyURL)
		if err != nil || u.Scheme != "http" || u.Port() == "" || u.User != nil {
			return fmt.Errorf("proxy must be http://host:port")
		}
		host = u.Host
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upstream = host
	return nil
}

func (r *relay) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.done.Go(func() { r.forward(conn) })
	}
}

func (r *relay) forward(down net.Conn) {
	if !r.hold(down) {
		return
	}
	defer r.drop(down)
	r.mu.Lock()
	upstream := r.upstream
	r.mu.Unlock()
	if upstream == "" {
		return
	}
	up, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(context.Background(), "tcp", upstream)
	if err != nil || !r.hold(up) {
		return
	}
	defer r.drop(up)
	var both sync.WaitGroup
	both.Go(func() { pass(up, down) })
	both.Go(func() { pass(down, up) })
	both.Wait()
}

// pass copies until one side ends and hands the end on.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if c, ok := to.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
}

func (r *relay) hold(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = c.Close()
		return false
	}
	r.open[c] = true
	return true
}

func (r *relay) drop(c net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = c.Close()
	delete(r.open, c)
}

// Close ends all connections and waits for them.
func (r *relay) Close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	for c := range r.open {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.done.Wait()
}
