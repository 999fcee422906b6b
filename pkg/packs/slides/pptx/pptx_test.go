package pptx_test

import (
	"archive/zip"
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/packs/slides/pptx"
)

func write(t *testing.T, width, height int, slides ...pptx.Slide) map[string]string {
	t.Helper()
	var buf bytes.Buffer
	w, err := pptx.NewWriter(&buf, width, height)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range slides {
		if err := w.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(buf.Bytes()), int64(buf.Len()))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range r.File {
		body, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		if files[f.Name] != "" {
			t.Errorf("%s is there twice", f.Name)
		}
		files[f.Name] = string(data)
	}
	return files
}

func TestTextOfAnyKindIsKept(t *testing.T) {
	t.Parallel()
	files := write(t, 1280, 720, pptx.Slide{
		PNG: []byte("png"), Title: "A & <b> \"c\" \x00\x1b", Text: "one\ntwo \"quoted\"", Notes: "first\r\nsecond <script>\n\n\xff",
	})
	for name, text := range files {
		if strings.HasSuffix(name, ".png") {
			continue
		}
		d := xml.NewDecoder(strings.NewReader(text))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	if got := files["ppt/notesSlides/notesSlide1.xml"]; strings.Count(got, "<a:p>") != 4 || !strings.Contains(got, "second &lt;script&gt;") {
		t.Errorf("got notes %s", got)
	}
	if got := files["ppt/slides/slide1.xml"]; !strings.Contains(got, "A &amp; &lt;b&gt;") || !strings.Contains(got, "two &#34;quoted&#34;") {
		t.Errorf("got slide %s", got)
	}
	if files["ppt/media/image1.png"] != "png" {
		t.Error("the picture changed")
	}
}

func TestSlidesInOrder(t *testing.T) {
	t.Parallel()
	files := write(t, 960, 720, make([]pptx.Slide, 12)...)
	show := files["ppt/presentation.xml"]
	if strings.Count(show, "<p:sldId ") != 12 || !strings.Contains(show, `<p:sldSz cx="9144000" cy="6858000"/>`) {
		t.Errorf("got %s", show)
	}
	rels := files["ppt/_rels/presentation.xml.rels"]
	if first, last := strings.Index(rels, "slides/slide1.xml"), strings.Index(rels, "slides/slide12.xml"); first < 0 || last < first {
		t.Errorf("got %s", rels)
	}
	for name := range files {
		if strings.Contains(name, "notesSlide") {
			t.Errorf("%s is there without notes", name)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{0, 720}, {1280, 50}, {10000, 720}} {
		if _, err := pptx.NewWriter(io.Discard, size[0], size[1]); err == nil {
			t.Errorf("%v was taken", size)
		}
	}
	w, err := pptx.NewWriter(io.Discard, 1280, 720)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err == nil {
		t.Error("a presentation without slides was written")
	}
	full, err := pptx.NewWriter(fullDisk{}, 1280, 720)
	if err != nil {
		t.Fatal(err)
	}
	err = full.Add(pptx.Slide{PNG: make([]byte, 1<<20)})
	if err == nil {
		err = full.Close()
	}
	if !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("got %v of a full disk", err)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
