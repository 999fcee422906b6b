package slides

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/chromium"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// maxMermaid bounds Mermaid's own script, in bytes.
const maxMermaid = 32 << 20

// drawing is what became of one diagram.
type drawing struct {
	SVG   string `json:"svg"`
	Error string `json:"error"`
}

// sketch draws every source. The pictures get a size, so that they keep their
// shape as an image, and are written as XML, which Mermaid's own output is not
// always.
const sketch = `(async (sources, config) => {
  mermaid.initialize(config)
  const drawn = []
  for (const [i, source] of sources.entries()) {
    try {
      const { svg } = await mermaid.render('diagram-' + i, source)
      const element = new DOMParser().parseFromString(svg, 'text/html').querySelector('svg')
      const { width, height } = element.viewBox.baseVal
      if (width > 0 && height > 0) {
        element.setAttribute('width', Math.ceil(width))
        element.setAttribute('height', Math.ceil(height))
        element.style.maxWidth = ''
      }
      drawn.push({ svg: new XMLSerializer().serializeToString(element) })
    } catch (e) {
      drawn.push({ error: String(e?.message ?? e) || 'unknown error' })
    }
  }
  return drawn
})(%s, %s)`

// drawDiagrams draws the diagrams of d, each source once, and puts them in
// their places.
func (st *stage) drawDiagrams(ctx context.Context, s sessions.Session, d *deck, limit time.Duration) error {
	bounded, cancel := context.WithTimeoutCause(ctx, limit, errLimit)
	defer cancel()
	drawn, err := st.sketch(bounded, s, d)
	if err != nil {
		return drawFailed(ctx, err, "the diagrams", limit)
	}
	for i, source := range d.report.Diagrams {
		if e := drawn[source].Error; e != "" {
			return packs.Errorf(packs.HandlerFailed, "diagram %d could not be drawn: %s; its source: %s",
				i, head(strings.TrimSpace(e), 512), head(strings.TrimSpace(source), 256))
		}
	}
	svgs := make(map[string]string, len(drawn))
	for source, drawing := range drawn {
		svgs[source] = drawing.SVG
	}
	d.place(svgs)
	return nil
}

// sketch returns the drawings by source.
func (st *stage) sketch(ctx context.Context, s sessions.Session, d *deck) (map[string]drawing, error) {
	if !st.sketching {
		if err := st.loadMermaid(ctx, s); err != nil {
			return nil, err
		}
	}
	sources := distinct(d.report.Diagrams)
	list, err := json.Marshal(sources)
	if err != nil {
		return nil, fmt.Errorf("encode diagrams: %w", err)
	}
	config, err := json.Marshal(mermaidConfig(d.report.Theme))
	if err != nil {
		return nil, fmt.Errorf("encode settings of diagrams: %w", err)
	}
	var drawn []drawing
	if err := st.Evaluate(ctx, fmt.Sprintf(sketch, list, config), &drawn); err != nil {
		return nil, err
	}
	if len(drawn) != len(sources) {
		return nil, fmt.Errorf("%d of %d diagrams were drawn", len(drawn), len(sources))
	}
	out := make(map[string]drawing, len(sources))
	for i, source := range sources {
		out[source] = drawn[i]
	}
	return out, nil
}

// prepareSketch loads Mermaid ahead of time. When that fails, drawDiagrams
// tries again and says why.
func (st *stage) prepareSketch(ctx context.Context, s sessions.Session, limit time.Duration) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st.sketching = st.loadMermaid(bounded, s) == nil
}

// loadMermaid opens the page on which diagrams are drawn.
func (st *stage) loadMermaid(ctx context.Context, s sessions.Session) error {
	script, err := mermaidScript(ctx, s)
	if err != nil {
		return err
	}
	st.put(mermaidPath, chromium.Resource{ContentType: "text/javascript; charset=utf-8", Body: script})
	st.put(sketchPath, chromium.Resource{ContentType: "text/html; charset=utf-8", Policy: sketchPolicy, Body: []byte(sketchPage)})
	_, err = st.Navigate(ctx, chromium.Origin+sketchPath)
	return err
}

// mermaidScript reads Mermaid from the engines of the sidecar, which lie
// outside of its scratch folder.
func mermaidScript(ctx context.Context, s sessions.Session) ([]byte, error) {
	result, err := s.Exec(ctx, sessions.Command{
		Argv:      []string{"sh", "-c", `exec cat "$HELMDECK_ENGINES_DIR/mermaid.min.js"`},
		MaxOutput: maxMermaid, Timeout: time.Minute,
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read mermaid: %w", err)
	case result.ExitCode != 0:
		return nil, missing("the diagram renderer (mermaid)", errors.New(head(string(result.Stderr), 512)))
	case result.Truncated:
		return nil, fmt.Errorf("read mermaid: the script has more than %d bytes", maxMermaid)
	}
	return result.Stdout, nil
}

func distinct(sources []string) []string {
	seen := make(map[string]bool, len(sources))
	var out []string
	for _, s := range sources {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// mermaidConfig suits the drawings to the theme of the deck. Text is treated
// as text (strict), and a diagram cannot change that.
func mermaidConfig(theme string) map[string]any {
	config := map[string]any{
		"startOnLoad": false, "securityLevel": "strict", "suppressErrorRendering": true,
		"deterministicIds": true, "theme": "default",
		"flowchart":  map[string]any{"rankSpacing": 44, "nodeSpacing": 36},
		"sequence":   map[string]any{"actorFontSize": 20, "messageFontSize": 20, "noteFontSize": 18},
		"fontFamily": `"Inter", "Helvetica Neue", "Liberation Sans", "Noto Color Emoji", "DejaVu Sans", Arial, sans-serif`,
	}
	variables := map[string]any{"fontSize": "20px"}
	switch theme {
	case "helmdeck-dark":
		config["theme"] = "base"
		variables = map[string]any{
			"fontSize": "20px", "darkMode": true, "background": "#0f172a",
			"primaryColor": "#1e293b", "primaryTextColor": "#f1f5f9", "primaryBorderColor": "#14b8a6",
			"secondaryColor": "#312e81", "tertiaryColor": "#162036", "lineColor": "#a3b1c6", "textColor": "#e2e8f0",
			"edgeLabelBackground": "#0f172a", "clusterBkg": "#162036", "clusterBorder": "#475569",
		}
	case "helmdeck-corporate":
		config["theme"] = "base"
		variables = map[string]any{
			"fontSize": "20px", "background": "#ffffff",
			"primaryColor": "#eaf0fb", "primaryTextColor": "#0b2545", "primaryBorderColor": "#1d4ed8",
			"secondaryColor": "#e0f2f7", "tertiaryColor": "#f5f7fb", "lineColor": "#566274", "textColor": "#1f2937",
			"edgeLabelBackground": "#ffffff", "clusterBkg": "#f5f7fb", "clusterBorder": "#b6c2d6",
		}
	}
	config["themeVariables"] = variables
	return config
}
