package artifacts

import (
	"fmt"
	"strconv"
	"time"
)

// The keys of a blob's metadata. They are stored for as long as artifacts
// live: names never change meaning.
const (
	metaPack        = "pack"
	metaName        = "name"
	metaContentType = "content_type"
	metaCreatedAt   = "created_at"
	metaExpiresAt   = "expires_at"
	metaJob         = "job"
	metaAttempt     = "attempt"
	metaTenant      = "tenant"
	metaOwner       = "owner"
)

// metaOf is everything of ref that the bytes do not tell.
func metaOf(ref Ref) map[string]string {
	meta := map[string]string{
		metaPack:        ref.Pack,
		metaName:        ref.Name,
		metaContentType: ref.ContentType,
		metaCreatedAt:   ref.CreatedAt.Format(time.RFC3339Nano),
		metaTenant:      ref.Tenant,
		metaOwner:       ref.Owner,
	}
	if !ref.ExpiresAt.IsZero() {
		meta[metaExpiresAt] = ref.ExpiresAt.Format(time.RFC3339Nano)
	}
	if ref.JobID != "" {
		meta[metaJob] = ref.JobID
		meta[metaAttempt] = strconv.Itoa(ref.Attempt)
	}
	return meta
}

// refOf is the inverse of metaOf, with size and checksum of the blob.
func refOf(b Blob) (Ref, error) {
	ref := Ref{
		Key:         b.Key,
		Pack:        b.Meta[metaPack],
		Name:        b.Meta[metaName],
		ContentType: b.Meta[metaContentType],
		Size:        b.Size,
		SHA256:      b.SHA256,
		JobID:       b.Meta[metaJob],
		Tenant:      b.Meta[metaTenant],
		Owner:       b.Meta[metaOwner],
	}
	var err error
	if ref.CreatedAt, err = time.Parse(time.RFC3339Nano, b.Meta[metaCreatedAt]); err != nil {
		return Ref{}, fmt.Errorf("read metadata of blob %s: %w", b.Key, err)
	}
	if v, ok := b.Meta[metaExpiresAt]; ok {
		if ref.ExpiresAt, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return Ref{}, fmt.Errorf("read metadata of blob %s: %w", b.Key, err)
		}
	}
	if v, ok := b.Meta[metaAttempt]; ok {
		if ref.Attempt, err = strconv.Atoi(v); err != nil {
			return Ref{}, fmt.Errorf("read metadata of blob %s: %w", b.Key, err)
		}
	}
	return ref, nil
}
