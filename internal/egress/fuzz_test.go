package egress_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"

	"github.com/helmdeck/helmdeck/internal/egress"
)

// public is a second opinion on addresses, written from the other end: not what
// is blocked, but what the public internet is.
func public(addr netip.Addr) bool {
	if addr.Is4In6() || addr.Zone() != "" {
		return false
	}
	if addr.Is6() {
		return netip.MustParsePrefix("2000::/3").Contains(addr) &&
			!netip.MustParsePrefix("2002::/16").Contains(addr) && !netip.MustParsePrefix("2001::/32").Contains(addr)
	}
	return addr.IsGlobalUnicast() && !addr.IsPrivate() && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() &&
		addr.As4()[0] != 0 && addr.As4()[0] < 224
}

func FuzzJudge(f *testing.F) {
	for _, s := range []string{"127.0.0.1", "::1", "8.8.8.8", "64:ff9b::7f00:1", "fe80::1%eth0"} {
		addr := netip.MustParseAddr(s)
		f.Add(addr.AsSlice(), addr.Zone(), uint16(80))
	}
	guard := egress.New(egress.Config{})
	f.Fuzz(func(t *testing.T, raw []byte, zone string, port uint16) {
		addr, ok := netip.AddrFromSlice(raw)
		if !ok {
			return
		}
		addr = addr.WithZone(zone)
		if err := guard.Judge(netip.AddrPortFrom(addr, port)); err == nil && !public(addr.Unmap()) {
			t.Errorf("%s: got allowed, want refused", addr)
		}
	})
}

// everything answers every look-up with a public address, so that only literals
// in the host itself could lead anywhere else.
type everything struct{}

func (everything) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
}

// FuzzURL checks that no spelling of a URL gets a connection to a forbidden
// address, and that the early check, the client and the proxy agree.
func FuzzURL(f *testing.F) {
	for _, tt := range urlCases(f) {
		f.Add(tt.url)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		dialer := &recorder{}
		guard := egress.New(egress.Config{Resolver: everything{}, Dial: dialer.Dial})
		checkErr := guard.CheckURL(t.Context(), raw)
		judge := func(who string) {
			t.Helper()
			for _, addr := range dialer.take() {
				if !public(addr.Addr()) {
					t.Errorf("%s dialled %s for %q", who, addr, raw)
				}
				if checkErr != nil {
					t.Errorf("%s dialled %s for %q, which CheckURL refuses: %v", who, addr, raw, checkErr)
				}
			}
		}
		client := guard.Client(egress.Timeouts{})
		if req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, raw, nil); err == nil {
			if resp, err := client.Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}
		client.CloseIdleConnections()
		judge("client")

		u, err := url.ParseRequestURI(raw)
		if err != nil {
			return
		}
		proxy := egress.NewProxy(egress.ProxyConfig{
			Guard: guard,
			Authorize: func(context.Context, string, string) (egress.Identity, error) {
				return egress.Identity{}, nil
			},
		})
		defer proxy.Close()
		r := &http.Request{Method: http.MethodGet, URL: u, RequestURI: raw, Host: u.Host, Header: http.Header{}}
		r.Header.Set("Proxy-Authorization", "Basic bDp0")
		proxy.ServeHTTP(httptest.NewRecorder(), r.WithContext(t.Context()))
		judge("proxy")
	})
}
