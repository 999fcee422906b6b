// Package egress decides which addresses helmdeck may open connections to on
// somebody else's behalf, and is the only way packs, webhooks, model providers
// and sidecars reach the network.
//
// It owns three things. [Guard] judges an address at the moment it is dialled,
// so that neither a second look-up (DNS rebinding) nor a redirect can lead
// somewhere that was not judged. [Guard.Client] and [Guard.Transport] put that
// dialler under net/http. [Proxy] is a forward proxy that applies the same guard
// to a browser or any other process in a sidecar, and reports each connection.
// It does not own the audit trail (see [ProxyConfig].Observe), nor the
// configuration files.
//
//	allow, err := egress.ParseAllowlist(os.Getenv(egress.AllowlistVar))
//	guard := egress.New(egress.Config{Policy: egress.Policy{Allow: allow}})
//	release := guard.RefuseListener(apiAddr)
//	client := guard.Client(egress.Timeouts{})
//
// # The verdict
//
// The installation's own listeners are refused first, whatever the allow list
// says. Then the allow list is consulted, then the block list. An IPv4 address
// mapped into IPv6 is judged as IPv4. Any name one of whose addresses is refused
// is refused as a whole. A host that is a number in any notation but the usual
// one (0x7f.1, 2130706433, 0177.0.0.1) is refused, because programs disagree
// about what it means.
//
// # Libraries
//
// code.dny.dev/ssrf keeps the IANA special-purpose registries and is consulted
// after our own table, which exists to name the reason of a refusal; it knows
// nothing of mapped addresses under an allow list, zones or own listeners, so it
// is the floor and not the whole. elazarl/goproxy is not used: its tunnel runs in
// goroutines nobody waits for and has no byte, time or idle bounds, so every
// CONNECT would have to be hijacked and written here all the same, while its
// defaults (proxy settings from the environment, no certificate checks, a
// dropped Accept-Encoding) must each be turned off. httputil.ReverseProxy does
// the other half, plain requests.
package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"code.dny.dev/ssrf"
)

// Resolver turns a host name into addresses. [net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config is how a [Guard] is made. The zero value is a strict guard.
type Config struct {
	Policy
	// Resolver answers look-ups; default [net.DefaultResolver].
	Resolver Resolver
	// Dial opens a TCP connection to address, an IP and port that was judged.
	// Default: a [net.Dialer] that judges the socket's address once more.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// LocalAddrs lists the addresses of this machine, which a wildcard
	// listener answers on; default [net.InterfaceAddrs].
	LocalAddrs func() ([]netip.Addr, error)
	// LookupTimeout bounds one look-up; default 5 s.
	LookupTimeout time.Duration
	// DialTimeout bounds one dial over all addresses of a host; default 15 s.
	DialTimeout time.Duration
}

func (c Config) withDefaults() Config {
	if c.Resolver == nil {
		c.Resolver = net.DefaultResolver
	}
	if c.LocalAddrs == nil {
		c.LocalAddrs = interfaceAddrs
	}
	if c.LookupTimeout <= 0 {
		c.LookupTimeout = 5 * time.Second
	}
	if c.DialTimeout <= 0 {
		c.DialTimeout = 15 * time.Second
	}
	return c
}

// Guard judges addresses and dials those it allows. It is safe for concurrent
// use.
type Guard struct {
	config Config
	allow  []netip.Prefix
	floor  *ssrf.Guardian

	mu        sync.RWMutex
	listeners map[netip.AddrPort]int // guarded by mu; how often each was registered
}

// New returns a guard for config.
func New(config Config) *Guard {
	g := &Guard{
		config:    config.withDefaults(),
		floor:     ssrf.New(ssrf.WithAnyPort(), ssrf.WithAnyNetwork()),
		listeners: map[netip.AddrPort]int{},
	}
	for _, prefix := range config.Allow {
		g.allow = append(g.allow, canonicalPrefix(prefix))
	}
	for _, listener := range config.Forbidden {
		g.RefuseListener(listener)
	}
	return g
}

// RefuseListener makes the guard refuse an address this installation listens
// on, even when the allow list covers it, until release is called. Give the
// bound address, not port 0. A wildcard address (0.0.0.0 or [::]) stands for the
// port on every loopback and local address. Where the installation is reached
// through an address that no interface has (address translation, a load
// balancer), register that one too.
func (g *Guard) RefuseListener(listener netip.AddrPort) (release func()) {
	key := netip.AddrPortFrom(listener.Addr().WithZone("").Unmap(), listener.Port())
	g.mu.Lock()
	g.listeners[key]++
	g.mu.Unlock()
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.listeners[key]--; g.listeners[key] <= 0 {
			delete(g.listeners, key)
		}
	})
}

// Judge returns nil when a connection to addr is allowed, otherwise a
// [*Refusal]. It looks at the address alone and does no input or output, except
// for reading the machine's own addresses when a wildcard listener has the port.
func (g *Guard) Judge(addr netip.AddrPort) error {
	if r := g.judge(addr); r != nil {
		return r
	}
	return nil
}

func (g *Guard) judge(target netip.AddrPort) *Refusal {
	if !target.Addr().IsValid() {
		return refuseURL("", "no address to connect to", "")
	}
	zone := target.Addr().Zone()
	addr := target.Addr().WithZone("").Unmap()
	inner, carries := embeddedIPv4(addr)

	if g.isOwnListener(addr, target.Port()) || carries && g.isOwnListener(inner, target.Port()) {
		return &Refusal{
			Addr:   netip.AddrPortFrom(addr, target.Port()),
			Rule:   RuleOwnListener,
			Reason: "is a listener of this installation",
			Remedy: "its own ports are never reachable from a job, whatever " + AllowlistVar + " says",
		}
	}
	if g.allows(addr) {
		if !carries || g.allows(inner) {
			return nil
		}
		return g.judge(netip.AddrPortFrom(inner, target.Port()))
	}
	if zone != "" {
		return refuseAddr(target, RuleLinkLocal, "carries a zone, so it names the local link")
	}
	for _, blocked := range blockedRanges {
		if blocked.prefix.Contains(addr) {
			return refuseAddr(netip.AddrPortFrom(addr, target.Port()), blocked.rule,
				fmt.Sprintf("is %s (%s)", blocked.what, blocked.prefix))
		}
	}
	if err := g.floor.SafeAddr(addr); err != nil {
		return refuseAddr(netip.AddrPortFrom(addr, target.Port()), RuleReserved, "is not a public address")
	}
	return nil
}

func refuseAddr(addr netip.AddrPort, rule Rule, reason string) *Refusal {
	r := &Refusal{Addr: addr, Rule: rule, Reason: reason}
	if rule != RuleMetadata { // nobody should be nudged into opening those
		plain := addr.Addr().WithZone("")
		r.Remedy = fmt.Sprintf("if it must be reachable, an operator adds %s/%d to %s", plain, plain.BitLen(), AllowlistVar)
	}
	return r
}

func (g *Guard) allows(addr netip.Addr) bool {
	return slices.ContainsFunc(g.allow, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func (g *Guard) isOwnListener(addr netip.Addr, port uint16) bool {
	exact, wildcard := false, false
	g.mu.RLock()
	for listener := range g.listeners {
		if listener.Port() != port {
			continue
		}
		// Dialling the unspecified address reaches loopback, so it reaches
		// any listener on this port.
		exact = exact || listener.Addr() == addr || addr.IsUnspecified()
		wildcard = wildcard || listener.Addr().IsUnspecified()
	}
	g.mu.RUnlock()
	if exact || !wildcard {
		return exact
	}
	if addr.IsLoopback() {
		return true
	}
	local, err := g.config.LocalAddrs()
	// Not knowing the machine's addresses, the port is refused everywhere.
	return err != nil || slices.Contains(local, addr)
}

func interfaceAddrs() ([]netip.Addr, error) {
	nets, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list interface addresses: %w", err)
	}
	var out []netip.Addr
	for _, n := range nets {
		if ipNet, ok := n.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(ipNet.IP); ok {
				out = append(out, addr.Unmap())
			}
		}
	}
	return out, nil
}
