package egress_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/egress"
)

// page tries every way out a page has, and reports what came of each.
const page = `<!doctype html><script>
const report = (what) => fetch('/report?' + what);
const attempt = (url) => fetch(url, {mode: 'no-cors'}).then(() => 'open', () => 'shut');
const socket = (url) => new Promise((done) => {
  const s = new WebSocket(url);
  s.onmessage = (e) => { done(e.data); s.close(); };
  s.onerror = () => done('shut');
});
Promise.all([
  attempt('http://127.0.0.1:OTHER/'), attempt('http://localhost:OTHER/'), attempt('http://[::1]:OTHER/'),
  attempt('http://10.0.0.1/'), attempt('https://169.254.169.254/'), attempt('http://page.test:PORT/ok'),
  socket('ws://page.test:PORT/ws'), socket('ws://127.0.0.1:OTHER/ws'),
]).then((all) => report(all.join(',')));
</script>`

func TestChromiumGoesThroughTheProxyAlone(t *testing.T) {
	t.Parallel()
	chromium := findChromium(t)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the installation's own listener was reached: %s", r.URL)
	}))
	t.Cleanup(other.Close)
	_, otherPort, _ := net.SplitHostPort(other.Listener.Addr().String())

	reports := make(chan string, 1)
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.NewReplacer("OTHER", otherPort, "PORT", port).Replace(page))
	})
	mux.HandleFunc("/report", func(_ http.ResponseWriter, r *http.Request) { reports <- r.URL.RawQuery })
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		_ = c.Write(r.Context(), websocket.MessageText, []byte("greeting"))
		_ = c.CloseRead(r.Context())
	})

	// page.test exists for the proxy's resolver alone.
	guard := loopbackGuard(t, "page.test: 127.0.0.1")
	guard.RefuseListener(netip.MustParseAddrPort(other.Listener.Addr().String()))
	var mu sync.Mutex
	denied := map[string]bool{}
	proxy := egress.NewProxy(egress.ProxyConfig{Guard: guard, Observe: func(c egress.Connection) {
		mu.Lock()
		defer mu.Unlock()
		if c.Verdict == egress.Denied {
			denied[c.Host] = true
		}
	}})
	t.Cleanup(proxy.Close)
	listener, err := proxy.Listen(t.Context(), lease)
	if err != nil {
		t.Fatal(err)
	}
	runChromium(t, chromium, append(egress.ChromiumArgs(listener.Addr()), "http://page.test:"+port+"/"))

	select {
	case got := <-reports:
		// A refused plain request is answered with a 403, which a page may not
		// look into: "open" is all it learns.
		if diff := cmp.Diff("open,open,open,open,shut,open,greeting,shut", got); diff != "" {
			t.Error(diff)
		}
	case <-time.After(3 * deadline):
		t.Fatal("the page did not report")
	}
	mu.Lock()
	defer mu.Unlock()
	for _, host := range []string{"127.0.0.1", "localhost", "::1", "10.0.0.1", "169.254.169.254"} {
		if !denied[host] {
			t.Errorf("%s: no refusal was reported, so Chromium did not ask the proxy; got %v", host, denied)
		}
	}
}

func findChromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium on this machine")
	return ""
}

// runChromium starts a browser on a page and ends it with the test.
func runChromium(t *testing.T, path string, args []string) {
	t.Helper()
	// Not t.TempDir: the browser's last child may still write while it is removed.
	profile, err := os.MkdirTemp("", "helmdeck-egress-")
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
		"--disable-background-networking", "--remote-debugging-port=0",
		"--user-data-dir=" + profile,
	}, args...)
	cmd := exec.CommandContext(t.Context(), path, args...)
	// Debian's program is a shell script that stays in front of the browser.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		for end := time.Now().Add(deadline); os.RemoveAll(profile) != nil && time.Now().Before(end); {
			runtime.Gosched()
		}
	})
}
