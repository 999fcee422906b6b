package slides_test

import (
	"strings"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
	"github.com/helmdeck/helmdeck/pkg/packs/slides"
	"github.com/helmdeck/helmdeck/pkg/sessions/process"
)

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

// TestTimeIsBounded gives the browser no time, as a deck does that takes all.
func TestTimeIsBounded(t *testing.T) {
	t.Parallel()
	l := leaser(t, nil)
	for _, tt := range []struct {
		marp, draw time.Duration
		deck, want string
	}{
		{time.Millisecond, time.Minute, "# A", "Marp did not render the deck within 1ms"},
		{time.Minute, time.Millisecond, "# A", "the deck could not be drawn within 1ms"},
		{time.Minute, time.Millisecond, diagram, "the diagrams could not be drawn within 1ms"},
	} {
		res := packstest.Run(t, slides.RenderWithin(tt.marp, tt.draw), map[string]any{"markdown": tt.deck}, packstest.WithLeaser(l))
		res.WantCode(t, packs.Timeout)
		if !strings.Contains(res.Err.Message, tt.want) {
			t.Errorf("got message %q, want it to contain %q", res.Err.Message, tt.want)
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
