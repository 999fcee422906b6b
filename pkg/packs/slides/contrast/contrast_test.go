package contrast_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/packs/slides/contrast"
)

// finding is a warning without its words.
type finding struct{ Rule, Selector, Foreground, Background, Ratio string }

func lint(deck string) []finding {
	var out []finding
	for _, w := range contrast.Lint(deck) {
		out = append(out, finding{w.Rule, w.Selector, w.Foreground, w.Background, w.Ratio})
	}
	return out
}

func TestLint(t *testing.T) {
	t.Parallel()
	text := func(selector, foreground, background, ratio string) []finding {
		return []finding{{contrast.RuleTextContrast, selector, foreground, background, ratio}}
	}
	nested := "table{color:#000}td,th{color:#000}code,blockquote,pre{color:#000}"
	tests := []struct {
		name, deck string
		want       []finding
	}{
		{"R6", "<style>p{color:#777777;background:#ffffff}</style>", text("p", "#777777", "#ffffff", "4.48:1")},
		{"enough", "<style>p{color:#767676;background:#fff}</style>", nil},
		{"front matter", "---\ntheme: x\nstyle: |\n  p { color: #777; background: white }\n\n  a { color: red }\npaginate: true\n---\n# A", text("p", "#777", "white", "4.48:1")},
		{"front matter with CRLF", "---\r\nstyle: |\r\n  p { color: rgb(119, 119, 119);\r\n  background-color: white }\r\n---\r\n", text("p", "rgb(119, 119, 119)", "white", "4.48:1")},
		{"front matter in one line", "---\nstyle: 'p{color:gold;background:#fff}'\n---\n", text("p", "gold", "#fff", "1.40:1")},
		{"no front matter further down", "# A\n\n---\nstyle: 'p{color:gold;background:#fff}'\n---\n", nil},
		{"several selectors and media", "<style>@media print { .a,\n.b { COLOR: Silver !important; Background: no-repeat #ffffff } }</style>", text(".a, .b", "Silver", "#ffffff", "1.82:1")},
		{"nested rule", "<style>.a { & b { color: #aaa; background: #fff } color: black }</style>", text(".a b", "#aaa", "#fff", "2.32:1")},
		{"shorthand wins over what came before", "<style>p{color:#fff;background-color:#fff;background:#000}</style>", nil},
		{"two rules apart", "<style>p{color:#777}p{background:#fff}</style>", nil},
		{"seen through", "<style>p{color:#777;background:rgba(255,255,255,.5)}q{color:#7778;background:#fff}</style>", nil},
		{"picture", "<style>p{color:#777;background:url(data:image/png;base64,x) #fff}</style>", nil},
		{"comment and string", "<style>/* p{color:#777;background:#fff} */ p::before{content:'} p{color:#777;background:#fff}'}</style>", nil},
		{"example in code", "```html\n<style>p{color:#777;background:#fff}</style>\n```\n", nil},
		{"unclosed", "<style>p{color:#777;background:#fff</style>", text("p", "#777", "#fff", "4.48:1")},
		{"section alone", "<style>section.dark{background:#000}</style>", []finding{{contrast.RuleSectionBackground, "section.dark", "", "#000", ""}}},
		{"section and the rest", "<style>section{background:#fff}" + nested + "</style>", nil},
		{"section gradient", "<style>h1, section{background-image:linear-gradient(red,blue)}</style>", []finding{{contrast.RuleSectionBackground, "h1, section", "", "linear-gradient(red,blue)", ""}}},
		{"no background", "<style>section{background:none}section::after{background:red}.section{background:red}</style>", nil},
		{"nothing", "# A", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, lint(tt.deck)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLintNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	got := contrast.Lint("<style>section{background:#000}td{color:#fff}pre code{color:#fff}</style>")
	if len(got) != 1 || !strings.HasSuffix(got[0].Recommendation, ": table, th, blockquote") {
		t.Errorf("got %+v", got)
	}
}

func TestLintIsBounded(t *testing.T) {
	t.Parallel()
	if n := len(contrast.Lint("<style>" + strings.Repeat("p{color:#777;background:#fff}", 5000) + "</style>")); n != 50 {
		t.Errorf("got %d warnings", n)
	}
	contrast.Lint("<style>" + strings.Repeat("a{", 20000) + "</style>")
}

func TestParseColor(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in   string
		want string // "" when it is no colour
	}{
		{"#FFF", "255 255 255"}, {"#12345678", ""}, {"#123456ff", "18 52 86"}, {"#fffF", "255 255 255"}, {"#12", ""}, {"#ggg", ""},
		{"RebeccaPurple", "102 51 153"}, {"nocolour", ""}, {"transparent", ""}, {"", ""}, {"currentcolor", ""},
		{"rgb(1 2 3)", "1 2 3"}, {"rgb(1, 2, 3, 1)", "1 2 3"}, {"rgba(1,2,3,100%)", "1 2 3"}, {"rgb(1 2 3 / .5)", ""},
		{"rgb(100% 0% 50%)", "255 0 128"}, {"rgb(300,-1,0)", "255 0 0"}, {"rgb(1,2)", ""}, {"rgb(a,b,c)", ""}, {"rgb(1,2,3", ""},
		{"hsl(120deg 100% 25%)", "0 128 0"}, {"hsl(-120, 100%, 50%)", "0 0 255"}, {"lab(1 2 3)", ""}, {"var(--x)", ""},
	}
	for _, tt := range tests {
		got := ""
		if c, ok := contrast.ParseColor(tt.in); ok {
			got = fmt.Sprint(math.Round(c.R), math.Round(c.G), math.Round(c.B))
		}
		if got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.in, got, tt.want)
		}
	}
}

func FuzzLint(f *testing.F) {
	f.Add("---\nstyle: |\n  p{}\n---\n<style>p{color:#fff;background:red}</style>")
	f.Add("<style>@media x{a{&b{color:hsl(1,2,3)}}}</style>")
	f.Fuzz(func(_ *testing.T, deck string) { contrast.Lint(deck) })
}
