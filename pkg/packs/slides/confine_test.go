package slides_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestLocalFiles tries to get a file onto a slide.
func TestLocalFiles(t *testing.T) {
	t.Parallel()
	deck := `---
style: |
  @import url("file:///etc/passwd");
  section { background-image: url(file:///etc/passwd); }
  section::before { content: url("file:///etc/passwd"); }
---
# Marker

![](file:///etc/passwd) ![bg](file:///etc/passwd) ![](/etc/passwd) ![](../../../../etc/passwd)

<iframe src="file:///etc/passwd"></iframe>
<object data="file:///etc/passwd" type="text/plain"></object>
<embed src="file:///etc/passwd"><img src="file:///etc/passwd">
<link rel="stylesheet" href="file:///etc/passwd">
<script>fetch('file:///etc/passwd').then((r) => r.text()).then((t) => document.body.append(t))</script>
`
	for _, format := range []string{"pdf", "html"} {
		out, data := document(t, render(t, map[string]any{"markdown": deck, "format": format}))
		text := string(data)
		if format == "pdf" {
			text = tool(t, data, "pdftotext", "-", "-")
		}
		if !strings.Contains(text, "Marker") || strings.Contains(text, "root:x:") || strings.Contains(text, "/bin/sh") || strings.Contains(text, "/nologin") {
			t.Errorf("%s: got text %q", format, text)
		}
		var rules []string
		for _, w := range out.Warnings {
			rules = append(rules, w.Rule)
		}
		if all := strings.Join(rules, " "); !strings.Contains(all, "local-file-not-loaded") || !strings.Contains(all, "script-not-run") {
			t.Errorf("%s: got warnings %v", format, rules)
		}
	}
}

// TestScriptWithoutEnd shows that a script in a deck, in a diagram or in an
// attribute is not run at all.
func TestScriptWithoutEnd(t *testing.T) {
	t.Parallel()
	deck := "# A\n\n<script>for (;;) {}</script>\n\n<img src=x onerror=\"for(;;){}\">\n\n<svg onload=\"for(;;){}\"></svg>\n\n" +
		"```mermaid\n%%{init: {\"securityLevel\": \"loose\"}}%%\nflowchart LR\n  a[\"<img src=x onerror='for(;;){}'>\"] --> b[\"<script>for(;;){}</script>\"]\n  click a call alert()\n```\n"
	out, data := document(t, render(t, map[string]any{"markdown": deck}))
	if out.PageCount != 1 || pages(t, data) != 1 {
		t.Errorf("got %+v", out)
	}
}

func TestPictures(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/dot.svg" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "image/svg+xml")
		_, _ = io.WriteString(w, `<svg xmlns="http://www.w3.org/2000/svg" width="200" height="60"><text x="0" y="30">from afar</text></svg>`)
	}))
	t.Cleanup(srv.Close)
	out, data := document(t, render(t, map[string]any{"markdown": fmt.Sprintf(
		"# A\n\n![](%[1]s/dot.svg)\n\n![](%[1]s/gone.png)\n\n![](http://10.0.0.1/inside.png)\n", srv.URL)}))
	if text := tool(t, data, "pdftotext", "-", "-"); !strings.Contains(text, "from afar") {
		t.Errorf("the picture is missing in %q", text)
	}
	missing := map[string]bool{}
	for _, w := range out.Warnings {
		if w.Rule == "picture-not-loaded" {
			missing[w.Selector] = true
		}
	}
	want := map[string]bool{srv.URL + "/gone.png": true, "http://10.0.0.1/inside.png": true}
	if diff := cmp.Diff(want, missing); diff != "" {
		t.Errorf("missing pictures (-want +got):\n%s", diff)
	}
}
