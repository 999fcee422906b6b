package egress

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// maxRequestHeader leaves room for a browser's largest cookies, in bytes.
const maxRequestHeader = 256 << 10

// Listener serves one lease: every connection it accepts is that lease's, no
// credentials asked, because a browser takes none on its command line.
type Listener struct {
	proxy   *Proxy
	ln      net.Listener
	scope   *scope
	server  *http.Server
	release func()
	close   func()
}

// Listen opens a port on 127.0.0.1 for id. The guard refuses that port as a
// destination. Any process on this machine can use it while it is open, so it is
// for a runtime whose processes share the machine's network anyway; behind a
// network namespace use [Proxy.Serve] with a unix socket.
func (p *Proxy) Listen(ctx context.Context, id Identity) (*Listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for lease %s: %w", id.Lease, err)
	}
	return p.Serve(ln, id)
}

// Serve serves id's connections on ln, which it owns from now on, until the
// listener or the proxy is closed. It does not block. It fails only when the
// proxy is closed.
func (p *Proxy) Serve(ln net.Listener, id Identity) (*Listener, error) {
	l := &Listener{proxy: p, ln: ln, scope: newScope(p.scope.ctx), release: func() {}}
	if tcp, ok := ln.Addr().(*net.TCPAddr); ok {
		l.release = p.config.Guard.RefuseListener(tcp.AddrPort())
	}
	l.close = sync.OnceFunc(l.shut)
	l.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !l.scope.enter() {
				answer(w, http.StatusServiceUnavailable, Busy, "the lease has ended")
				return
			}
			defer l.scope.leave()
			p.serve(l.scope.ctx, w, r, id)
		}),
		DisableGeneralOptionsHandler: true, // not ours to answer for the destination
		ReadHeaderTimeout:            10 * time.Second,
		WriteTimeout:                 p.config.MaxDuration, // a plain response nobody reads
		IdleTimeout:                  time.Minute,
		MaxHeaderBytes:               maxRequestHeader,
		ErrorLog:                     slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // broken requests are the client's affair
	}
	p.mu.Lock()
	if p.scope.stopped() {
		p.mu.Unlock()
		l.release()
		_ = ln.Close()
		return nil, fmt.Errorf("serve lease %s: %w", id.Lease, errClosed)
	}
	p.listeners[l] = struct{}{}
	l.scope.running.Go(func() { _ = l.server.Serve(ln) }) // ends with ErrServerClosed
	p.mu.Unlock()
	return l, nil
}

// Addr is where the lease's processes find the proxy: host:port, or a socket's
// path.
func (l *Listener) Addr() string { return l.ln.Addr().String() }

// AddrPort is Addr for a TCP listener, and invalid for any other.
func (l *Listener) AddrPort() netip.AddrPort {
	if tcp, ok := l.ln.Addr().(*net.TCPAddr); ok {
		return tcp.AddrPort()
	}
	return netip.AddrPort{}
}

// Close cuts every connection of the lease, tunnels included, stops listening,
// and returns when all have been reported.
func (l *Listener) Close() { l.close() }

func (l *Listener) shut() {
	l.scope.stop()
	_ = l.server.Close()
	_ = l.ln.Close()
	l.scope.wait()
	l.release()
	l.proxy.mu.Lock()
	delete(l.proxy.listeners, l)
	l.proxy.mu.Unlock()
}

// scope is a span of time in which requests are served, with a context that
// ends with it and a way to wait for what runs inside.
type scope struct {
	ctx     context.Context // it is the life of a server, not of a call
	cancel  context.CancelCauseFunc
	running sync.WaitGroup

	mu   sync.Mutex
	over bool // guarded by mu; once set, running only shrinks
}

func newScope(parent context.Context) *scope {
	s := &scope{}
	s.ctx, s.cancel = context.WithCancelCause(parent)
	return s
}

func (s *scope) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.running.Add(1)
	return true
}

func (s *scope) leave() { s.running.Done() }

func (s *scope) stop() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.cancel(errClosed)
}

func (s *scope) stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *scope) wait() { s.running.Wait() }

// ChromiumArgs are the flags that send all of Chromium's traffic through the
// proxy at proxyAddr (host:port on a loopback address). Beyond the proxy itself
// they close the ways around one: Chromium by default reaches loopback directly,
// looks names up for itself, and sends WebRTC and QUIC over UDP.
func ChromiumArgs(proxyAddr string) []string {
	return []string{
		"--proxy-server=http://" + proxyAddr,
		"--proxy-bypass-list=<-loopback>",
		"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
		"--disable-quic",
		"--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
		"--webrtc-ip-handling-policy=disable_non_proxied_udp",
	}
}

// ProcessEnv are the environment entries that ask an ordinary program to use the
// proxy at proxyAddr. They are a request, not a wall: a program may ignore them,
// so a runtime without a network namespace says so.
func ProcessEnv(proxyAddr string) []string {
	url := "http://" + proxyAddr
	return []string{
		"HTTP_PROXY=" + url, "http_proxy=" + url,
		"HTTPS_PROXY=" + url, "https_proxy=" + url,
		"ALL_PROXY=" + url, "all_proxy=" + url,
		"NO_PROXY=", "no_proxy=",
	}
}
