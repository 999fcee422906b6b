package openapi

import (
	"embed"
	"io/fs"
	"net/http"
)

// PagePolicy is the content security policy of the page: its own files and
// the document, nothing else.
const PagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

//go:embed page
var pageFiles embed.FS

// Page serves the documentation page below prefix, for instance "/docs/".
// The page loads the document from /api/v1/openapi.json of its own host.
func Page(prefix string) http.Handler {
	files, err := fs.Sub(pageFiles, "page")
	if err != nil {
		panic(err) // the name is a constant
	}
	return http.StripPrefix(prefix, http.FileServerFS(files))
}
