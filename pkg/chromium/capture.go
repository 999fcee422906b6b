package chromium

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/chromedp/cdproto/cdp"
	cdpio "github.com/chromedp/cdproto/io"
	"github.com/chromedp/cdproto/page"
)

// Shot says what a picture shows.
type Shot struct {
	// Full takes the page's whole height in place of the viewport.
	Full bool
	// MaxHeight cuts a full picture, in CSS pixels; 0: no limit.
	MaxHeight int
}

// Screenshot returns a PNG as wide as the viewport.
func (p *Page) Screenshot(ctx context.Context, s Shot) ([]byte, error) {
	params := page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng}
	if s.Full {
		m, err := call(ctx, p, page.GetLayoutMetrics, cdp.Empty{})
		if err != nil {
			return nil, err
		}
		if m.CSSContentSize == nil || m.CSSLayoutViewport == nil {
			return nil, errors.New("measure page: no size")
		}
		height := math.Max(math.Ceil(m.CSSContentSize.Height), float64(m.CSSLayoutViewport.ClientHeight))
		if s.MaxHeight > 0 {
			height = math.Min(height, float64(s.MaxHeight))
		}
		params.CaptureBeyondViewport = new(true)
		params.Clip = &page.Viewport{Width: float64(m.CSSLayoutViewport.ClientWidth), Height: height, Scale: 1}
	}
	res, err := call(ctx, p, page.CaptureScreenshot, params)
	if err != nil {
		return nil, err
	}
	if len(res.Data) == 0 {
		return nil, errors.New("capture page: the picture is empty")
	}
	return res.Data, nil
}

// pdfChunk is read at a time, in bytes.
const pdfChunk = 1 << 20

// PDF prints the page on paper of the size its style sheet asks for, with its
// backgrounds. A document of more than limit bytes is an error.
func (p *Page) PDF(ctx context.Context, limit int) ([]byte, error) {
	res, err := call(ctx, p, page.PrintToPDF, page.PrintToPDFParams{
		PrintBackground: new(true), PreferCSSPageSize: new(true),
		MarginTop: new(0.0), MarginBottom: new(0.0), MarginLeft: new(0.0), MarginRight: new(0.0),
		GenerateTaggedPDF: new(true), GenerateDocumentOutline: new(true),
		TransferMode: page.PrintToPDFTransferModeReturnAsStream,
	})
	if err != nil {
		return nil, err
	}
	// What is not closed ends with the page.
	defer func() { _, _ = call(ctx, p, cdpio.Close, cdpio.CloseParams{Handle: res.Stream}) }()
	var out []byte
	for {
		part, err := call(ctx, p, cdpio.Read, cdpio.ReadParams{Handle: res.Stream, Size: pdfChunk})
		if err != nil {
			return nil, err
		}
		out = append(out, part.Data...)
		switch {
		case len(out) > limit:
			return nil, fmt.Errorf("print page: more than %d bytes", limit)
		case part.EOF && len(out) == 0:
			return nil, errors.New("print page: the document is empty")
		case part.EOF:
			return out, nil
		}
	}
}
