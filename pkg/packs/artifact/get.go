package artifact

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// maxInline is the most content a result carries, in bytes.
const maxInline = 8 << 20

type getInput struct {
	ArtifactKey string `json:"artifact_key" jsonschema:"minLength=1,maxLength=1024" jsonschema_description:"Key of the artifact, as artifact.put or artifact.list returned it."`
	Encoding    string `json:"encoding,omitempty" jsonschema:"enum=utf-8,enum=text,enum=base64" jsonschema_description:"Forces how content is written. Default: text types as utf-8, all else as base64."`
	Offset      int64  `json:"offset,omitempty" jsonschema:"minimum=0" jsonschema_description:"First byte to return."`
	Length      int64  `json:"length,omitempty" jsonschema:"minimum=0,maximum=8388608" jsonschema_description:"Number of bytes to return. 0: all the rest."`
}

type getOutput struct {
	Content     string `json:"content"`
	Encoding    string `json:"encoding" jsonschema:"enum=utf-8,enum=base64"`
	ContentType string `json:"content_type"`
	Size        int64  `json:"size" jsonschema_description:"Size of the whole artifact in bytes."`
	ArtifactKey string `json:"artifact_key"`
	Filename    string `json:"filename"`
	Namespace   string `json:"namespace"`
}

// Get is artifact.get.
var Get = packs.Define(packs.Spec[getInput, getOutput]{
	Name:     "artifact.get",
	Summary:  "Returns the content of an artifact",
	Needs:    packs.Needs{Artifacts: true},
	Examples: []packs.Example{{Title: "Read an artifact", Input: json.RawMessage(`{"artifact_key":"artifact.put/0123456789abcdef-content.json"}`)}},
	Run:      get,
})

func get(ctx context.Context, run *packs.Run, in getInput) (getOutput, error) {
	ref, err := run.StatArtifact(ctx, in.ArtifactKey)
	if err != nil {
		return getOutput{}, err
	}
	if in.Offset > ref.Size {
		return getOutput{}, packs.Errorf(packs.InvalidInput, "/offset: the artifact has %d bytes only", ref.Size)
	}
	length := ref.Size - in.Offset
	if in.Length > 0 {
		length = min(length, in.Length)
	}
	if length > maxInline {
		return getOutput{}, packs.Errorf(packs.InvalidInput, "the artifact has %d bytes, a result carries at most %d; download it from %s or ask for parts with offset and length",
			ref.Size, maxInline, run.ArtifactURL(ctx, ref))
	}
	content, err := read(ctx, run, ref.Key, in.Offset, length)
	if err != nil {
		return getOutput{}, err
	}
	out := getOutput{
		ContentType: ref.ContentType, Size: ref.Size,
		ArtifactKey: ref.Key, Filename: ref.Name, Namespace: ref.Pack,
	}
	switch {
	case in.Encoding == "" && isText(ref.ContentType) && utf8.Valid(content):
		in.Encoding = encodingUTF8
	case in.Encoding == "":
		in.Encoding = encodingBase64
	}
	if in.Encoding == encodingBase64 {
		out.Content, out.Encoding = base64.StdEncoding.EncodeToString(content), encodingBase64
		return out, nil
	}
	if !utf8.Valid(content) {
		return getOutput{}, packs.Errorf(packs.InvalidInput, "/encoding: these bytes are not UTF-8 text; ask for base64")
	}
	out.Content, out.Encoding = string(content), encodingUTF8
	return out, nil
}

func read(ctx context.Context, run *packs.Run, key string, offset, length int64) ([]byte, error) {
	if length == 0 {
		return nil, nil
	}
	_, body, err := run.OpenArtifact(ctx, key, artifacts.Range{Offset: offset, Length: length})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	content := make([]byte, length)
	if _, err := io.ReadFull(body, content); err != nil {
		return nil, packs.Fail(packs.ArtifactFailed, fmt.Errorf("read %d bytes: %w", length, err), "the artifact could not be read to its end; try again")
	}
	return content, nil
}
