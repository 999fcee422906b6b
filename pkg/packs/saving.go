package packs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// SaveArtifact streams r into the store under the pack's own namespace and
// returns the artifact, which others see once the attempt has won. An empty
// contentType is found out from the name and the bytes. An error of r comes
// back as it is; one of the store is artifact_failed.
func (r *Run) SaveArtifact(ctx context.Context, name, contentType string, from io.Reader) (artifacts.Ref, error) {
	return r.SaveArtifactIn(ctx, r.info.Name, name, contentType, from)
}

// SaveArtifactIn is SaveArtifact with a namespace of the caller's choice,
// which must not look like the name of another pack.
func (r *Run) SaveArtifactIn(ctx context.Context, namespace, name, contentType string, from io.Reader) (artifacts.Ref, error) {
	store := r.store()
	if namespace != r.info.Name && IsName(namespace) {
		return artifacts.Ref{}, Errorf(InvalidInput, "the namespace %q is reserved for the pack of that name; choose one without a dot", namespace)
	}
	if r.isClosed() {
		return artifacts.Ref{}, errRunOver
	}
	source := &sourceReader{r: liveReader{from, r.alive}}
	ref, err := store.Put(ctx, artifacts.Draft{
		Pack: namespace, Name: name, ContentType: contentType,
		JobID: r.JobID, Attempt: r.Attempt, TTL: r.services.ArtifactTTL,
		Tenant: r.Caller.TenantToken(), Owner: r.Caller.Owner(),
	}, source)
	switch {
	case source.err != nil && err != nil:
		return artifacts.Ref{}, fmt.Errorf("read the bytes of artifact %s: %w", name, source.err)
	case err != nil:
		return artifacts.Ref{}, storeFailed(fmt.Errorf("save artifact %s: %w", name, err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.saved = append(r.saved, ref)
	return ref, nil
}

// OpenArtifact streams the bytes of an artifact the caller may see. Unknown
// keys and those of others are one artifact_failed that no retry follows.
// The caller of OpenArtifact closes the reader.
func (r *Run) OpenArtifact(ctx context.Context, key string, rng artifacts.Range) (artifacts.Ref, io.ReadCloser, error) {
	if _, err := r.StatArtifact(ctx, key); err != nil {
		return artifacts.Ref{}, nil, err
	}
	ref, body, err := r.store().Open(ctx, key, rng)
	if err != nil {
		return artifacts.Ref{}, nil, lookupFailed(key, err)
	}
	return ref, &storeReader{key: key, ReadCloser: newLiveBody(body, r.alive)}, nil
}

// StatArtifact describes an artifact the caller may see; errors are those of
// OpenArtifact.
func (r *Run) StatArtifact(ctx context.Context, key string) (artifacts.Ref, error) {
	ref, err := r.store().Stat(ctx, key)
	if err == nil && !r.Caller.Admin() && !r.Caller.Owns(ref.Tenant, ref.Owner) {
		err = artifacts.ErrNotFound
	}
	if err != nil {
		return artifacts.Ref{}, lookupFailed(key, err)
	}
	return ref, nil
}

// ListArtifacts returns the artifacts the caller may see, newest first, and
// the cursor of the next page. It sets Tenant and Owner of the query; an
// administrator sees everybody's.
func (r *Run) ListArtifacts(ctx context.Context, q artifacts.Query) ([]artifacts.Ref, string, error) {
	store := r.store()
	q.Tenant, q.Owner = r.Caller.TenantToken(), r.Caller.Owner()
	if r.Caller.Admin() {
		q.Tenant, q.Owner = "", ""
	}
	refs, next, err := store.List(ctx, q)
	if err != nil {
		return nil, "", storeFailed(fmt.Errorf("list artifacts: %w", err))
	}
	return refs, next, nil
}

// ArtifactURL is a signed link that downloads the artifact for the next
// quarter of an hour, once the attempt that saved it has won.
func (r *Run) ArtifactURL(ctx context.Context, ref artifacts.Ref) string {
	if ref.URL != "" {
		return ref.URL
	}
	return r.store().URL(ctx, r.services.PublicURL, ref)
}

func (r *Run) store() ArtifactStore {
	r.must(r.info.Needs.Artifacts, "Needs.Artifacts")
	if r.services.Artifacts == nil {
		panic(misuse("this worker has no artifact store"))
	}
	return r.services.Artifacts
}

// storeFailed types an error of the artifact store at its source.
func storeFailed(err error) error {
	if _, typed := errors.AsType[*Error](err); typed {
		return err
	}
	switch {
	case errors.Is(err, artifacts.ErrNoSpace):
		return Fail(ArtifactFailed, err, "the artifact store is full; delete artifacts or ask the operator for space, then try again")
	case errors.Is(err, artifacts.ErrBadCursor):
		return Fail(InvalidInput, err, "the cursor is not one that a listing returned; leave it out to start from the newest")
	case errors.Is(err, artifacts.ErrBadNamespace):
		return Fail(InvalidInput, err, "the namespace may have letters, digits, '.', '_' and '-' only, and must begin with a letter or digit")
	case errors.Is(err, artifacts.ErrBadRange):
		return Fail(InvalidInput, err, "the range lies outside the artifact")
	}
	if errors.Is(err, artifacts.ErrTooLarge) {
		return Fail(InvalidInput, err, "the artifact is larger than the store takes; make it in parts")
	}
	return Fail(ArtifactFailed, err, "the artifact store did not answer; try again")
}

func lookupFailed(key string, err error) error {
	if !errors.Is(err, artifacts.ErrNotFound) {
		return storeFailed(fmt.Errorf("open artifact %s: %w", key, err))
	}
	return Fatal(Fail(ArtifactFailed, err, fmt.Sprintf("no artifact has the key %q; artifact.list shows the keys you can use", shorten(key, 200))))
}

// sourceReader remembers the error of the bytes' origin, to tell it from one
// of the store.
type sourceReader struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// storeReader types what goes wrong while an artifact is read.
type storeReader struct {
	io.ReadCloser
	key string
}

// Read implements io.Reader.
func (s *storeReader) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = storeFailed(fmt.Errorf("read artifact %s: %w", s.key, err))
	}
	return n, err
}
