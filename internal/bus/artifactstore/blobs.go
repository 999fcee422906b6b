// Package artifactstore keeps artifacts in JetStream: bytes in the object
// bucket "artifacts", metadata of the visible ones in the key-value bucket of
// the same name. It owns their layout; the policy is package artifacts'.
package artifactstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// abandoned is the age from which chunks without an object count as left
// behind by an upload that died (artifacts.Blobs).
const abandoned = time.Hour

// Blobs implements artifacts.Blobs on the object bucket. The name of an object
// is the key of the blob, any Unicode.
type Blobs struct {
	objects bus.Objects
}

// NewBlobs opens the object bucket, which must exist (bus init).
func NewBlobs(ctx context.Context, js bus.JetStream) (*Blobs, error) {
	objects, err := js.Objects(ctx, bus.BucketArtifacts)
	if err != nil {
		return nil, fmt.Errorf("open artifact objects: %w", err)
	}
	return &Blobs{objects: objects}, nil
}

// Put implements artifacts.Blobs.
func (b *Blobs) Put(ctx context.Context, key string, meta map[string]string, r io.Reader) (int64, string, error) {
	switch _, err := b.objects.Info(ctx, key); {
	case err == nil:
		return 0, "", artifacts.ErrExists
	case !errors.Is(err, bus.ErrNoMessage):
		return 0, "", translate("look for blob", key, err)
	}
	src := &source{r: r}
	info, err := b.objects.Put(ctx, key, meta, src)
	if src.err != nil {
		err = src.err
	}
	if err != nil {
		return 0, "", translate("put blob", key, err)
	}
	return info.Size, info.SHA256, nil
}

// errSource stands in for the error of a source, which may look like the end
// of its bytes: io.ErrUnexpectedEOF is what an upload cut short reports, and
// must not make its first half an artifact.
var errSource = errors.New("content broke off")

// source remembers the error of r and reports errSource in its place.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF { // io.Reader ends with io.EOF itself; wrapped it is a fault
		s.err, err = err, errSource
	}
	return n, err
}

// Open implements artifacts.Blobs. The bytes before the range are read and
// dropped, for chunks cannot be addressed.
func (b *Blobs) Open(ctx context.Context, key string, rng artifacts.Range) (io.ReadCloser, error) {
	if rng.Offset < 0 || rng.Length < 0 {
		return nil, artifacts.ErrBadRange
	}
	body, info, err := b.objects.Get(ctx, key)
	if err != nil {
		return nil, translate("open blob", key, err)
	}
	if err := skip(body, rng.Offset, info.Size); err != nil {
		body.Close() // what matters is why it could not be used
		return nil, translate("open blob", key, err)
	}
	if rng.Length == 0 || rng.Length >= info.Size-rng.Offset {
		return body, nil
	}
	return limited{io.LimitReader(body, rng.Length), body}, nil
}

func skip(body io.Reader, offset, size int64) error {
	if offset > size {
		return artifacts.ErrBadRange
	}
	_, err := io.CopyN(io.Discard, body, offset)
	return err
}

type limited struct {
	io.Reader
	io.Closer
}

// Stat implements artifacts.Blobs.
func (b *Blobs) Stat(ctx context.Context, key string) (artifacts.Blob, error) {
	info, err := b.objects.Info(ctx, key)
	if err != nil {
		return artifacts.Blob{}, translate("stat blob", key, err)
	}
	return blobOf(info), nil
}

// Delete implements artifacts.Blobs.
func (b *Blobs) Delete(ctx context.Context, key string) error {
	if err := b.objects.Delete(ctx, key); err != nil && !errors.Is(err, bus.ErrNoMessage) {
		return translate("delete blob", key, err)
	}
	return nil
}

// Walk implements artifacts.Blobs.
func (b *Blobs) Walk(ctx context.Context, prefix string, fn func(artifacts.Blob) error) error {
	if err := b.objects.Walk(ctx, func(info bus.ObjectInfo) error {
		if !strings.HasPrefix(info.Name, prefix) {
			return nil
		}
		return fn(blobOf(info))
	}); err != nil {
		return fmt.Errorf("walk blobs: %w", err)
	}
	if _, err := b.objects.Reclaim(ctx, abandoned); err != nil {
		return fmt.Errorf("reclaim abandoned uploads: %w", err)
	}
	return nil
}

func blobOf(info bus.ObjectInfo) artifacts.Blob {
	return artifacts.Blob{
		Key: info.Name, Size: info.Size, SHA256: info.SHA256, Meta: info.Meta, ModifiedAt: info.Modified,
	}
}
