package egress

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Refusal is the guard's "no". Its text starts with "egress denied" and says
// what an operator or caller can do; it never holds credentials or a full URL.
type Refusal struct {
	Host   string         // as asked for; empty when only an address was judged
	Addr   netip.AddrPort // the address that led to the refusal; invalid when none did
	Rule   Rule
	Reason string // completes "it …", such as "is a loopback address (127.0.0.0/8)"
	Remedy string // a sentence without a full stop; may be empty
}

// Error returns "egress denied: <what> <reason>; <remedy>".
func (r *Refusal) Error() string {
	var b strings.Builder
	b.WriteString("egress denied: ")
	host := printable(r.Host)
	switch addr := r.Addr.Addr(); {
	case !addr.IsValid() && host == "":
	case !addr.IsValid():
		b.WriteString(host + " ")
	case host == "" || host == addr.String() || host == r.Addr.String():
		b.WriteString(r.where() + " ")
	default:
		fmt.Fprintf(&b, "%s (%s) ", host, r.where())
	}
	b.WriteString(r.Reason)
	if r.Remedy != "" {
		b.WriteString("; " + r.Remedy)
	}
	return b.String()
}

func (r *Refusal) where() string {
	if r.Rule == RuleOwnListener {
		return r.Addr.String()
	}
	return r.Addr.Addr().String()
}

// withHost returns a copy of r that names the host asked for.
func (r *Refusal) withHost(host string) *Refusal {
	c := *r
	c.Host = host
	return &c
}

// LookupError says that a host name has no usable address. It is not a refusal:
// the name may be misspelt, or the resolver out of reach.
type LookupError struct {
	Host      string
	Temporary bool  // whether the same look-up may succeed later
	Err       error // nil when the resolver answered with no address
}

// Error names the host, the cause and what to do.
func (e *LookupError) Error() string {
	switch {
	case e.Err == nil:
		return fmt.Sprintf("look up host %s: it has no address; check the spelling of the host name", printable(e.Host))
	case e.Temporary:
		return fmt.Sprintf("look up host %s: %v; try again, and check the machine's DNS resolver if it persists", printable(e.Host), e.Err)
	default:
		return fmt.Sprintf("look up host %s: %v; check the spelling of the host name", printable(e.Host), e.Err)
	}
}

// Unwrap returns the resolver's error.
func (e *LookupError) Unwrap() error { return e.Err }

// printable keeps hostile input from breaking a log line or a message.
func printable(s string) string {
	const longest = 120 // enough to recognise any host worth recognising
	if len(s) > longest {
		s = s[:longest] + "…"
	}
	quoted := strconv.QuoteToASCII(s)
	if quoted == `"`+s+`"` {
		return s
	}
	return quoted
}

func refuseURL(host, reason, remedy string) *Refusal {
	return &Refusal{Host: host, Rule: RuleURL, Reason: reason, Remedy: remedy}
}

// EgressDenied tells a pack's engine that the guard, not the network, stopped
// the request (packs.EgressRefusal).
func (r *Refusal) EgressDenied() bool { return true }
