// Package slides holds the slides.* family: decks of Marp markdown made into
// documents in a leased sidecar.
//
// A deck is somebody else's text. Marp turns it into HTML in which raw HTML is
// cut down to what cannot run, and the browser shows that HTML as a page of an
// origin of its own: it reaches the network through the egress proxy and no
// file at all.
package slides

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/helmdeck/helmdeck/pkg/chromium"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/slides/contrast"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

const (
	// maxMarkdown bounds a deck, in bytes.
	maxMarkdown = 4 << 20
	// maxSlides and maxDiagrams bound what one job draws.
	maxSlides   = 500
	maxDiagrams = 100
	// maxDocument bounds what comes out, in bytes.
	maxDocument = 256 << 20
)

type renderInput struct {
	Markdown        string `json:"markdown" jsonschema_description:"The deck in Marp markdown, at most 4 MiB. A line of three dashes begins a new slide."`
	Format          string `json:"format,omitempty" jsonschema:"enum=pdf,enum=pptx,enum=html" jsonschema_description:"Kind of document."`
	Mermaid         bool   `json:"mermaid,omitempty" jsonschema_description:"Draw the diagrams of mermaid fences; otherwise they stay code."`
	HeroImagePrompt string `json:"hero_image_prompt,omitempty" jsonschema_description:"Text for a picture on a slide of its own before the first. Not available in this version."`
	HeroImageModel  string `json:"hero_image_model,omitempty" jsonschema_description:"Model for that picture. Not available in this version."`
}

type renderOutput struct {
	Format           string    `json:"format" jsonschema_description:"Kind of document: pdf, pptx or html."`
	ArtifactKey      string    `json:"artifact_key" jsonschema_description:"Key of the document."`
	Size             int64     `json:"size" jsonschema_description:"Bytes of the document."`
	PageCount        int       `json:"page_count" jsonschema_description:"Number of slides."`
	CuratedThemeUsed string    `json:"curated_theme_used,omitempty" jsonschema_description:"The theme of the deck when it is one of helmdeck's own: helmdeck-dark or helmdeck-corporate."`
	Warnings         []warning `json:"warnings" jsonschema_description:"What may look wrong; the document was made all the same."`
}

// warning is one finding about the look of a deck.
type warning struct {
	Rule           string `json:"rule"`
	Selector       string `json:"selector,omitempty"`
	Foreground     string `json:"foreground,omitempty"`
	Background     string `json:"background,omitempty"`
	Ratio          string `json:"ratio,omitempty"`
	Recommendation string `json:"recommendation"`
}

// kinds are the documents by format.
var kinds = map[string]struct{ name, contentType string }{
	"pdf":  {"deck.pdf", "application/pdf"},
	"pptx": {"deck.pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"},
	"html": {"deck.html", "text/html"},
}

// limits bound the steps of one run.
type limits struct {
	marp time.Duration // from markdown to HTML
	draw time.Duration // everything the browser does
}

// Render is slides.render.
var Render = renderPack(limits{marp: time.Minute, draw: 2 * time.Minute})

func renderPack(l limits) packs.Pack {
	return packs.Define(packs.Spec[renderInput, renderOutput]{
		Name:    "slides.render",
		Pool:    packs.PoolBrowser,
		Summary: "Makes a PDF, PowerPoint or HTML document of a Marp markdown deck",
		Description: "Mermaid fences become diagrams. Themes are Marp's own (default, gaia, uncover), helmdeck-dark and helmdeck-corporate. " +
			"Pictures come from data: and http(s) addresses; files are not read, and scripts in a deck do not run. Notes go into PowerPoint documents.",
		Needs:    packs.Needs{Session: &sessions.Spec{Image: "browser", Profile: sessions.ProfileIO}, Artifacts: true},
		Defaults: renderInput{Format: "pdf", Mermaid: true},
		Timeout:  4 * time.Minute,
		Examples: []packs.Example{
			{Title: "Two slides as PDF", Input: json.RawMessage(`{"markdown":"# Plan\n\n---\n\n# Costs"}`)},
			{Title: "A diagram in PowerPoint", Input: json.RawMessage("{\"markdown\":\"---\\ntheme: helmdeck-dark\\n---\\n# Flow\\n\\n```mermaid\\nflowchart LR\\n  A --> B\\n```\",\"format\":\"pptx\"}")},
		},
		Run: func(ctx context.Context, run *packs.Run, in renderInput) (renderOutput, error) {
			return render(ctx, run, in, l)
		},
	})
}

func render(ctx context.Context, run *packs.Run, in renderInput, l limits) (renderOutput, error) {
	if err := check(in); err != nil {
		return renderOutput{}, err
	}
	run.Progress(2, "starting a sidecar")
	session, err := run.Session(ctx)
	if err != nil {
		return renderOutput{}, err
	}
	d, page, err := prepare(ctx, run, session, in, l)
	if page != nil {
		defer page.Close()
	}
	if err != nil {
		return renderOutput{}, err
	}
	scratch, err := run.Scratch()
	if err != nil {
		return renderOutput{}, err
	}
	document := filepath.Join(scratch, kinds[in.Format].name)
	late, err := produce(ctx, run, page, d, in.Format, document, l.draw)
	if err != nil {
		return renderOutput{}, err
	}
	run.Progress(92, "saving the document")
	out := renderOutput{Format: in.Format, PageCount: len(d.report.Notes), Warnings: append(warningsOf(in.Markdown, d.report), late...)}
	if curated[d.report.Theme] {
		out.CuratedThemeUsed = d.report.Theme
	}
	file, err := os.Open(document)
	if err != nil {
		return renderOutput{}, fmt.Errorf("open document: %w", err)
	}
	defer file.Close()
	ref, err := run.SaveArtifact(ctx, kinds[in.Format].name, kinds[in.Format].contentType, file)
	if err != nil {
		return renderOutput{}, err
	}
	out.ArtifactKey, out.Size = ref.Key, ref.Size
	return out, nil
}

// check says what is wrong with the input before anything is begun.
func check(in renderInput) error {
	switch n := strings.IndexByte(in.Markdown, 0); {
	case len(in.Markdown) > maxMarkdown:
		return packs.Errorf(packs.InvalidInput, "/markdown: has %d bytes, at most %d are allowed; split the deck or link its pictures", len(in.Markdown), maxMarkdown)
	case n >= 0:
		return packs.Errorf(packs.InvalidInput, "/markdown: holds a NUL character at byte %d, so it is no text; send the markdown of a deck", n)
	case strings.TrimSpace(in.Markdown) == "":
		return packs.Errorf(packs.InvalidInput, "/markdown: is empty; send at least one slide, such as \"# Title\"")
	case strings.TrimSpace(in.HeroImagePrompt) != "":
		return packs.Errorf(packs.InvalidInput, "/hero_image_prompt: pictures cannot be generated in this version; leave hero_image_prompt out")
	}
	return nil
}

// prepare makes the HTML of the deck with its diagrams. The page that the
// document or a diagram needs is opened while Marp works; the caller closes it,
// after an error too.
func prepare(ctx context.Context, run *packs.Run, s sessions.Session, in renderInput, l limits) (*deck, *stage, error) {
	run.Progress(10, "laying out the slides")
	// A guess that saves time: whether there are diagrams is Marp's to say.
	diagrams := in.Mermaid && strings.Contains(strings.ToLower(in.Markdown), "mermaid")
	var d *deck
	var page *stage
	both, inner := errgroup.WithContext(ctx)
	both.Go(func() (err error) {
		d, err = layOut(inner, s, in, l.marp)
		return err
	})
	if in.Format != "html" || diagrams {
		both.Go(func() (err error) {
			if page, err = openStage(inner, ctx, s); err == nil && diagrams {
				page.prepareSketch(inner, s, l.draw)
			}
			return err
		})
	}
	if err := both.Wait(); err != nil {
		return nil, page, err
	}
	if len(d.report.Diagrams) == 0 {
		return d, page, nil
	}
	run.Progress(35, fmt.Sprintf("drawing %d diagrams", len(d.report.Diagrams)))
	if page == nil {
		var err error
		if page, err = openStage(ctx, ctx, s); err != nil {
			return nil, nil, err
		}
	}
	return d, page, page.drawDiagrams(ctx, s, d, l.draw)
}

// produce writes the document to a file of the run's scratch folder.
func produce(ctx context.Context, run *packs.Run, page *stage, d *deck, format, file string, limit time.Duration) ([]warning, error) {
	if format == "html" {
		return nil, save(file, d.html)
	}
	bounded, cancel := context.WithTimeoutCause(ctx, limit, errLimit)
	defer cancel()
	run.Progress(50, "opening the deck")
	complete, err := page.show(bounded, d)
	if err == nil {
		switch format {
		case "pdf":
			run.Progress(65, "printing")
			err = page.printTo(bounded, file)
		case "pptx":
			err = page.shootTo(bounded, run, d, file)
		}
	}
	if err != nil {
		return nil, drawFailed(ctx, err, "the deck", limit)
	}
	return pictureWarnings(page.Failures(), complete), nil
}

func save(file string, data []byte) error {
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return fmt.Errorf("write document: %w", err)
	}
	return nil
}

// errLimit is the end of the time the browser has.
var errLimit = errors.New("the time for drawing is over")

// drawFailed types a fault of the browser, unless ctx is why.
func drawFailed(ctx context.Context, err error, what string, limit time.Duration) error {
	if _, typed := errors.AsType[*packs.Error](err); typed || ctx.Err() != nil || errors.Is(err, sessions.ErrLost) {
		return err
	}
	switch {
	case errors.Is(err, errLimit):
		return packs.Fail(packs.Timeout, err, fmt.Sprintf("%s could not be drawn within %s; simplify or split the deck", what, limit))
	case errors.Is(err, chromium.ErrCrashed):
		return packs.Fail(packs.HandlerFailed, err, what+" crashed the browser, for want of memory as a rule; split the deck or use smaller pictures")
	}
	return packs.Fail(packs.HandlerFailed, err, what+" could not be drawn by the browser; try again")
}

func warningsOf(markdown string, r report) []warning {
	out := []warning{}
	for _, w := range contrast.Lint(markdown) {
		out = append(out, warning(w))
	}
	if r.Scripts {
		out = append(out, warning{Rule: "script-not-run", Recommendation: "scripts in a deck do not run and are shown as text; take the script element out"})
	}
	if localFile.MatchString(markdown) {
		out = append(out, warning{Rule: "local-file-not-loaded", Recommendation: "a deck reads no files; put the picture on a server or into the deck as a data: address"})
	}
	return out
}
