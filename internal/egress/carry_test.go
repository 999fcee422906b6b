package egress_test

import (
	"bufio"
	"context"
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

	"github.com/helmdeck/helmdeck/internal/egress"
)

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

	got := s.raw(t, "POST http://tea.test:"+port+"/pot?a=1;b=%zz HTTP/1.1\r\nHost: other.test\r\n"+
		"Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nConnection: X-Named\r\nX-Named: 1\r\nTE: gzip\r\n"+
		"Authorization: Bearer end-to-end\r\nX-Forwarded-For: 9.9.9.9\r\nContent-Length: 4\r\n\r\nleaf")
	if got.status != http.StatusTeapot || got.body != "short and stout" {
		t.Errorf("got %d, %q", got.status, got.body)
	}
	if diff := cmp.Diff([]string{"", "1", ""}, []string{got.header.Get("Keep-Alive"), got.header.Get("X-End"), got.header.Get(egress.VerdictHeader)}); diff != "" {
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
	if report.Up <= 4 || report.Down <= int64(len(got.body)) || report.Duration <= 0 {
		t.Errorf("got %d up, %d down in %s, want headers and bodies counted", report.Up, report.Down, report.Duration)
	}
	wantReport(t, report, egress.Connection{
		Identity: lease, Host: "tea.test", Port: server.Listener.Addr().(*net.TCPAddr).AddrPort().Port(),
		Addr: netip.MustParseAddrPort("127.0.0.1:" + port), Verdict: egress.Allowed,
	})
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
	resp, err := fetch(t, client, http.MethodPost, server.URL, strings.NewReader(strings.Repeat("x", 1<<20)))
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
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
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
	got := s.raw(t, "CONNECT "+ln.Addr().String()+" HTTP/1.1\r\nHost: x\r\n\r\nearly ")
	if got.status != http.StatusOK {
		t.Fatalf("got %d", got.status)
	}
	if _, err := io.WriteString(got.conn, "late"); err != nil {
		t.Fatal(err)
	}
	_ = got.conn.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(got.reader)
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
		defer func() { _ = c.CloseNow() }()
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
	defer func() { _ = open.CloseNow() }()
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
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
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
	got := s.raw(t, "GET http://"+ln.Addr().String()+"/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: flood\r\n\r\n")
	if got.status != http.StatusSwitchingProtocols {
		t.Fatalf("got %d", got.status)
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

func TestProxyBounds(t *testing.T) {
	t.Parallel()
	// The server accepts, sends what it is asked to and then says nothing.
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
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
			got := s.raw(t, "CONNECT "+ln.Addr().String()+" HTTP/1.1\r\nHost: x\r\n\r\n")
			if got.status != http.StatusOK {
				t.Fatalf("got %d", got.status)
			}
			if tt.name == "bytes" {
				go func() { _, _ = got.conn.Write(make([]byte, 1<<20)) }()
			}
			if tt.act != nil {
				tt.act(s)
			}
			n, _ := io.Copy(io.Discard, got.reader)
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
	resp, err := fetch(t, s.client(t), http.MethodGet, server.URL, nil)
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

func TestProxyOnAUnixSocket(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") }))
	t.Cleanup(server.Close)
	s := newProxy(t, egress.ProxyConfig{Guard: loopbackGuard(t)})
	path := filepath.Join(t.TempDir(), "proxy.sock")
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
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
