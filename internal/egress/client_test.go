package egress_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/egress"
)

// get fetches url and returns the body.
func get(t *testing.T, client *http.Client, url string, headers ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func newClient(t *testing.T, guard *egress.Guard) *http.Client {
	t.Helper()
	client := guard.Client(egress.Timeouts{})
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// TestURLBattery runs every URL past the early check and through the client. A
// refused one must not reach the dialler.
func TestURLBattery(t *testing.T) {
	t.Parallel()
	hostile := 0
	for _, tt := range urlCases(t) {
		if tt.verdict == "deny" {
			hostile++
		}
		t.Run(fmt.Sprintf("%q", tt.url), func(t *testing.T) {
			t.Parallel()
			dialer := &recorder{}
			guard := egress.New(egress.Config{Resolver: newZone(t), Dial: dialer.Dial})
			checkErr := guard.CheckURL(t.Context(), tt.url)
			// The standard client itself rejects what cannot be parsed.
			_, getErr := get(t, newClient(t, guard), tt.url)
			dialled := dialer.take()
			switch tt.verdict {
			case "allow":
				if checkErr != nil {
					t.Errorf("CheckURL: got %v, want allowed", checkErr)
				}
				if !errors.Is(getErr, errRecorded) || len(dialled) == 0 {
					t.Errorf("client: got %v after dialling %v, want the recorder's error", getErr, dialled)
				}
			case "lookup":
				for _, err := range []error{checkErr, getErr} {
					if _, ok := errors.AsType[*egress.LookupError](err); !ok {
						t.Errorf("got %v, want a look-up error", err)
					}
				}
			default:
				wantRefusal(t, checkErr, tt.rule)
				if getErr == nil || len(dialled) > 0 {
					t.Errorf("client: got error %v after dialling %v, want no dial", getErr, dialled)
				}
				if refusal, ok := errors.AsType[*egress.Refusal](getErr); ok {
					wantRefusal(t, refusal, tt.rule)
				}
			}
		})
	}
	if hostile < 80 {
		t.Errorf("got %d hostile URLs, want at least 80", hostile)
	}
}

func TestRebindingCannotWin(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"rebind.test", "rebindmeta.test", "rebindmixed.test"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dialer := &recorder{}
			guard := egress.New(egress.Config{Resolver: newZone(t), Dial: dialer.Dial})
			if err := guard.CheckURL(t.Context(), "http://"+name+"/"); err != nil {
				t.Fatalf("first look-up: got %v, want allowed", err)
			}
			_, err := get(t, newClient(t, guard), "http://"+name+"/")
			if refusal, ok := errors.AsType[*egress.Refusal](err); !ok || refusal.Host != name {
				t.Errorf("second look-up: got %v, want a refusal that names the host", err)
			}
			if dialled := dialer.take(); len(dialled) > 0 {
				t.Errorf("got dials %v, want none", dialled)
			}
		})
	}
}

// TestDialUsesTheAddressJudged counts look-ups: with a second one between
// verdict and connection the rebound address would be dialled.
func TestDialUsesTheAddressJudged(t *testing.T) {
	t.Parallel()
	dialer := &recorder{}
	guard := egress.New(egress.Config{Resolver: newZone(t), Dial: dialer.Dial})
	_, err := guard.DialContext(t.Context(), "tcp", "rebind.test:443")
	if !errors.Is(err, errRecorded) {
		t.Fatalf("got %v, want the recorder's error", err)
	}
	want := []netip.AddrPort{netip.MustParseAddrPort("93.184.216.34:443")}
	if diff := cmp.Diff(want, dialer.take(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestDialContextRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ network, address, rule string }{
		{"udp", "93.184.216.34:53", "url"},
		{"unix", "/var/run/docker.sock", "url"},
		{"tcp", "good.test", "url"},
		{"tcp", "good.test:http", "url"},
		{"tcp", "good.test:0", "url"},
		{"tcp", ":80", "url"},
		{"tcp", "[fe80::1%eth0]:80", "link_local"},
		{"tcp4", "mixed.test:80", "private"},
		{"tcp6", "[::ffff:127.0.0.1]:80", "loopback"},
		{"tcp", "2130706433:80", "url"},
	}
	for _, tt := range tests {
		t.Run(tt.network+" "+tt.address, func(t *testing.T) {
			t.Parallel()
			dialer := &recorder{}
			guard := egress.New(egress.Config{Resolver: newZone(t), Dial: dialer.Dial})
			_, err := guard.DialContext(t.Context(), tt.network, tt.address)
			wantRefusal(t, err, tt.rule)
			if dialled := dialer.take(); len(dialled) > 0 {
				t.Errorf("got dials %v, want none", dialled)
			}
		})
	}
}

func TestDialTriesTheNextAddress(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	// 93.184.216.34 fails at the test's dialler.
	guard := loopbackGuard(t, "second.test: 93.184.216.34 127.0.0.1")
	body, err := get(t, newClient(t, guard), "http://second.test:"+port+"/")
	if err != nil || body != "hello" {
		t.Errorf("got %q, %v, want hello", body, err)
	}
}

// TestAllowedLoopbackWithTheRealDialler needs no injected dialler: the socket's
// own hook judges as well.
func TestAllowedLoopbackWithTheRealDialler(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(server.Close)
	allow, err := egress.ParseAllowlist("127.0.0.1/32")
	if err != nil {
		t.Fatal(err)
	}
	open := egress.New(egress.Config{Policy: egress.Policy{Allow: allow}})
	if body, err := get(t, newClient(t, open), server.URL); err != nil || body != "hello" {
		t.Errorf("allow-listed: got %q, %v, want hello", body, err)
	}
	_, err = get(t, newClient(t, egress.New(egress.Config{})), server.URL)
	wantRefusal(t, err, "loopback")

	defer open.RefuseListener(netip.MustParseAddrPort(server.Listener.Addr().String()))()
	_, err = get(t, newClient(t, open), server.URL)
	wantRefusal(t, err, "own_listener")
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a forbidden listener was reached") }))
	t.Cleanup(other.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", r.URL.Query().Get("u"))
		w.WriteHeader(http.StatusFound)
	})
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/end", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "end") })

	hop := func(target string) string { return server.URL + "/to?u=" + url.QueryEscape(target) }
	tests := []struct{ name, url, rule string }{
		{"metadata", hop("http://169.254.169.254/latest/"), "metadata"},
		{"metadata by name", hop("http://metadata.google.internal/"), "metadata"},
		{"three hops", hop(hop(hop("http://10.0.0.1/"))), "private"},
		{"other loopback", hop("http://127.0.0.2:" + port + "/end"), "loopback"},
		{"ipv6 loopback", hop("http://[::1]:" + port + "/end"), "loopback"},
		{"rebound name", hop("http://flip.test:" + port + "/to?u=" + url.QueryEscape("http://flip.test/")), "private"},
		{"file", hop("file:///etc/passwd"), "url"},
		{"gopher", hop("gopher://127.0.0.1:" + port + "/_x"), "url"},
		{"schemeless host", hop("//192.168.0.1/"), "private"},
		{"credentials", hop("http://a:b@127.0.0.1:" + port + "/end"), "url"},
		{"decimal", hop("http://2130706433:" + port + "/end"), "url"},
		{"own listener", hop(other.URL), "own_listener"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			guard := loopbackGuard(t, "flip.test: 127.0.0.1 | 10.0.0.1")
			guard.RefuseListener(netip.MustParseAddrPort(other.Listener.Addr().String()))
			_, err := get(t, newClient(t, guard), tt.url)
			wantRefusal(t, err, tt.rule)
		})
	}
	client := newClient(t, loopbackGuard(t))
	if body, err := get(t, client, hop(hop(server.URL+"/end"))); err != nil || body != "end" {
		t.Errorf("allowed chain: got %q, %v, want end", body, err)
	}
	if _, err := get(t, client, server.URL+"/loop"); err == nil || !strings.Contains(err.Error(), "10 redirects") {
		t.Errorf("loop: got %v, want a stop after 10 redirects", err)
	}
}

func TestHeadersDropWhenARedirectLeavesTheHost(t *testing.T) {
	t.Parallel()
	seen := make(chan http.Header, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/end", func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header })
	mux.HandleFunc("/to", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("u"), http.StatusFound)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	second := httptest.NewServer(mux)
	t.Cleanup(second.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	one, two := "http://one.test:"+port, "http://away.test:"+port
	to := func(base, target string) string { return base + "/to?u=" + url.QueryEscape(target) }

	tests := []struct {
		name, url string
		kept      bool
	}{
		{"same host", to(one, one+"/end"), true},
		{"relative", to(one, "/end"), true},
		{"other host", to(one, two+"/end"), false},
		{"subdomain", to("http://one.test:"+port, "http://sub.one.test:"+port+"/end"), false},
		{"other port", to(server.URL, second.URL+"/end"), false},
		{"there and back", to(one, to(two, one+"/end")), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			guard := loopbackGuard(t, "one.test: 127.0.0.1", "sub.one.test: 127.0.0.1", "away.test: 127.0.0.1")
			if _, err := get(t, newClient(t, guard), tt.url, "Authorization", "Bearer s", "Cookie", "a=b", "X-Api-Key", "k", "Accept", "text/plain"); err != nil {
				t.Fatal(err)
			}
			header := <-seen
			for _, name := range []string{"Authorization", "Cookie", "X-Api-Key"} {
				if got := header.Get(name) != ""; got != tt.kept {
					t.Errorf("%s arrived: got %v, want %v", name, got, tt.kept)
				}
			}
			if got := header.Get("Accept"); got != "text/plain" {
				t.Errorf("Accept: got %q, want text/plain", got)
			}
			if got := header.Get("Referer"); got != "" && !tt.kept {
				t.Errorf("Referer: got %q, want none", got)
			}
		})
	}
}

func TestRedirectOrigins(t *testing.T) {
	t.Parallel()
	tests := []struct {
		from, to string
		kept     bool
	}{
		{"https://one.test/", "https://one.test:443/x", true},
		{"https://one.test/", "https://ONE.test/x", true},
		{"http://one.test/", "https://one.test/x", true},
		{"http://one.test:80/", "https://one.test:443/x", true},
		{"https://one.test/", "http://one.test/x", false},
		{"https://one.test:8443/", "http://one.test:8443/x", false},
		{"http://one.test:8080/", "https://one.test:8443/x", false},
		{"http://one.test/", "http://one.test.evil.test/x", false},
		{"http://one.test/", "http://one.test:81/x", false},
	}
	oddKey := "x-odd-key" // a caller may set a header without its canonical case
	client := egress.New(egress.Config{}).Client(egress.Timeouts{})
	for _, tt := range tests {
		t.Run(tt.from+" "+tt.to, func(t *testing.T) {
			t.Parallel()
			from := httptest.NewRequestWithContext(t.Context(), http.MethodGet, tt.from, nil)
			to := httptest.NewRequestWithContext(t.Context(), http.MethodGet, tt.to, nil)
			to.Header.Set("X-Api-Key", "k")
			to.Header[oddKey] = []string{"k"}
			if err := client.CheckRedirect(to, []*http.Request{from}); err != nil {
				t.Fatal(err)
			}
			if got := to.Header.Get("X-Api-Key") != "" && len(to.Header[oddKey]) > 0; got != tt.kept {
				t.Errorf("headers kept: got %v (%v), want %v", got, to.Header, tt.kept)
			}
		})
	}
}

func TestLookupErrors(t *testing.T) {
	t.Parallel()
	hung := resolverFunc(func(ctx context.Context) ([]netip.Addr, error) {
		<-ctx.Done()
		return nil, &net.DNSError{Err: ctx.Err().Error(), Name: "x", Server: "192.0.2.53", IsTimeout: true, IsTemporary: true}
	})
	tests := []struct {
		name      string
		resolver  egress.Resolver
		host      string
		temporary bool
		want      string
	}{
		{"not found", newZone(t), "nosuch.test", false, "look up host nosuch.test: no such host; check the spelling of the host name"},
		{"no address", newZone(t), "empty.test", false, "look up host empty.test: it has no address; check the spelling of the host name"},
		{"hung", hung, "slow.test", true, "look up host slow.test: the look-up timed out (context deadline exceeded); try again, and check the machine's DNS resolver if it persists"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			guard := egress.New(egress.Config{Resolver: tt.resolver, LookupTimeout: 20 * time.Millisecond})
			err := guard.CheckHost(t.Context(), tt.host, 22)
			lookup, ok := errors.AsType[*egress.LookupError](err)
			if !ok {
				t.Fatalf("got %v, want a look-up error", err)
			}
			if lookup.Temporary != tt.temporary || lookup.Error() != tt.want {
				t.Errorf("got temporary %v, %q, want %v, %q", lookup.Temporary, lookup, tt.temporary, tt.want)
			}
		})
	}
}

type resolverFunc func(context.Context) ([]netip.Addr, error)

func (f resolverFunc) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	return f(ctx)
}
