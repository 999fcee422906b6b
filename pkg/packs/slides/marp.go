package slides

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

//go:embed deck
var files embed.FS

// curated are the themes of the house, by the names decks use.
var curated = map[string]bool{"helmdeck-dark": true, "helmdeck-corporate": true}

// localFile finds references that a deck's author expects to be read.
var localFile = regexp.MustCompile(`(?i)(\]\(\s*<?|url\(\s*["']?|\bsrc\s*=\s*["']?|@import\s+["'])file:`)

// maxHTML bounds what Marp makes of a deck, in bytes.
const maxHTML = 64 << 20

// deck is a deck as Marp laid it out.
type deck struct {
	html   []byte
	report report
	marker string // stands for diagram n, followed by n and ";"
}

// report is what deck.config.mjs tells of a deck.
type report struct {
	Theme    string   `json:"theme"`
	Notes    []string `json:"notes"`    // one for every slide
	Diagrams []string `json:"diagrams"` // sources
	Scripts  bool     `json:"scripts"`
}

// layOut runs Marp in the session.
func layOut(ctx context.Context, s sessions.Session, in renderInput, limit time.Duration) (*deck, error) {
	// A session may serve several runs, each with a folder of its own.
	dir := "deck-" + rand.Text()
	d := &deck{}
	if in.Mermaid {
		d.marker = "data:image/svg+xml;base64," + rand.Text() + "-"
	}
	if err := upload(ctx, s, dir, in.Markdown, d.marker); err != nil {
		return nil, err
	}
	// HTML is for presenting, the rest for a picture of every slide.
	template := "bare"
	if in.Format == "html" {
		template = "bespoke"
	}
	result, err := s.Exec(ctx, sessions.Command{
		Argv: []string{"marp", "--no-stdin", "--config-file", "deck.config.mjs", "--template", template, "--output", "deck.html", "deck.md"},
		Dir:  dir, Timeout: limit,
	})
	if err != nil {
		return nil, marpFailed(ctx, err, limit)
	}
	if result.ExitCode != 0 {
		return nil, packs.Errorf(packs.HandlerFailed, "Marp could not render the deck: %s", head(strings.TrimSpace(string(result.Stderr)), 1024))
	}
	if d.html, err = download(ctx, s, dir+"/deck.html", maxHTML); err != nil {
		return nil, err
	}
	data, err := download(ctx, s, dir+"/report.json", maxHTML)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &d.report); err != nil {
		return nil, fmt.Errorf("decode report on the deck: %w", err)
	}
	return d, d.bounded()
}

// upload writes what Marp needs into a folder of the session.
func upload(ctx context.Context, s sessions.Session, dir, markdown, marker string) error {
	settings := struct {
		Themes  []string `json:"themes"`
		Autofit string   `json:"autofit"`
		Marker  string   `json:"marker"`
		Report  string   `json:"report"`
	}{
		Themes:  []string{embedded("base.css"), embedded("helmdeck-dark.css"), embedded("helmdeck-corporate.css")},
		Autofit: embedded("autofit.css"), Marker: marker, Report: "report.json",
	}
	encoded, err := json.Marshal(settings)
	if err != nil {
		return fmt.Errorf("encode settings: %w", err)
	}
	for name, content := range map[string]string{
		"deck.md": markdown, "settings.json": string(encoded), "deck.config.mjs": embedded("deck.config.mjs"),
	} {
		if err := s.WriteFile(ctx, dir+"/"+name, strings.NewReader(content)); err != nil {
			return fmt.Errorf("upload deck: %w", err)
		}
	}
	return nil
}

func embedded(name string) string {
	data, err := files.ReadFile("deck/" + name)
	if err != nil {
		panic(err) // it is embedded
	}
	return string(data)
}

func download(ctx context.Context, s sessions.Session, path string, limit int64) ([]byte, error) {
	r, err := s.ReadFile(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("read what Marp made: %w", err)
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read what Marp made: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, packs.Errorf(packs.HandlerFailed, "the deck grew to more than %d MiB of HTML; split it", limit>>20)
	}
	return data, nil
}

// marpFailed types what kept Marp from running.
func marpFailed(ctx context.Context, err error, limit time.Duration) error {
	switch {
	case ctx.Err() != nil:
		return err
	case errors.Is(err, sessions.ErrNotFound):
		return missing("the slide renderer (marp)", err)
	case errors.Is(err, context.DeadlineExceeded):
		return packs.Fail(packs.Timeout, err, fmt.Sprintf("Marp did not render the deck within %s; simplify or split it", limit))
	}
	return fmt.Errorf("render deck: %w", err)
}

// missing is the error of an engine that nobody installed.
func missing(what string, err error) error {
	return packs.Fail(packs.HandlerFailed, err, what+" is not installed where sidecars run; "+
		"run `./task setup` there, or set HELMDECK_ENGINES_DIR to the folder that has it")
}

// bounded refuses a deck that would keep the browser busy for too long.
func (d *deck) bounded() error {
	if n := len(d.report.Notes); n > maxSlides {
		return packs.Errorf(packs.InvalidInput, "/markdown: has %d slides, at most %d are allowed; split the deck", n, maxSlides)
	}
	if n := len(d.report.Diagrams); n > maxDiagrams {
		return packs.Errorf(packs.InvalidInput, "/markdown: has %d diagrams, at most %d are allowed; split the deck or pass mermaid:false", n, maxDiagrams)
	}
	return nil
}

// place puts drawings, by source, where their diagrams stand.
func (d *deck) place(drawings map[string]string) {
	pairs := make([]string, 0, 2*len(d.report.Diagrams))
	for i, source := range d.report.Diagrams {
		pairs = append(pairs, fmt.Sprintf("%s%d;", d.marker, i),
			"data:image/svg+xml;base64,"+base64.StdEncoding.EncodeToString([]byte(drawings[source])))
	}
	var out bytes.Buffer
	_, _ = strings.NewReplacer(pairs...).WriteString(&out, string(d.html)) // a buffer does not fail
	d.html = out.Bytes()
}

// head cuts s to at most n bytes between characters.
func head(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
