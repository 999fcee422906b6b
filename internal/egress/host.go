package egress

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// host is a destination as asked for: either an address or a name to look up.
type host struct {
	name string     // ASCII, lower case; empty for an address
	addr netip.Addr // invalid for a name
	port uint16
}

const notationRemedy = "write an IPv4 address as four decimal numbers without leading zeros"

// parseHost reads a host without brackets or port. Only names that can be
// looked up and addresses in their usual notation pass; the rest is a refusal.
func parseHost(s string) (host, *Refusal) {
	if s == "" {
		return host{}, refuseURL("", "no host is named", "give a host name or an IP address")
	}
	if strings.Contains(s, ":") {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return host{}, refuseURL(s, "is not an IPv6 address", "")
		}
		return host{addr: addr}, nil
	}
	ascii := s
	if !isASCII(s) {
		var err error
		// The profile net/http uses, so that both mean the same host. It maps
		// full-width digits and ideographic dots to their plain forms.
		if ascii, err = idna.Lookup.ToASCII(s); err != nil {
			return host{}, refuseURL(s, "is not a valid international host name", "")
		}
	}
	if addr, err := netip.ParseAddr(ascii); err == nil {
		return host{addr: addr}, nil
	}
	if endsInNumber(ascii) {
		return host{}, refuseURL(s, "is a number in an unusual notation, which programs read differently", notationRemedy)
	}
	if !isHostName(ascii) {
		return host{}, refuseURL(s, "is not a valid host name", "")
	}
	name := strings.ToLower(ascii)
	if isMetadataHost(name) {
		return host{}, &Refusal{Host: s, Rule: RuleMetadata, Reason: "is the name of a cloud metadata service"}
	}
	return host{name: name}, nil
}

// endsInNumber tells whether some program would take s for an IPv4 address: its
// last label is decimal, octal or hexadecimal (the rule of the WHATWG URL
// standard, which covers inet_aton's short forms). No top-level domain is one.
func endsInNumber(s string) bool {
	s = strings.TrimSuffix(s, ".")
	last := s[strings.LastIndexByte(s, '.')+1:]
	digits := "0123456789"
	if len(last) >= 2 && last[0] == '0' && (last[1] == 'x' || last[1] == 'X') {
		last, digits = last[2:], "0123456789abcdefABCDEF"
		if last == "" {
			return true
		}
	}
	return last != "" && strings.Trim(last, digits) == ""
}

func isHostName(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for i := range len(label) {
			c := label[i]
			switch {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			default:
				return false
			}
		}
	}
	return true
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// parseURL reads an absolute URL a caller gave.
func parseURL(raw string) (host, *Refusal) {
	u, err := url.Parse(raw)
	if err != nil {
		// The parser's own text quotes the input, which may hold a password.
		return host{}, refuseURL("", "the URL cannot be read", "give an absolute http:// or https:// URL")
	}
	return checkURL(u, "http", "https")
}

// checkURL judges everything about u but the address it leads to.
func checkURL(u *url.URL, schemes ...string) (host, *Refusal) {
	want := "give an absolute " + strings.Join(schemes, ":// or ") + ":// URL"
	defaultPort := map[string]uint16{"http": 80, "https": 443}
	known := false
	for _, s := range schemes {
		known = known || strings.EqualFold(u.Scheme, s)
	}
	switch {
	case u.Scheme == "":
		return host{}, refuseURL("", "the URL has no scheme", want)
	case !known:
		return host{}, refuseURL("", "the URL scheme "+printable(u.Scheme)+" is not allowed", want)
	case u.Opaque != "" || u.Hostname() == "":
		return host{}, refuseURL("", "the URL has no host", want)
	case u.User != nil:
		return host{}, refuseURL(u.Hostname(), "comes with credentials in the URL", "send them in a header instead")
	}
	target, refusal := parseHost(u.Hostname())
	if refusal != nil {
		return host{}, refusal
	}
	target.port = defaultPort[strings.ToLower(u.Scheme)]
	if p := u.Port(); p != "" {
		port, ok := parsePort(p)
		if !ok {
			return host{}, refuseURL(u.Hostname(), "is given with a port that is not a number from 1 to 65535", "")
		}
		target.port = port
	}
	return target, nil
}

// String returns the host without its port.
func (h host) String() string {
	if h.name != "" {
		return h.name
	}
	return h.addr.String()
}

func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0
}
