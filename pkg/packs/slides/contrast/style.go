package contrast

import (
	"regexp"
	"strings"
)

var styleElement = regexp.MustCompile(`(?is)<style\b[^>]*>(.*?)</style\s*>`)

// styleOf collects the style sheets of a deck. What stands in fenced code is
// an example, not a style.
func styleOf(markdown string) string {
	text := strings.ReplaceAll(strings.TrimPrefix(markdown, "\ufeff"), "\r\n", "\n")
	front, body := splitFrontMatter(text)
	var out strings.Builder
	out.WriteString(styleEntry(front))
	for _, m := range styleElement.FindAllStringSubmatch(withoutFences(body), -1) {
		out.WriteString("\n" + m[1])
	}
	return out.String()
}

// splitFrontMatter cuts off what stands between two lines of dashes at the
// top.
func splitFrontMatter(text string) (front, body string) {
	rest, ok := strings.CutPrefix(strings.TrimLeft(text, "\n"), "---\n")
	if !ok {
		return "", text
	}
	for at := 0; at < len(rest); {
		line, _, more := strings.Cut(rest[at:], "\n")
		if strings.TrimRight(line, " \t") == "---" {
			return rest[:at], rest[min(len(rest), at+len(line)+1):]
		}
		if !more {
			break
		}
		at += len(line) + 1
	}
	return "", text
}

// styleEntry reads the value of style: a block after | or >, or the rest of
// the line.
func styleEntry(front string) string {
	lines := strings.Split(front, "\n")
	for i, line := range lines {
		value, ok := strings.CutPrefix(line, "style:")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		if value != "" && value[0] != '|' && value[0] != '>' {
			return strings.Trim(value, `"'`)
		}
		end := i + 1
		for end < len(lines) && (lines[end] == "" || lines[end][0] == ' ' || lines[end][0] == '\t') {
			end++
		}
		return strings.Join(lines[i+1:end], "\n")
	}
	return ""
}

var fence = regexp.MustCompile("^ {0,3}(`{3,}|~{3,})(.*)$")

func withoutFences(text string) string {
	var out strings.Builder
	open := ""
	for line := range strings.SplitSeq(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case m != nil && open == "":
			open = m[1]
		case m != nil && m[1][0] == open[0] && len(m[1]) >= len(open) && strings.TrimSpace(m[2]) == "":
			open = ""
		case open == "":
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// rule is one block of a style sheet.
type rule struct {
	selector string
	decls    map[string]string // by property in lower case, without !important
}

func (r rule) selectors() []string {
	var out []string
	for s := range strings.SplitSeq(r.selector, ",") {
		out = append(out, strings.TrimSpace(s))
	}
	return out
}

// backdrop is what the rule says of its background, "" when nothing or none.
func (r rule) backdrop() string {
	for _, property := range []string{"background-color", "background", "background-image"} {
		switch v := r.decls[property]; strings.ToLower(v) {
		case "", "none", "transparent", "inherit", "initial", "unset", "revert":
		default:
			return v
		}
	}
	return ""
}

// background is the plain colour the rule sets behind its text, if it is one.
func (r rule) background() string {
	if v := r.decls["background-color"]; v != "" {
		return v
	}
	v := r.decls["background"]
	if strings.Contains(v, "url(") || strings.Contains(v, "gradient(") {
		return ""
	}
	for _, part := range splitOutside(v, ' ') {
		if _, ok := ParseColor(part); ok {
			return part
		}
	}
	return ""
}

var comment = regexp.MustCompile(`(?s)/\*.*?(\*/|$)`)

// parse reads a style sheet leniently, as browsers do: what it does not
// understand it skips.
func parse(css string) []rule {
	p := &parser{}
	p.block(comment.ReplaceAllString(css, " "), "", 0)
	var out []rule
	for _, r := range p.rules {
		if len(r.decls) > 0 {
			out = append(out, *r)
		}
	}
	return out
}

// maxDepth bounds how deep blocks may be nested.
const maxDepth = 16

type parser struct{ rules []*rule }

// block reads declarations and nested rules of selector.
func (p *parser) block(css, selector string, depth int) {
	own := &rule{selector: selector, decls: map[string]string{}}
	p.rules = append(p.rules, own) // before those nested in it
	for css != "" {
		i := indexOutside(css, ";{}")
		if i < 0 {
			i = len(css)
		}
		prelude := strings.TrimSpace(css[:i])
		switch {
		case i < len(css) && css[i] == '{':
			inner, rest := cutBlock(css[i+1:])
			if depth < maxDepth {
				p.nested(prelude, inner, selector, depth)
			}
			css = rest
			continue
		case selector != "":
			own.declare(prelude)
		}
		css = css[min(len(css), i+1):]
	}
}

func (p *parser) nested(prelude, inner, selector string, depth int) {
	if strings.HasPrefix(prelude, "@") {
		name, _, _ := strings.Cut(strings.ToLower(prelude), " ")
		switch name {
		case "@media", "@supports", "@layer", "@container", "@scope":
			p.block(inner, selector, depth+1)
		}
		return
	}
	switch {
	case selector == "":
	case strings.Contains(prelude, "&"):
		prelude = strings.ReplaceAll(prelude, "&", selector)
	default:
		prelude = selector + " " + prelude
	}
	p.block(inner, strings.Join(strings.Fields(prelude), " "), depth+1)
}

func (r *rule) declare(text string) {
	name, value, ok := strings.Cut(text, ":")
	if !ok {
		return
	}
	value = strings.TrimSpace(value)
	if i := strings.LastIndex(value, "!"); i >= 0 && strings.EqualFold(strings.TrimSpace(value[i+1:]), "important") {
		value = strings.TrimSpace(value[:i])
	}
	name = strings.ToLower(strings.TrimSpace(name))
	if name == "background" {
		delete(r.decls, "background-color") // the shorthand sets it anew
	}
	r.decls[name] = value
}

// cutBlock returns what stands before the closing brace and what follows.
func cutBlock(css string) (inner, rest string) {
	depth := 0
	for at := 0; at < len(css); {
		i := indexOutside(css[at:], "{}")
		if i < 0 {
			break
		}
		at += i
		if css[at] == '{' {
			depth++
		} else if depth--; depth < 0 {
			return css[:at], css[at+1:]
		}
		at++
	}
	return css, ""
}

// indexOutside finds the first of chars outside of quotes and parentheses.
func indexOutside(s, chars string) int {
	var quote byte
	depth := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\':
			i++
		case quote != 0:
			if c == quote || c == '\n' {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '(':
			depth++
		case c == ')':
			depth = max(0, depth-1)
		case depth == 0 && strings.IndexByte(chars, c) >= 0:
			return i
		}
	}
	return -1
}

func splitOutside(s string, sep byte) []string {
	var out []string
	for {
		i := indexOutside(s, string(sep))
		if i < 0 {
			return append(out, s)
		}
		out, s = append(out, s[:i]), s[i+1:]
	}
}
