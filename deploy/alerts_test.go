package deploy_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// metricNames are the metrics that docs/metrics.md lists, which a test of its
// own compares with what the processes register.
func metricNames(t *testing.T) map[string]string {
	t.Helper()
	doc, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(helmdeck_[a-z_]+)` \\| ([a-z]+) \\|").FindAllStringSubmatch(string(doc), -1) {
		kinds[m[1]] = m[2]
	}
	if len(kinds) < 40 {
		t.Fatalf("found only %d metrics in docs/metrics.md", len(kinds))
	}
	return kinds
}

var metricName = regexp.MustCompile(`helmdeck_[a-z_]+`)

// checkExpr checks the metrics that an expression names, and that its brackets
// close.
func checkExpr(t *testing.T, kinds map[string]string, where, expr string) {
	t.Helper()
	names := metricName.FindAllString(expr, -1)
	if len(names) == 0 {
		t.Errorf("%s: no metric in %q", where, expr)
	}
	for _, name := range names {
		base := name
		for _, part := range []string{"_bucket", "_count", "_sum"} {
			if b, ok := strings.CutSuffix(name, part); ok && kinds[b] == "histogram" {
				base = b
			}
		}
		switch kind := kinds[base]; {
		case kind == "":
			t.Errorf("%s: there is no metric %s", where, name)
		case kind == "histogram" && base == name:
			t.Errorf("%s: %s is a histogram; use its _bucket, _count or _sum", where, name)
		case kind == "counter" && !regexp.MustCompile(`(rate|increase)\(`+name).MatchString(expr):
			t.Errorf("%s: the counter %s is used without rate or increase", where, name)
		}
	}
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
			t.Errorf("%s: unbalanced %s in %q", where, pair, expr)
		}
	}
}

// anchors are the headings of a page as links name them.
func anchors(t *testing.T, path string) map[string]bool {
	t.Helper()
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(string(doc), -1) {
		a := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		out[strings.ReplaceAll(a, " ", "-")] = true
	}
	return out
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	kinds, sections := metricNames(t), anchors(t, "../docs/operations.md")
	seen := map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || seen[r.Alert] {
				t.Errorf("alert %q has no name or another's", r.Alert)
			}
			seen[r.Alert] = true
			checkExpr(t, kinds, r.Alert, r.Expr)
			if r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
				t.Errorf("%s lacks a summary or a severity", r.Alert)
			}
			page, anchor, _ := strings.Cut(r.Annotations["runbook"], "#")
			if page != "docs/operations.md" || !sections[anchor] {
				t.Errorf("%s: its runbook %q leads nowhere", r.Alert, r.Annotations["runbook"])
			}
		}
	}
	if len(seen) < 15 {
		t.Errorf("only %d alerts", len(seen))
	}
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("grafana/helmdeck.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Title  string
		Panels []struct {
			ID          int
			Type, Title string
			Targets     []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	kinds := metricNames(t)
	ids := map[int]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			checkExpr(t, kinds, p.Title, target.Expr)
		}
	}
}
