package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// maxDescription bounds a description: metadata has names and a key.
const maxDescription = 1 << 20

// describe reads the description of key and when it was written, or
// artifacts.ErrNotFound.
func (b *Blobs) describe(ctx context.Context, key string) (description, time.Time, error) {
	name, err := b.metaOf(key)
	if err != nil { // nothing can be stored under it
		return description{}, time.Time{}, fmt.Errorf("%w: %w", artifacts.ErrNotFound, err)
	}
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	body, info, _, err := b.core.GetObject(ctx, b.cfg.Bucket, name, minio.GetObjectOptions{})
	if err != nil {
		return description{}, time.Time{}, b.fault("look for blob", key, err)
	}
	defer func() { _ = body.Close() }() // read-only
	text, err := io.ReadAll(io.LimitReader(body, maxDescription))
	if err != nil {
		return description{}, time.Time{}, b.fault("look for blob", key, err)
	}
	var d description
	if err := json.Unmarshal(text, &d); err != nil {
		return description{}, time.Time{}, fmt.Errorf("decode description of blob %s: %w", key, err)
	}
	return d, info.LastModified, nil
}

// Stat implements artifacts.Blobs.
func (b *Blobs) Stat(ctx context.Context, key string) (artifacts.Blob, error) {
	d, at, err := b.describe(ctx, key)
	if err != nil {
		return artifacts.Blob{}, err
	}
	return artifacts.Blob{Key: key, Size: d.Size, SHA256: d.SHA256, Meta: d.Meta, ModifiedAt: at}, nil
}

// Open implements artifacts.Blobs. The service sends the range only. Reading
// all of a blob ends with an error when its checksum is not the stored one.
func (b *Blobs) Open(ctx context.Context, key string, rng artifacts.Range) (io.ReadCloser, error) {
	if rng.Offset < 0 || rng.Length < 0 {
		return nil, artifacts.ErrBadRange
	}
	d, _, err := b.describe(ctx, key)
	if err != nil {
		return nil, err
	}
	left := d.Size - rng.Offset
	switch {
	case left < 0:
		return nil, artifacts.ErrBadRange
	case left == 0:
		return io.NopCloser(strings.NewReader("")), nil
	case rng.Length > 0:
		left = min(left, rng.Length)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	dl := &download{blobs: b, key: key, ctx: ctx, cancel: cancel, left: left}
	dl.watchdog = time.AfterFunc(stallTimeout, func() { cancel(errStalled) })
	var opts minio.GetObjectOptions
	if left == d.Size {
		dl.sum, dl.want = sha256.New(), d.SHA256
	} else if err := opts.SetRange(rng.Offset, rng.Offset+left-1); err != nil {
		dl.stop()
		return nil, artifacts.ErrBadRange
	}
	body, info, _, err := b.core.GetObject(ctx, b.cfg.Bucket, b.dataOf(key), opts)
	if err != nil {
		err = dl.fault(err)
		dl.stop()
		return nil, err
	}
	dl.body = body
	if info.Size != left {
		_ = dl.Close()
		return nil, fmt.Errorf("open blob %s: the service sends %d bytes for %d", key, info.Size, left)
	}
	dl.watchdog.Stop()
	return dl, nil
}

var errStalled = errors.New("no byte came for a minute")

// download is the body of one GET.
type download struct {
	blobs    *Blobs
	key      string
	ctx      context.Context //nolint:containedctx // io.Reader takes none; it is that of Open
	cancel   context.CancelCauseFunc
	watchdog *time.Timer
	body     io.ReadCloser
	left     int64
	sum      hash.Hash // nil for a part of the blob
	want     string
	err      error
}

func (d *download) Read(p []byte) (int, error) {
	if d.err != nil {
		return 0, d.err
	}
	if err := d.ctx.Err(); err != nil {
		d.err = d.fault(err)
		return 0, d.err
	}
	d.watchdog.Reset(stallTimeout)
	n, err := d.body.Read(p)
	d.watchdog.Stop()
	d.left -= int64(n)
	if d.sum != nil {
		d.sum.Write(p[:n])
	}
	switch {
	case d.left < 0:
		err = fmt.Errorf("read blob %s: more bytes than it has", d.key)
	case d.left == 0:
		err = d.verify()
	case err == nil:
		return n, nil
	default: // io.EOF before the last byte is none
		err = d.fault(fmt.Errorf("%d bytes are missing: %w", d.left, noEOF(err)))
	}
	d.err = err
	if n > 0 && err == io.EOF {
		return n, nil
	}
	return n, err
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (d *download) verify() error {
	if d.sum == nil {
		return io.EOF
	}
	if got := hex.EncodeToString(d.sum.Sum(nil)); got != d.want {
		return fmt.Errorf("read blob %s: content has SHA-256 %s, want %s", d.key, got, d.want)
	}
	return io.EOF
}

func (d *download) fault(err error) error {
	if cause := context.Cause(d.ctx); cause != nil {
		if errors.Is(cause, errStalled) {
			return d.blobs.fault("read blob", d.key, cause)
		}
		return fmt.Errorf("read blob %s: %w", d.key, cause)
	}
	return d.blobs.fault("read blob", d.key, err)
}

func (d *download) stop() {
	d.watchdog.Stop()
	d.cancel(nil)
}

// Close implements io.Closer; bytes not read are left with the service.
func (d *download) Close() error {
	if d.err == nil {
		d.err = errors.New("blob is closed")
	}
	d.cancel(nil) // before Close, which would read the rest to keep the connection
	d.watchdog.Stop()
	_ = d.body.Close() // of a cancelled request
	return nil
}
