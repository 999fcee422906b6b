package pptx

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

const (
	header = `<?xml version="1.0" encoding="UTF-8" standalone="yes"?>` + "\n"
	spaces = `xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" ` +
		`xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" ` +
		`xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"`
	group = `<p:nvGrpSpPr><p:cNvPr id="1" name=""/><p:cNvGrpSpPr/><p:nvPr/></p:nvGrpSpPr><p:grpSpPr/>`

	appProperties = header + `<Properties xmlns="http://schemas.openxmlformats.org/officeDocument/2006/extended-properties">` +
		`<Application>helmdeck</Application><Slides>%d</Slides></Properties>`
)

// rel is a relationship; its id is rId and its place, from 1.
type rel struct{ kind, target string }

func relationships(rels ...rel) string {
	var b strings.Builder
	b.WriteString(header + `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">`)
	for i, r := range rels {
		base := "http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
		if strings.HasPrefix(r.kind, "metadata/") {
			base = "http://schemas.openxmlformats.org/package/2006/relationships/"
		}
		fmt.Fprintf(&b, `<Relationship Id="rId%d" Type="%s%s" Target="%s"/>`, i+1, base, r.kind, r.target)
	}
	b.WriteString(`</Relationships>`)
	return b.String()
}

// slide is the picture over the whole slide, and the title outside of it,
// where outlines and screen readers find it.
func (w *Writer) slide(s Slide) string {
	cx, cy := w.width*emu, w.height*emu
	title := ""
	if s.Title != "" {
		title = fmt.Sprintf(`<p:sp><p:nvSpPr><p:cNvPr id="3" name="Title"/><p:cNvSpPr><a:spLocks noGrp="1"/></p:cNvSpPr>`+
			`<p:nvPr><p:ph type="title"/></p:nvPr></p:nvSpPr><p:spPr><a:xfrm><a:off x="0" y="-914400"/><a:ext cx="%d" cy="685800"/></a:xfrm>`+
			`<a:prstGeom prst="rect"><a:avLst/></a:prstGeom></p:spPr><p:txBody><a:bodyPr/><a:lstStyle/><a:p><a:r><a:rPr lang="en-US"/><a:t>%s</a:t></a:r></a:p></p:txBody></p:sp>`,
			cx, escape(s.Title))
	}
	return header + fmt.Sprintf(`<p:sld %s><p:cSld><p:spTree>%s<p:pic><p:nvPicPr><p:cNvPr id="2" name="Slide" descr="%s"/>`+
		`<p:cNvPicPr><a:picLocks noChangeAspect="1"/></p:cNvPicPr><p:nvPr/></p:nvPicPr><p:blipFill><a:blip r:embed="rId2"/>`+
		`<a:stretch><a:fillRect/></a:stretch></p:blipFill><p:spPr><a:xfrm><a:off x="0" y="0"/><a:ext cx="%d" cy="%d"/></a:xfrm>`+
		`<a:prstGeom prst="rect"><a:avLst/></a:prstGeom></p:spPr></p:pic>%s</p:spTree></p:cSld><p:clrMapOvr><a:masterClrMapping/></p:clrMapOvr></p:sld>`,
		spaces, group, escape(cmp.Or(s.Text, s.Title, "slide")), cx, cy, title)
}

func notesSlide(notes string) string {
	var paragraphs strings.Builder
	for _, line := range lines(notes) {
		fmt.Fprintf(&paragraphs, `<a:p><a:r><a:rPr lang="en-US"/><a:t>%s</a:t></a:r></a:p>`, escape(line))
	}
	return header + fmt.Sprintf(`<p:notes %s><p:cSld><p:spTree>%s`+
		`<p:sp><p:nvSpPr><p:cNvPr id="2" name="Slide"/><p:cNvSpPr><a:spLocks noGrp="1" noRot="1" noChangeAspect="1"/></p:cNvSpPr>`+
		`<p:nvPr><p:ph type="sldImg"/></p:nvPr></p:nvSpPr><p:spPr/></p:sp>`+
		`<p:sp><p:nvSpPr><p:cNvPr id="3" name="Notes"/><p:cNvSpPr><a:spLocks noGrp="1"/></p:cNvSpPr>`+
		`<p:nvPr><p:ph type="body" idx="1"/></p:nvPr></p:nvSpPr><p:spPr/><p:txBody><a:bodyPr/><a:lstStyle/>%s</p:txBody></p:sp>`+
		`</p:spTree></p:cSld><p:clrMapOvr><a:masterClrMapping/></p:clrMapOvr></p:notes>`, spaces, group, paragraphs.String())
}

// presentation lists master, notes master and slides.
func (w *Writer) presentation() {
	rels := []rel{
		{"slideMaster", "slideMasters/slideMaster1.xml"},
		{"notesMaster", "notesMasters/notesMaster1.xml"},
		{"theme", "theme/theme1.xml"},
	}
	var ids strings.Builder
	for i := range w.notes {
		rels = append(rels, rel{"slide", fmt.Sprintf("slides/slide%d.xml", i+1)})
		fmt.Fprintf(&ids, `<p:sldId id="%d" r:id="rId%d"/>`, 256+i, len(rels))
	}
	w.write("ppt/_rels/presentation.xml.rels", relationships(rels...))
	w.write("ppt/presentation.xml", header+fmt.Sprintf(`<p:presentation %s><p:sldMasterIdLst><p:sldMasterId id="2147483648" r:id="rId1"/></p:sldMasterIdLst>`+
		`<p:notesMasterIdLst><p:notesMasterId r:id="rId2"/></p:notesMasterIdLst><p:sldIdLst>%s</p:sldIdLst>`+
		`<p:sldSz cx="%d" cy="%d"/><p:notesSz cx="6858000" cy="9144000"/></p:presentation>`,
		spaces, ids.String(), w.width*emu, w.height*emu))
}

func (w *Writer) contentTypes() string {
	const office = "application/vnd.openxmlformats-officedocument."
	var b strings.Builder
	b.WriteString(header + `<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">` +
		`<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>` +
		`<Default Extension="xml" ContentType="application/xml"/><Default Extension="png" ContentType="image/png"/>` +
		`<Override PartName="/docProps/core.xml" ContentType="application/vnd.openxmlformats-package.core-properties+xml"/>`)
	override := func(part, kind string) {
		fmt.Fprintf(&b, `<Override PartName="/%s" ContentType="%s%s+xml"/>`, part, office, kind)
	}
	override("docProps/app.xml", "extended-properties")
	override("ppt/presentation.xml", "presentationml.presentation.main")
	override("ppt/slideMasters/slideMaster1.xml", "presentationml.slideMaster")
	override("ppt/slideLayouts/slideLayout1.xml", "presentationml.slideLayout")
	override("ppt/notesMasters/notesMaster1.xml", "presentationml.notesMaster")
	override("ppt/theme/theme1.xml", "theme")
	override("ppt/theme/theme2.xml", "theme")
	for i, notes := range w.notes {
		override(fmt.Sprintf("ppt/slides/slide%d.xml", i+1), "presentationml.slide")
		if notes {
			override(fmt.Sprintf("ppt/notesSlides/notesSlide%d.xml", i+1), "presentationml.notesSlide")
		}
	}
	b.WriteString(`</Types>`)
	return b.String()
}

func coreProperties(at time.Time) string {
	stamp := at.Format(time.RFC3339)
	return header + fmt.Sprintf(`<cp:coreProperties xmlns:cp="http://schemas.openxmlformats.org/package/2006/metadata/core-properties" `+
		`xmlns:dcterms="http://purl.org/dc/terms/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">`+
		`<dcterms:created xsi:type="dcterms:W3CDTF">%s</dcterms:created><dcterms:modified xsi:type="dcterms:W3CDTF">%s</dcterms:modified></cp:coreProperties>`, stamp, stamp)
}
