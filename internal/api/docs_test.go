package api_test

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDocsPageInChromium: under its own strict policy the page shows every
// operation of the document.
func TestDocsPageInChromium(t *testing.T) {
	t.Parallel()
	r := setup(t)
	dom := render(t, chromium(t), r.url+"/docs")
	n := 0
	for path, methods := range document(t, r).Paths {
		n += len(methods)
		if !strings.Contains(dom, `<span class="path">`+path+`</span>`) {
			t.Errorf("the page does not show %s", path)
		}
	}
	if got := strings.Count(dom, "<details"); got != n {
		t.Errorf("the page shows %d operations, want %d; page: %.2000s", got, n, dom)
	}
}

func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium on this machine")
	return ""
}

// render returns the document of a page after its scripts have run.
func render(t *testing.T, path, url string) string {
	t.Helper()
	// Not t.TempDir: the browser's last child may still write while it is removed.
	profile, err := os.MkdirTemp("", "helmdeck-docs-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 2*patience)
	defer stop()
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
		"--disable-dev-shm-usage", "--disable-background-networking", "--user-data-dir="+profile,
		"--virtual-time-budget=10000", "--dump-dom", url)
	// Debian's program may be a shell script that stays in front of the browser.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	out, err := cmd.Output()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		for end := time.Now().Add(patience); os.RemoveAll(profile) != nil && time.Now().Before(end); {
			runtime.Gosched()
		}
	})
	if err != nil {
		t.Fatalf("render %s: %v", url, err)
	}
	return string(out)
}
