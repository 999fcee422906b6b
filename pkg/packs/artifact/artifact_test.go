package artifact_test

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/artifact"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
)

type in = map[string]any

type stored struct {
	ArtifactKey string `json:"artifact_key"`
	URL         string `json:"url"`
	Size        int64  `json:"size"`
	ContentType string `json:"content_type"`
	Filename    string `json:"filename"`
	Namespace   string `json:"namespace"`
}

type got struct {
	Content     string `json:"content"`
	Encoding    string `json:"encoding"`
	ContentType string `json:"content_type"`
	Size        int64  `json:"size"`
	Filename    string `json:"filename"`
	Namespace   string `json:"namespace"`
}

type listing struct {
	Artifacts  []stored `json:"artifacts"`
	Count      int      `json:"count"`
	Truncated  bool     `json:"truncated"`
	NextCursor string   `json:"next_cursor"`
}

// desk runs the family over one store.
type desk struct {
	t     *testing.T
	store *artifacts.Store
}

func setup(t *testing.T) desk {
	t.Helper()
	return desk{t, packstest.NewStore(t)}
}

func (d desk) run(p packs.Pack, input in, options ...packstest.Option) packstest.Result {
	d.t.Helper()
	return packstest.Run(d.t, p, input, append(options, packstest.WithStore(d.store))...)
}

func (d desk) put(input in) (s stored) {
	d.t.Helper()
	d.run(artifact.Put, input).Decode(d.t, &s)
	return s
}

func (d desk) get(input in) (g got) {
	d.t.Helper()
	d.run(artifact.Get, input).Decode(d.t, &g)
	return g
}

func (d desk) list(input in) (l listing) {
	d.t.Helper()
	d.run(artifact.List, input).Decode(d.t, &l)
	return l
}

func TestCase1PutAndGetJSON(t *testing.T) {
	t.Parallel()
	d := setup(t)
	s := d.put(in{"kind": "json", "content": `{"a":1}`})
	if !strings.HasPrefix(s.ArtifactKey, "artifact.put/") || !strings.HasSuffix(s.ArtifactKey, "-content.json") {
		t.Errorf("got key %q", s.ArtifactKey)
	}
	want := got{Content: `{"a":1}`, Encoding: "utf-8", ContentType: "application/json", Size: 7, Filename: "content.json", Namespace: "artifact.put"}
	if diff := cmp.Diff(want, d.get(in{"artifact_key": s.ArtifactKey})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Path != "/api/v1/artifacts/download/"+s.ArtifactKey {
		t.Fatalf("got url %q", s.URL)
	}
	if err := d.store.VerifyLink(s.ArtifactKey, u.RawQuery); err != nil {
		t.Errorf("link of put: %v", err)
	}
}

func TestCase2PutBase64(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for _, content := range []string{"AP8B", "AP 8B\n", "AP8BAg==", "AP8BAg"} {
		raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.Join(strings.Fields(content), ""), "="))
		if err != nil {
			t.Fatal(err)
		}
		s := d.put(in{"kind": "binary", "encoding": "base64", "content": content})
		want := got{Content: base64.StdEncoding.EncodeToString(raw), Encoding: "base64", ContentType: "application/octet-stream",
			Size: int64(len(raw)), Filename: "content.bin", Namespace: "artifact.put"}
		if diff := cmp.Diff(want, d.get(in{"artifact_key": s.ArtifactKey})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", content, diff)
		}
	}
}

func TestCase3ListByName(t *testing.T) {
	t.Parallel()
	d := setup(t)
	s := d.put(in{"kind": "json", "content": `{"a":1}`})
	d.put(in{"filename": "other.txt", "content": "x"})
	l := d.list(in{"filename": "CONTENT"})
	if l.Count != 1 || l.Truncated || l.Artifacts[0].ArtifactKey != s.ArtifactKey || l.Artifacts[0].URL == "" {
		t.Errorf("got %+v", l)
	}
}

func TestCase5And6NamesAndTypes(t *testing.T) {
	t.Parallel()
	d := setup(t)
	tests := []struct {
		name        string
		input       in
		filename    string
		contentType string
		encoding    string
	}{
		{"5 parent folders", in{"filename": "../../etc/p"}, "etc/p", "text/plain; charset=utf-8", "utf-8"},
		{"absolute", in{"filename": "/etc/p.csv"}, "etc/p.csv", "text/csv", "utf-8"},
		{"6 parameter", in{"content_type": "application/json; charset=utf-8"}, "content.txt", "application/json; charset=utf-8", "utf-8"},
		{"suffix", in{"content_type": "application/ld+json"}, "content.txt", "application/ld+json", "utf-8"},
		{"not text", in{"content_type": "image/png"}, "content.txt", "image/png", "base64"},
		{"blog", in{"kind": "blog"}, "content.md", "text/markdown", "utf-8"},
		{"markdown", in{"kind": "Markdown"}, "content.md", "text/markdown", "utf-8"},
		{"transcript", in{"kind": "transcript"}, "transcript.txt", "text/plain", "utf-8"},
		{"summary", in{"kind": "summary"}, "summary.md", "text/markdown", "utf-8"},
		{"html", in{"kind": "html"}, "content.html", "text/html", "utf-8"},
		{"csv", in{"kind": "csv"}, "content.csv", "text/csv", "utf-8"},
		{"unknown kind", in{"kind": "poem"}, "content.txt", "text/plain", "utf-8"},
		{"no kind", in{}, "content.txt", "text/plain", "utf-8"},
		{"kind and name", in{"kind": "json", "filename": "a.txt"}, "a.txt", "application/json", "utf-8"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.input["content"] = "hello"
			s := d.put(tt.input)
			g := d.get(in{"artifact_key": s.ArtifactKey})
			if diff := cmp.Diff([]string{tt.filename, tt.contentType, tt.encoding, tt.filename}, []string{s.Filename, s.ContentType, g.Encoding, g.Filename}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestPutRefuses(t *testing.T) {
	t.Parallel()
	d := setup(t)
	tests := []struct {
		name    string
		input   in
		message string
	}{
		{"nothing", in{}, "/content: is required"},
		{"empty", in{"content": ""}, "/content: must not be empty"},
		{"bad base64", in{"content": "é", "encoding": "base64"}, "not valid base64"},
		{"empty base64", in{"content": "==", "encoding": "base64"}, "must not be empty"},
		{"bad encoding", in{"content": "a", "encoding": "rot13"}, "/encoding: must be one of"},
		{"bad type", in{"content": "a", "content_type": "text"}, "/content_type"},
		{"namespace of a pack", in{"content": "a", "namespace": "slides.render"}, "reserved for the pack"},
		{"namespace of a pack in capitals", in{"content": "a", "namespace": "Slides.Render"}, "reserved for the pack"},
		{"namespace of a pack behind marks", in{"content": "a", "namespace": "/slides.render/"}, "reserved for the pack"},
		{"namespace without letters", in{"content": "a", "namespace": "///"}, "/namespace"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			res := d.run(artifact.Put, tt.input)
			res.WantCode(t, packs.InvalidInput)
			if !strings.Contains(res.Err.Message, tt.message) {
				t.Errorf("got message %q, want it to contain %q", res.Err.Message, tt.message)
			}
		})
	}
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for wanted, want := range map[string]string{
		"reports": "reports", "My Project/2026": "My-Project-2026", "../up": "up", "artifact.put": "artifact.put", " ": "artifact.put", "größe": "gr--e",
	} {
		s := d.put(in{"content": "a", "namespace": wanted})
		if s.Namespace != want || !strings.HasPrefix(s.ArtifactKey, want+"/") {
			t.Errorf("%q: got namespace %q, key %q, want %q", wanted, s.Namespace, s.ArtifactKey, want)
		}
	}
	if l := d.list(in{"namespace": "My Project/2026"}); l.Count != 1 {
		t.Errorf("got %d artifacts of the namespace as it was written, want 1", l.Count)
	}
}

func TestGetEncodingsAndRanges(t *testing.T) {
	t.Parallel()
	d := setup(t)
	text := d.put(in{"content": "héllo"}).ArtifactKey
	binary := d.put(in{"content": "AP8B", "encoding": "base64"}).ArtifactKey
	liar := d.put(in{"content": "AP8B", "encoding": "base64", "content_type": "text/plain"}).ArtifactKey
	tests := []struct {
		name  string
		input in
		want  []string // encoding, content; none: invalid_input
	}{
		{"text", in{"artifact_key": text, "encoding": "text"}, []string{"utf-8", "héllo"}},
		{"text as base64", in{"artifact_key": text, "encoding": "base64"}, []string{"base64", "aMOpbGxv"}},
		{"binary as text", in{"artifact_key": binary, "encoding": "utf-8"}, nil},
		{"text by name alone", in{"artifact_key": liar}, []string{"base64", "AP8B"}},
		{"range", in{"artifact_key": text, "offset": 3, "length": 2}, []string{"utf-8", "ll"}},
		{"rest", in{"artifact_key": text, "offset": 5}, []string{"utf-8", "o"}},
		{"end", in{"artifact_key": text, "offset": 6}, []string{"utf-8", ""}},
		{"beyond the end", in{"artifact_key": text, "offset": 7}, nil},
		{"half a character", in{"artifact_key": text, "offset": 2}, []string{"base64", "qWxsbw=="}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			res := d.run(artifact.Get, tt.input)
			if tt.want == nil {
				res.WantCode(t, packs.InvalidInput)
				return
			}
			var g got
			res.Decode(t, &g)
			if diff := cmp.Diff(tt.want, []string{g.Encoding, g.Content}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestGetLargeArtifact(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const size = 8<<20 + 1
	ref, err := d.store.Put(t.Context(), artifacts.Draft{
		Pack: "x", Name: "big.txt", Tenant: packstest.Caller.TenantToken(), Owner: packstest.Caller.Owner(),
	}, strings.NewReader(strings.Repeat("a", size)))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.store.Publish(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	res := d.run(artifact.Get, in{"artifact_key": ref.Key})
	res.WantCode(t, packs.InvalidInput)
	if want := "download it from /api/v1/artifacts/download/" + ref.Key + "?"; !strings.Contains(res.Err.Message, want) {
		t.Errorf("got message %q, want it to contain %q", res.Err.Message, want)
	}
	if g := d.get(in{"artifact_key": ref.Key, "offset": size - 3}); g.Content != "aaa" || g.Size != size {
		t.Errorf("got %q of %d bytes", g.Content, g.Size)
	}
}

func TestMissingAndForeignKeys(t *testing.T) {
	t.Parallel()
	d := setup(t)
	key := d.put(in{"content": "mine"}).ArtifactKey
	mallory := packstest.WithCaller(identity.Caller{Subject: "mallory"})
	for _, res := range []packstest.Result{
		d.run(artifact.Get, in{"artifact_key": "x/y"}),
		d.run(artifact.Get, in{"artifact_key": "x/0123456789abcdef-y"}),
		d.run(artifact.Get, in{"artifact_key": key}, mallory),
	} {
		res.WantCode(t, packs.ArtifactFailed)
		if !strings.Contains(res.Err.Message, "no artifact has the key") || res.Err.Retry == nil || *res.Err.Retry {
			t.Errorf("got %+v", res.Err)
		}
	}
	var l listing
	d.run(artifact.List, in{}, mallory).Decode(t, &l)
	if l.Count != 0 || l.Artifacts == nil {
		t.Errorf("another caller sees %+v, want an empty list", l)
	}
	d.run(artifact.List, in{}, packstest.WithCaller(identity.Caller{Subject: "root", Scopes: []string{"admin"}})).Decode(t, &l)
	if l.Count != 1 {
		t.Errorf("an administrator sees %d artifacts, want 1", l.Count)
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	d := setup(t)
	want := make([]string, 5)
	for i := range want {
		want[len(want)-1-i] = d.put(in{"filename": fmt.Sprintf("%d.txt", i), "content": "x"}).Filename
	}
	var names []string
	cursor, pages := "", 0
	for {
		l := d.list(in{"limit": 2, "cursor": cursor})
		pages++
		for _, a := range l.Artifacts {
			names = append(names, a.Filename)
		}
		if l.Truncated != (l.NextCursor != "") {
			t.Errorf("truncated is %v with cursor %q", l.Truncated, l.NextCursor)
		}
		if cursor = l.NextCursor; cursor == "" {
			break
		}
	}
	if diff := cmp.Diff(want, names); diff != "" || pages != 3 {
		t.Errorf("%d pages (-want +got):\n%s", pages, diff)
	}
	d.run(artifact.List, in{"cursor": "nonsense"}).WantCode(t, packs.InvalidInput)
	d.run(artifact.List, in{"limit": 1001}).WantCode(t, packs.InvalidInput)
}
