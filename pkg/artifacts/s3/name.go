package s3

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Names of objects. Services that keep objects as files take no component
// above 255 bytes and no object whose name is a folder of another's, so keys are
// escaped and cut into folders.
const (
	dataFolder = "/data/"
	metaFolder = "/meta/"
	// cut is the length from which a component of a name ends.
	cut = 200
	// end closes a name, so that no name is the folder of another; it is
	// escaped within.
	end = "!"
	// maxName is the longest object name of the protocol, in bytes.
	maxName = 1024
)

// dataOf is the object with the bytes of key.
func (b *Blobs) dataOf(key string) string {
	return b.cfg.Installation + dataFolder + digest(key)
}

func digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// metaOf is the object with the description of key.
func (b *Blobs) metaOf(key string) (string, error) {
	name := b.metaPrefix(key) + end
	if key == "" || len(name) > maxName {
		return "", fmt.Errorf("key of %d bytes makes a name of %d, and S3 takes 1 to %d", len(key), len(name), maxName)
	}
	return name, nil
}

// metaPrefix is what the names of all keys with the prefix begin with.
func (b *Blobs) metaPrefix(prefix string) string {
	return b.cfg.Installation + metaFolder + escape(prefix)
}

// escape keeps letters, digits, "-", "_", "." and what is not ASCII; the rest
// becomes "!" and two hex digits. A component that has reached its length ends
// with "/". What a prefix of s becomes is a prefix of what s becomes.
func escape(s string) string {
	var out strings.Builder
	component := 0
	add := func(piece string) {
		if component >= cut {
			out.WriteByte('/')
			component = 0
		}
		out.WriteString(piece)
		component += len(piece)
	}
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n <= 1:
			add(fmt.Sprintf("!%02X", s[i]))
			n = 1
		case r >= utf8.RuneSelf,
			r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_',
			r == '.' && component > 0 && component < cut: // no component is "." or ".." or hidden
			add(s[i : i+n])
		default:
			add(fmt.Sprintf("!%02X", r))
		}
		i += n
	}
	return out.String()
}

// keyOf is the inverse of metaOf.
func (b *Blobs) keyOf(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, b.cfg.Installation+metaFolder)
	if !ok {
		return "", false
	}
	if rest, ok = strings.CutSuffix(rest, end); !ok {
		return "", false
	}
	var key strings.Builder
	for i := 0; i < len(rest); i++ {
		switch {
		case rest[i] == '/':
		case rest[i] != '!':
			key.WriteByte(rest[i])
		case i+2 < len(rest):
			c, err := strconv.ParseUint(rest[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			key.WriteByte(byte(c))
			i += 2
		default:
			return "", false
		}
	}
	return key.String(), true
}
