// Package contrast finds text that is hard to read in the style sheets a deck
// brings along: the style entry of its front matter and its style elements.
// It reads the style sheets alone, not the page they make, so it is a help and
// no proof.
package contrast

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
)

// MinRatio is what WCAG 2 asks of text at level AA.
const MinRatio = 4.5

// The rules of Lint.
const (
	RuleTextContrast      = "wcag-aa-text-contrast"
	RuleSectionBackground = "section-background-without-nested-overrides"
)

// maxWarnings bounds what Lint returns.
const maxWarnings = 50

// Warning is one finding. Colours are given as the deck writes them.
type Warning struct {
	Rule           string
	Selector       string
	Foreground     string
	Background     string
	Ratio          string // such as "4.48:1"
	Recommendation string
}

// Lint returns the findings in a deck, at most fifty.
func Lint(markdown string) []Warning {
	rules := parse(styleOf(markdown))
	var out []Warning
	for _, r := range rules {
		if w, ok := textContrast(r); ok {
			out = append(out, w)
		}
	}
	if w, ok := sectionBackground(rules); ok {
		out = append(out, w)
	}
	return out[:min(len(out), maxWarnings)]
}

func textContrast(r rule) (Warning, bool) {
	foreground, okF := ParseColor(r.decls["color"])
	written := r.background()
	background, okB := ParseColor(written)
	if !okF || !okB {
		return Warning{}, false
	}
	ratio := Ratio(foreground, background)
	if ratio >= MinRatio {
		return Warning{}, false
	}
	return Warning{
		Rule: RuleTextContrast, Selector: r.selector,
		Foreground: r.decls["color"], Background: written, Ratio: fmt.Sprintf("%.2f:1", ratio),
		Recommendation: fmt.Sprintf("use colours further apart: text needs a contrast of %.1f:1 or more", MinRatio),
	}, true
}

// nested are the elements that themes give a background of their own, which
// shows when that of the section changes.
var nested = []string{"table", "td", "th", "code", "blockquote", "pre"}

func sectionBackground(rules []rule) (Warning, bool) {
	var found *rule
	for i, r := range rules {
		if found == nil && r.backdrop() != "" && slices.ContainsFunc(r.selectors(), isSection) {
			found = &rules[i]
		}
	}
	if found == nil {
		return Warning{}, false
	}
	missing := slices.DeleteFunc(slices.Clone(nested), func(element string) bool {
		return slices.ContainsFunc(rules, func(r rule) bool {
			return (r.decls["color"] != "" || r.backdrop() != "") && mentions[element].MatchString(r.selector)
		})
	})
	if len(missing) == 0 {
		return Warning{}, false
	}
	return Warning{
		Rule: RuleSectionBackground, Selector: found.selector, Background: found.backdrop(),
		Recommendation: "give these elements colours that suit the new background too: " + strings.Join(missing, ", "),
	}, true
}

var (
	section  = regexp.MustCompile(`(^|[\s>+~])section([.#\[:][^:]*)?$`)
	mentions = func() map[string]*regexp.Regexp {
		m := map[string]*regexp.Regexp{}
		for _, e := range nested {
			m[e] = regexp.MustCompile(`(^|[\s>+~,(])` + e + `($|[\s>+~,).#\[:])`)
		}
		return m
	}()
)

func isSection(selector string) bool { return section.MatchString(selector) }

// Ratio is the contrast of two colours by WCAG 2, from 1 to 21.
func Ratio(a, b Color) float64 {
	la, lb := a.luminance(), b.luminance()
	return (math.Max(la, lb) + 0.05) / (math.Min(la, lb) + 0.05)
}

func (c Color) luminance() float64 {
	linear := func(v float64) float64 {
		if v /= 255; v <= 0.04045 {
			return v / 12.92
		} else {
			return math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return 0.2126*linear(c.R) + 0.7152*linear(c.G) + 0.0722*linear(c.B)
}
