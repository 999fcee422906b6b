package artifact

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"mime"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

type putInput struct {
	Content     string `json:"content" jsonschema:"minLength=1" jsonschema_description:"What to store, as text or in base64."`
	Kind        string `json:"kind,omitempty" jsonschema_description:"What it is: blog, markdown, transcript, summary, json, text, html, csv or binary. Sets file name and type where they are not given."`
	Filename    string `json:"filename,omitempty" jsonschema:"maxLength=1024" jsonschema_description:"File name; folders are kept, leading / and ../ are not."`
	ContentType string `json:"content_type,omitempty" jsonschema:"maxLength=255" jsonschema_description:"Media type such as text/markdown."`
	Encoding    string `json:"encoding,omitempty" jsonschema:"enum=utf-8,enum=text,enum=base64" jsonschema_description:"How content is written."`
	Namespace   string `json:"namespace,omitempty" jsonschema:"maxLength=255" jsonschema_description:"Group to store it in; not the name of a pack. Default: artifact.put."`
}

type putOutput struct {
	ArtifactKey string `json:"artifact_key" jsonschema_description:"Key for artifact.get and for downloads."`
	URL         string `json:"url" jsonschema_description:"Download link, good for 15 minutes."`
	Size        int64  `json:"size" jsonschema_description:"Size in bytes."`
	ContentType string `json:"content_type"`
	Filename    string `json:"filename"`
	Namespace   string `json:"namespace"`
}

// Put is artifact.put.
var Put = packs.Define(packs.Spec[putInput, putOutput]{
	Name:     "artifact.put",
	Summary:  "Stores text or a small file as an artifact",
	Needs:    packs.Needs{Artifacts: true},
	Defaults: putInput{Encoding: encodingUTF8},
	Examples: []packs.Example{
		{Title: "Store JSON", Input: json.RawMessage(`{"kind":"json","content":"{\"a\":1}"}`)},
		{Title: "Store a file", Input: json.RawMessage(`{"filename":"logo.gif","encoding":"base64","content":"R0lGODlhAQABAAAAACw="}`)},
	},
	Run: put,
})

// form is the file name and type a kind stands for.
type form struct{ filename, contentType string }

var kinds = map[string]form{
	"blog":       {"content.md", "text/markdown"},
	"markdown":   {"content.md", "text/markdown"},
	"transcript": {"transcript.txt", "text/plain"},
	"summary":    {"summary.md", "text/markdown"},
	"json":       {"content.json", "application/json"},
	"text":       {"content.txt", "text/plain"},
	"html":       {"content.html", "text/html"},
	"csv":        {"content.csv", "text/csv"},
	"binary":     {"content.bin", "application/octet-stream"},
}

func put(ctx context.Context, run *packs.Run, in putInput) (putOutput, error) {
	content := []byte(in.Content)
	if in.Encoding == encodingBase64 {
		var err error
		if content, err = decodeBase64(in.Content); err != nil {
			return putOutput{}, err
		}
	}
	namespace, err := namespaceOf(in.Namespace, "artifact.put")
	if err != nil {
		return putOutput{}, err
	}
	name, contentType, err := formOf(in)
	if err != nil {
		return putOutput{}, err
	}
	ref, err := run.SaveArtifactIn(ctx, namespace, name, contentType, bytes.NewReader(content))
	if err != nil {
		return putOutput{}, fmt.Errorf("store content: %w", err)
	}
	return putOutput{
		ArtifactKey: ref.Key, URL: run.ArtifactURL(ctx, ref), Size: ref.Size,
		ContentType: ref.ContentType, Filename: ref.Name, Namespace: ref.Pack,
	}, nil
}

// formOf settles name and type: what the caller says, then the kind, then the
// name's extension, for which an empty type is returned.
func formOf(in putInput) (name, contentType string, err error) {
	kind := strings.ToLower(strings.TrimSpace(in.Kind))
	if kind == "" && in.Encoding == encodingBase64 {
		kind = "binary"
	}
	f, ok := kinds[kind]
	if !ok {
		f = kinds["text"]
	}
	if in.Filename != "" && in.Kind == "" {
		f.contentType = ""
	}
	if in.ContentType != "" {
		if t, _, err := mime.ParseMediaType(in.ContentType); err != nil || !strings.Contains(t, "/") {
			return "", "", packs.Errorf(packs.InvalidInput, "/content_type: %q is not a media type; write one such as text/markdown", in.ContentType)
		}
	}
	return cmp.Or(in.Filename, f.filename), cmp.Or(in.ContentType, f.contentType), nil
}

// decodeBase64 accepts line breaks and missing padding.
func decodeBase64(s string) ([]byte, error) {
	s = strings.TrimRight(strings.Join(strings.Fields(s), ""), "=")
	b, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil {
		return nil, packs.Fail(packs.InvalidInput, err, "/content: is not valid base64; send text with \"encoding\": \"utf-8\"")
	}
	if len(b) == 0 {
		return nil, packs.Errorf(packs.InvalidInput, "/content: must not be empty")
	}
	return b, nil
}
