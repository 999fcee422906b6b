package artifactstest_test

import (
	"testing"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/artifactstest"
)

func TestMemoryBlobs(t *testing.T) {
	t.Parallel()
	artifactstest.TestBlobs(t, func(*testing.T) artifacts.Blobs { return artifactstest.NewBlobs(0) })
}

func TestMemoryBlobsNoSpace(t *testing.T) {
	t.Parallel()
	artifactstest.TestNoSpace(t, artifactstest.NewBlobs(8<<20))
}

func TestMemoryIndex(t *testing.T) {
	t.Parallel()
	artifactstest.TestIndex(t, func(*testing.T) artifacts.Index { return artifactstest.NewIndex() })
}
