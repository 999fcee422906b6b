package events

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

var errUTF8 = errors.New("not valid UTF-8")

const upperHex = "0123456789ABCDEF"

// literal reports whether the binding leaves c as it is.
func literal(c byte) bool { return c > ' ' && c <= '~' && c != '"' && c != '%' }

// escape makes a header value of an attribute: space, double quote, percent
// and all outside printable ASCII become %XY, one per byte of UTF-8.
func escape(s string) (string, error) {
	n := 0
	for i := range len(s) {
		if !literal(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s, nil
	}
	if !utf8.ValidString(s) {
		return "", errUTF8
	}
	var b strings.Builder
	b.Grow(len(s) + 2*n)
	for i := range len(s) {
		if c := s[i]; literal(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
	}
	return b.String(), nil
}

// unescape is one round of decoding: optional white space around the value is
// dropped, double-quoted parts and their backslashes are resolved, then
// percent sequences. Raw UTF-8 is let through, for producers that do not
// encode.
func unescape(s string) (string, error) {
	if !strings.ContainsAny(s, "%\" \t") {
		if !utf8.ValidString(s) {
			return "", errUTF8
		}
		return s, nil
	}
	s = strings.Trim(s, " \t")
	if strings.IndexByte(s, '"') >= 0 {
		var err error
		if s, err = unquote(s); err != nil {
			return "", err
		}
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("percent sequence cut short in %q", s)
		}
		hi, ok1 := unhex(s[i+1])
		lo, ok2 := unhex(s[i+2])
		if !ok1 || !ok2 {
			return "", fmt.Errorf("bad percent sequence %q", s[i:i+3])
		}
		b = append(b, hi<<4|lo)
		i += 2
	}
	if !utf8.Valid(b) {
		return "", errUTF8
	}
	return string(b), nil
}

func unquote(s string) (string, error) {
	b := make([]byte, 0, len(s))
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			if i++; i == len(s) {
				return "", fmt.Errorf("quoted string cut short in %q", s)
			}
			b = append(b, s[i])
		default:
			b = append(b, c)
		}
	}
	if quoted {
		return "", fmt.Errorf("quoted string cut short in %q", s)
	}
	return string(b), nil
}

func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}
