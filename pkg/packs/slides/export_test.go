package slides

import (
	"time"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// RenderWithin is slides.render with other limits for Marp and the browser.
func RenderWithin(marp, draw time.Duration) packs.Pack {
	return renderPack(limits{marp: marp, draw: draw})
}
