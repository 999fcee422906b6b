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
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
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

// raw sends text to the proxy and returns the connection and the first response.
func (s *setup) raw(t *testing.T, text string) (net.Conn, *bufio.Reader, *http.Response) {
	t.Helper()
	conn, err := net.Dial("tcp", s.listener.Addr())
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
	t.Cleanup(func() { _ = resp.Body.Close() })
	return conn, reader, resp
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
				_, _, resp := s.raw(t, line+" HTTP/1.1\r\nHost: good.test\r\n\r\n")
				body, _ := io.ReadAll(resp.Body)
				dialed := dialer.take()
				switch tt.verdict {
				case "deny":
					if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusBadRequest || len(dialed) > 0 {
						t.Errorf("got %s after dialling %v, want 403 or 400 and no dial", resp.Status, dialed)
					}
				default:
					if resp.StatusCode == http.StatusOK || tt.verdict == "lookup" && len(dialed) > 0 {
						t.Errorf("got %s after dialling %v", resp.Status, dialed)
					}
				}
				if resp.StatusCode == http.StatusForbidden {
					if !strings.HasPrefix(string(body), "egress denied") || resp.Header.Get(egress.VerdictHeader) != "denied" {
						t.Errorf("got header %q, body %q", resp.Header.Get(egress.VerdictHeader), body)
					}
				}
			})
		}
	}
}

func TestProxyCarriesPlainRequests(t *testing.T) {
	t.Parallel()
	type seen struct {
		Method, URI, Host, Body string
		Header                  http.Header
	}
	requests := make(chan seen, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- seen{r.Method, r.RequestURI, r.Host, string(body), r.Header}
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Set("X-End", "1")
		w.Header().Set(egress.VerdictHeader, "denied")
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "short and stout")
	}))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	s := newProxy(t, egress.ProxyConfig{Guard: loopbackGuard(t, "tea.test: 127.0.0.1")})

	_, _, resp := s.raw(t, "POST http://tea.test:"+port+"/pot?a=1;b=%zz HTTP/1.1\r\nHost: other.test\r\n"+
		"Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nConnection: X-Named\r\nX-Named: 1\r\nTE: gzip\r\n"+
		"Authorization: Bearer end-to-end\r\nX-Forwarded-For: 9.9.9.9\r\nContent-Length: 4\r\n\r\nleaf")
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusTeapot || string(body) != "short and stout" {
		t.Errorf("got %s, %q, %v", resp.Status, body, err)
	}
	if diff := cmp.Diff([]string{"", "1", ""}, []string{resp.Header.Get("Keep-Alive"), resp.Header.Get("X-End"), resp.Header.Get(egress.VerdictHeader)}); diff != "" {
		t.Errorf("response headers: %s", diff)
	}
	want := seen{"POST", "/pot?a=1;b=%zz", "tea.test:" + port, "leaf", http.Header{
		"Authorization":   {"Bearer end-to-end"},
		"X-Forwarded-For": {"9.9.9.9"},
		"Content-Length":  {"4"},
		"Connection":      {"close"},
	}}
	if diff := cmp.Diff(want, <-requests); diff != "" {
		t.Error(diff)
	}
	report := s.report(t)
	if report.Up <= 4 || report.Down <= int64(len(body)) || report.Duration <= 0 {
		t.Errorf("got %d up, %d down in %s, want headers and bodies counted", report.Up, report.Down, report.Duration)
	}
	wantReport(t, report, egress.Connection{
		Identity: lease, Host: "tea.test", Port: server.Listener.Addr().(*net.TCPAddr).AddrPort().Port(),
		Addr: netip.MustParseAddrPort("127.0.0.1:" + port), Verdict: egress.Allowed,
	})
}

func wantReport(t *testing.T, got, want egress.Connection) {
	t.Helper()
	if diff := cmp.Diff(want, got,
		cmpopts.IgnoreFields(egress.Connection{}, "Up", "Down", "StartedAt", "Duration"),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestProxyTunnels(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprintf(w, "%d", n)
	}))
	t.Cleanup(server.Close)
	s := newProxy(t, egress.ProxyConfig{Guard: loopbackGuard(t)})
	client := s.client(t)
	resp, err := client.Post(server.URL, "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || string(body) != "1048576" {
		t.Errorf("got %q, %v, want 1048576", body, err)
	}
	client.CloseIdleConnections()
	report := s.report(t)
	if report.Up <= 1<<20 || report.Down == 0 {
		t.Errorf("got %d up, %d down", report.Up, report.Down)
	}
	addr := netip.MustParseAddrPort(server.Listener.Addr().String())
	wantReport(t, report, egress.Connection{Identity: lease, Tunnel: true, Host: "127.0.0.1", Port: addr.Port(), Addr: addr, Verdict: egress.Allowed})
}

// TestTunnelPassesEarlyBytesAndHalfCloses sends the payload along with the
// CONNECT and ends its side before the answer comes.
func TestTunnelPassesEarlyBytesAndHalfCloses(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		all, _ := io.ReadAll(conn)
		_, _ = fmt.Fprintf(conn, "got %s", all)
	}()
	s := newProxy(t, egress.ProxyConfig{Guard: loopbackGuard(t)})
	conn, reader, resp := s.raw(t, "CONNECT "+ln.Addr().String()+" HTTP/1.1\r\nHost: x\r\n\r\nearly ")
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("got %s", resp.Status)
	}
	if _, err := io.WriteString(conn, "late"); err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(reader)
	if err != nil || string(answer) != "got early late" {
		t.Errorf("got %q, %v", answer, err)
	}
	if report := s.report(t); report.Up != 10 || report.Down != 14 || report.Reason != "" {
		t.Errorf("got %d up, %d down, reason %q, want 10, 14 and none", report.Up, report.Down, report.Reason)
	}
}

func TestProxyCarriesWebSockets(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, message, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, append([]byte("echo "), message...)) != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	s := newProxy(t, egress.ProxyConfig{Guard: loopbackGuard(t)})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	talk := func(t *testing.T) *websocket.Conn {
		t.Helper()
		// Go's client sends ws:// through a proxy as a plain upgrade request.
		c, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(server.URL, "http"), &websocket.DialOptions{HTTPClient: s.client(t)})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, message, err := c.Read(ctx); err != nil || string(message) != "echo hello" {
			t.Fatalf("got %q, %v", message, err)
		}
		return c
	}
	_ = talk(t).Close(websocket.StatusNormalClosure, "")
	if report := s.report(t); report.Tunnel || report.Verdict != egress.Allowed || report.Down == 0 {
		t.Errorf("got %+v", report)
	}
	// The end of the lease cuts one that is still open.
	open := talk(t)
	defer open.CloseNow()
	s.listener.Close()
	if _, _, err := open.Read(ctx); err == nil {
		t.Error("got a message after the lease ended")
	}
	if report := s.report(t); report.Reason != "proxy listener closed" {
		t.Errorf("got reason %q", report.Reason)
	}
}

// TestLeaseEndsAgainstAClientThatStopsReading floods an upgraded connection
// until nothing moves, so that the proxy hangs in a write to its client.
func TestLeaseEndsAgainstAClientThatStopsReading(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	stuck := make(chan struct{})
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: flood\r\n\r\n")
		for err == nil {
			_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
			_, err = conn.Write(make([]byte, 64<<10))
		}
		close(stuck)
		_, _ = io.Copy(io.Discard, conn)
	}()
	s := newProxy(t, egress.ProxyConfig{Guard: loopbackGuard(t)})
	_, _, resp := s.raw(t, "GET http://"+ln.Addr().String()+"/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: flood\r\n\r\n")
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %s", resp.Status)
	}
	<-stuck
	closed := make(chan struct{})
	go func() {
		s.listener.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(deadline):
		t.Fatal("the listener did not close")
	}
	if report := s.report(t); report.Down == 0 || report.Reason != "proxy listener closed" {
		t.Errorf("got %d down, reason %q", report.Down, report.Reason)
	}
}

func TestProxyRefusals(t *testing.T) {
	t.Parallel()
	own := netip.MustParseAddrPort("127.0.0.1:4222")
	guard := loopbackGuard(t)
	guard.RefuseListener(own)
	s := newProxy(t, egress.ProxyConfig{Guard: guard})
	closed, err := net.Listen("tcp", "127.0.0.1:0")
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
			_, _, resp := s.raw(t, tt.line+" HTTP/1.1\r\nHost: x\r\n\r\n")
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != tt.status || !strings.HasPrefix(string(body), tt.text) || resp.Header.Get(egress.VerdictHeader) != string(tt.want.Verdict) {
				t.Errorf("got %s, %s %q, body %q", resp.Status, egress.VerdictHeader, resp.Header.Get(egress.VerdictHeader), body)
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
			resp, err := behind(t, &url.URL{Scheme: "http", Host: host, User: tt.user}).Get(page.URL)
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

func TestProxyBounds(t *testing.T) {
	t.Parallel()
	// The server accepts, sends what it is asked to and then says nothing.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	tests := []struct {
		name   string
		config egress.ProxyConfig
		act    func(*setup)
		reason string
	}{
		{"bytes", egress.ProxyConfig{MaxBytes: 100_000}, nil, "byte cap reached"},
		{"time", egress.ProxyConfig{MaxDuration: 50 * time.Millisecond}, nil, "time cap reached"},
		{"idle", egress.ProxyConfig{Idle: 50 * time.Millisecond}, nil, "connection idle for too long"},
		{"lease ends", egress.ProxyConfig{}, func(s *setup) { s.listener.Close() }, "proxy listener closed"},
		{"proxy ends", egress.ProxyConfig{}, func(s *setup) { s.proxy.Close() }, "proxy listener closed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.config.Guard = loopbackGuard(t)
			s := newProxy(t, tt.config)
			conn, reader, resp := s.raw(t, "CONNECT "+ln.Addr().String()+" HTTP/1.1\r\nHost: x\r\n\r\n")
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("got %s", resp.Status)
			}
			if tt.name == "bytes" {
				go func() { _, _ = conn.Write(make([]byte, 1<<20)) }()
			}
			if tt.act != nil {
				tt.act(s)
			}
			n, _ := io.Copy(io.Discard, reader)
			report := s.report(t)
			if report.Reason != tt.reason {
				t.Errorf("got reason %q, want %q", report.Reason, tt.reason)
			}
			if tt.name == "bytes" && (report.Up+report.Down > 100_000 || n > 100_000) {
				t.Errorf("got %d up, %d down, %d read, want at most the cap", report.Up, report.Down, n)
			}
		})
	}
}

// TestPlainResponseOverTheCapIsCutShort must look like a failure to the client,
// not like a short page.
func TestPlainResponseOverTheCapIsCutShort(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 64 {
			_, _ = w.Write(make([]byte, 32<<10))
		}
	}))
	t.Cleanup(server.Close)
	s := newProxy(t, egress.ProxyConfig{Guard: loopbackGuard(t), MaxBytes: 1 << 20})
	resp, err := s.client(t).Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err == nil || n > 1<<20 {
		t.Errorf("got %d bytes, %v, want an error within 1 MiB", n, err)
	}
	if report := s.report(t); report.Reason != "byte cap reached" {
		t.Errorf("got reason %q", report.Reason)
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
		resp, err := s.client(t).Get(server.URL)
		if err != nil {
			first <- 0
			return
		}
		_ = resp.Body.Close()
		first <- resp.StatusCode
	}()
	<-arrived
	_, _, resp := s.raw(t, "GET "+server.URL+"/ HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get(egress.VerdictHeader) != "busy" {
		t.Errorf("second: got %s, %v", resp.Status, resp.Header)
	}
	close(leave)
	if got := <-first; got != http.StatusOK {
		t.Errorf("first: got status %d, want 200", got)
	}
}

func TestProxyOnAUnixSocket(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") }))
	t.Cleanup(server.Close)
	s := newProxy(t, egress.ProxyConfig{Guard: loopbackGuard(t)})
	path := filepath.Join(t.TempDir(), "proxy.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := s.proxy.Serve(ln, egress.Identity{Lease: "lease-9"})
	if err != nil {
		t.Fatal(err)
	}
	client := behind(t, &url.URL{Scheme: "http", Host: "proxy"})
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", listener.Addr())
	}
	body, err := get(t, client, server.URL)
	if err != nil || body != "page" {
		t.Errorf("got %q, %v", body, err)
	}
	if report := s.report(t); report.Lease != "lease-9" {
		t.Errorf("got lease %q", report.Lease)
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
	s.proxy.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://good.test/", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("got %d, want 503", w.Code)
	}
}
