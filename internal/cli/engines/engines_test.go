package engines_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/cli/engines"
)

func TestReport(t *testing.T) {
	t.Parallel()
	r := engines.Report{Engines: []engines.Engine{
		{Name: "chromium", Required: true, Packs: []string{"browser.screenshot_url", "slides.render"}},
		{Name: "node", Path: "/usr/bin/node", Required: true, Packs: []string{"slides.render"}},
		{Name: "marp", Required: true, Packs: []string{"slides.render"}},
		{Name: "git"},
	}}
	var missing []string
	for _, e := range r.Missing() {
		missing = append(missing, e.Name)
	}
	if diff := cmp.Diff([]string{"chromium", "marp"}, missing); diff != "" {
		t.Errorf("missing (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"chromium", "marp"}, r.Lacking("slides.render")); diff != "" {
		t.Errorf("lacking (-want +got):\n%s", diff)
	}
	if got := r.Reason("slides.render"); !strings.Contains(got, "chromium, marp") || !strings.Contains(got, engines.Setup) {
		t.Errorf("reason: got %q, want what is missing and the command that installs it", got)
	}
	if got := r.Reason("http.fetch"); got != "" {
		t.Errorf("reason of a pack that needs nothing: got %q", got)
	}
}

// TestFind says of every engine what it is good for, and how to get it.
func TestFind(t *testing.T) {
	t.Parallel()
	r := engines.Find(t.Context(), true)
	for _, e := range r.Engines {
		if e.Name == "" || e.Enables == "" || e.Install == "" {
			t.Errorf("incomplete: %+v", e)
		}
		if e.Name == "node" && e.Found() && e.Version == "" {
			t.Error("node is there and has no version")
		}
	}
	if len(r.Engines) == 0 || r.Sandbox.Namespaces == (r.Sandbox.Reason != "") {
		t.Errorf("got %+v, want engines, and a reason exactly when there are no namespaces", r)
	}
}
