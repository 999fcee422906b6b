package testpacks

import (
	"context"
	"io"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

type artifactInput struct {
	Bytes           int64  `json:"bytes,omitempty" jsonschema:"minimum=0,maximum=1073741824" jsonschema_description:"Size of the artifact."`
	Name            string `json:"name,omitempty" jsonschema_description:"Name of the artifact."`
	CrashAfterBytes int64  `json:"crash_after_bytes,omitempty" jsonschema:"minimum=0" jsonschema_description:"Kill the whole process once so many bytes are under way. 0: never."`
}

type artifactOutput struct {
	ArtifactKey string `json:"artifact_key"`
	Size        int64  `json:"size"`
	SHA256      string `json:"sha256"`
}

// Artifact saves an artifact of any size, or dies on the way.
var Artifact = packs.Define(packs.Spec[artifactInput, artifactOutput]{
	Name:     "test.artifact",
	Summary:  "Saves an artifact",
	Hidden:   true,
	Needs:    packs.Needs{Artifacts: true},
	Defaults: artifactInput{Bytes: 1024, Name: "test.bin"},
	Run: func(ctx context.Context, run *packs.Run, in artifactInput) (artifactOutput, error) {
		ref, err := run.SaveArtifact(ctx, in.Name, "application/octet-stream", &pattern{left: in.Bytes, crashAt: in.CrashAfterBytes})
		if err != nil {
			return artifactOutput{}, err
		}
		return artifactOutput{ArtifactKey: ref.Key, Size: ref.Size, SHA256: ref.SHA256}, nil
	},
})

// pattern yields the bytes 0 to 250 over and over; 251 is prime, so that a
// block put in a wrong place shows.
type pattern struct {
	left, done, crashAt int64
}

// Read implements io.Reader.
func (p *pattern) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(b)), p.left)
	for i := range n {
		b[i] = byte((p.done + i) % 251)
	}
	p.done += n
	p.left -= n
	if p.crashAt > 0 && p.done >= p.crashAt {
		die()
	}
	return int(n), nil
}
