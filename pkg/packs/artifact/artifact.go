// Package artifact is the artifact.* family: callers store text or small
// files as artifacts, read them back and list what they have.
package artifact

import (
	"mime"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Encodings of content in a JSON string.
const (
	encodingUTF8   = "utf-8"
	encodingText   = "text" // another name of utf-8
	encodingBase64 = "base64"
)

// textTypes are the types outside text/* that hold UTF-8 text.
var textTypes = map[string]bool{
	"application/json": true, "application/x-ndjson": true, "application/yaml": true, "application/x-yaml": true,
	"application/xml": true, "application/javascript": true, "application/x-javascript": true,
	"application/sql": true, "application/toml": true, "application/x-subrip": true,
}

// isText reports whether bytes of contentType are text, whatever parameters
// follow the type.
func isText(contentType string) bool {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		mediaType, _, _ = strings.Cut(contentType, ";")
		mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	}
	if strings.HasPrefix(mediaType, "text/") || textTypes[mediaType] {
		return true
	}
	for _, suffix := range []string{"+json", "+xml", "+yaml"} {
		if strings.HasSuffix(mediaType, suffix) {
			return true
		}
	}
	return false
}

// namespaceOf is the namespace for what the caller wrote. Names of packs are
// theirs, so that nobody passes a file off as the work of one.
func namespaceOf(wanted, own string) (string, error) {
	if strings.TrimSpace(wanted) == "" || wanted == own {
		return own, nil
	}
	clean := cleanNamespace(wanted)
	if !artifacts.ValidNamespace(clean) {
		return "", packs.Errorf(packs.InvalidInput, "/namespace: %q has no letter or digit; write a name such as reports", wanted)
	}
	if packs.IsName(strings.ToLower(clean)) {
		return "", packs.Errorf(packs.InvalidInput, "/namespace: %q is reserved for the pack of that name; choose one without a dot, such as %q",
			wanted, strings.ReplaceAll(clean, ".", "-"))
	}
	return clean, nil
}

// cleanNamespace puts '-' in place of all but letters, digits, '.', '_' and
// '-'.
func cleanNamespace(wanted string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, wanted)
	clean = strings.Trim(clean, "._-")
	return clean[:min(len(clean), maxNamespace)]
}

// maxNamespace is the longest namespace, in bytes.
const maxNamespace = 64
