package app

import (
	"context"
	"errors"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/artifactstore"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3"
)

// newArtifacts wires the artifact store: its index in the bus, the bytes there
// too or in a bucket, which is nil in the first case. What lay in the bus
// before an installation got a bucket stays readable.
func newArtifacts(ctx context.Context, js bus.JetStream, store *jobstore.Store, keys Keys, s Settings) (*artifacts.Store, *s3.Blobs, error) {
	inBus, err := artifactstore.NewBlobs(ctx, js)
	if err != nil {
		return nil, nil, err
	}
	index, err := artifactstore.NewIndex(ctx, js)
	if err != nil {
		return nil, nil, err
	}
	blobs, bucket, err := s.blobs(ctx, inBus, keys)
	if err != nil {
		return nil, nil, err
	}
	arts, err := artifacts.New(artifacts.Config{
		Blobs: blobs, Index: index, LinkKey: keys.Link, DefaultTTL: s.ArtifactTTL, Log: s.Log, Judge: store.Judge,
	})
	return arts, bucket, err
}

func (s Settings) blobs(ctx context.Context, inBus artifacts.Blobs, keys Keys) (artifacts.Blobs, *s3.Blobs, error) {
	if s.S3 == nil {
		return inBus, nil, nil
	}
	cfg := *s.S3
	cfg.Installation = keys.Installation
	bucket, err := s3.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	switch err := bucket.Ensure(ctx); {
	case errors.Is(err, s3.ErrUnreachable):
		// It may come later than this process; /readyz tells until then.
		s.Log.Warn().Err(err).Msg("artifact store not reachable yet")
	case err != nil:
		return nil, nil, err
	default:
		s.Log.Info().Stringer("bucket", bucket).Msg("artifacts are kept on S3")
	}
	return artifacts.Layered(bucket, inBus), bucket, nil
}
