package egress

import (
	"fmt"
	"net/netip"
	"strings"
)

// AllowlistVar is the environment variable that holds the allow list.
const AllowlistVar = "HELMDECK_EGRESS_ALLOWLIST"

// Policy is what an operator decides about egress.
type Policy struct {
	// Allow lists ranges that are reachable although the block list names
	// them. It never opens the installation's own listeners.
	Allow []netip.Prefix
	// Forbidden lists listeners of the installation known from the start; see
	// [Guard.RefuseListener] for the meaning and for later additions.
	Forbidden []netip.AddrPort
}

// ParseAllowlist reads a comma-separated list of CIDRs such as
// "127.0.0.1/32, fd00:1::/64". A bare address stands for itself alone; host bits
// are cleared; an IPv4 range mapped into IPv6 becomes the IPv4 range. Blank items
// are skipped, and an empty list is nil. The error names [AllowlistVar] and the
// first item that cannot be read.
func ParseAllowlist(list string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		prefix, err := parsePrefix(item)
		if err != nil {
			return nil, fmt.Errorf("%s: item %q is not a CIDR such as 192.168.1.0/24 or an IP address: %w", AllowlistVar, item, err)
		}
		out = append(out, prefix)
	}
	return out, nil
}

func parsePrefix(item string) (netip.Prefix, error) {
	if strings.Contains(item, "/") {
		prefix, err := netip.ParsePrefix(item)
		if err != nil {
			return netip.Prefix{}, err
		}
		return canonicalPrefix(prefix), nil
	}
	addr, err := netip.ParseAddr(item)
	if err != nil {
		return netip.Prefix{}, err
	}
	if addr.Zone() != "" {
		return netip.Prefix{}, fmt.Errorf("a zone (%%%s) cannot be listed", addr.Zone())
	}
	return canonicalPrefix(netip.PrefixFrom(addr, addr.BitLen())), nil
}

// canonicalPrefix clears host bits and turns ::ffff:a.b.c.d/96+n into a.b.c.d/n,
// since addresses are compared after the same change.
func canonicalPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked()
}

// Rule names the kind of a refusal. The set is closed, so a rule may be a metric
// label.
type Rule string

// The rules a [Refusal] can name.
const (
	RuleOwnListener Rule = "own_listener" // a port this installation listens on
	RuleMetadata    Rule = "metadata"     // a cloud's metadata service, by name or address
	RuleLoopback    Rule = "loopback"     // this machine
	RulePrivate     Rule = "private"      // private networks, shared carrier space
	RuleLinkLocal   Rule = "link_local"   // the local link, zones
	RuleMulticast   Rule = "multicast"    // multicast and broadcast
	RuleTransition  Rule = "transition"   // IPv6 that carries an IPv4 address
	RuleReserved    Rule = "reserved"     // everything else that is not the public internet
	RuleURL         Rule = "url"          // scheme, host, port or notation
)

type blockedRange struct {
	prefix netip.Prefix
	rule   Rule
	what   string // completes "it is …"
}

// blockedRanges is searched in order, so that single addresses that deserve
// their own words come before the ranges that hold them.
var blockedRanges = []blockedRange{
	block("169.254.169.254/32", RuleMetadata, "a cloud metadata service"),
	block("168.63.129.16/32", RuleMetadata, "Azure's host agent"),
	block("100.100.100.200/32", RuleMetadata, "Alibaba Cloud's metadata service"),
	block("192.0.0.192/32", RuleMetadata, "Oracle Cloud's metadata service"),
	block("fd00:ec2::/32", RuleMetadata, "a service of the AWS instance network"),
	block("fd20:ce::254/128", RuleMetadata, "Google Cloud's metadata service"),
	block("fd00:c1::a9fe:a9fe/128", RuleMetadata, "Oracle Cloud's metadata service"),
	block("fd00:42::42/128", RuleMetadata, "Scaleway's metadata service"),

	block("0.0.0.0/8", RuleLoopback, "the unspecified network, which means this machine"),
	block("127.0.0.0/8", RuleLoopback, "a loopback address"),
	block("10.0.0.0/8", RulePrivate, "in a private network"),
	block("172.16.0.0/12", RulePrivate, "in a private network"),
	block("192.168.0.0/16", RulePrivate, "in a private network"),
	block("100.64.0.0/10", RulePrivate, "in shared carrier address space"),
	block("169.254.0.0/16", RuleLinkLocal, "a link-local address"),
	block("224.0.0.0/4", RuleMulticast, "a multicast address"),
	block("255.255.255.255/32", RuleMulticast, "the broadcast address"),
	block("192.0.0.0/24", RuleReserved, "reserved for protocol assignments"),
	block("192.0.2.0/24", RuleReserved, "reserved for documentation"),
	block("198.18.0.0/15", RuleReserved, "reserved for benchmarks"),
	block("198.51.100.0/24", RuleReserved, "reserved for documentation"),
	block("203.0.113.0/24", RuleReserved, "reserved for documentation"),
	block("240.0.0.0/4", RuleReserved, "in reserved address space"),

	block("::/128", RuleLoopback, "the unspecified address, which means this machine"),
	block("::1/128", RuleLoopback, "a loopback address"),
	block("fc00::/7", RulePrivate, "in a private network"),
	block("fe80::/10", RuleLinkLocal, "a link-local address"),
	block("fec0::/10", RulePrivate, "a site-local address"),
	block("ff00::/8", RuleMulticast, "a multicast address"),
	block("::/96", RuleTransition, "an IPv4-compatible address"),
	block("::ffff:0:0:0/96", RuleTransition, "an IPv4-translated address"),
	block("64:ff9b::/96", RuleTransition, "a NAT64 address"),
	block("64:ff9b:1::/48", RuleTransition, "a local NAT64 address"),
	block("2001::/32", RuleTransition, "a Teredo address"),
	block("2002::/16", RuleTransition, "a 6to4 address"),
	block("2001:db8::/32", RuleReserved, "reserved for documentation"),
}

func block(prefix string, rule Rule, what string) blockedRange {
	return blockedRange{prefix: netip.MustParsePrefix(prefix), rule: rule, what: what}
}

// embeddedIPv4 returns the IPv4 address a packet to addr ends up at by way of a
// NAT64 or 6to4 gateway. An operator of an IPv6-only host may list 64:ff9b::/96;
// that must not open 64:ff9b::7f00:1. Local NAT64 prefixes (64:ff9b:1::/48) have
// no fixed place for the address, so listing one is taken at its word.
func embeddedIPv4(addr netip.Addr) (netip.Addr, bool) {
	if !addr.Is6() {
		return netip.Addr{}, false
	}
	b := addr.As16()
	switch {
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return netip.Addr{}, false
}

var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// metadataHosts are names under which clouds and clusters serve instance
// credentials. Their addresses are refused as well; the names are refused so
// that a look-up which answers with an allowed address does not help.
var metadataHosts = map[string]bool{
	"metadata":                       true,
	"metadata.goog":                  true,
	"metadata.google.internal":       true,
	"instance-data":                  true,
	"instance-data.ec2.internal":     true,
	"metadata.azure.com":             true,
	"metadata.azure.internal":        true,
	"metadata.tencentyun.com":        true,
	"metadata.platformequinix.com":   true,
	"metadata.packet.net":            true,
	"api.metadata.cloud.ibm.com":     true,
	"rancher-metadata":               true,
	"rancher-metadata.rancher.local": true,
}

func isMetadataHost(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return metadataHosts[name] || strings.HasSuffix(name, ".metadata.google.internal")
}
