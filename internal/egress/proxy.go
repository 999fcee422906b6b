package egress

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// VerdictHeader is set on every answer that comes from the proxy itself and not
// from the destination; its value is the [Verdict]. A destination's own header of
// that name is removed from plain responses.
const VerdictHeader = "X-Helmdeck-Egress"

// Verdict is what the proxy made of a connection.
type Verdict string

// The verdicts of the proxy.
const (
	Allowed         Verdict = "allowed"
	Denied          Verdict = "denied"          // refused by the guard: 403
	Unreachable     Verdict = "unreachable"     // no such host, or nobody answers: 502
	Unauthenticated Verdict = "unauthenticated" // no or a wrong token: 407
	Busy            Verdict = "busy"            // too many connections of one lease: 503
	Malformed       Verdict = "malformed"       // not a proxy request: 400
)

// Identity is on whose behalf a connection is made.
type Identity struct {
	Tenant string
	Caller string
	Lease  string
	Job    string // empty when the lease serves more than one
}

// Connection is the report on one CONNECT tunnel or one plain request. It is
// made when the connection has ended, refused ones included.
type Connection struct {
	Identity
	Tunnel    bool           // CONNECT, as opposed to a plain request
	Host      string         // as asked for, without the port
	Port      uint16         // 0 when the request named none
	Addr      netip.AddrPort // connected to or refused; invalid when it came to neither
	Verdict   Verdict
	Rule      Rule   // set when Denied
	Reason    string // why not, or which bound cut an allowed connection short; else empty
	Up, Down  int64  // bytes to and from the destination, headers of plain requests included
	StartedAt time.Time
	Duration  time.Duration
}

// ProxyConfig is how a [Proxy] is made. Guard is required.
type ProxyConfig struct {
	Guard *Guard
	// Authorize turns a lease ID and its token into an identity for requests
	// to [Proxy.ServeHTTP]; an error is a refusal. Without it all are refused.
	// Compare tokens in constant time.
	Authorize func(ctx context.Context, lease, token string) (Identity, error)
	// Observe is told of every connection once it has ended, on the
	// connection's own goroutine. It must be quick, safe for concurrent use,
	// and must not close the proxy or a listener of it.
	Observe func(Connection)
	Log     zerolog.Logger

	MaxBytes    int64         // per connection, both ways; default 4 GiB
	MaxDuration time.Duration // per connection; default 2 h, a lease's longest life
	Idle        time.Duration // without movement either way; default 5 min
	MaxConns    int           // at the same time per lease; default 256, a browser's own limit
}

func (c ProxyConfig) withDefaults() ProxyConfig {
	if c.Observe == nil {
		c.Observe = func(Connection) {}
	}
	if c.MaxBytes <= 0 {
		c.MaxBytes = 4 << 30
	}
	if c.MaxDuration <= 0 {
		c.MaxDuration = 2 * time.Hour
	}
	if c.Idle <= 0 {
		c.Idle = 5 * time.Minute
	}
	if c.MaxConns <= 0 {
		c.MaxConns = 256
	}
	return c
}

// Proxy is a forward proxy for CONNECT and plain HTTP requests, WebSockets
// included, that connects through a [Guard]. It terminates no TLS. Serve
// connections of one lease with [Proxy.Listen], or mount it as a handler, which
// asks for the lease's credentials.
type Proxy struct {
	config ProxyConfig
	scope  *scope

	mu        sync.Mutex
	active    map[string]int         // guarded by mu; connections by lease
	listeners map[*Listener]struct{} // guarded by mu
}

// NewProxy returns a proxy for config.
func NewProxy(config ProxyConfig) *Proxy {
	return &Proxy{
		config:    config.withDefaults(),
		scope:     newScope(context.Background()),
		active:    map[string]int{},
		listeners: map[*Listener]struct{}{},
	}
}

// Close cuts every connection, closes every listener and waits for both.
func (p *Proxy) Close() {
	p.scope.stop() // before the list is read, so that none is added after
	p.mu.Lock()
	open := slices.Collect(maps.Keys(p.listeners))
	p.mu.Unlock()
	for _, l := range open {
		l.Close()
	}
	p.scope.wait()
}

// ServeHTTP serves one proxy request with Proxy-Authorization: Basic, user the
// lease ID and password its token.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.scope.enter() {
		answer(w, http.StatusServiceUnavailable, Busy, "the egress proxy is shutting down")
		return
	}
	defer p.scope.leave()
	lease, token, ok := proxyCredentials(r)
	var id Identity
	if ok = ok && p.config.Authorize != nil; ok {
		var err error
		id, err = p.config.Authorize(r.Context(), lease, token)
		ok = err == nil
	}
	if !ok {
		w.Header().Set("Proxy-Authenticate", `Basic realm="helmdeck egress"`)
		p.reject(w, p.newExchange(r, Identity{Lease: lease}), http.StatusProxyAuthRequired, Unauthenticated,
			"the egress proxy needs the lease's ID and token")
		return
	}
	p.serve(p.scope.ctx, w, r, id)
}

func proxyCredentials(r *http.Request) (user, password string, ok bool) {
	scheme, encoded, _ := strings.Cut(r.Header.Get("Proxy-Authorization"), " ")
	if !strings.EqualFold(scheme, "Basic") {
		return "", "", false
	}
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return "", "", false
	}
	return strings.Cut(string(plain), ":")
}

// exchange is one request on its way through the proxy.
type exchange struct {
	report Connection
	flow   *flow
}

func (p *Proxy) newExchange(r *http.Request, id Identity) *exchange {
	now := time.Now()
	return &exchange{
		report: Connection{Identity: id, Tunnel: r.Method == http.MethodConnect, StartedAt: now},
		flow:   &flow{startedAt: now, maxBytes: p.config.MaxBytes, idle: p.config.Idle},
	}
}

// serve carries one request for id until it ends, scope ends or a bound is hit.
func (p *Proxy) serve(scope context.Context, w http.ResponseWriter, r *http.Request, id Identity) {
	x := p.newExchange(r, id)
	target, refusal, ok := requestTarget(r)
	if !ok {
		p.reject(w, x, http.StatusBadRequest, Malformed, "this is a forward proxy: send CONNECT host:port or an absolute http:// URL")
		return
	}
	if !p.acquire(id.Lease) {
		p.reject(w, x, http.StatusServiceUnavailable, Busy, "too many connections of this lease at the same time")
		return
	}
	defer p.release(id.Lease)
	if refusal != nil {
		p.fail(w, x, refusal)
		return
	}
	x.report.Host, x.report.Port = target.String(), target.port

	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(scope, func() { cancel(context.Cause(scope)) })()
	ctx, stop := context.WithTimeoutCause(ctx, p.config.MaxDuration, errTimeCap)
	defer stop()

	conn, addr, err := p.config.Guard.dial(ctx, "tcp", net.JoinHostPort(target.String(), strconv.Itoa(int(target.port))))
	x.report.Addr = addr
	if err != nil {
		p.fail(w, x, err)
		return
	}
	upstream := &meter{Conn: conn, flow: x.flow, counts: true}
	defer func() {
		_ = upstream.Close()
		for _, bound := range []error{errTimeCap, errClosed} {
			if errors.Is(context.Cause(ctx), bound) {
				_ = x.flow.end(bound)
			}
		}
		p.finish(x, Allowed)
	}()
	if x.report.Tunnel {
		tunnel(ctx, w, upstream, x.flow)
		return
	}
	forward(ctx, w, r, upstream)
}

// requestTarget returns where r wants to go. ok is false when r is not a
// request to a forward proxy at all.
func requestTarget(r *http.Request) (target host, refusal *Refusal, ok bool) {
	if r.Method != http.MethodConnect {
		if !r.URL.IsAbs() {
			return host{}, nil, false
		}
		target, refusal = checkURL(r.URL, "http")
		return target, refusal, true
	}
	name, portText, err := net.SplitHostPort(r.RequestURI)
	if err != nil {
		return host{}, nil, false //nolint:nilerr // not a proxy request, and nothing more to say about it
	}
	if target, refusal = parseHost(name); refusal != nil {
		return host{}, refusal, true
	}
	port, valid := parsePort(portText)
	if !valid {
		return host{}, nil, false
	}
	target.port = port
	return target, nil, true
}

func (p *Proxy) acquire(lease string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active[lease] >= p.config.MaxConns {
		return false
	}
	p.active[lease]++
	return true
}

func (p *Proxy) release(lease string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active[lease]--; p.active[lease] <= 0 {
		delete(p.active, lease)
	}
}
