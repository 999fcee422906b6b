package slides_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/agent"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/pkg/chromium"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
	"github.com/helmdeck/helmdeck/pkg/packs/slides"
	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/process"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

func TestMain(m *testing.M) { sessionstest.Main(m, agent.Main) }

type warning struct{ Rule, Selector, Foreground, Background, Ratio, Recommendation string }

type output struct {
	Format           string    `json:"format"`
	ArtifactKey      string    `json:"artifact_key"`
	Size             int       `json:"size"`
	PageCount        int       `json:"page_count"`
	CuratedThemeUsed string    `json:"curated_theme_used"`
	Warnings         []warning `json:"warnings"`
}

// leaser gives sidecars behind an egress proxy that lets loopback through.
func leaser(t *testing.T, change func(*process.Config)) sessions.Leaser {
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
	return sessionstest.Local(t, "browser", sessionstest.Options{ProxyURL: "http://" + listener.Addr(), Change: change})
}

func render(t *testing.T, input map[string]any, options ...packstest.Option) packstest.Result {
	t.Helper()
	options = append([]packstest.Option{packstest.WithLeaser(leaser(t, nil))}, options...)
	return packstest.Run(t, slides.Render, input, options...)
}

// document checks what every success must have and returns the document.
func document(t *testing.T, res packstest.Result) (output, []byte) {
	t.Helper()
	var out output
	res.Decode(t, &out)
	if len(res.Artifacts) != 1 {
		t.Fatalf("got %d artifacts, want 1", len(res.Artifacts))
	}
	a := res.Artifacts[0]
	types := map[string]string{
		"pdf": "application/pdf", "html": "text/html",
		"pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
	}
	if a.Key != out.ArtifactKey || len(a.Bytes) != out.Size || a.Name != "deck."+out.Format ||
		!strings.HasPrefix(a.ContentType, types[out.Format]) || !strings.HasPrefix(a.Key, "slides.render/") {
		t.Errorf("got artifact %s (%s, %s, %d bytes) for output %+v", a.Key, a.Name, a.ContentType, len(a.Bytes), out)
	}
	last := -1.0
	for _, p := range res.Progress {
		if p.Percent < last {
			t.Errorf("progress falls to %v: %s", p.Percent, p.Message)
		}
		last = p.Percent
	}
	return out, a.Bytes
}

// tool runs a program of poppler-utils on a document.
func tool(t *testing.T, data []byte, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip(name + " is not installed")
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Stdin = bytes.NewReader(data)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(out)
}

func pages(t *testing.T, pdf []byte) int {
	t.Helper()
	m := regexp.MustCompile(`Pages:\s+(\d+)`).FindStringSubmatch(tool(t, pdf, "pdfinfo", "-"))
	if m == nil {
		t.Fatal("pdfinfo tells no pages")
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// opener opens a page in a sidecar of its own and returns how to load html
// into it and evaluate an expression there.
func opener(t *testing.T, l sessions.Leaser) (inPage func(html []byte, expression string, v any)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	s, err := l.Lease(ctx, sessions.Request{})
	if err != nil {
		t.Fatal(err)
	}
	var shown atomic.Pointer[[]byte]
	page, err := chromium.Open(ctx, s, chromium.Config{Serve: func(string) (chromium.Resource, bool) {
		return chromium.Resource{ContentType: "text/html; charset=utf-8", Body: *shown.Load()}, true
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(page.Close)
	return func(html []byte, expression string, v any) {
		t.Helper()
		shown.Store(&html)
		if _, err := page.Navigate(ctx, chromium.Origin+"/"); err != nil {
			t.Fatal(err)
		}
		if err := page.Evaluate(ctx, expression, v); err != nil {
			t.Fatal(err)
		}
	}
}

// unzip reads a PowerPoint file and checks that its parts are whole: every XML
// is well formed, has a content type, and refers to parts that exist.
func unzip(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, f := range r.File {
		body, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		if files[f.Name], err = io.ReadAll(body); err != nil {
			t.Fatal(err)
		}
		body.Close()
	}
	types := string(files["[Content_Types].xml"])
	for name, body := range files {
		if !strings.HasSuffix(name, ".png") {
			wellFormed(t, name, body)
		}
		if strings.HasSuffix(name, ".xml") && name != "[Content_Types].xml" && !strings.Contains(types, `PartName="/`+name+`"`) {
			t.Errorf("%s has no content type", name)
		}
		if !strings.HasSuffix(name, ".rels") {
			continue
		}
		base := path.Dir(path.Dir(name))
		for _, m := range regexp.MustCompile(`Target="([^"]+)"`).FindAllStringSubmatch(string(body), -1) {
			if target := path.Join(base, m[1]); files[target] == nil {
				t.Errorf("%s refers to %s, which is missing", name, target)
			}
		}
	}
	return files
}

func wellFormed(t *testing.T, name string, data []byte) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(data))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%s is not well formed: %v", name, err)
		}
	}
}
