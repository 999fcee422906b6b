// Package pptx writes PowerPoint files whose slides are full-size pictures,
// each with a title and a text for those who do not see it, and speaker notes.
// It writes as it is told: no slide is held in memory.
//
//	w, err := pptx.NewWriter(file, 1280, 720)
//	err = w.Add(pptx.Slide{PNG: picture, Title: "Plan", Notes: "Say hello"})
//	err = w.Close()
package pptx

import (
	"archive/zip"
	"bytes"
	"embed"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

//go:embed parts/*.xml
var parts embed.FS

// emu is the number of English Metric Units, PowerPoint's, in a CSS pixel.
const emu = 9525

// Sides of a slide that PowerPoint opens, in CSS pixels.
const (
	MinSide = 96
	MaxSide = 5376
)

// Slide is one page.
type Slide struct {
	PNG []byte
	// Title names the slide in outlines; may be empty.
	Title string
	// Text stands for the picture where it cannot be seen.
	Text string
	// Notes are for the speaker; lines become paragraphs.
	Notes string
}

// Writer writes one presentation.
type Writer struct {
	zip           *zip.Writer
	width, height int
	at            time.Time
	notes         []bool // of each slide, whether it has notes
	err           error
}

// NewWriter begins a presentation of slides of width by height CSS pixels.
func NewWriter(w io.Writer, width, height int) (*Writer, error) {
	if min(width, height) < MinSide || max(width, height) > MaxSide {
		return nil, fmt.Errorf("a slide of %dx%d pixels: sides must have %d to %d", width, height, MinSide, MaxSide)
	}
	return &Writer{zip: zip.NewWriter(w), width: width, height: height, at: time.Now().UTC()}, nil
}

// Add appends a slide.
func (w *Writer) Add(s Slide) error {
	n := len(w.notes) + 1
	w.notes = append(w.notes, s.Notes != "")
	w.file(fmt.Sprintf("ppt/media/image%d.png", n), zip.Store, s.PNG) // compressed already
	w.write(fmt.Sprintf("ppt/slides/slide%d.xml", n), w.slide(s))
	rels := []rel{
		{"slideLayout", "../slideLayouts/slideLayout1.xml"},
		{"image", fmt.Sprintf("../media/image%d.png", n)},
	}
	if s.Notes != "" {
		rels = append(rels, rel{"notesSlide", fmt.Sprintf("../notesSlides/notesSlide%d.xml", n)})
		w.write(fmt.Sprintf("ppt/notesSlides/notesSlide%d.xml", n), notesSlide(s.Notes))
		w.write(fmt.Sprintf("ppt/notesSlides/_rels/notesSlide%d.xml.rels", n), relationships(
			rel{"notesMaster", "../notesMasters/notesMaster1.xml"}, rel{"slide", fmt.Sprintf("../slides/slide%d.xml", n)}))
	}
	w.write(fmt.Sprintf("ppt/slides/_rels/slide%d.xml.rels", n), relationships(rels...))
	return w.err
}

// Close writes what holds the slides together. It does not close the
// underlying writer.
func (w *Writer) Close() error {
	if len(w.notes) == 0 {
		return errors.New("a presentation needs a slide")
	}
	w.write("[Content_Types].xml", w.contentTypes())
	w.write("_rels/.rels", relationships(rel{"officeDocument", "ppt/presentation.xml"},
		rel{"metadata/core-properties", "docProps/core.xml"}, rel{"extended-properties", "docProps/app.xml"}))
	w.write("docProps/core.xml", coreProperties(w.at))
	w.write("docProps/app.xml", fmt.Sprintf(appProperties, len(w.notes)))
	w.presentation()
	w.part("ppt/theme/theme1.xml", "theme.xml")
	w.part("ppt/slideMasters/slideMaster1.xml", "slideMaster.xml")
	w.write("ppt/slideMasters/_rels/slideMaster1.xml.rels", relationships(
		rel{"slideLayout", "../slideLayouts/slideLayout1.xml"}, rel{"theme", "../theme/theme1.xml"}))
	w.part("ppt/slideLayouts/slideLayout1.xml", "slideLayout.xml")
	w.write("ppt/slideLayouts/_rels/slideLayout1.xml.rels", relationships(rel{"slideMaster", "../slideMasters/slideMaster1.xml"}))
	w.part("ppt/theme/theme2.xml", "theme.xml")
	w.part("ppt/notesMasters/notesMaster1.xml", "notesMaster.xml")
	w.write("ppt/notesMasters/_rels/notesMaster1.xml.rels", relationships(rel{"theme", "../theme/theme2.xml"}))
	if w.err != nil {
		return w.err
	}
	return w.zip.Close()
}

func (w *Writer) part(name, source string) {
	data, err := parts.ReadFile("parts/" + source)
	if err != nil {
		panic(err) // it is embedded
	}
	w.file(name, zip.Deflate, data)
}

func (w *Writer) write(name, text string) { w.file(name, zip.Deflate, []byte(text)) }

// file keeps the first error, after which nothing is written.
func (w *Writer) file(name string, method uint16, data []byte) {
	if w.err != nil {
		return
	}
	f, err := w.zip.CreateHeader(&zip.FileHeader{Name: name, Method: method, Modified: w.at})
	if err == nil {
		_, err = f.Write(data)
	}
	if err != nil {
		w.err = fmt.Errorf("write %s: %w", name, err)
	}
}

// escape makes s fit for XML, attributes included; what XML cannot hold is
// replaced.
func escape(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer does not fail
	return b.String()
}

// lines splits s as a reader sees it.
func lines(s string) []string {
	return strings.Split(strings.ReplaceAll(s, "\r\n", "\n"), "\n")
}
