package browser_test

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/agent"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/browser"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

func TestMain(m *testing.M) { sessionstest.Main(m, agent.Main) }

type output struct {
	URL         string `json:"url"`
	ArtifactKey string `json:"artifact_key"`
	Size        int    `json:"size"`
	Status      int    `json:"status"`
	FinalURL    string `json:"final_url"`
	Title       string `json:"title"`
}

// leaser counts the sessions that are open.
type leaser struct {
	sessions.Leaser
	leased, open atomic.Int64
}

func (l *leaser) Lease(ctx context.Context, r sessions.Request) (sessions.Session, error) {
	s, err := l.Leaser.Lease(ctx, r)
	if err != nil {
		return nil, err
	}
	l.leased.Add(1)
	l.open.Add(1)
	return &counted{Session: s, leaser: l}, nil
}

type counted struct {
	sessions.Session
	leaser *leaser
	once   sync.Once
}

func (c *counted) Close(ctx context.Context) error {
	c.once.Do(func() { c.leaser.open.Add(-1) })
	return c.Session.Close(ctx)
}

// setup gives sidecars behind an egress proxy that lets loopback through.
func setup(t *testing.T) (*leaser, packstest.Option) {
	t.Helper()
	allow, err := egress.ParseAllowlist("127.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	proxy := egress.NewProxy(egress.ProxyConfig{Guard: egress.New(egress.Config{Policy: egress.Policy{Allow: allow}})})
	t.Cleanup(proxy.Close)
	listener, err := proxy.Listen(t.Context(), egress.Identity{Lease: "test"})
	if err != nil {
		t.Fatal(err)
	}
	l := &leaser{Leaser: sessionstest.Local(t, "browser", sessionstest.Options{ProxyURL: "http://" + listener.Addr()})}
	return l, packstest.WithLeaser(l)
}

const (
	top    = `<!doctype html><body style="margin:0;background:#00f">`
	bottom = `<div style="height:2900px"></div><div style="height:100px;background:#f00"></div>`
)

// site serves the pages of the tests and counts the requests.
func site(t *testing.T) (url string, hits *atomic.Int64) {
	t.Helper()
	hits = &atomic.Int64{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		switch r.URL.Path {
		case "/":
			_, _ = io.WriteString(w, top+`<title>Grüße</title><h1>Hi</h1>`)
		case "/tall":
			_, _ = io.WriteString(w, top+bottom)
		case "/redirect":
			http.Redirect(w, r, "/?to", http.StatusFound)
		case "/gone":
			w.WriteHeader(http.StatusGone)
			_, _ = io.WriteString(w, `<title>Gone</title>`)
		case "/file":
			w.Header().Set("Content-Type", "application/zip")
			w.Header().Set("Content-Disposition", "attachment")
			_, _ = io.WriteString(w, "PK")
		case "/away":
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
		case "/away-tls":
			http.Redirect(w, r, "https://169.254.169.254/latest", http.StatusFound)
		case "/away-script":
			_, _ = io.WriteString(w, `<script>location = "http://10.0.0.1/"</script>`)
		case "/busy":
			_, _ = io.WriteString(w, `<body>x<script>for (;;) {}</script>`)
		case "/dialog":
			_, _ = io.WriteString(w, `<title>Calm</title><script>alert(confirm(prompt("?")))</script>`)
		case "/silent":
			<-r.Context().Done()
		}
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections() // of /silent
		srv.Close()
	})
	return srv.URL, hits
}

// picture checks what every success must have and decodes the artifact.
func picture(t *testing.T, res packstest.Result) (output, image.Image) {
	t.Helper()
	var out output
	res.Decode(t, &out)
	if len(res.Artifacts) != 1 {
		t.Fatalf("got %d artifacts, want 1", len(res.Artifacts))
	}
	a := res.Artifacts[0]
	if a.Key != out.ArtifactKey || a.ContentType != "image/png" || len(a.Bytes) != out.Size ||
		!strings.HasPrefix(a.Key, "browser.screenshot_url/") || !strings.HasSuffix(a.Key, "-screenshot.png") {
		t.Errorf("got artifact %s of %s with %d bytes for output %+v", a.Key, a.ContentType, len(a.Bytes), out)
	}
	if !bytes.HasPrefix(a.Bytes, []byte("\x89PNG")) {
		t.Fatalf("the file begins with % x", a.Bytes[:min(8, len(a.Bytes))])
	}
	img, err := png.Decode(bytes.NewReader(a.Bytes))
	if err != nil {
		t.Fatal(err)
	}
	return out, img
}

func TestScreenshotURL(t *testing.T) {
	t.Parallel()
	t.Run("1_page", func(t *testing.T) {
		t.Parallel()
		_, with := setup(t)
		url, _ := site(t)
		res := packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url}, with)
		out, img := picture(t, res)
		want := output{URL: url, ArtifactKey: out.ArtifactKey, Size: out.Size, Status: 200, FinalURL: url + "/", Title: "Grüße"}
		if diff := cmp.Diff(want, out); diff != "" {
			t.Errorf("output (-want +got):\n%s", diff)
		}
		if got := img.Bounds().Size(); got != image.Pt(1280, 720) {
			t.Errorf("got a picture of %v", got)
		}
		if got := color.RGBAModel.Convert(img.At(1200, 700)); got != (color.RGBA{B: 255, A: 255}) {
			t.Errorf("the background is %v, want blue", got)
		}
		last := -1.0
		for _, p := range res.Progress {
			if p.Percent < last {
				t.Errorf("progress falls to %v: %s", p.Percent, p.Message)
			}
			last = p.Percent
		}
		if len(res.Progress) < 4 {
			t.Errorf("got progress %v", res.Progress)
		}
	})
	t.Run("2_full_page", func(t *testing.T) {
		t.Parallel()
		_, with := setup(t)
		url, _ := site(t)
		_, img := picture(t, packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url + "/tall", "fullPage": true}, with))
		if got := img.Bounds().Size(); got.X != 1280 || got.Y < 3000 {
			t.Errorf("got a picture of %v, want 1280 wide and at least 3000 high", got)
		}
		if got := color.RGBAModel.Convert(img.At(10, 2990)); got != (color.RGBA{R: 255, A: 255}) {
			t.Errorf("the foot of the page is %v, want red", got)
		}
	})
	t.Run("3_viewport", func(t *testing.T) {
		t.Parallel()
		_, with := setup(t)
		url, _ := site(t)
		_, img := picture(t, packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url + "/tall", "fullPage": false}, with))
		if got := img.Bounds().Size(); got != image.Pt(1280, 720) {
			t.Errorf("got a picture of %v, want the viewport", got)
		}
	})
	t.Run("4_no_url", func(t *testing.T) {
		t.Parallel()
		res := packstest.Run(t, browser.ScreenshotURL, `{}`)
		res.WantCode(t, packs.InvalidInput)
		if !strings.Contains(res.Err.Message, "url") {
			t.Errorf("got message %q", res.Err.Message)
		}
	})
	t.Run("5_refused_address", func(t *testing.T) {
		t.Parallel()
		l, with := setup(t)
		res := packstest.Run(t, browser.ScreenshotURL, `{"url":"http://169.254.169.254/"}`, with)
		res.WantCode(t, packs.InvalidInput)
		if !strings.HasPrefix(res.Err.Message, "egress denied: ") || l.leased.Load() != 0 {
			t.Errorf("got %q after %d leases", res.Err.Message, l.leased.Load())
		}
	})
	t.Run("6_other_schemes", func(t *testing.T) {
		t.Parallel()
		l, with := setup(t)
		for _, url := range []string{
			"file:///etc/hostname", "data:text/html,x", "chrome://version", "view-source:http://127.0.0.1/", "about:blank",
			"javascript:alert(1)", "ftp://127.0.0.1/", "http://", "http:///path", " ", "127.0.0.1", "http://a b/",
		} {
			packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url}, with).WantCode(t, packs.InvalidInput)
		}
		if n := l.leased.Load(); n != 0 {
			t.Errorf("%d sessions were leased", n)
		}
	})
	t.Run("7_nobody_listens", func(t *testing.T) {
		t.Parallel()
		l, with := setup(t)
		address := refused(t)
		for _, scheme := range []string{"http", "https"} {
			res := packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": scheme + "://" + address}, with)
			res.WantCode(t, packs.HandlerFailed)
			if !strings.Contains(res.Err.Message, address) {
				t.Errorf("got message %q, want it to name %s", res.Err.Message, address)
			}
		}
		if n := l.open.Load(); n != 0 {
			t.Errorf("%d sessions are still open", n)
		}
	})
	t.Run("8_server_never_answers", func(t *testing.T) {
		t.Parallel()
		l, with := setup(t)
		url, _ := site(t)
		short := browser.ScreenshotWithin(2 * time.Second)
		res := packstest.Run(t, short, map[string]any{"url": url + "/silent"}, with)
		res.WantCode(t, packs.Timeout)
		if n := l.open.Load(); n != 0 || !strings.Contains(res.Err.Message, "2s") {
			t.Errorf("%d sessions are open after %q", n, res.Err.Message)
		}
		picture(t, packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url}, with))
	})
}

// refused returns host and port of a socket that stays taken and never answers.
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
	return fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
}

func TestWaysToARefusedAddress(t *testing.T) {
	t.Parallel()
	_, with := setup(t)
	url, _ := site(t)
	for _, path := range []string{"/away", "/away-tls", "/away-script"} {
		res := packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url + path}, with)
		res.WantCode(t, packs.InvalidInput)
		if !strings.HasPrefix(res.Err.Message, "egress denied: ") {
			t.Errorf("%s: got message %q", path, res.Err.Message)
		}
	}
}

func TestPagesOfEveryKind(t *testing.T) {
	t.Parallel()
	_, with := setup(t)
	url, _ := site(t)
	for _, tt := range []struct {
		path string
		want output
	}{
		{"/redirect", output{Status: 200, FinalURL: url + "/?to", Title: "Grüße"}},
		{"/gone", output{Status: 410, FinalURL: url + "/gone", Title: "Gone"}},
		{"/dialog", output{Status: 200, FinalURL: url + "/dialog", Title: "Calm"}},
	} {
		got, _ := picture(t, packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url + tt.path}, with))
		tt.want.URL, tt.want.ArtifactKey, tt.want.Size = url+tt.path, got.ArtifactKey, got.Size
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.path, diff)
		}
	}
	packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url + "/file"}, with).WantCode(t, packs.HandlerFailed)
}

func TestScriptWithoutEnd(t *testing.T) {
	t.Parallel()
	l, with := setup(t)
	url, _ := site(t)
	packstest.Run(t, browser.ScreenshotWithin(3*time.Second), map[string]any{"url": url + "/busy"}, with).WantCode(t, packs.Timeout)
	if n := l.open.Load(); n != 0 {
		t.Errorf("%d sessions are still open", n)
	}
	picture(t, packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url}, with))
}

func TestCancel(t *testing.T) {
	t.Parallel()
	l, with := setup(t)
	url, _ := site(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res := packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url + "/silent"}, with, packstest.WithContext(ctx),
		packstest.WithOnProgress(func(p packstest.Progress) {
			if strings.HasPrefix(p.Message, "opening") {
				cancel()
			}
		}))
	res.WantCode(t, packs.Cancelled)
	if n := l.open.Load(); n != 0 {
		t.Errorf("%d sessions are still open", n)
	}
}

func TestNoSession(t *testing.T) {
	t.Parallel()
	url, hits := site(t)
	packstest.Run(t, browser.ScreenshotURL, map[string]any{"url": url}).WantCode(t, packs.SessionUnavailable)
	if n := hits.Load(); n != 0 {
		t.Errorf("%d requests were made", n)
	}
}
