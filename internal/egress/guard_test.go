package egress_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/egress"
)

func TestJudgeBattery(t *testing.T) {
	t.Parallel()
	guard := egress.New(egress.Config{})
	for _, line := range lines(t, "testdata/addresses.txt") {
		fields := append(strings.Fields(line), "")
		t.Run(fields[0], func(t *testing.T) {
			t.Parallel()
			err := guard.Judge(netip.AddrPortFrom(netip.MustParseAddr(fields[0]), 80))
			if fields[1] == "allow" {
				if err != nil {
					t.Errorf("got %v, want allowed", err)
				}
				return
			}
			wantRefusal(t, err, fields[2])
		})
	}
	wantRefusal(t, guard.Judge(netip.AddrPort{}), "url")
}

func TestParseAllowlist(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, want, wantErr string }{
		{"", "[]", ""},
		{" , ", "[]", ""},
		{"127.0.0.1", "[127.0.0.1/32]", ""},
		{"::1", "[::1/128]", ""},
		{"10.0.0.0/8, fd00::/8", "[10.0.0.0/8 fd00::/8]", ""},
		{"10.1.2.3/8", "[10.0.0.0/8]", ""},
		{"::ffff:10.0.0.0/104", "[10.0.0.0/8]", ""},
		{"::ffff:10.0.0.1", "[10.0.0.1/32]", ""},
		{"127.0.0.1/33", "", "127.0.0.1/33"},
		{"10.0.0.0/8,localhost", "", "localhost"},
		{"10.0.0", "", "10.0.0"},
		{"fe80::1%eth0", "", "fe80::1%eth0"},
		{"fe80::%eth0/64", "", "fe80::%eth0/64"},
		{"*", "", "*"},
		{"127.0.0.1 10.0.0.1", "", "127.0.0.1 10.0.0.1"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			t.Parallel()
			got, err := egress.ParseAllowlist(tt.in)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), egress.AllowlistVar) || !strings.Contains(err.Error(), fmt.Sprintf("%q", tt.wantErr)) {
					t.Fatalf("got error %v, want one that names the variable and %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, fmt.Sprint(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAllowlistComesBeforeTheBlockList(t *testing.T) {
	t.Parallel()
	tests := []struct {
		allow, addr string
		rule        string // empty: allowed
	}{
		{"127.0.0.1/32", "127.0.0.1", ""},
		{"127.0.0.1/32", "::ffff:127.0.0.1", ""},
		{"127.0.0.1/32", "127.0.0.2", "loopback"},
		{"127.0.0.1/32", "::1", "loopback"},
		{"127.0.0.1/32", "0.0.0.0", "loopback"},
		{"::ffff:0:0/96", "10.0.0.1", ""},
		{"::/0", "10.0.0.1", "private"},
		{"::/0", "fd00::1", ""},
		{"0.0.0.0/0", "::1", "loopback"},
		{"fe80::/10", "fe80::1%eth0", ""},
		{"10.0.0.0/8", "2002:a00:1::", "transition"},
		{"64:ff9b::/96", "64:ff9b::8.8.8.8", ""},
		{"64:ff9b::/96", "64:ff9b::127.0.0.1", "loopback"},
		{"64:ff9b::/96,10.0.0.0/8", "64:ff9b::10.0.0.1", ""},
		{"2002::/16", "2002:a9fe:a9fe::1", "metadata"},
	}
	for _, tt := range tests {
		t.Run(tt.allow+" "+tt.addr, func(t *testing.T) {
			t.Parallel()
			allow, err := egress.ParseAllowlist(tt.allow)
			if err != nil {
				t.Fatal(err)
			}
			guard := egress.New(egress.Config{Policy: egress.Policy{Allow: allow}})
			err = guard.Judge(netip.AddrPortFrom(netip.MustParseAddr(tt.addr), 80))
			if tt.rule == "" {
				if err != nil {
					t.Errorf("got %v, want allowed", err)
				}
				return
			}
			wantRefusal(t, err, tt.rule)
		})
	}
}

func TestOwnListenersAreRefusedAlthoughAllowListed(t *testing.T) {
	t.Parallel()
	allow, err := egress.ParseAllowlist("0.0.0.0/0,::/0")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		listener string
		own      []string
		other    []string
	}{
		{"127.0.0.1:8080",
			[]string{"127.0.0.1:8080", "[::ffff:127.0.0.1]:8080", "0.0.0.0:8080", "[::]:8080", "[64:ff9b::7f00:1]:8080", "[2002:7f00:1::]:8080"},
			[]string{"127.0.0.1:8081", "127.0.0.2:8080", "[::1]:8080", "10.9.8.7:8080"}},
		{"[::1]:8080",
			[]string{"[::1]:8080", "[::]:8080", "[::1%lo]:8080"},
			[]string{"127.0.0.1:8080", "[::1]:80"}},
		{"0.0.0.0:4222",
			[]string{"127.0.0.1:4222", "127.8.8.8:4222", "[::1]:4222", "0.0.0.0:4222", "10.9.8.7:4222", "[fd00::7]:4222", "[::ffff:10.9.8.7]:4222"},
			[]string{"127.0.0.1:4223", "10.9.8.6:4222", "8.8.8.8:4222"}},
		{"[::]:4222",
			[]string{"127.0.0.1:4222", "[::1]:4222", "10.9.8.7:4222"},
			[]string{"10.9.8.7:443"}},
		{"10.9.8.7:7777", []string{"10.9.8.7:7777", "0.0.0.0:7777"}, []string{"127.0.0.1:7777"}},
	}
	for _, tt := range tests {
		t.Run(tt.listener, func(t *testing.T) {
			t.Parallel()
			guard := egress.New(egress.Config{
				Policy: egress.Policy{Allow: allow},
				LocalAddrs: func() ([]netip.Addr, error) {
					return []netip.Addr{netip.MustParseAddr("10.9.8.7"), netip.MustParseAddr("fd00::7")}, nil
				},
			})
			release := guard.RefuseListener(netip.MustParseAddrPort(tt.listener))
			for _, addr := range tt.own {
				wantRefusal(t, guard.Judge(netip.MustParseAddrPort(addr)), "own_listener")
			}
			for _, addr := range tt.other {
				if err := guard.Judge(netip.MustParseAddrPort(addr)); err != nil {
					t.Errorf("%s: got %v, want allowed", addr, err)
				}
			}
			second := guard.RefuseListener(netip.MustParseAddrPort(tt.listener))
			release()
			release()
			wantRefusal(t, guard.Judge(netip.MustParseAddrPort(tt.own[0])), "own_listener")
			second()
			if err := guard.Judge(netip.MustParseAddrPort(tt.own[0])); err != nil {
				t.Errorf("after the last release: got %v, want allowed", err)
			}
		})
	}
}

func TestWildcardListenerWithUnknownLocalAddresses(t *testing.T) {
	t.Parallel()
	guard := egress.New(egress.Config{
		Policy:     egress.Policy{Forbidden: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:443")}},
		LocalAddrs: func() ([]netip.Addr, error) { return nil, errors.New("no permission") },
	})
	wantRefusal(t, guard.Judge(netip.MustParseAddrPort("8.8.8.8:443")), "own_listener")
	if err := guard.Judge(netip.MustParseAddrPort("8.8.8.8:80")); err != nil {
		t.Errorf("got %v, want allowed", err)
	}
}

func TestRefuseListenerIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	guard := egress.New(egress.Config{})
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			addr := netip.AddrPortFrom(netip.MustParseAddr("8.8.8.8"), uint16(1000+i%4))
			release := guard.RefuseListener(addr)
			defer release()
			if guard.Judge(addr) == nil {
				t.Errorf("%s: got allowed, want refused", addr)
			}
		})
	}
	all.Wait()
}

func TestRefusalText(t *testing.T) {
	t.Parallel()
	guard := egress.New(egress.Config{Resolver: newZone(t)})
	tests := []struct{ url, want string }{
		{"http://127.0.0.1/", "egress denied: 127.0.0.1 is a loopback address (127.0.0.0/8); if it must be reachable, an operator adds 127.0.0.1/32 to HELMDECK_EGRESS_ALLOWLIST"},
		{"http://intranet.test/", "egress denied: intranet.test (10.1.2.3) is in a private network (10.0.0.0/8); if it must be reachable, an operator adds 10.1.2.3/32 to HELMDECK_EGRESS_ALLOWLIST"},
		{"http://meta.test/", "egress denied: meta.test (169.254.169.254) is a cloud metadata service (169.254.169.254/32)"},
		{"ftp://good.test/", "egress denied: the URL scheme ftp is not allowed; give an absolute http:// or https:// URL"},
		{"http://0x7f.1/", "egress denied: 0x7f.1 is a number in an unusual notation, which programs read differently; write an IPv4 address as four decimal numbers without leading zeros"},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, fmt.Sprint(guard.CheckURL(t.Context(), tt.url))); diff != "" {
			t.Error(diff)
		}
	}
}
