package chromium_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/agent"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/pkg/chromium"
	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

func TestMain(m *testing.M) { sessionstest.Main(m, agent.Main) }

// patience bounds a step that is expected to succeed, on a busy machine.
const patience = 2 * time.Minute

// open opens a page in a sidecar of its own, without a proxy.
func open(t *testing.T, c chromium.Config) *chromium.Page {
	t.Helper()
	s, err := sessionstest.Local(t, "browser", sessionstest.Options{}).Lease(t.Context(), sessions.Request{})
	if err != nil {
		t.Fatal(err)
	}
	return openIn(t, s, c)
}

func openIn(t *testing.T, h chromium.Host, c chromium.Config) *chromium.Page {
	t.Helper()
	p, err := chromium.Open(within(t, patience), h, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// refused returns the address of a port that stays taken and never answers.
func refused(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d/", name.(*syscall.SockaddrInet4).Port)
}

func serve(t *testing.T, pages map[string]string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func size(t *testing.T, data []byte) image.Point {
	t.Helper()
	c, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		t.Fatalf("decode picture: %v", err)
	}
	return image.Pt(c.Width, c.Height)
}

func TestVisit(t *testing.T) {
	t.Parallel()
	url := serve(t, map[string]string{
		"/":      `<title>One</title><h1>Hi</h1><div style="height:3000px"></div>`,
		"/hop":   `<script>location.replace('/next')</script>`,
		"/next":  `<meta http-equiv="refresh" content="0;url=/last">`,
		"/last":  `<title>Last</title>there`,
		"/alert": `<title>Calm</title><script>alert(1); confirm(2); prompt(3)</script>`,
		"/tall":  `<body style="margin:0"><div style="height:100000px"></div>`,
	})
	p := openIn(t, lease(t), chromium.Config{})
	tests := []struct {
		path string
		want chromium.Visit
	}{
		{"/", chromium.Visit{URL: url + "/", Title: "One", Status: 200, Complete: true}},
		{"/hop", chromium.Visit{URL: url + "/last", Title: "Last", Status: 200, Complete: true}},
		{"/alert", chromium.Visit{URL: url + "/alert", Title: "Calm", Status: 200, Complete: true}},
		{"/absent", chromium.Visit{URL: url + "/absent", Status: 404, Complete: true}},
	}
	for _, tt := range tests {
		got, err := p.Navigate(within(t, patience), url+tt.path)
		if err != nil {
			t.Fatalf("%s: %v", tt.path, err)
		}
		if got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.path, got, tt.want)
		}
	}
	if _, err := p.Navigate(within(t, patience), url+"/tall"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		shot chromium.Shot
		want image.Point
	}{
		{chromium.Shot{}, image.Pt(1280, 720)},
		{chromium.Shot{Full: true, MaxHeight: 16384}, image.Pt(1280, 16384)},
	} {
		data, err := p.Screenshot(within(t, patience), tt.shot)
		if err != nil {
			t.Fatal(err)
		}
		if got := size(t, data); got != tt.want {
			t.Errorf("%+v: got %v, want %v", tt.shot, got, tt.want)
		}
	}
}

func lease(t *testing.T) sessions.Session {
	t.Helper()
	s, err := sessionstest.Local(t, "browser", sessionstest.Options{}).Lease(t.Context(), sessions.Request{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAddressesThatDoNotOpen(t *testing.T) {
	t.Parallel()
	nobody := refused(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/file":
			w.Header().Set("Content-Disposition", "attachment; filename=x.bin")
			_, _ = io.WriteString(w, "data")
		case "/to-file":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		}
	}))
	t.Cleanup(srv.Close)
	p := open(t, chromium.Config{})
	for _, tt := range []struct{ url, text string }{
		{nobody, "net::ERR_CONNECTION_REFUSED"},
		{srv.URL + "/file", "the address leads to a download"},
		{srv.URL + "/to-file", "net::ERR_UNSAFE_REDIRECT"},
		{srv.URL + "/loop", "net::ERR_TOO_MANY_REDIRECTS"},
	} {
		_, err := p.Navigate(within(t, patience), tt.url)
		failed, ok := errors.AsType[*chromium.LoadError](err)
		if !ok || failed.Text != tt.text || failed.Denied {
			t.Errorf("%s: got %#v, want a LoadError that says %s", tt.url, err, tt.text)
		}
	}
}

func TestProxyVerdicts(t *testing.T) {
	t.Parallel()
	if chromium.VerdictHeader != egress.VerdictHeader {
		t.Errorf("the header is %q here, %q at the proxy", chromium.VerdictHeader, egress.VerdictHeader)
	}
	url := serve(t, map[string]string{
		"/":     `<title>ok</title>`,
		"/jump": `<script>location = 'http://169.254.169.254/latest'</script>`,
	})
	nobody := refused(t)
	p := openIn(t, proxied(t), chromium.Config{})
	if _, err := p.Navigate(within(t, patience), url); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		url             string
		denied, unclear bool
		failedAt        string
	}{
		{"http://169.254.169.254/", true, false, "http://169.254.169.254/"},
		{url + "/jump", true, false, "http://169.254.169.254/latest"},
		{"https://169.254.169.254/x", false, true, "https://169.254.169.254/x"},
		{nobody, false, false, nobody},
	} {
		_, err := p.Navigate(within(t, patience), tt.url)
		got, ok := errors.AsType[*chromium.LoadError](err)
		if !ok || got.Denied != tt.denied || got.Unclear != tt.unclear || got.URL != tt.failedAt {
			t.Errorf("%s: got %#v, want denied %v, unclear %v, at %s", tt.url, err, tt.denied, tt.unclear, tt.failedAt)
		}
	}
}

// proxied leases a sidecar behind an egress proxy that lets loopback through.
func proxied(t *testing.T) sessions.Session {
	t.Helper()
	allow, err := egress.ParseAllowlist("127.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	proxy := egress.NewProxy(egress.ProxyConfig{Guard: egress.New(egress.Config{Policy: egress.Policy{Allow: allow}})})
	t.Cleanup(proxy.Close)
	l, err := proxy.Listen(t.Context(), egress.Identity{Lease: "test"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := sessionstest.Local(t, "browser", sessionstest.Options{ProxyURL: "http://" + l.Addr()}).Lease(t.Context(), sessions.Request{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestScriptWithoutEnd shows that a page that never rests holds up nothing
// beyond its time, and that the browser serves the next one.
func TestScriptWithoutEnd(t *testing.T) {
	t.Parallel()
	url := serve(t, map[string]string{"/": `<title>busy</title><body>x<script>for(;;){}</script>`, "/calm": `<title>calm</title>`})
	s := lease(t)
	p := openIn(t, s, chromium.Config{})
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err := p.Navigate(short, url)
	if err == nil {
		_, err = p.Screenshot(short, chromium.Shot{})
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the deadline", err)
	}
	p.Close()
	next := openIn(t, s, chromium.Config{})
	if v, err := next.Navigate(within(t, patience), url+"/calm"); err != nil || v.Title != "calm" {
		t.Errorf("next page: got %+v, %v", v, err)
	}
}

func TestCrashEndsTheWait(t *testing.T) {
	t.Parallel()
	url := serve(t, map[string]string{"/": `<title>x</title>`})
	p := open(t, chromium.Config{})
	if _, err := p.Navigate(within(t, patience), url); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Navigate(within(t, patience), "chrome://crash"); err == nil {
		t.Fatal("the crash went unnoticed")
	}
	if err := p.Evaluate(within(t, patience), "1", nil); !errors.Is(err, chromium.ErrCrashed) {
		t.Errorf("got %v, want ErrCrashed", err)
	}
}

func TestEvaluate(t *testing.T) {
	t.Parallel()
	p := open(t, chromium.Config{})
	var got struct{ N int }
	if err := p.Evaluate(within(t, patience), `Promise.resolve({n: 6*7})`, &got); err != nil || got.N != 42 {
		t.Errorf("got %+v, %v", got, err)
	}
	err := p.Evaluate(within(t, patience), `(() => { throw new Error("no such luck") })()`, nil)
	if e, ok := errors.AsType[*chromium.ScriptError](err); !ok || !strings.Contains(e.Text, "no such luck") {
		t.Errorf("got %v", err)
	}
	if err := p.Evaluate(within(t, patience), `undefined`, &got); err == nil {
		t.Error("no value was taken for one")
	}
}

// hostile tries every way to a file that a document has.
const hostile = `<!doctype html><title>t</title><style>
@import url("file:///etc/passwd");
@font-face { font-family: f; src: url("file:///etc/passwd") }
body { background: url("file:///etc/passwd"); font-family: f }
</style>
<p>marker</p>
<iframe src="file:///etc/passwd" width=600 height=300></iframe>
<iframe src="view-source:file:///etc/passwd"></iframe>
<iframe srcdoc="&lt;iframe src='file:///etc/passwd'&gt;&lt;/iframe&gt;"></iframe>
<object data="file:///etc/passwd" type="text/plain"></object>
<embed src="file:///etc/passwd" type="text/plain">
<img src="file:///etc/passwd"><video src="file:///etc/passwd"></video>
<link rel="stylesheet" href="file:///etc/passwd">
<script src="file:///etc/passwd"></script>
<p id=out>waiting</p>
<script>
const show = (s) => out.textContent += ' ' + s;
const ways = [
  fetch('file:///etc/passwd').then((r) => r.text()).then(show, () => show('fetch-shut')),
  new Promise((done) => { const x = new XMLHttpRequest(); x.onloadend = () => { show(x.responseText || 'xhr-shut'); done() };
    try { x.open('GET', 'file:///etc/passwd'); x.send() } catch (e) { show('xhr-shut'); done() } }),
];
try { window.open('file:///etc/passwd') } catch (e) {}
Promise.all(ways).then(() => { try { location.href = 'file:///etc/passwd' } catch (e) {} });
</script>`

func TestConfinedPageReadsNoFile(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("pdftotext"); err != nil {
		t.Skip("pdftotext is not installed")
	}
	p := open(t, chromium.Config{Serve: func(path string) (chromium.Resource, bool) {
		return chromium.Resource{ContentType: "text/html; charset=utf-8", Body: []byte(hostile)}, path == "/"
	}})
	v, err := p.Navigate(within(t, patience), chromium.Origin+"/")
	if err != nil {
		t.Fatal(err)
	}
	if v.URL != chromium.Origin+"/" {
		t.Errorf("the page went to %s", v.URL)
	}
	pdf, err := p.PDF(within(t, patience), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "pdftotext", "-", "-")
	cmd.Stdin = bytes.NewReader(pdf)
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"marker", "fetch-shut", "xhr-shut"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("%q is missing in %q", want, text)
		}
	}
	if bytes.Contains(text, []byte("root:")) || bytes.Contains(text, []byte("/bin/")) {
		t.Errorf("a file was read: %q", text)
	}
}

func TestConfinedPageLoadsPictures(t *testing.T) {
	t.Parallel()
	url := serve(t, map[string]string{"/gone": "x"})
	body := fmt.Sprintf(`<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" alt=a><img src="%s/none.png"><img src="/mine.svg" id=mine><img src="/other.png">`, url)
	p := open(t, chromium.Config{Width: 300, Height: 200, Scale: 2, Serve: func(path string) (chromium.Resource, bool) {
		switch path {
		case "/":
			return chromium.Resource{ContentType: "text/html", Body: []byte(body)}, true
		case "/mine.svg":
			return chromium.Resource{ContentType: "image/svg+xml", Body: []byte(`<svg xmlns="http://www.w3.org/2000/svg" width="7" height="7"/>`)}, true
		}
		return chromium.Resource{}, false
	}})
	if _, err := p.Navigate(within(t, patience), chromium.Origin+"/"); err != nil {
		t.Fatal(err)
	}
	var width int
	if err := p.Evaluate(within(t, patience), "mine.naturalWidth", &width); err != nil || width != 7 {
		t.Errorf("own picture: width %d, %v", width, err)
	}
	var failed []string
	for _, f := range p.Failures() {
		failed = append(failed, f.URL)
	}
	if len(failed) != 2 {
		t.Errorf("got failures %q, want the two absent pictures", failed)
	}
	data, err := p.Screenshot(within(t, patience), chromium.Shot{})
	if err != nil {
		t.Fatal(err)
	}
	if got := size(t, data); got != image.Pt(600, 400) {
		t.Errorf("got a picture of %v", got)
	}
	if _, err := p.PDF(within(t, patience), 10); err == nil {
		t.Error("a PDF over the limit was returned")
	}
}
