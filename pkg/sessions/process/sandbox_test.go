package process_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/process"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

// TestBrowserSandbox: Chromium's own sandbox is on wherever a program of the
// sidecar may make a user namespace.
func TestBrowserSandbox(t *testing.T) {
	t.Parallel()
	cfg := sessionstest.Config(t)
	rt := open(t, cfg)
	images, err := rt.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if images[len(images)-1] != process.ImageBrowser {
		t.Skip("no browser here")
	}
	_, a := sidecar(t, rt, "sandbox", process.ImageBrowser)
	r, err := a.Exec(t.Context(), sessions.Command{Argv: []string{"unshare", "--user", "--map-root-user", "--pid", "--fork", "true"}})
	if err != nil {
		t.Fatal(err)
	}
	possible := r.ExitCode == 0
	if _, err := a.Browser(t.Context()); err != nil {
		t.Fatal(err)
	}
	browsers := belongs(filepath.Join(cfg.Dir, "sidecars", "sandbox", "scratch"))
	if len(browsers) == 0 {
		t.Fatal("no browser runs")
	}
	if on := !strings.Contains(browsers[0], "--no-sandbox"); on != possible {
		t.Errorf("sandbox is on: %t, user namespaces work: %t", on, possible)
	}
}
