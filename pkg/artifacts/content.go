package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Content returns the visible artifact under key as a seekable stream, fit
// for http.ServeContent. Bytes are fetched only when Read is called, from
// where the last Seek left off. It is not for concurrent use; ctx bounds the
// reading. ErrNotFound.
func (s *Store) Content(ctx context.Context, key string) (Ref, io.ReadSeekCloser, error) {
	ref, err := s.visible(ctx, key)
	if err != nil {
		return Ref{}, nil, fmt.Errorf("open artifact %s: %w", key, err)
	}
	open := func(offset int64) (io.ReadCloser, error) {
		return s.cfg.Blobs.Open(ctx, key, Range{Offset: offset})
	}
	return ref, &content{open: open, size: ref.Size}, nil
}

type content struct {
	open   func(offset int64) (io.ReadCloser, error)
	size   int64
	offset int64
	body   io.ReadCloser // nil until read; stands at offset
}

func (c *content) Read(p []byte) (int, error) {
	if c.offset >= c.size {
		return 0, io.EOF
	}
	if c.body == nil {
		body, err := c.open(c.offset)
		if err != nil {
			return 0, err
		}
		c.body = body
	}
	n, err := c.body.Read(p)
	c.offset += int64(n)
	return n, err
}

func (c *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.offset
	case io.SeekEnd:
		offset += c.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the start of an artifact")
	}
	if offset == c.offset {
		return offset, nil
	}
	c.offset = offset
	return offset, c.Close()
}

// Close ends the present stream; a later Read opens a new one.
func (c *content) Close() error {
	if c.body == nil {
		return nil
	}
	body := c.body
	c.body = nil
	return body.Close()
}
