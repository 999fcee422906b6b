package s3

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// abandoned is the age from which uploads and bytes without a description
// count as left behind (artifacts.Blobs).
const abandoned = time.Hour

// Delete implements artifacts.Blobs.
func (b *Blobs) Delete(ctx context.Context, key string) error {
	name, err := b.metaOf(key)
	if err != nil {
		return nil // nothing can be stored under it
	}
	for _, object := range []string{name, b.dataOf(key)} {
		if err := b.remove(ctx, object); err != nil {
			return b.fault("delete blob", key, err)
		}
	}
	return nil
}

func (b *Blobs) remove(ctx context.Context, object string) error {
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	err := b.core.RemoveObject(ctx, b.cfg.Bucket, object, minio.RemoveObjectOptions{})
	if code := minio.ToErrorResponse(err).Code; code == "NoSuchKey" || code == "NotFound" {
		return nil
	}
	return err
}

// Walk implements artifacts.Blobs: one listing request for a thousand keys.
func (b *Blobs) Walk(ctx context.Context, prefix string, fn func(artifacts.Blob) error) error {
	kept := map[[16]byte]struct{}{} // digests of the keys met, half of each
	var ours error
	err := b.list(ctx, b.metaPrefix(prefix), func(o minio.ObjectInfo) error {
		key, ok := b.keyOf(o.Key)
		if !ok || !strings.HasPrefix(key, prefix) {
			return nil // none of ours; a folder that is cut in the prefix
		}
		kept[half(digest(key))] = struct{}{}
		ours = fn(artifacts.Blob{Key: key, ModifiedAt: o.LastModified})
		return ours
	})
	switch {
	case ours != nil:
		return ours
	case err != nil:
		return b.fault("list blobs in", b.cfg.Bucket, err)
	case prefix != "":
		return nil
	}
	if err := errors.Join(b.reclaimBytes(ctx, kept), b.reclaimUploads(ctx)); err != nil {
		return fmt.Errorf("reclaim abandoned uploads: %w", err)
	}
	return nil
}

func half(digest string) (h [16]byte) {
	_, _ = hex.Decode(h[:], []byte(digest[:32])) // of digest()
	return h
}

func (b *Blobs) list(ctx context.Context, prefix string, fn func(minio.ObjectInfo) error) error {
	for o := range b.core.ListObjectsIter(ctx, b.cfg.Bucket, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return o.Err
		}
		if err := fn(o); err != nil {
			return err
		}
	}
	return nil
}

// reclaimBytes removes old bytes without a description. Descriptions were
// listed before, so one written in between saves its bytes by their age; a last
// look saves those of a key that is put again at this moment.
func (b *Blobs) reclaimBytes(ctx context.Context, kept map[[16]byte]struct{}) error {
	folder := b.cfg.Installation + dataFolder
	err := b.list(ctx, folder, func(o minio.ObjectInfo) error {
		name := strings.TrimPrefix(o.Key, folder)
		if len(name) != 64 || b.cfg.Now().Sub(o.LastModified) < abandoned {
			return nil
		}
		if _, ok := kept[half(name)]; ok {
			return nil
		}
		info, err := b.core.StatObject(ctx, b.cfg.Bucket, o.Key, minio.StatObjectOptions{})
		if err != nil || b.cfg.Now().Sub(info.LastModified) < abandoned {
			return nil // gone, or new; a fault shows at the next request
		}
		return b.remove(ctx, o.Key)
	})
	if err != nil {
		return b.fault("reclaim bytes in", b.cfg.Bucket, err)
	}
	return nil
}

// reclaimUploads aborts multipart uploads that got no part for an hour.
func (b *Blobs) reclaimUploads(ctx context.Context) error {
	var keyMarker, idMarker string
	for {
		page, err := b.core.ListMultipartUploads(ctx, b.cfg.Bucket, b.cfg.Installation+dataFolder, keyMarker, idMarker, "", 1000)
		if err != nil {
			return b.fault("list uploads in", b.cfg.Bucket, err)
		}
		for _, u := range page.Uploads {
			if b.cfg.Now().Sub(u.Initiated) < abandoned || !b.idle(ctx, u.Key, u.UploadID) {
				continue
			}
			if err := b.core.AbortMultipartUpload(ctx, b.cfg.Bucket, u.Key, u.UploadID); err != nil &&
				minio.ToErrorResponse(err).Code != "NoSuchUpload" {
				return b.fault("abort upload of", u.Key, err)
			}
		}
		if !page.IsTruncated {
			return nil
		}
		keyMarker, idMarker = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

// idle reports whether the last part of an upload is old. A long upload is
// spared as long as parts come.
func (b *Blobs) idle(ctx context.Context, object, id string) bool {
	marker := 0
	for {
		page, err := b.core.ListObjectParts(ctx, b.cfg.Bucket, object, id, marker, 1000)
		if err != nil {
			return false // completed or aborted meanwhile, or to be seen again in an hour
		}
		for _, p := range page.ObjectParts {
			if b.cfg.Now().Sub(p.LastModified) < abandoned {
				return false
			}
		}
		if !page.IsTruncated {
			return true
		}
		marker = page.NextPartNumberMarker
	}
}
