package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// maxDialled is how many addresses of one host are tried, and minAttempt the
// least time each gets, so that one dead address family does not use up the
// whole budget.
const (
	maxDialled = 8
	minAttempt = 2 * time.Second
)

// CheckURL gives an early and clear verdict on a URL that a caller handed in:
// absolute, http or https, no credentials, and every address of its host
// allowed. It returns a [*Refusal], a [*LookupError], or nil. It does not replace
// the check at dial time, and a connection must still go through the guard.
func (g *Guard) CheckURL(ctx context.Context, rawURL string) error {
	target, refusal := parseURL(rawURL)
	if refusal != nil {
		return refusal
	}
	_, err := g.resolve(ctx, "ip", target)
	return err
}

// CheckHost is [Guard.CheckURL] for a bare host, such as a git remote's: a name or
// an IP address without brackets, and the port it would be dialled at.
func (g *Guard) CheckHost(ctx context.Context, name string, port uint16) error {
	target, refusal := parseHost(name)
	if refusal != nil {
		return refusal
	}
	target.port = port
	_, err := g.resolve(ctx, "ip", target)
	return err
}

// DialContext connects to address ("host:port") over tcp, tcp4 or tcp6. It looks
// the host up itself, judges every address, and connects to one of those very
// addresses, so a name that changes between check and connect gains nothing. The
// error is a [*Refusal], a [*LookupError], or the last address's dial error.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, _, err := g.dial(ctx, network, address)
	return conn, err
}

// dial also tells which address it connected to or tried last.
func (g *Guard) dial(ctx context.Context, network, address string) (net.Conn, netip.AddrPort, error) {
	lookup, ok := map[string]string{"tcp": "ip", "tcp4": "ip4", "tcp6": "ip6"}[network]
	if !ok {
		return nil, netip.AddrPort{}, refuseURL("", "the network "+printable(network)+" is not allowed", "")
	}
	name, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, netip.AddrPort{}, refuseURL("", "the address is not host:port", "")
	}
	target, refusal := parseHost(name)
	if refusal != nil {
		return nil, netip.AddrPort{}, refusal
	}
	if target.port, ok = parsePort(portText); !ok {
		return nil, netip.AddrPort{}, refuseURL(name, "is given with a port that is not a number from 1 to 65535", "")
	}
	ctx, cancel := context.WithTimeout(ctx, g.config.DialTimeout)
	defer cancel()
	addrs, err := g.resolve(ctx, lookup, target)
	if err != nil {
		var refused *Refusal
		if errors.As(err, &refused) {
			return nil, refused.Addr, err
		}
		return nil, netip.AddrPort{}, err
	}
	return g.dialAny(ctx, network, addrs[:min(len(addrs), maxDialled)])
}

// dialAny tries addrs in the resolver's order, which is already sorted by
// reachability. All of them have been judged.
func (g *Guard) dialAny(ctx context.Context, network string, addrs []netip.AddrPort) (conn net.Conn, last netip.AddrPort, err error) {
	connect := g.config.Dial
	if connect == nil {
		connect = (&net.Dialer{KeepAlive: 30 * time.Second, ControlContext: g.control}).DialContext
	}
	for i, addr := range addrs {
		attempt, cancel := context.WithTimeout(ctx, share(ctx, len(addrs)-i))
		conn, err = connect(attempt, network, addr.String())
		cancel()
		if err == nil || ctx.Err() != nil {
			return conn, addr, err
		}
		last = addr
	}
	return nil, last, err
}

// share splits what is left of ctx over the remaining attempts.
func share(ctx context.Context, attempts int) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return minAttempt
	}
	return max(time.Until(deadline)/time.Duration(attempts), minAttempt)
}

// control judges the address the kernel is about to be given. It repeats what
// resolve did, so that no change between the two can open a gap.
func (g *Guard) control(_ context.Context, network, address string, _ syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return refuseURL("", "the network "+printable(network)+" is not allowed", "")
	}
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return refuseURL("", "the address is not an IP address and port", "")
	}
	return g.Judge(addr)
}

// resolve returns the addresses of target, all of them judged and allowed, at
// least one.
func (g *Guard) resolve(ctx context.Context, network string, target host) ([]netip.AddrPort, error) {
	asked := target.name
	addrs := []netip.Addr{target.addr}
	if target.name != "" {
		var err error
		if addrs, err = g.lookup(ctx, network, target.name); err != nil {
			return nil, err
		}
	} else {
		asked = target.addr.String()
	}
	out := make([]netip.AddrPort, len(addrs))
	for i, addr := range addrs {
		out[i] = netip.AddrPortFrom(addr.Unmap(), target.port)
		if refusal := g.judge(out[i]); refusal != nil {
			return nil, refusal.withHost(asked)
		}
	}
	return out, nil
}

func (g *Guard) lookup(ctx context.Context, network, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, g.config.LookupTimeout)
	defer cancel()
	addrs, err := g.config.Resolver.LookupNetIP(ctx, network, name)
	if err != nil {
		var dns *net.DNSError
		if errors.As(err, &dns) {
			// The resolver's own text repeats the name and may show the
			// address of the name server.
			return nil, &LookupError{Host: name, Temporary: !dns.IsNotFound, Err: dnsError{dns}}
		}
		return nil, &LookupError{Host: name, Temporary: true, Err: err}
	}
	if len(addrs) == 0 {
		return nil, &LookupError{Host: name}
	}
	return addrs, nil
}

// dnsError prints a resolver error without the name and the server.
type dnsError struct{ *net.DNSError }

func (e dnsError) Error() string {
	if e.IsTimeout {
		return fmt.Sprintf("the look-up timed out (%s)", e.Err)
	}
	return e.Err
}

func (e dnsError) Unwrap() error { return e.DNSError }
