package api_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// upload sends a form with one file; it returns the answer.
func (r *rig) upload(token, name, contentType string, content []byte) answer {
	r.Helper()
	var b bytes.Buffer
	form := multipart.NewWriter(&b)
	_ = form.WriteField("note", "fields before the file are passed over")
	h := textproto.MIMEHeader{}
	h.Set("Content-Disposition", fmt.Sprintf(`form-data; name="file"; filename=%q`, name))
	if contentType != "" {
		h.Set("Content-Type", contentType)
	}
	part, err := form.CreatePart(h)
	if err != nil {
		r.Fatal(err)
	}
	_, _ = part.Write(content)
	_ = form.Close()
	return r.call("POST", "/api/v1/artifacts/upload", token, b.String(), "Content-Type", form.FormDataContentType())
}

func (r *rig) store1(name, contentType, content string) client.Upload {
	r.Helper()
	return decode[client.Upload](r.T, r.upload(ann, name, contentType, []byte(content)).want(r.T, 200))
}

func TestUpload(t *testing.T) {
	t.Parallel()
	r := setup(t)
	got := r.store1(`..\..\etc/deck one.md`, "application/octet-stream", "# Deck")
	if !strings.HasPrefix(got.ArtifactKey, "operator-uploads/") || !strings.HasPrefix(got.URL, r.url+"/api/v1/artifacts/download/") {
		t.Errorf("got %+v", got)
	}
	got.ArtifactKey, got.URL = "", ""
	want := client.Upload{Size: 6, ContentType: "text/markdown", Filename: "deck one.md", SHA256: got.SHA256}
	if diff := cmp.Diff(want, got); diff != "" || len(got.SHA256) != 64 {
		t.Errorf("upload (-want +got):\n%s", diff)
	}
	if got := r.store1("x", "image/png", "no png"); got.ContentType != "image/png" {
		t.Errorf("got type %s, want the declared one", got.ContentType)
	}
	if got := r.store1("x", "", "%PDF-1.7 …"); got.ContentType != "application/pdf" {
		t.Errorf("got type %s, want the sniffed one", got.ContentType)
	}
	list := decode[client.ArtifactList](t, r.call("GET", "/api/v1/artifacts?limit=2", ann, "").want(t, 200))
	if list.Count != 2 || list.NextCursor == "" {
		t.Errorf("got %+v, want a page of two and a cursor", list)
	}
	rest := decode[client.ArtifactList](t, r.call("GET", "/api/v1/artifacts?cursor="+list.NextCursor, ann, "").want(t, 200))
	if rest.Count != 1 || rest.NextCursor != "" {
		t.Errorf("got %+v, want the last one", rest)
	}
	// A bad limit counts as the default of 50 here.
	if all := decode[client.ArtifactList](t, r.call("GET", "/api/v1/artifacts?limit=many", ann, "").want(t, 200)); all.Count != 3 {
		t.Errorf("got %d artifacts, want 3", all.Count)
	}
	for token, want := range map[string]int{bob: 0, admin: 3} {
		if all := decode[client.ArtifactList](t, r.call("GET", "/api/v1/artifacts", token, "").want(t, 200)); all.Count != want {
			t.Errorf("%s sees %d artifacts, want %d", token, all.Count, want)
		}
	}
}

func TestUploadRefuses(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) { c.Limits.Upload = 4 << 10 })
	r.upload(ann, "big", "", make([]byte, 4<<10)).want(t, 200)
	for name, size := range map[string]int{"one byte over": 4<<10 + 1, "far over": 2 << 20} {
		if p := decode[client.Problem](t, r.upload(ann, name, "", make([]byte, size)).want(t, 413)); p.Error != packs.PayloadTooLarge {
			t.Errorf("%s: got %+v", name, p)
		}
	}
	form := "multipart/form-data; boundary=b"
	for name, body := range map[string]string{
		"no file":    "--b\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nx\r\n--b--\r\n",
		"no parts":   "--b--\r\n",
		"no end":     "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nhalf a fi",
		"garbage":    "\x00\x01\x02",
		"odd header": "--b\r\n\x00\x01\x02\r\n\r\nx\r\n--b--\r\n",
	} {
		if p := decode[client.Problem](t, r.call("POST", "/api/v1/artifacts/upload", ann, body, "Content-Type", form).want(t, 400)); p.Error != packs.InvalidInput {
			t.Errorf("%s: got %+v", name, p)
		}
	}
	list := decode[client.ArtifactList](t, r.call("GET", "/api/v1/artifacts", ann, "").want(t, 200))
	if list.Count != 1 {
		t.Errorf("got %d artifacts, want the one that was complete", list.Count)
	}
	r.upload(reader, "x", "", nil).want(t, 403)
}

func TestAFullStoreIsAClearError(t *testing.T) {
	t.Parallel()
	r := setup(t) // the rig's store holds 16 MiB
	p := decode[client.Problem](t, r.upload(ann, "big", "", make([]byte, 17<<20)).want(t, 502))
	if p.Error != packs.ArtifactFailed || !strings.Contains(p.Message, "full") || !p.Retryable {
		t.Errorf("got %+v", p)
	}
}

func TestDownload(t *testing.T) {
	t.Parallel()
	r := setup(t)
	up := r.store1("notes.txt", "", "0123456789")
	path := "/api/v1/artifacts/download/" + up.ArtifactKey
	etag := `"` + up.SHA256 + `"`
	const outside = `{"error":"invalid_input","message":"the artifact has 10 bytes; ask for a range within them, or leave Range out","retryable":false}` + "\n"
	changed := `{"error":"schema_mismatch","message":"the artifact is not the one that If-Match or If-Unmodified-Since names; its ETag is \"` +
		up.SHA256 + `\"","retryable":true}` + "\n"
	for name, tt := range map[string]struct {
		method string
		header []string
		status int
		body   string
		crange string
	}{
		"all":                {"GET", nil, 200, "0123456789", ""},
		"head":               {"HEAD", nil, 200, "", ""},
		"first bytes":        {"GET", []string{"Range", "bytes=0-3"}, 206, "0123", "bytes 0-3/10"},
		"last bytes":         {"GET", []string{"Range", "bytes=-3"}, 206, "789", "bytes 7-9/10"},
		"from the middle":    {"GET", []string{"Range", "bytes=8-"}, 206, "89", "bytes 8-9/10"},
		"to beyond the end":  {"GET", []string{"Range", "bytes=8-99"}, 206, "89", "bytes 8-9/10"},
		"beyond the end":     {"GET", []string{"Range", "bytes=10-"}, 416, outside, "bytes */10"},
		"more than there is": {"GET", []string{"Range", "bytes=-99"}, 206, "0123456789", "bytes 0-9/10"},
		"backwards":          {"GET", []string{"Range", "bytes=5-2"}, 416, outside, ""},
		"other unit":         {"GET", []string{"Range", "lines=1-2"}, 416, outside, ""},
		"same":               {"GET", []string{"If-None-Match", etag}, 304, "", ""},
		"one of several":     {"GET", []string{"If-None-Match", `"x", ` + etag}, 304, "", ""},
		"another":            {"GET", []string{"If-None-Match", `"x"`}, 200, "0123456789", ""},
		"range of the same":  {"GET", []string{"Range", "bytes=0-0", "If-Range", etag}, 206, "0", "bytes 0-0/10"},
		"range of another":   {"GET", []string{"Range", "bytes=0-0", "If-Range", `"x"`}, 200, "0123456789", ""},
		"must match":         {"GET", []string{"If-Match", `"x"`}, 412, changed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := r.call(tt.method, path, ann, "", tt.header...).want(t, tt.status)
			if a.body != tt.body || a.header.Get("Content-Range") != tt.crange {
				t.Errorf("got %q in %q, want %q in %q", a.body, a.header.Get("Content-Range"), tt.body, tt.crange)
			}
			if tt.status < 300 && (a.header.Get("ETag") != etag || a.header.Get("Accept-Ranges") != "bytes") {
				t.Errorf("got ETag %s, Accept-Ranges %s", a.header.Get("ETag"), a.header.Get("Accept-Ranges"))
			}
		})
	}
	if a := r.call("GET", path, ann, "", "Range", "bytes=0-1,8-9").want(t, 206); !strings.HasPrefix(a.header.Get("Content-Type"), "multipart/byteranges") {
		t.Errorf("got type %q for two ranges", a.header.Get("Content-Type"))
	}
}

func TestOnlyRasterImagesAreShown(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for name, want := range map[string]string{
		"a.png": "inline", "a.jpg": "inline", "a.gif": "inline", "a.webp": "inline", "a.svg": "attachment",
		"a.html": "attachment", "a.pdf": "attachment", "a.txt": "attachment", "näme \"q\".md": "attachment",
	} {
		up := r.store1(name, "", "<script>alert(1)</script>")
		a := r.call("GET", "/api/v1/artifacts/download/"+strings.ReplaceAll(url.PathEscape(up.ArtifactKey), "%2F", "/"), ann, "").want(t, 200)
		disposition := a.header.Get("Content-Disposition")
		if got, _, _ := strings.Cut(disposition, ";"); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
		if !strings.Contains(disposition, "filename") {
			t.Errorf("%s: no file name in %q", name, disposition)
		}
		if a.header.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(a.header.Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("%s: got headers %v", name, a.header)
		}
	}
}

func TestDownloadRights(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	r := setup(t)
	up := r.store1("notes.txt", "", "0123456789")
	path := "/api/v1/artifacts/download/" + up.ArtifactKey
	for token, status := range map[string]int{ann: 200, admin: 200, reader: 200, bob: 404, "": 401, "nonsense": 401} {
		r.call("GET", path, token, "").want(t, status)
	}
	link := func(key string, at time.Time) string { return path + "?" + r.store.Link(key, at) }
	r.call("GET", link(up.ArtifactKey, time.Time{}), "", "").want(t, 200)
	r.call("GET", link(up.ArtifactKey, time.Time{})+"&utm_source=mail", "", "").want(t, 200)
	r.call("HEAD", link(up.ArtifactKey, time.Time{}), "", "").want(t, 200)
	for name, bad := range map[string]string{
		"expired":     link(up.ArtifactKey, clock.Add(-time.Minute)),
		"another key": link("operator-uploads/0123456789abcdef-x", time.Time{}),
		"later":       strings.Replace(link(up.ArtifactKey, clock.Add(time.Minute)), "expires=", "expires=9", 1),
		"repeated":    link(up.ArtifactKey, time.Time{}) + "&signature=00",
	} {
		if p := decode[client.Problem](t, r.call("GET", bad, ann, "").want(t, 403)); p.Error != packs.Forbidden {
			t.Errorf("%s: got %+v", name, p)
		}
	}
	r.call("DELETE", "/api/v1/artifacts/"+up.ArtifactKey, bob, "").want(t, 404)
	r.call("DELETE", "/api/v1/artifacts/"+up.ArtifactKey, reader, "").want(t, 403)
	r.call("DELETE", link(up.ArtifactKey, time.Time{}), "", "").want(t, 401) // a link is for reading
	r.call("DELETE", "/api/v1/artifacts/"+up.ArtifactKey, ann, "").want(t, 204)
	r.call("DELETE", "/api/v1/artifacts/"+up.ArtifactKey, ann, "").want(t, 404)
	r.call("GET", link(up.ArtifactKey, time.Time{}), "", "").want(t, 404)
}

func TestLinksUseThePublicAddress(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) { c.PublicURL = "https://deck.example/helm/" })
	up := r.store1("a b.txt", "", "x")
	if want := "https://deck.example/helm/api/v1/artifacts/download/operator-uploads/"; !strings.HasPrefix(up.URL, want) || !strings.Contains(up.URL, "a%20b.txt?") {
		t.Errorf("got %s, want it below %s", up.URL, want)
	}
}

// TestHiddenArtifacts: what no winning attempt published is not there.
func TestHiddenArtifacts(t *testing.T) {
	t.Parallel()
	r := setup(t)
	ref, err := r.store.Put(t.Context(), artifacts.Draft{Pack: "test.file", Name: "x.txt", JobID: "j", Attempt: 1}, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	r.call("GET", "/api/v1/artifacts/download/"+ref.Key, admin, "").want(t, 404)
	r.call("DELETE", "/api/v1/artifacts/"+ref.Key, admin, "").want(t, 404)
}

// TestAnUploaderThatStallsIsCut: nothing of it stays.
func TestAnUploaderThatStallsIsCut(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) { c.Limits.Stall = 50 * time.Millisecond })
	pr, pw := io.Pipe()
	defer pw.Close()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, "POST", r.url+"/api/v1/artifacts/upload", pr)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+ann)
	req.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	go func() {
		_, _ = io.WriteString(pw, "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nhalf")
	}()
	if res, err := r.http.Do(req); err == nil {
		res.Body.Close()
		if res.StatusCode != 400 {
			t.Errorf("got status %d, want 400 or a closed connection", res.StatusCode)
		}
	} else if ctx.Err() != nil {
		t.Fatal("the server waited for ever")
	}
	if list := decode[client.ArtifactList](t, r.call("GET", "/api/v1/artifacts", ann, "").want(t, 200)); list.Count != 0 {
		t.Errorf("got %+v, want nothing", list)
	}
}
