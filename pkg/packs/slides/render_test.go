package slides_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
	"github.com/helmdeck/helmdeck/pkg/packs/slides"
	"github.com/helmdeck/helmdeck/pkg/packs/slides/contrast"
)

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
	inPage := opener(t, l)
	for _, theme := range []string{"default", "helmdeck-dark"} {
		_, data := document(t, packstest.Run(t, slides.Render, map[string]any{
			"markdown": "---\ntheme: " + theme + "\n---\n" + deck.String(), "format": "html",
		}, packstest.WithLeaser(l)))
		var overflowing []string
		inPage(data, `[...document.querySelectorAll('section, section *')]
			.filter((e) => e.scrollWidth > e.clientWidth && e.clientWidth > 0 || e.getBoundingClientRect().right > e.closest('section').getBoundingClientRect().right + 1)
			.map((e) => e.tagName + ' ' + e.scrollWidth + '>' + e.clientWidth)`, &overflowing)
		if len(overflowing) != 0 {
			t.Errorf("%s: these overflow: %v", theme, overflowing)
		}
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

// TestDiagramsKeepTheirPlaces has fences where Marp finds them and a line
// scanner might not.
func TestDiagramsKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	deck := strings.ReplaceAll("---\ntheme: helmdeck-dark\n---\n# A\n\n1. first\n\n   ~~~ mermaid\n   flowchart LR\n     one --> two\n   ~~~\n\n"+
		"```md\n```mermaid\nflowchart LR\n  no --> diagram\n```\n\n---\n\n````mermaid title\npie\n  \"three & <four>\" : 3\n````\n\n---\n\n```mermaid\nsequenceDiagram\n  a->>b: last<br/>one", "\n", "\r\n")
	out, data := document(t, render(t, map[string]any{"markdown": deck, "format": "html"}))
	var pictures []struct {
		Slide int
		Width float64
		Text  string
	}
	opener(t, leaser(t, nil))(data, `Promise.all([...document.querySelectorAll('img.mermaid-svg')].map(async (img) => {
		await img.decode()
		const svg = new DOMParser().parseFromString(new TextDecoder().decode(Uint8Array.from(atob(img.src.split(',')[1]), (c) => c.charCodeAt(0))), 'image/svg+xml')
		return { slide: Number(img.closest('section').id), width: img.naturalWidth, text: svg.documentElement.textContent }
	}))`, &pictures)
	if out.PageCount != 3 || len(pictures) != 3 {
		t.Fatalf("got %d diagrams on %d slides", len(pictures), out.PageCount)
	}
	for i, want := range []string{"two", "three & <four>", "last"} {
		if p := pictures[i]; p.Slide != i+1 || p.Width < 20 || !strings.Contains(p.Text, want) {
			t.Errorf("diagram %d is on slide %d, %v wide and lacks %q: %.400s", i, p.Slide, p.Width, want, p.Text)
		}
	}
}

// TestThemesAreLegible holds the colours of the house's themes to WCAG AA.
func TestThemesAreLegible(t *testing.T) {
	t.Parallel()
	for _, theme := range []string{"helmdeck-dark", "helmdeck-corporate"} {
		css, err := os.ReadFile(filepath.Join("deck", theme+".css"))
		if err != nil {
			t.Fatal(err)
		}
		palette := map[string]contrast.Color{}
		for _, m := range regexp.MustCompile(`--([a-z0-9-]+): ([^;]+);`).FindAllStringSubmatch(string(css), -1) {
			c, ok := contrast.ParseColor(m[2])
			if !ok {
				t.Fatalf("%s: --%s is no colour: %s", theme, m[1], m[2])
			}
			palette[m[1]] = c
		}
		for _, pair := range [][2]string{
			{"text", "paper"}, {"heading", "paper"}, {"muted", "paper"}, {"accent-text", "paper"},
			{"text", "stripe"}, {"heading", "stripe"}, {"accent-text", "stripe"}, {"table-head-text", "table-head"},
			{"code-text", "code-paper"}, {"code-dim", "code-paper"}, {"code-keyword", "code-paper"},
			{"code-string", "code-paper"}, {"code-value", "code-paper"}, {"code-name", "code-paper"},
		} {
			front, okF := palette[pair[0]]
			back, okB := palette[pair[1]]
			if ratio := contrast.Ratio(front, back); !okF || !okB || ratio < contrast.MinRatio {
				t.Errorf("%s: %s on %s has a contrast of %.2f", theme, pair[0], pair[1], ratio)
			}
		}
	}
}
