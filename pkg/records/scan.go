package records

import (
	"encoding/json"
	"reflect"
	"strconv"
	"time"
	"unicode/utf8"
)

// maxNested bounds how deep a scan looks; deeper texts are left to
// encoding/json.
const maxNested = 200

// scan walks over a JSON text once. Every method returns false to give up.
type scan struct {
	in []byte
	at int
	// changes is set when encoding/json would write what was passed in another
	// way: compact, or with characters escaped.
	changes bool
}

// fields reads an object into the struct v, which is zero. It gives up on
// unknown members, on members that come twice and on null.
func (s *scan) fields(f *fields, v reflect.Value) bool {
	if !s.take('{') {
		return false
	}
	if s.take('}') {
		return true
	}
	var seen [maxFields / 64]uint64
	for {
		name, ok := s.plainText()
		if !ok || !s.take(':') {
			return false
		}
		i, known := f.byName[string(name)]
		if !known || seen[i/64]&(1<<(i%64)) != 0 {
			return false
		}
		seen[i/64] |= 1 << (i % 64)
		fd := &f.all[i]
		if !s.field(fd, v.Field(fd.index)) {
			return false
		}
		if !s.take(',') {
			return s.take('}')
		}
	}
}

func (s *scan) field(f *field, v reflect.Value) bool {
	if f.what == record {
		return s.fields(f.of, v)
	}
	from := s.at
	switch f.what {
	case text:
		if t, ok := s.plainText(); ok {
			v.SetString(string(t))
			return true
		}
	case number:
		return s.whole(v)
	case instant:
		if t, ok := s.plainText(); ok {
			if v.Addr().Interface().(*time.Time).UnmarshalText(t) == nil {
				return true
			}
		}
	}
	s.at = from
	if s.at < len(s.in) && s.in[s.at] == 'n' || !s.value(0) {
		return false
	}
	part := s.in[from:s.at]
	if f.what == raw {
		v.SetBytes(append([]byte(nil), part...))
		return true
	}
	return json.Unmarshal(part, v.Addr().Interface()) == nil
}

func (s *scan) take(c byte) bool {
	if s.at < len(s.in) && s.in[s.at] == c {
		s.at++
		return true
	}
	return false
}

// plainText takes a string of ASCII without escapes.
func (s *scan) plainText() ([]byte, bool) {
	if !s.take('"') {
		return nil, false
	}
	for i := s.at; i < len(s.in); i++ {
		c := s.in[i]
		if c == '"' {
			t := s.in[s.at:i]
			s.at = i + 1
			return t, true
		}
		if c < ' ' || c == '\\' || c >= utf8.RuneSelf {
			return nil, false
		}
	}
	return nil, false
}

// whole takes an integer of up to 18 digits.
func (s *scan) whole(v reflect.Value) bool {
	from := s.at
	if !s.digits(true) {
		return false
	}
	t := s.in[from:s.at]
	if len(t) > 18 || s.at < len(s.in) && (s.in[s.at] == '.' || s.in[s.at] == 'e' || s.in[s.at] == 'E') {
		return false
	}
	n, err := strconv.ParseInt(string(t), 10, 64)
	if err != nil || v.OverflowInt(n) {
		return false
	}
	v.SetInt(n)
	return true
}

// value passes one JSON value of any kind.
func (s *scan) value(depth int) bool {
	if s.at >= len(s.in) || depth > maxNested {
		return false
	}
	switch c := s.in[s.at]; {
	case c == '{':
		return s.list('}', depth, true)
	case c == '[':
		return s.list(']', depth, false)
	case c == '"':
		return s.quoted()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	case c == '-' || c >= '0' && c <= '9':
		return s.anyNumber()
	}
	return false
}

// list passes an object or an array.
func (s *scan) list(end byte, depth int, keys bool) bool {
	s.at++
	s.space()
	if s.take(end) {
		return true
	}
	for {
		if keys {
			if s.at >= len(s.in) || s.in[s.at] != '"' || !s.quoted() {
				return false
			}
			s.space()
			if !s.take(':') {
				return false
			}
			s.space()
		}
		if !s.value(depth + 1) {
			return false
		}
		s.space()
		if s.take(end) {
			return true
		}
		if !s.take(',') {
			return false
		}
		s.space()
	}
}

func (s *scan) space() {
	for s.at < len(s.in) {
		switch s.in[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
			s.changes = true
		default:
			return
		}
	}
}

func (s *scan) word(w string) bool {
	if len(s.in)-s.at < len(w) || string(s.in[s.at:s.at+len(w)]) != w {
		return false
	}
	s.at += len(w)
	return true
}

// quoted passes a string.
func (s *scan) quoted() bool {
	in := s.in
	for i := s.at + 1; i < len(in); i++ {
		switch c := in[i]; {
		case c == '"':
			s.at = i + 1
			return true
		case c == '\\':
			i++
			if i >= len(in) || !escape(in[i:]) {
				return false
			}
		case c < ' ':
			return false
		case c == '<' || c == '>' || c == '&':
			s.changes = true
		case c == 0xE2:
			// U+2028 and U+2029 are written as escapes.
			s.changes = s.changes || i+2 < len(in) && in[i+1] == 0x80 && in[i+2]&^1 == 0xA8
		}
	}
	return false
}

// escape reports whether b, after a backslash, begins with what may follow it.
func escape(b []byte) bool {
	switch b[0] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		if len(b) < 5 {
			return false
		}
		for _, c := range b[1:5] {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return false
			}
		}
		return true
	}
	return false
}

// digits passes an integer: no leading zero if strict.
func (s *scan) digits(strict bool) bool {
	if strict {
		s.take('-')
	}
	from := s.at
	for s.at < len(s.in) && s.in[s.at] >= '0' && s.in[s.at] <= '9' {
		s.at++
	}
	n := s.at - from
	return n > 0 && !(strict && n > 1 && s.in[from] == '0')
}

func (s *scan) anyNumber() bool {
	if !s.digits(true) {
		return false
	}
	if s.take('.') && !s.digits(false) {
		return false
	}
	if s.take('e') || s.take('E') {
		if !s.take('+') {
			s.take('-')
		}
		return s.digits(false)
	}
	return true
}
