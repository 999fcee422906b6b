package artifacts

import (
	"context"
	"errors"
	"io"
	"time"
)

// Layered writes to first and reads from both, first first: what was stored in
// older before an installation changed to first stays readable, and goes when
// it is deleted or its time is over.
func Layered(first, older Blobs) Blobs { return layered{first: first, older: older} }

type layered struct{ first, older Blobs }

// Put implements Blobs: a key is written once in both together.
func (l layered) Put(ctx context.Context, key string, meta map[string]string, r io.Reader) (int64, string, error) {
	switch _, err := l.older.Stat(ctx, key); {
	case err == nil:
		return 0, "", ErrExists
	case !errors.Is(err, ErrNotFound):
		return 0, "", err
	}
	return l.first.Put(ctx, key, meta, r)
}

// Open implements Blobs.
func (l layered) Open(ctx context.Context, key string, rng Range) (io.ReadCloser, error) {
	body, err := l.first.Open(ctx, key, rng)
	if errors.Is(err, ErrNotFound) {
		return l.older.Open(ctx, key, rng)
	}
	return body, err
}

// Stat implements Blobs.
func (l layered) Stat(ctx context.Context, key string) (Blob, error) {
	blob, err := l.first.Stat(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return l.older.Stat(ctx, key)
	}
	return blob, err
}

// Delete implements Blobs.
func (l layered) Delete(ctx context.Context, key string) error {
	return errors.Join(l.first.Delete(ctx, key), l.older.Delete(ctx, key))
}

// Walk implements Blobs.
func (l layered) Walk(ctx context.Context, prefix string, fn func(Blob) error) error {
	if err := l.first.Walk(ctx, prefix, fn); err != nil {
		return err
	}
	return l.older.Walk(ctx, prefix, fn)
}

// DirectLink implements Linker for what first holds.
func (l layered) DirectLink(ctx context.Context, key string, ttl time.Duration, h LinkHeaders) (string, error) {
	linker, ok := l.first.(Linker)
	if !ok {
		return "", nil
	}
	// older is asked, for it is the nearer one: first signs without a look.
	switch _, err := l.older.Stat(ctx, key); {
	case err == nil:
		return "", nil
	case !errors.Is(err, ErrNotFound):
		return "", err
	}
	return linker.DirectLink(ctx, key, ttl, h)
}
