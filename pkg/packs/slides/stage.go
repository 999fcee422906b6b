package slides

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/helmdeck/helmdeck/pkg/chromium"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/slides/pptx"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// Paths of the stage's own origin.
const (
	deckPath     = "/deck"
	sketchPath   = "/diagrams"
	mermaidPath  = "/mermaid.js"
	sketchPage   = `<!doctype html><meta charset="utf-8"><title>diagrams</title><body><script src="` + mermaidPath + `"></script>`
	sketchPolicy = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; font-src data:; base-uri 'none'; form-action 'none'"
)

// stage is the page on which diagrams and slides are drawn. It knows nothing
// but what is put on it.
type stage struct {
	*chromium.Page
	// sketching: Mermaid is loaded and waits for diagrams.
	sketching bool

	mu    sync.Mutex // guards props
	props map[string]chromium.Resource
}

// openStage opens the page within ctx; it lives as long as life.
func openStage(ctx, life context.Context, s sessions.Session) (*stage, error) {
	st := &stage{props: map[string]chromium.Resource{}}
	page, err := chromium.Open(ctx, s, chromium.Config{Serve: st.find})
	if err != nil {
		if errors.Is(err, sessions.ErrNotFound) {
			return nil, missing("Chromium", err)
		}
		return nil, drawFailed(life, err, "the deck", 0)
	}
	st.Page = page
	return st, nil
}

func (st *stage) find(path string) (chromium.Resource, bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	r, ok := st.props[path]
	return r, ok
}

func (st *stage) put(path string, r chromium.Resource) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.props[path] = r
}

// show opens the deck and reports whether all its pictures came in time.
func (st *stage) show(ctx context.Context, d *deck) (complete bool, err error) {
	st.put(deckPath, chromium.Resource{ContentType: "text/html; charset=utf-8", Policy: policy(d.html), Body: d.html})
	visit, err := st.Navigate(ctx, chromium.Origin+deckPath)
	return visit.Complete, err
}

// policy lets the deck load what shows on slides, and run Marp's own script,
// the last one of the page, and no other.
func policy(html []byte) string {
	script := "'none'"
	if i := bytes.LastIndex(html, []byte("<script>")); i >= 0 {
		body := html[i+len("<script>"):]
		if end := bytes.Index(body, []byte("</script>")); end >= 0 {
			sum := sha256.Sum256(body[:end])
			script = "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
		}
	}
	return "default-src 'none'; script-src " + script + "; style-src 'unsafe-inline' http: https: data:; img-src http: https: data:; " +
		"font-src http: https: data:; media-src http: https: data:; base-uri 'none'; form-action 'none'"
}

// printTo writes the PDF.
func (st *stage) printTo(ctx context.Context, file string) error {
	data, err := st.PDF(ctx, maxDocument)
	if err != nil {
		return err
	}
	return save(file, data)
}

// shownSlide is what the page tells of one slide.
type shownSlide struct {
	Width  float64 `json:"width"`
	Height float64 `json:"height"`
	Title  string  `json:"title"`
	Text   string  `json:"text"`
}

const (
	listSlides = `[...document.querySelectorAll('body > svg[data-marpit-svg]')].map((slide) => {
  const section = slide.querySelector('section:not([data-marpit-advanced-background="background"])') ?? slide
  return {
    width: slide.viewBox.baseVal.width, height: slide.viewBox.baseVal.height,
    title: (section.querySelector('h1,h2,h3,h4,h5,h6')?.innerText ?? '').trim().slice(0, 250),
    text: (section.innerText ?? '').trim().slice(0, 2000),
  }
})`
	showSlide = `((wanted) => {
  [...document.querySelectorAll('body > svg[data-marpit-svg]')].forEach((slide, i) => { slide.style.display = i === wanted ? 'block' : 'none' })
  scrollTo(0, 0)
  return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))
})(%d)`
	// sharpness is picture pixels per CSS pixel, so that slides stay crisp on
	// large screens.
	sharpness = 2
)

// shootTo writes a PowerPoint file of pictures.
func (st *stage) shootTo(ctx context.Context, run *packs.Run, d *deck, name string) error {
	var shown []shownSlide
	if err := st.Evaluate(ctx, listSlides, &shown); err != nil {
		return err
	}
	if len(shown) == 0 || len(shown) != len(d.report.Notes) {
		return fmt.Errorf("the page shows %d slides of %d", len(shown), len(d.report.Notes))
	}
	width, height := int(shown[0].Width), int(shown[0].Height)
	if min(width, height) < pptx.MinSide || max(width, height) > pptx.MaxSide {
		return packs.Errorf(packs.InvalidInput, "/markdown: slides of %dx%d pixels do not fit into PowerPoint; sides must have %d to %d", width, height, pptx.MinSide, pptx.MaxSide)
	}
	if err := st.Resize(ctx, width, height, sharpness); err != nil {
		return err
	}
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("create document: %w", err)
	}
	defer file.Close()
	w, err := pptx.NewWriter(file, width, height)
	if err != nil {
		return err
	}
	for i, slide := range shown {
		run.Progress(55+35*float64(i)/float64(len(shown)), fmt.Sprintf("drawing slide %d of %d", i+1, len(shown)))
		if err := st.Evaluate(ctx, fmt.Sprintf(showSlide, i), nil); err != nil {
			return err
		}
		picture, err := st.Screenshot(ctx, chromium.Shot{})
		if err != nil {
			return err
		}
		if err := w.Add(pptx.Slide{PNG: picture, Title: slide.Title, Text: slide.Text, Notes: d.report.Notes[i]}); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return file.Close()
}

// pictureWarnings tells of pictures that are missing on the slides.
func pictureWarnings(failures []chromium.Failure, complete bool) []warning {
	var out []warning
	for _, f := range failures {
		out = append(out, warning{Rule: "picture-not-loaded", Selector: head(f.URL, 300), Recommendation: "the picture is missing (" + head(f.Text, 100) + "); check its address"})
	}
	if !complete {
		out = append(out, warning{Rule: "deck-not-fully-loaded", Recommendation: "some pictures or fonts did not arrive in time and may be missing; check their servers"})
	}
	return out
}
