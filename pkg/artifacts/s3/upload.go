package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

const (
	// firstPart is the size of the first parts of an upload; what is shorter
	// goes as one request. The protocol wants at least 5 MiB.
	firstPart = 8 << 20
	// growAfter is the number of parts after which they double, so that the
	// protocol's 10,000 parts hold more than anybody stores and the memory of
	// an upload stays at one part.
	growAfter = 1000
	// readSize is the largest piece asked of a source at once.
	readSize = 256 << 10
)

// description is the object that makes a blob visible. Fields are never
// renamed: they are stored as long as artifacts live.
type description struct {
	Key    string            `json:"key"`
	Size   int64             `json:"size"`
	SHA256 string            `json:"sha256"`
	Meta   map[string]string `json:"meta,omitempty"`
}

// Put implements artifacts.Blobs. It holds one part of at most 8 MiB in
// memory for the first 8 GB.
func (b *Blobs) Put(ctx context.Context, key string, meta map[string]string, r io.Reader) (int64, string, error) {
	name, err := b.metaOf(key)
	if err != nil {
		return 0, "", fmt.Errorf("put blob: %w", err)
	}
	switch _, _, err := b.describe(ctx, key); {
	case err == nil:
		return 0, "", artifacts.ErrExists
	case !errors.Is(err, artifacts.ErrNotFound):
		return 0, "", err
	}
	u := upload{blobs: b, object: b.dataOf(key), src: r, sum: sha256.New()}
	if err := u.run(ctx); err != nil {
		return 0, "", fmt.Errorf("put blob %s: %w", key, err)
	}
	d := description{Key: key, Size: u.size, SHA256: hex.EncodeToString(u.sum.Sum(nil)), Meta: meta}
	if err := b.show(ctx, name, d); err != nil {
		return 0, "", err
	}
	return d.Size, d.SHA256, nil
}

// show writes the description. When the answer is lost it looks whether it is
// there. Bytes that nothing describes are left to Walk: another Put of the same
// content may be about to describe them.
func (b *Blobs) show(ctx context.Context, name string, d description) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("put blob %s: %w", d.Key, err)
	}
	body, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("describe blob %s: %w", d.Key, err)
	}
	put, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	if err = b.putObject(put, name, "application/json", body); err == nil {
		return nil
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), smallTimeout)
	defer cancel()
	if now, _, lerr := b.describe(look, d.Key); lerr == nil && now.SHA256 == d.SHA256 {
		return nil
	}
	return b.fault("put blob", d.Key, err)
}

// putObject stores a small object whole; the service checks its digest.
func (b *Blobs) putObject(ctx context.Context, name, contentType string, body []byte) error {
	_, err := b.core.PutObject(ctx, b.cfg.Bucket, name, bytes.NewReader(body), int64(len(body)), "", hexOf(body),
		minio.PutObjectOptions{ContentType: contentType, DisableContentSha256: true})
	return err
}

func hexOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// upload is the way of one stream into one object.
type upload struct {
	blobs  *Blobs
	object string
	src    io.Reader
	sum    hash.Hash
	size   int64
	buf    []byte
	piece  []byte // what a source is asked to fill
	ended  bool   // the source has

	id    string // of the multipart upload; empty before the second part
	parts []minio.CompletePart
}

// run moves the stream. On an error no object is made, and the parts that were
// stored are aborted, now or, when that fails too, by a later Walk.
func (u *upload) run(ctx context.Context) (err error) {
	u.piece = make([]byte, readSize)
	if err := u.fill(ctx, firstPart); err != nil {
		return err
	}
	if u.ended {
		put, cancel := context.WithTimeout(ctx, partTimeout)
		defer cancel()
		if err := u.blobs.putObject(put, u.object, "application/octet-stream", u.buf); err != nil {
			return u.fault(ctx, "store bytes", err)
		}
		return nil
	}
	begin, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	u.id, err = u.blobs.core.NewMultipartUpload(begin, u.blobs.cfg.Bucket, u.object,
		minio.PutObjectOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return u.fault(ctx, "begin upload", err)
	}
	if err := u.multipart(ctx); err != nil {
		u.abort(ctx)
		return err
	}
	return nil
}

func (u *upload) multipart(ctx context.Context) error {
	size := firstPart
	for {
		if err := u.part(ctx); err != nil {
			return err
		}
		if u.ended {
			break
		}
		if len(u.parts)%growAfter == 0 {
			size *= 2
		}
		if err := u.fill(ctx, size); err != nil {
			return err
		}
		if len(u.buf) == 0 {
			break
		}
	}
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	if _, err := u.blobs.core.CompleteMultipartUpload(ctx, u.blobs.cfg.Bucket, u.object, u.id, u.parts, minio.PutObjectOptions{}); err != nil {
		return u.fault(ctx, "complete upload", err)
	}
	return nil
}

func (u *upload) part(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	n := len(u.parts) + 1
	p, err := u.blobs.core.PutObjectPart(ctx, u.blobs.cfg.Bucket, u.object, u.id, n, bytes.NewReader(u.buf), int64(len(u.buf)),
		minio.PutObjectPartOptions{Sha256Hex: hexOf(u.buf), DisableContentSha256: true})
	if err != nil {
		return u.fault(ctx, fmt.Sprintf("store part %d", n), err)
	}
	u.parts = append(u.parts, minio.CompletePart{PartNumber: n, ETag: p.ETag})
	return nil
}

// fill reads until there is a part of size bytes or the source ends.
func (u *upload) fill(ctx context.Context, size int) error {
	u.buf = u.buf[:0]
	for len(u.buf) < size {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := u.src.Read(u.piece[:min(len(u.piece), size-len(u.buf))])
		u.buf = append(u.buf, u.piece[:n]...)
		u.sum.Write(u.piece[:n])
		if u.size += int64(n); u.size > u.blobs.cfg.MaxSize {
			return fmt.Errorf("%w: more than the %d bytes one artifact may have", artifacts.ErrTooLarge, u.blobs.cfg.MaxSize)
		}
		if err == io.EOF { // io.Reader ends with io.EOF itself; wrapped it is a fault of the source
			u.ended = true
			return nil
		}
		if err != nil {
			return fmt.Errorf("read content: %w", err)
		}
	}
	return nil
}

// fault prefers the end of the caller's ctx to what became of the request.
func (u *upload) fault(ctx context.Context, verb string, err error) error {
	if cause := ctx.Err(); errors.Is(cause, context.Canceled) {
		return cause
	}
	return u.blobs.fault(verb, u.object, err)
}

// abort frees the parts. What it misses is reclaimed by Walk.
func (u *upload) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = u.blobs.core.AbortMultipartUpload(ctx, u.blobs.cfg.Bucket, u.object, u.id)
}
