package packstest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"
)

// refused is the verdict of the loopback guard.
type refused struct{ what string }

// Error says what was refused.
func (r *refused) Error() string {
	return "egress denied: " + r.what + " is no loopback address"
}

// EgressDenied implements packs.EgressRefusal.
func (r *refused) EgressDenied() bool { return true }

// Loopback returns a client that reaches loopback addresses alone, at every
// redirect hop; the error of any other implements packs.EgressRefusal.
func Loopback() *http.Client {
	dialer := &net.Dialer{
		Timeout: 10 * time.Second,
		Control: func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("parse address: %w", err)
			}
			if !ap.Addr().IsLoopback() {
				return &refused{ap.Addr().String()}
			}
			return nil
		},
	}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
}

// CheckLoopback is the URL check that goes with Loopback.
func CheckLoopback(ctx context.Context, raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return fmt.Errorf("parse url: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return &refused{"scheme " + u.Scheme}
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return fmt.Errorf("look up host: %w", err)
	}
	for _, a := range addresses {
		if a = a.Unmap(); !a.IsLoopback() {
			return &refused{a.String()}
		}
	}
	return nil
}
