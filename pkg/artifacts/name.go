package artifacts

import (
	"path"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is the longest artifact name, in characters (rest-api §11).
const maxName = 200

// fallbackName stands for a name of which nothing is left.
const fallbackName = "upload"

var (
	namespaceForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	keyForm       = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,99})/[0-9a-f]{16}-(?s:(.+))$`)
)

// ValidNamespace reports whether artifacts may be stored under ns: letters,
// digits, ".", "_" and "-", at most 100, beginning with a letter or digit.
func ValidNamespace(ns string) bool { return namespaceForm.MatchString(ns) }

func validKey(key string) bool { return keyForm.MatchString(key) }

// CleanName is name as the store keeps it: control characters, characters
// that turn the direction of text and invalid UTF-8 are gone; "\" reads as
// "/"; leading "/" and all "." and ".." are gone while inner folders stay
// ("../../etc/p" is "etc/p"); at most 200 characters, the extension kept;
// "upload" when nothing is left. Cleaning twice changes nothing more.
func CleanName(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r == '\\':
			return '/'
		case r == utf8.RuneError, unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r),
			r == '\u2028', r == '\u2029':
			return -1
		}
		return r
	}, name)
	var kept []string
	for part := range strings.SplitSeq(name, "/") {
		if part = strings.TrimSpace(part); part != "" && part != "." && part != ".." {
			kept = append(kept, part)
		}
	}
	if len(kept) == 0 {
		return fallbackName
	}
	name = strings.Join(kept, "/")
	if utf8.RuneCountInString(name) <= maxName {
		return name
	}
	return shorten(kept[len(kept)-1])
}

// BaseName is CleanName without folders: the rule for uploads, whose names
// come from a stranger's disk.
func BaseName(name string) string { return shorten(path.Base(CleanName(name))) }

// shorten cuts the stem of a cleaned base name and keeps its extension.
func shorten(base string) string {
	runes := []rune(base)
	if len(runes) <= maxName {
		return base
	}
	ext := []rune(path.Ext(base))
	if len(ext) > 20 { // not an extension, only a dot somewhere
		ext = nil
	}
	stem := strings.TrimSpace(string(runes[:maxName-len(ext)]))
	return stem + string(ext)
}
