// Package artifacts keeps the files that packs produce and callers upload:
// streamed in and out, addressed by key, hidden until the attempt that made
// them has won, and swept when their time is over.
//
// The package holds the policy (keys, names, checksums, visibility, links,
// retention). Bytes and metadata live behind two small interfaces, Blobs and
// Index, whose implementations must pass package artifactstest.
package artifacts

import (
	"context"
	"errors"
	"io"
	"time"
)

// Errors a caller may branch on.
var (
	// ErrNotFound: no visible artifact has that key.
	ErrNotFound = errors.New("artifact not found")
	// ErrNoSpace: the store refused the bytes because it is full. Nothing of
	// the upload is visible.
	ErrNoSpace = errors.New("artifact store is full")
	// ErrTooLarge: the content is larger than the store takes. Nothing of it is
	// visible.
	ErrTooLarge = errors.New("artifact is too large")
	// ErrUnavailable: the store cannot be reached or used now. The error that
	// wraps it tells an operator why.
	ErrUnavailable = errors.New("artifact store is unavailable")
	// ErrBadLink: a signed link is malformed, altered or expired.
	ErrBadLink = errors.New("artifact link is invalid or expired")
	// ErrBadRange: a Range is negative or starts beyond the last byte.
	ErrBadRange = errors.New("artifact range is out of bounds")
	// ErrBadNamespace: a Draft's Pack cannot be a namespace.
	ErrBadNamespace = errors.New("artifact namespace is not valid")
	// ErrBadCursor: a Query's Cursor was not returned by a listing.
	ErrBadCursor = errors.New("artifact cursor is not valid")
	// ErrExists: a blob is already stored under the key.
	ErrExists = errors.New("artifact key is taken")
)

// Ref describes one stored artifact. It is what job records, lists and events
// carry in place of the bytes.
type Ref struct {
	// Key is "<namespace>/<16 hex>-<name>"; the hex part is random.
	Key string `json:"key"`
	// Pack is the namespace: the name of the pack that made it, or the
	// namespace an uploader chose.
	Pack        string    `json:"pack"`
	Name        string    `json:"name"`
	ContentType string    `json:"content_type"`
	Size        int64     `json:"size"` // bytes
	SHA256      string    `json:"sha256"`
	CreatedAt   time.Time `json:"created_at"`
	// ExpiresAt is when the retention sweep may remove it; zero means never.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	// JobID and Attempt name the attempt that made it; empty for uploads.
	JobID   string `json:"job_id,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	// Tenant and Owner are the bus tokens of the caller it belongs to.
	Tenant string `json:"-"`
	Owner  string `json:"-"`
	// URL is a download link, filled in by the surface that shows the Ref.
	URL string `json:"url,omitempty"`
}

// Draft is what a producer knows before the first byte is stored.
type Draft struct {
	Pack        string
	Name        string // cleaned by Store.Put
	ContentType string // empty: from the extension, then by sniffing
	JobID       string
	Attempt     int
	Tenant      string
	Owner       string
	// TTL is the time to keep it; zero means the store's default, negative
	// means for ever.
	TTL time.Duration
}

// Range selects bytes of an artifact. The zero value is all of it. An Offset
// equal to the size selects nothing, a greater one is ErrBadRange; a Length
// that reaches beyond the end is cut.
type Range struct {
	Offset int64
	Length int64 // 0: to the end
}

// Query selects artifacts for a listing, newest first.
type Query struct {
	Tenant string // token; empty with Owner empty: everybody's (administrators)
	Owner  string
	Pack   string // exact namespace; empty: any
	Name   string // case-insensitive substring; empty: any
	Limit  int
	Cursor string // from the previous page
}

// Blobs keeps bytes under keys. A key is written once. A Put that fails or
// whose process dies leaves nothing that Open, Stat or Walk shows.
type Blobs interface {
	// Put streams r into key and returns the number of bytes and their
	// lower-case hex SHA-256. meta is kept with the bytes. A key that exists
	// is refused with ErrExists before r is read; two Puts of one new key at
	// the same time are the caller's mistake. ErrNoSpace when full; an error
	// of r comes back wrapped.
	Put(ctx context.Context, key string, meta map[string]string, r io.Reader) (size int64, sha256 string, err error)
	// Open streams the bytes of key in rng. ErrNotFound when absent,
	// ErrBadRange as Range says. ctx bounds the reading too.
	Open(ctx context.Context, key string, rng Range) (io.ReadCloser, error)
	// Stat returns size, checksum and the metadata given to Put.
	Stat(ctx context.Context, key string) (Blob, error)
	// Delete removes key; removing an absent key is no error.
	Delete(ctx context.Context, key string) error
	// Walk calls fn for every key with the prefix; fn may delete. Key and
	// ModifiedAt are set; the rest is where it costs nothing, and Stat tells it.
	// A Walk over all keys also reclaims what unfinished uploads older than an
	// hour left behind.
	Walk(ctx context.Context, prefix string, fn func(Blob) error) error
}

// Blob is one stored object.
type Blob struct {
	Key        string
	Size       int64
	SHA256     string
	Meta       map[string]string
	ModifiedAt time.Time
}

// Linker is implemented by Blobs whose bytes callers can fetch without us.
type Linker interface {
	// DirectLink returns a URL that serves the bytes of key with the headers to
	// whoever has it until ttl has passed. Empty: this key has none. It need not
	// look whether key exists.
	DirectLink(ctx context.Context, key string, ttl time.Duration, h LinkHeaders) (string, error)
}

// LinkHeaders are the headers with which a direct link answers.
type LinkHeaders struct {
	ContentType string
	Disposition string
}

// Index keeps the durable metadata of visible artifacts.
type Index interface {
	// Put records ref without its URL; recording the same key again is no
	// error.
	Put(ctx context.Context, ref Ref) error
	// Get returns the record of key, or ErrNotFound.
	Get(ctx context.Context, key string) (Ref, error)
	// List returns matching records newest first and the cursor of the next
	// page, empty at the end.
	List(ctx context.Context, q Query) ([]Ref, string, error)
	// Delete forgets key; forgetting an absent key is no error.
	Delete(ctx context.Context, key string) error
}
