package artifact

import (
	"context"
	"encoding/json"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

type listInput struct {
	Namespace string `json:"namespace,omitempty" jsonschema_description:"Only artifacts of this namespace: the name of a pack or one chosen at artifact.put."`
	Filename  string `json:"filename,omitempty" jsonschema_description:"Only artifacts whose file name holds this text, in any case."`
	Limit     int    `json:"limit,omitempty" jsonschema:"minimum=1,maximum=1000" jsonschema_description:"Number of artifacts to return."`
	Cursor    string `json:"cursor,omitempty" jsonschema:"maxLength=4096" jsonschema_description:"next_cursor of the page before."`
}

type listOutput struct {
	Artifacts  []listed `json:"artifacts" jsonschema_description:"Newest first."`
	Count      int      `json:"count" jsonschema_description:"Number of artifacts in this page."`
	Truncated  bool     `json:"truncated" jsonschema_description:"Whether there are more; ask with next_cursor."`
	NextCursor string   `json:"next_cursor,omitempty"`
}

type listed struct {
	ArtifactKey string    `json:"artifact_key"`
	Filename    string    `json:"filename"`
	Namespace   string    `json:"namespace"`
	ContentType string    `json:"content_type"`
	Size        int64     `json:"size" jsonschema_description:"Size in bytes."`
	CreatedAt   time.Time `json:"created_at"`
	URL         string    `json:"url" jsonschema_description:"Download link, good for 15 minutes."`
}

// List is artifact.list.
var List = packs.Define(packs.Spec[listInput, listOutput]{
	Name:     "artifact.list",
	Summary:  "Lists your artifacts, newest first",
	Needs:    packs.Needs{Artifacts: true},
	Defaults: listInput{Limit: 100},
	Examples: []packs.Example{{Title: "Find Markdown files", Input: json.RawMessage(`{"filename":".md","limit":20}`)}},
	Run:      list,
})

func list(ctx context.Context, run *packs.Run, in listInput) (listOutput, error) {
	refs, next, err := run.ListArtifacts(ctx, artifacts.Query{Pack: cleanNamespace(in.Namespace), Name: in.Filename, Limit: in.Limit, Cursor: in.Cursor})
	if err != nil {
		return listOutput{}, err
	}
	out := listOutput{Count: len(refs), Truncated: next != "", NextCursor: next}
	for _, ref := range refs {
		out.Artifacts = append(out.Artifacts, listed{
			ArtifactKey: ref.Key, Filename: ref.Name, Namespace: ref.Pack, ContentType: ref.ContentType,
			Size: ref.Size, CreatedAt: ref.CreatedAt, URL: run.ArtifactURL(ctx, ref),
		})
	}
	return out, nil
}
