package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
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
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/helmdeck/helmdeck/internal/egress"
)

var lease = egress.Identity{Tenant: "acme", Caller: "ann", Lease: "lease-1", Job: "job-1"}

// setup is a proxy with one lease's listener and the reports it makes.
type setup struct {
	proxy    *egress.Proxy
	listener *egress.Listener
	reports  chan egress.Connection
}

func newProxy(t *testing.T, config egress.ProxyConfig) *setup {
	t.Helper()
	s := &setup{reports: make(chan egress.Connection, 1000)}
	config.Observe = func(c egress.Connection) { s.reports <- c }
	s.proxy = egress.NewProxy(config)
	t.Cleanup(s.proxy.Close)
	var err error
	if s.listener, err = s.proxy.Listen(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *setup) report(t *testing.T) egress.Connection {
	t.Helper()
	select {
	case c := <-s.reports:
		return c
	case <-time.After(deadline):
		t.Fatal("no connection was reported")
		return egress.Connection{}
	}
}

// client is a browser's side: an HTTP client behind the lease's proxy.
func (s *setup) client(t *testing.T) *http.Client {
	t.Helper()
	return behind(t, &url.URL{Scheme: "http", Host: s.listener.Addr()})
}

func behind(t *testing.T, proxy *url.URL) *http.Client {
	t.Helper()
	transport := &http.Transport{
		Proxy:           http.ProxyURL(proxy),
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the test server's own certificate
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// fetch makes one request that ends with the test at the latest.
func fetch(t *testing.T, client *http.Client, method, url string, body io.Reader) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		return nil, err
	}
	return client.Do(req)
}

// reply is what came back over a raw connection.
type reply struct {
	status int
	header http.Header
	body   string        // empty for a tunnel or a switched protocol
	conn   net.Conn      // still open
	reader *bufio.Reader // what follows on conn
}

// raw sends text to the proxy as it is and reads one response.
func (s *setup) raw(t *testing.T, text string) reply {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.listener.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(deadline))
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	method, _, _ := strings.Cut(text, " ")
	resp, err := http.ReadResponse(reader, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("read response to %q: %v", text, err)
	}
	defer resp.Body.Close()
	got := reply{status: resp.StatusCode, header: resp.Header, conn: conn, reader: reader}
	if method == http.MethodConnect && got.status == http.StatusOK || got.status == http.StatusSwitchingProtocols {
		return got
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read body of response to %q: %v", text, err)
	}
	got.body = string(body)
	return got
}

// TestProxyBattery sends every URL of the battery as a plain request and as a
// CONNECT, unfiltered by any client.
func TestProxyBattery(t *testing.T) {
	t.Parallel()
	for _, tt := range urlCases(t) {
		_, rest, ok := strings.Cut(tt.url, "://")
		if !ok || strings.ContainsAny(tt.url, " \r\n\t\x00") {
			continue // cannot be put on a request line
		}
		authority, _, _ := strings.Cut(rest, "/")
		lines := []string{"GET " + tt.url}
		if !strings.Contains(authority, "@") && strings.HasPrefix(strings.ToLower(tt.url), "http") {
			host, _, _ := strings.Cut(authority, "?")
			host, _, _ = strings.Cut(host, "#")
			lines = append(lines, "CONNECT "+host, "CONNECT "+host+":443")
		}
		for _, line := range lines {
			t.Run(fmt.Sprintf("%q", line), func(t *testing.T) {
				t.Parallel()
				dialer := &recorder{}
				s := newProxy(t, egress.ProxyConfig{Guard: egress.New(egress.Config{Resolver: newZone(t), Dial: dialer.Dial})})
				got := s.raw(t, line+" HTTP/1.1\r\nHost: good.test\r\n\r\n")
				dialled := dialer.take()
				switch tt.verdict {
				case "deny":
					if got.status != http.StatusForbidden && got.status != http.StatusBadRequest || len(dialled) > 0 {
						t.Errorf("got %d after dialling %v, want 403 or 400 and no dial", got.status, dialled)
					}
				default:
					if got.status == http.StatusOK || tt.verdict == "lookup" && len(dialled) > 0 {
						t.Errorf("got %d after dialling %v", got.status, dialled)
					}
				}
				if got.status == http.StatusForbidden {
					if !strings.HasPrefix(got.body, "egress denied") || got.header.Get(egress.VerdictHeader) != "denied" {
						t.Errorf("got header %q, body %q", got.header.Get(egress.VerdictHeader), got.body)
					}
				}
			})
		}
	}
}

func wantReport(t *testing.T, got, want egress.Connection) {
	t.Helper()
	if diff := cmp.Diff(want, got,
		cmpopts.IgnoreFields(egress.Connection{}, "Up", "Down", "StartedAt", "Duration"),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestProxyRefusals(t *testing.T) {
	t.Parallel()
	own := netip.MustParseAddrPort("127.0.0.1:4222")
	guard := loopbackGuard(t)
	guard.RefuseListener(own)
	s := newProxy(t, egress.ProxyConfig{Guard: guard})
	closed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	dead := netip.MustParseAddrPort(closed.Addr().String())

	tests := []struct {
		name, line string
		status     int
		text       string
		want       egress.Connection
	}{
		{"private", "GET http://intranet.test/x?token=secret", 403, "egress denied: intranet.test (10.1.2.3) is in a private network",
			egress.Connection{Host: "intranet.test", Port: 80, Addr: netip.MustParseAddrPort("10.1.2.3:80"), Verdict: egress.Denied, Rule: egress.RulePrivate}},
		{"tunnel to metadata", "CONNECT 169.254.169.254:80", 403, "egress denied: 169.254.169.254 is a cloud metadata service",
			egress.Connection{Tunnel: true, Host: "169.254.169.254", Port: 80, Addr: netip.MustParseAddrPort("169.254.169.254:80"), Verdict: egress.Denied, Rule: egress.RuleMetadata}},
		{"own listener", "CONNECT 127.0.0.1:4222", 403, "egress denied: 127.0.0.1:4222 is a listener of this installation",
			egress.Connection{Tunnel: true, Host: "127.0.0.1", Port: 4222, Addr: own, Verdict: egress.Denied, Rule: egress.RuleOwnListener}},
		{"the proxy itself", "CONNECT " + s.listener.Addr(), 403, "egress denied: " + s.listener.Addr() + " is a listener",
			egress.Connection{Tunnel: true, Host: "127.0.0.1", Port: s.listener.AddrPort().Port(), Addr: s.listener.AddrPort(), Verdict: egress.Denied, Rule: egress.RuleOwnListener}},
		{"https in plain", "GET https://good.test/", 403, "egress denied: the URL scheme https is not allowed",
			egress.Connection{Verdict: egress.Denied, Rule: egress.RuleURL}},
		{"nobody listens", "CONNECT " + dead.String(), 502, "egress unreachable: ",
			egress.Connection{Tunnel: true, Host: "127.0.0.1", Port: dead.Port(), Addr: dead, Verdict: egress.Unreachable}},
		{"no such host", "GET http://nosuch.test/", 502, "egress unreachable: look up host nosuch.test: no such host",
			egress.Connection{Host: "nosuch.test", Port: 80, Verdict: egress.Unreachable}},
		{"origin form", "GET /healthz", 400, "this is a forward proxy", egress.Connection{Verdict: egress.Malformed}},
		{"asterisk", "OPTIONS *", 400, "this is a forward proxy", egress.Connection{Verdict: egress.Malformed}},
		{"no port", "CONNECT good.test", 400, "this is a forward proxy", egress.Connection{Tunnel: true, Verdict: egress.Malformed}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := s.raw(t, tt.line+" HTTP/1.1\r\nHost: x\r\n\r\n")
			if got.status != tt.status || !strings.HasPrefix(got.body, tt.text) || got.header.Get(egress.VerdictHeader) != string(tt.want.Verdict) {
				t.Errorf("got %d, %s %q, body %q", got.status, egress.VerdictHeader, got.header.Get(egress.VerdictHeader), got.body)
			}
			report := s.report(t)
			if !strings.HasPrefix(report.Reason, tt.text) || strings.Contains(fmt.Sprintf("%+v", report), "secret") {
				t.Errorf("got report %+v", report)
			}
			report.Reason, tt.want.Identity = "", lease
			wantReport(t, report, tt.want)
		})
	}
}

func TestProxyAuthentication(t *testing.T) {
	t.Parallel()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") }))
	t.Cleanup(page.Close)
	s := newProxy(t, egress.ProxyConfig{
		Guard: loopbackGuard(t),
		Authorize: func(_ context.Context, id, token string) (egress.Identity, error) {
			if id != lease.Lease || token != "to:ken" {
				return egress.Identity{}, errors.New("no")
			}
			return lease, nil
		},
	})
	shared := httptest.NewServer(s.proxy)
	t.Cleanup(shared.Close)
	host := strings.TrimPrefix(shared.URL, "http://")
	tests := []struct {
		name    string
		user    *url.Userinfo
		verdict egress.Verdict
	}{
		{"right", url.UserPassword(lease.Lease, "to:ken"), egress.Allowed},
		{"wrong token", url.UserPassword(lease.Lease, "guess"), egress.Unauthenticated},
		{"other lease", url.UserPassword("lease-2", "to:ken"), egress.Unauthenticated},
		{"none", nil, egress.Unauthenticated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, err := fetch(t, behind(t, &url.URL{Scheme: "http", Host: host, User: tt.user}), http.MethodGet, page.URL, nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			report := s.report(t)
			if report.Verdict != tt.verdict || (resp.StatusCode == http.StatusOK) != (tt.verdict == egress.Allowed) {
				t.Errorf("got %s, report %+v, want %s", resp.Status, report, tt.verdict)
			}
			if tt.verdict != egress.Allowed && (resp.StatusCode != http.StatusProxyAuthRequired || resp.Header.Get("Proxy-Authenticate") == "") {
				t.Errorf("got %s, %v, want 407 and a challenge", resp.Status, resp.Header)
			}
		})
	}
}

func TestProxyLimitsConnectionsOfALease(t *testing.T) {
	t.Parallel()
	arrived, leave := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-leave
	}))
	t.Cleanup(server.Close)
	s := newProxy(t, egress.ProxyConfig{Guard: loopbackGuard(t), MaxConns: 1})
	first := make(chan int, 1)
	go func() {
		resp, err := fetch(t, s.client(t), http.MethodGet, server.URL, nil)
		if err != nil {
			first <- 0
			return
		}
		_ = resp.Body.Close()
		first <- resp.StatusCode
	}()
	<-arrived
	got := s.raw(t, "GET "+server.URL+"/ HTTP/1.1\r\nHost: x\r\n\r\n")
	if got.status != http.StatusServiceUnavailable || got.header.Get(egress.VerdictHeader) != "busy" {
		t.Errorf("second: got %d, %v", got.status, got.header)
	}
	close(leave)
	if got := <-first; got != http.StatusOK {
		t.Errorf("first: got status %d, want 200", got)
	}
}

func TestClosedProxyServesNobody(t *testing.T) {
	t.Parallel()
	guard := loopbackGuard(t)
	s := newProxy(t, egress.ProxyConfig{Guard: guard})
	addr := s.listener.AddrPort()
	wantRefusal(t, guard.Judge(addr), "own_listener")
	s.proxy.Close()
	if err := guard.Judge(addr); err != nil {
		t.Errorf("got %v, want the port free again", err)
	}
	if _, err := s.proxy.Listen(t.Context(), lease); err == nil {
		t.Error("got a listener on a closed proxy")
	}
	w := httptest.NewRecorder()
	s.proxy.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://good.test/", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("got %d, want 503", w.Code)
	}
}
