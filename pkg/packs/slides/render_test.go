package slides_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/agent"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/pkg/chromium"
	"github.com/helmdeck/helmdeck/pkg/packs"
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

const diagram = "```mermaid\nflowchart LR\n  API --> Worker\n```\n"

func TestRender(t *testing.T) {
	t.Parallel()
	t.Run("R1_pdf", func(t *testing.T) {
		t.Parallel()
		out, data := document(t, render(t, map[string]any{"markdown": "# A\n\n---\n\n# B 😀"}))
		if !bytes.HasPrefix(data, []byte("%PDF")) || pages(t, data) != 2 || out.Format != "pdf" || out.PageCount != 2 || len(out.Warnings) != 0 {
			t.Errorf("got %+v, %d pages, beginning %q", out, pages(t, data), data[:8])
		}
		if size := tool(t, data, "pdfinfo", "-"); !strings.Contains(size, "960 x 540 pts") {
			t.Errorf("the slides are not 16:9: %s", size)
		}
	})
	t.Run("R2_pptx", func(t *testing.T) {
		t.Parallel()
		out, data := document(t, render(t, map[string]any{"format": "pptx",
			"markdown": "# A\n\n<!-- Say hello -->\n\n---\n\n<style scoped>section{background:#00f;color:#fff}</style>\n\n# B & <b>bold</b>"}))
		files := unzip(t, data)
		for _, want := range []string{"ppt/slides/slide1.xml", "ppt/slides/slide2.xml", "ppt/notesSlides/notesSlide1.xml"} {
			if files[want] == nil {
				t.Errorf("%s is missing", want)
			}
		}
		if files["ppt/slides/slide3.xml"] != nil || out.PageCount != 2 {
			t.Errorf("got more than two slides: %+v", out)
		}
		if !bytes.Contains(files["ppt/notesSlides/notesSlide1.xml"], []byte("Say hello")) {
			t.Error("the notes are missing")
		}
		if !bytes.Contains(files["ppt/slides/slide2.xml"], []byte("B &amp; bold")) {
			t.Errorf("the title is missing in %s", files["ppt/slides/slide2.xml"])
		}
		img, err := png.Decode(bytes.NewReader(files["ppt/media/image2.png"]))
		if err != nil {
			t.Fatal(err)
		}
		if got := color.RGBAModel.Convert(img.At(2500, 1400)); img.Bounds().Dx() != 2560 || img.Bounds().Dy() != 1440 || got != (color.RGBA{B: 255, A: 255}) {
			t.Errorf("slide 2 is a picture of %v with background %v", img.Bounds(), got)
		}
	})
	t.Run("R3_format", func(t *testing.T) {
		t.Parallel()
		res := packstest.Run(t, slides.Render, map[string]any{"markdown": "# A", "format": "docx"})
		res.WantCode(t, packs.InvalidInput)
		for _, want := range []string{"pdf", "pptx", "html"} {
			if !strings.Contains(res.Err.Message, want) {
				t.Errorf("%q does not name %s", res.Err.Message, want)
			}
		}
	})
	t.Run("R4_mermaid_html", func(t *testing.T) {
		t.Parallel()
		out, data := document(t, render(t, map[string]any{"format": "html", "markdown": "# A\n\n" + diagram + "- text right after\n\n---\n\n" + diagram}))
		html := string(data)
		svgs := regexp.MustCompile(`<img class="mermaid-svg" alt="mermaid diagram" src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)"`).FindAllStringSubmatch(html, -1)
		if len(svgs) != 2 || strings.Contains(html, "flowchart LR") || !strings.Contains(html, "<li>text right after") || out.PageCount != 2 {
			t.Fatalf("got %d pictures, output %+v", len(svgs), out)
		}
		svg, err := base64.StdEncoding.DecodeString(svgs[0][1])
		if err != nil {
			t.Fatal(err)
		}
		wellFormed(t, "diagram", svg)
		if !bytes.Contains(svg, []byte("Worker")) || svgs[0][1] != svgs[1][1] {
			t.Errorf("the diagrams differ or say nothing: %.300s", svg)
		}
	})
	t.Run("R5_no_diagram", func(t *testing.T) {
		t.Parallel()
		res := render(t, map[string]any{"markdown": "```mermaid\nnot a diagram " + strings.Repeat("ä", 400) + "\n```\n"})
		res.WantCode(t, packs.HandlerFailed)
		_, source, ok := strings.Cut(res.Err.Message, "its source: ")
		if !strings.Contains(res.Err.Message, "diagram 0") || !ok || len(source) > 256+len("…") || !strings.HasPrefix(source, "not a diagram ää") {
			t.Errorf("got message %q", res.Err.Message)
		}
	})
	t.Run("R6_contrast", func(t *testing.T) {
		t.Parallel()
		out, _ := document(t, render(t, map[string]any{"markdown": "<style>p{color:#777777;background:#ffffff}</style>\n\ntext", "format": "html"}))
		if len(out.Warnings) != 1 || out.Warnings[0].Rule != "wcag-aa-text-contrast" || out.Warnings[0].Ratio != "4.48:1" {
			t.Errorf("got warnings %+v", out.Warnings)
		}
	})
	t.Run("R7_theme", func(t *testing.T) {
		t.Parallel()
		for theme, want := range map[string]string{
			"helmdeck-dark": "helmdeck-dark", `"helmdeck-corporate"`: "helmdeck-corporate", "gaia": "",
		} {
			out, data := document(t, render(t, map[string]any{"markdown": "---\ntheme: " + theme + "\n---\n# A", "format": "html"}))
			if out.CuratedThemeUsed != want || len(out.Warnings) != 0 {
				t.Errorf("%s: got %+v", theme, out)
			}
			if want == "helmdeck-dark" && !bytes.Contains(data, []byte("#0f172a")) {
				t.Error("the theme's colours are missing")
			}
		}
	})
	t.Run("R8_wide_table", func(t *testing.T) {
		t.Parallel()
		testWideTable(t)
	})
}

// testWideTable shows the deck in a browser and measures it.
func testWideTable(t *testing.T) {
	var deck strings.Builder
	deck.WriteString("# Wide\n\n")
	for row := range 4 {
		for column := range 14 {
			fmt.Fprintf(&deck, "| Column_%d_with_a_long_name ", row*column)
		}
		deck.WriteString("|\n")
		if row == 0 {
			deck.WriteString(strings.Repeat("|---", 14) + "|\n")
		}
	}
	l := leaser(t, nil)
	for _, theme := range []string{"default", "gaia", "helmdeck-dark"} {
		_, data := document(t, packstest.Run(t, slides.Render, map[string]any{
			"markdown": "---\ntheme: " + theme + "\n---\n" + deck.String(), "format": "html",
		}, packstest.WithLeaser(l)))
		var overflowing []string
		inPage(t, l, data, `[...document.querySelectorAll('section, section *')]
			.filter((e) => e.scrollWidth > e.clientWidth && e.clientWidth > 0 || e.getBoundingClientRect().right > e.closest('section').getBoundingClientRect().right + 1)
			.map((e) => e.tagName + ' ' + e.scrollWidth + '>' + e.clientWidth)`, &overflowing)
		if len(overflowing) != 0 {
			t.Errorf("%s: these overflow: %v", theme, overflowing)
		}
	}
}

// inPage evaluates an expression in a page of html.
func inPage(t *testing.T, l sessions.Leaser, html []byte, expression string, v any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := l.Lease(ctx, sessions.Request{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.WithoutCancel(ctx))
	page, err := chromium.Open(ctx, s, chromium.Config{Serve: func(string) (chromium.Resource, bool) {
		return chromium.Resource{ContentType: "text/html; charset=utf-8", Body: html}, true
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	if _, err := page.Navigate(ctx, chromium.Origin+"/"); err != nil {
		t.Fatal(err)
	}
	if err := page.Evaluate(ctx, expression, v); err != nil {
		t.Fatal(err)
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

func TestBadInput(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		input map[string]any
		want  string
	}{
		{"no markdown", map[string]any{}, "/markdown: is required"},
		{"empty", map[string]any{"markdown": ""}, "/markdown: is empty"},
		{"blank", map[string]any{"markdown": " \n\t"}, "/markdown: is empty"},
		{"binary", map[string]any{"markdown": "PK\x03\x04\x00\x00\xff"}, "NUL character at byte 4"},
		{"kinds", map[string]any{"markdown": 1, "mermaid": "yes"}, "/mermaid: expected boolean"},
		{"hero picture", map[string]any{"markdown": "# A", "hero_image_prompt": "a harbour"}, "leave hero_image_prompt out"},
		{"too large", map[string]any{"markdown": strings.Repeat("a", 4<<20+1)}, "has 4194305 bytes, at most 4194304"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			res := packstest.Run(t, slides.Render, tt.input)
			res.WantCode(t, packs.InvalidInput)
			if !strings.Contains(res.Err.Message, tt.want) {
				t.Errorf("got message %q, want it to contain %q", res.Err.Message, tt.want)
			}
		})
	}
}

func TestLargestDeck(t *testing.T) {
	t.Parallel()
	deck := "# A\n\n<!-- "
	deck += strings.Repeat("note ", (4<<20-len(deck)-4)/5)
	deck += strings.Repeat("x", 4<<20-len(deck)-4) + " -->"
	out, data := document(t, render(t, map[string]any{"markdown": deck}))
	if len(deck) != 4<<20 || out.PageCount != 1 || pages(t, data) != 1 {
		t.Errorf("a deck of %d bytes became %+v", len(deck), out)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	l := leaser(t, nil)
	for _, deck := range []string{strings.Repeat("# A\n\n---\n\n", 500), strings.Repeat(diagram, 101)} {
		res := packstest.Run(t, slides.Render, map[string]any{"markdown": deck, "format": "html"}, packstest.WithLeaser(l))
		res.WantCode(t, packs.InvalidInput)
		if !strings.Contains(res.Err.Message, "are allowed; split the deck") {
			t.Errorf("got message %q", res.Err.Message)
		}
	}
}

// TestLocalFiles tries to get a file onto a slide.
func TestLocalFiles(t *testing.T) {
	t.Parallel()
	deck := `---
style: |
  @import url("file:///etc/passwd");
  section { background-image: url(file:///etc/passwd); }
  section::before { content: url("file:///etc/passwd"); }
---
# Marker

![](file:///etc/passwd) ![bg](file:///etc/passwd) ![](/etc/passwd) ![](../../../../etc/passwd)

<iframe src="file:///etc/passwd"></iframe>
<object data="file:///etc/passwd" type="text/plain"></object>
<embed src="file:///etc/passwd"><img src="file:///etc/passwd">
<link rel="stylesheet" href="file:///etc/passwd">
<script>fetch('file:///etc/passwd').then((r) => r.text()).then((t) => document.body.append(t))</script>
`
	for _, format := range []string{"pdf", "html"} {
		out, data := document(t, render(t, map[string]any{"markdown": deck, "format": format}))
		text := string(data)
		if format == "pdf" {
			text = tool(t, data, "pdftotext", "-", "-")
		}
		if !strings.Contains(text, "Marker") || strings.Contains(text, "root:x:") || strings.Contains(text, "/bin/sh") || strings.Contains(text, "/nologin") {
			t.Errorf("%s: got text %q", format, text)
		}
		var rules []string
		for _, w := range out.Warnings {
			rules = append(rules, w.Rule)
		}
		if all := strings.Join(rules, " "); !strings.Contains(all, "local-file-not-loaded") || !strings.Contains(all, "script-not-run") {
			t.Errorf("%s: got warnings %v", format, rules)
		}
	}
}

// TestScriptWithoutEnd shows that a script in a deck, in a diagram or in an
// attribute is not run at all.
func TestScriptWithoutEnd(t *testing.T) {
	t.Parallel()
	deck := "# A\n\n<script>for (;;) {}</script>\n\n<img src=x onerror=\"for(;;){}\">\n\n<svg onload=\"for(;;){}\"></svg>\n\n" +
		"```mermaid\n%%{init: {\"securityLevel\": \"loose\"}}%%\nflowchart LR\n  a[\"<img src=x onerror='for(;;){}'>\"] --> b[\"<script>for(;;){}</script>\"]\n  click a call alert()\n```\n"
	out, data := document(t, render(t, map[string]any{"markdown": deck}))
	if out.PageCount != 1 || pages(t, data) != 1 {
		t.Errorf("got %+v", out)
	}
}

// TestTimeIsBounded gives the browser no time, as a deck does that takes all.
func TestTimeIsBounded(t *testing.T) {
	t.Parallel()
	l := leaser(t, nil)
	for name, limits := range map[string][2]time.Duration{
		"marp":    {time.Millisecond, time.Minute},
		"browser": {time.Minute, time.Millisecond},
	} {
		for _, deck := range []string{"# A", diagram} {
			res := packstest.Run(t, slides.RenderWithin(limits[0], limits[1]), map[string]any{"markdown": deck}, packstest.WithLeaser(l))
			res.WantCode(t, packs.Timeout)
			if !strings.Contains(res.Err.Message, "1ms") {
				t.Errorf("%s: got message %q", name, res.Err.Message)
			}
		}
	}
}

func TestMissingEngines(t *testing.T) {
	t.Parallel()
	none := leaser(t, func(c *process.Config) { c.Engines = t.TempDir() })
	res := packstest.Run(t, slides.Render, map[string]any{"markdown": "# A"}, packstest.WithLeaser(none))
	res.WantCode(t, packs.HandlerFailed)
	for _, want := range []string{"./task setup", "HELMDECK_ENGINES_DIR"} {
		if !strings.Contains(res.Err.Message, want) {
			t.Errorf("%q does not name %s", res.Err.Message, want)
		}
	}
}

func TestPictures(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/dot.svg" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "image/svg+xml")
		_, _ = io.WriteString(w, `<svg xmlns="http://www.w3.org/2000/svg" width="200" height="60"><text x="0" y="30">from afar</text></svg>`)
	}))
	t.Cleanup(srv.Close)
	out, data := document(t, render(t, map[string]any{"markdown": fmt.Sprintf(
		"# A\n\n![](%[1]s/dot.svg)\n\n![](%[1]s/gone.png)\n\n![](http://10.0.0.1/inside.png)\n", srv.URL)}))
	if text := tool(t, data, "pdftotext", "-", "-"); !strings.Contains(text, "from afar") {
		t.Errorf("the picture is missing in %q", text)
	}
	missing := map[string]bool{}
	for _, w := range out.Warnings {
		if w.Rule == "picture-not-loaded" {
			missing[w.Selector] = true
		}
	}
	want := map[string]bool{srv.URL + "/gone.png": true, "http://10.0.0.1/inside.png": true}
	if diff := cmp.Diff(want, missing); diff != "" {
		t.Errorf("missing pictures (-want +got):\n%s", diff)
	}
}

func TestMermaidOff(t *testing.T) {
	t.Parallel()
	_, data := document(t, render(t, map[string]any{"markdown": diagram, "mermaid": false, "format": "html"}))
	if !bytes.Contains(data, []byte("flowchart LR")) || bytes.Contains(data, []byte(`<img class="mermaid-svg"`)) {
		t.Error("the fence is no code")
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	out, data := document(t, render(t, map[string]any{"format": "pptx", "markdown": "---\nsize: 4:3\ntheme: helmdeck-corporate\n---\n# One\n<!-- first\nsecond & <third> -->\n\n---\n\n![bg](data:image/gif;base64,R0lGODlhAQABAAAAACw=)\n"}))
	files := unzip(t, data)
	notes := string(files["ppt/notesSlides/notesSlide1.xml"])
	if !strings.Contains(notes, "<a:t>first</a:t>") || !strings.Contains(notes, "<a:t>second &amp; &lt;third&gt;</a:t>") || files["ppt/notesSlides/notesSlide2.xml"] != nil {
		t.Errorf("got notes %s", notes)
	}
	if !bytes.Contains(files["ppt/presentation.xml"], []byte(`cx="9144000" cy="6858000"`)) || out.PageCount != 2 {
		t.Errorf("the slides are not 4:3: %s", files["ppt/presentation.xml"])
	}
}
