package artifacts

import (
	"io"
	"mime"
	"net/http"
	"path"
	"strings"
)

// sniffLen is how much http.DetectContentType looks at.
const sniffLen = 512

// extensionTypes come before the machine's own table, which differs from one
// machine to the next or is missing.
var extensionTypes = map[string]string{
	".aac": "audio/aac", ".csv": "text/csv", ".gz": "application/gzip", ".htm": "text/html",
	".html": "text/html", ".jpeg": "image/jpeg", ".jpg": "image/jpeg", ".js": "text/javascript",
	".json": "application/json", ".log": "text/plain", ".m4a": "audio/mp4", ".markdown": "text/markdown",
	".md": "text/markdown", ".mov": "video/quicktime", ".mp3": "audio/mpeg", ".mp4": "video/mp4",
	".patch": "text/x-diff", ".pdf": "application/pdf", ".png": "image/png", ".gif": "image/gif",
	".webp": "image/webp", ".sql": "application/sql", ".srt": "application/x-subrip",
	".svg": "image/svg+xml", ".tar": "application/x-tar", ".tgz": "application/gzip",
	".toml": "application/toml", ".txt": "text/plain", ".vtt": "text/vtt", ".wav": "audio/wav",
	".webm": "video/webm", ".xml": "application/xml", ".yaml": "application/yaml",
	".yml": "application/yaml", ".zip": "application/zip", ".diff": "text/x-diff",
	".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
	".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
	".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}

// detect settles the content type: the declared one when it parses, else the
// extension's, else by sniffing. The reader it returns yields all of r.
func detect(declared, name string, r *source) (string, io.Reader, error) {
	if mediaType, params, err := mime.ParseMediaType(declared); err == nil {
		if formatted := mime.FormatMediaType(mediaType, params); formatted != "" && strings.Contains(mediaType, "/") {
			return formatted, r, nil
		}
	}
	ext := strings.ToLower(path.Ext(name))
	if t := extensionTypes[ext]; t != "" {
		return t, r, nil
	}
	if t := mime.TypeByExtension(ext); t != "" {
		return t, r, nil
	}
	head := make([]byte, sniffLen)
	n, _ := io.ReadFull(r, head) // short is as good; a fault is in r.err
	if r.err != nil {
		return "", nil, r.err
	}
	head = head[:n]
	return http.DetectContentType(head), io.MultiReader(strings.NewReader(string(head)), r), nil
}

// Disposition is "inline" for the image types a browser may show on our
// origin without running anything, and "attachment" for all others.
func Disposition(contentType string) string {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return "attachment"
	}
	switch mediaType {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return "inline"
	}
	return "attachment"
}

// Disposition is the value of the Content-Disposition header of a download:
// the policy of the function Disposition and the base name (RFC 6266).
func (r Ref) Disposition() string {
	d := Disposition(r.ContentType)
	if v := mime.FormatMediaType(d, map[string]string{"filename": path.Base(r.Name)}); v != "" {
		return v
	}
	return d
}
