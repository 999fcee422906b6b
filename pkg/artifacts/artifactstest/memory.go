// Package artifactstest holds the contracts of artifacts.Blobs and
// artifacts.Index as test suites, and in-memory implementations for tests of
// other packages, trusted because they pass the same suites as the real ones.
package artifactstest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

const chunkSize = 128 << 10

// Blobs keeps blobs in memory.
type Blobs struct {
	capacity int64

	mu    sync.Mutex
	used  int64            // guarded by mu: bytes, uploads under way included
	blobs map[string]*blob // guarded by mu; a stored blob never changes
}

type blob struct {
	artifacts.Blob
	chunks [][]byte
}

// NewBlobs returns empty blobs that hold capacity bytes; 0: no limit.
func NewBlobs(capacity int64) *Blobs {
	return &Blobs{capacity: capacity, blobs: map[string]*blob{}}
}

// Put implements artifacts.Blobs.
func (b *Blobs) Put(ctx context.Context, key string, meta map[string]string, r io.Reader) (int64, string, error) {
	if _, err := b.get(key); err == nil {
		return 0, "", artifacts.ErrExists
	}
	n := &blob{Blob: artifacts.Blob{Key: key, Meta: maps.Clone(meta)}}
	sum := sha256.New()
	if err := b.fill(ctx, n, sum, r); err != nil {
		b.reserve(-n.Size)
		return 0, "", fmt.Errorf("put blob %s: %w", key, err)
	}
	n.SHA256 = hex.EncodeToString(sum.Sum(nil))
	n.ModifiedAt = time.Now().UTC()
	b.mu.Lock()
	b.blobs[key] = n
	b.mu.Unlock()
	return n.Size, n.SHA256, nil
}

func (b *Blobs) fill(ctx context.Context, n *blob, sum hash.Hash, r io.Reader) error {
	chunk := make([]byte, chunkSize)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		got, err := r.Read(chunk)
		if !b.reserve(int64(got)) {
			return artifacts.ErrNoSpace
		}
		n.Size += int64(got)
		n.chunks = append(n.chunks, bytes.Clone(chunk[:got]))
		sum.Write(chunk[:got])
		if err == io.EOF { // wrapped it is a fault of r
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (b *Blobs) reserve(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.capacity > 0 && b.used+n > b.capacity {
		return false
	}
	b.used += n
	return true
}

func (b *Blobs) get(key string) (*blob, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, ok := b.blobs[key]
	if !ok {
		return nil, artifacts.ErrNotFound
	}
	return n, nil
}

// Open implements artifacts.Blobs.
func (b *Blobs) Open(ctx context.Context, key string, rng artifacts.Range) (io.ReadCloser, error) {
	n, err := b.get(key)
	if err != nil {
		return nil, err
	}
	if rng.Offset < 0 || rng.Length < 0 || rng.Offset > n.Size {
		return nil, artifacts.ErrBadRange
	}
	readers := []io.Reader{}
	for _, chunk := range n.chunks {
		readers = append(readers, bytes.NewReader(chunk))
	}
	r := io.MultiReader(readers...)
	if _, err := io.CopyN(io.Discard, r, rng.Offset); err != nil {
		return nil, err
	}
	if rng.Length > 0 {
		r = io.LimitReader(r, rng.Length)
	}
	return reader{ctx, r}, nil
}

// reader ends with its context, which bounds one call's stream.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

func (reader) Close() error { return nil }

// Stat implements artifacts.Blobs.
func (b *Blobs) Stat(_ context.Context, key string) (artifacts.Blob, error) {
	n, err := b.get(key)
	if err != nil {
		return artifacts.Blob{}, err
	}
	out := n.Blob
	out.Meta = maps.Clone(out.Meta)
	return out, nil
}

// Delete implements artifacts.Blobs.
func (b *Blobs) Delete(_ context.Context, key string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n, ok := b.blobs[key]; ok {
		b.used -= n.Size
		delete(b.blobs, key)
	}
	return nil
}

// Walk implements artifacts.Blobs.
func (b *Blobs) Walk(ctx context.Context, prefix string, fn func(artifacts.Blob) error) error {
	b.mu.Lock()
	keys := slices.Sorted(maps.Keys(b.blobs))
	b.mu.Unlock()
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		n, err := b.Stat(ctx, key)
		if err != nil {
			continue // deleted since
		}
		if err := fn(n); err != nil {
			return err
		}
	}
	return nil
}

// Index keeps records in memory.
type Index struct {
	mu   sync.Mutex
	refs map[string]artifacts.Ref // guarded by mu
}

// NewIndex returns an empty index.
func NewIndex() *Index { return &Index{refs: map[string]artifacts.Ref{}} }

// Put implements artifacts.Index.
func (x *Index) Put(_ context.Context, ref artifacts.Ref) error {
	ref.URL = ""
	x.mu.Lock()
	defer x.mu.Unlock()
	x.refs[ref.Key] = ref
	return nil
}

// Get implements artifacts.Index.
func (x *Index) Get(_ context.Context, key string) (artifacts.Ref, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ref, ok := x.refs[key]
	if !ok {
		return artifacts.Ref{}, artifacts.ErrNotFound
	}
	return ref, nil
}

// List implements artifacts.Index.
func (x *Index) List(ctx context.Context, q artifacts.Query) ([]artifacts.Ref, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	x.mu.Lock()
	refs := slices.Collect(maps.Values(x.refs))
	x.mu.Unlock()
	return q.Page(refs)
}

// Delete implements artifacts.Index.
func (x *Index) Delete(_ context.Context, key string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.refs, key)
	return nil
}
