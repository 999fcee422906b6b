package shape

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds the nesting that is looked at.
const maxDepth = 64

// Valid reports whether doc, one JSON value, surely is valid.
func (s *Shape) Valid(doc []byte) bool {
	if s == nil {
		return false
	}
	sc := scanner{in: doc}
	return sc.whole(s.root)
}

// Clean returns doc, one JSON object, as encoding/json writes its decoded
// form: compact and with sorted keys. ok reports that doc surely is valid and
// has no null, no unknown key and no number in an unusual notation in it, of
// which a cleaner would have to take care.
func (s *Shape) Clean(doc []byte) (clean []byte, ok bool) {
	if s == nil || s.root.kind != object {
		return nil, false
	}
	sc := scanner{in: doc, emits: true, out: make([]byte, 0, len(doc))}
	ok = sc.whole(s.root)
	return sc.out, ok
}

// scanner walks over a text once. Every method returns false to give up.
type scanner struct {
	in    []byte
	at    int
	emits bool
	out   []byte
}

func (s *scanner) whole(root *node) bool {
	if !s.value(root, 0) {
		return false
	}
	s.space()
	return s.at == len(s.in)
}

func (s *scanner) space() {
	for s.at < len(s.in) {
		switch s.in[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// next skips white space and takes c.
func (s *scanner) next(c byte) bool {
	s.space()
	if s.at < len(s.in) && s.in[s.at] == c {
		s.at++
		return true
	}
	return false
}

func (s *scanner) emit(b ...byte) {
	if s.emits {
		s.out = append(s.out, b...)
	}
}

func (s *scanner) value(n *node, depth int) bool {
	if depth > maxDepth || n.kind == never {
		return false
	}
	s.space()
	if s.at == len(s.in) {
		return false
	}
	switch c := s.in[s.at]; {
	case c == '{':
		return (n.kind == object || n.kind == anything) && s.object(n, depth)
	case c == '[':
		return (n.kind == array || n.kind == anything) && s.array(n, depth)
	case c == '"':
		return (n.kind == text || n.kind == anything) && s.text(n)
	case c == 't':
		return (n.kind == boolean || n.kind == anything) && s.word("true")
	case c == 'f':
		return (n.kind == boolean || n.kind == anything) && s.word("false")
	case c == 'n':
		return n.kind == anything && s.word("null")
	case c == '-' || c >= '0' && c <= '9':
		return (n.kind == integer || n.kind == number || n.kind == anything) && s.number(n)
	}
	return false
}

func (s *scanner) word(w string) bool {
	if !bytes.HasPrefix(s.in[s.at:], []byte(w)) {
		return false
	}
	s.emit([]byte(w)...)
	s.at += len(w)
	return true
}

// pair is one member of an object: its key and where it lies in the output.
type pair struct {
	key      []byte
	from, to int
}

var free = &node{kind: anything}

func (s *scanner) object(n *node, depth int) bool {
	var few [16]pair
	pairs := few[:0]
	s.at++ // {
	start := len(s.out)
	s.emit('{')
	seen, sorted := uint64(0), true
	for first := true; !s.next('}'); first = false {
		if !first {
			if !s.next(',') {
				return false
			}
			s.emit(',')
		}
		s.space()
		from := len(s.out)
		raw, _, plain := s.string()
		if !plain || !s.next(':') {
			return false
		}
		s.emit(':')
		child := n.extra
		if n.kind == anything {
			child = free
		} else if p, ok := n.props[string(raw)]; ok {
			child = p.of
			seen |= p.bit
			s.space()
			if s.at < len(s.in) && s.in[s.at] == 'n' {
				return false // a null counts as absent
			}
		}
		if child == nil || !s.value(child, depth+1) {
			return false
		}
		if s.emits {
			sorted = sorted && (len(pairs) == 0 || bytes.Compare(pairs[len(pairs)-1].key, raw) < 0)
			pairs = append(pairs, pair{raw, from, len(s.out)})
		}
	}
	s.emit('}')
	if !sorted && !s.sort(pairs, start) {
		return false
	}
	return n.kind == anything || seen&n.required == n.required
}

// sort brings the members of the object written at start into order. A key
// that comes twice is not accepted.
func (s *scanner) sort(pairs []pair, start int) bool {
	slices.SortFunc(pairs, func(a, b pair) int { return bytes.Compare(a.key, b.key) })
	written := slices.Clone(s.out[start:])
	s.out = append(s.out[:start], '{')
	for i, p := range pairs {
		if i > 0 {
			if bytes.Equal(pairs[i-1].key, p.key) {
				return false
			}
			s.out = append(s.out, ',')
		}
		s.out = append(s.out, written[p.from-start:p.to-start]...)
	}
	s.out = append(s.out, '}')
	return true
}

func (s *scanner) array(n *node, depth int) bool {
	s.at++ // [
	s.emit('[')
	items := n.items
	if items == nil {
		items = free
	}
	count := int64(0)
	for ; !s.next(']'); count++ {
		if count > 0 {
			if !s.next(',') {
				return false
			}
			s.emit(',')
		}
		if !s.value(items, depth+1) {
			return false
		}
	}
	s.emit(']')
	return n.kind == anything || count >= n.min && count <= n.max
}

func (s *scanner) text(n *node) bool {
	raw, runes, plain := s.string()
	switch {
	case runes < 0:
		return false
	case n.kind == anything:
		return true
	case n.oneOf != nil && (!plain || !n.oneOf[string(raw)]):
		return false
	}
	return runes >= n.min && runes <= n.max
}

// string takes a string that encoding/json would write as it stands: the
// short escapes but nothing else escaped, and nothing HTML is sensitive to.
// It returns what stands between the quotes, its length in runes, -1 for one
// that is not accepted, and whether it is free of escapes.
func (s *scanner) string() (raw []byte, runes int64, plain bool) {
	if s.at == len(s.in) || s.in[s.at] != '"' {
		return nil, -1, false
	}
	plain = true
	b := s.in[s.at+1:]
	for i := 0; i < len(b); {
		c := b[i]
		switch {
		case c == '"':
			s.emit(s.in[s.at : s.at+i+2]...)
			s.at += i + 2
			return b[:i], runes, plain
		case c == '\\':
			if i+1 == len(b) || strings.IndexByte(`nrt"\`, b[i+1]) < 0 {
				return nil, -1, false
			}
			plain = false
			i += 2
		case c < ' ' || c == '<' || c == '>' || c == '&' || c == 0x7f:
			return nil, -1, false
		case c < utf8.RuneSelf:
			i++
		default:
			r, size := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError || r == '\u2028' || r == '\u2029' {
				return nil, -1, false
			}
			i += size
		}
		runes++
	}
	return nil, -1, false
}

// maxDigits of a number fit every integer type and are exact as a fraction.
const maxDigits = 15

// number takes a whole number, or a fraction where one may stand, in the
// notation that encoding/json writes.
func (s *scanner) number(n *node) bool {
	from := s.at
	if s.in[s.at] == '-' {
		s.at++
	}
	digits := s.digits()
	leading := s.in[s.at-digits : s.at]
	if digits == 0 || digits > 1 && leading[0] == '0' {
		return false
	}
	fraction := 0
	if s.at < len(s.in) && s.in[s.at] == '.' {
		s.at++
		if fraction = s.digits(); fraction == 0 || n.kind == integer || n.bounded {
			return false
		}
	}
	all := s.in[from:s.at]
	if digits+fraction > maxDigits || s.at < len(s.in) && (s.in[s.at] == 'e' || s.in[s.at] == 'E') {
		return false
	}
	if fraction == 0 {
		v, err := strconv.ParseInt(string(all), 10, 64)
		if err != nil || v == 0 && all[0] == '-' {
			return false
		}
		if n.kind != anything && (v < n.min || v > n.max) {
			return false
		}
	}
	s.emit(all...)
	return true
}

// digits skips digits and counts them.
func (s *scanner) digits() int {
	from := s.at
	for s.at < len(s.in) && s.in[s.at] >= '0' && s.in[s.at] <= '9' {
		s.at++
	}
	return s.at - from
}
