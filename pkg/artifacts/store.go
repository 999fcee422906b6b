package artifacts

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// DefaultTTL is how long artifacts are kept when nobody says otherwise.
const DefaultTTL = 7 * 24 * time.Hour

// maxPage bounds one page of List; surfaces ask for less.
const (
	defaultPage = 50
	maxPage     = 1000
)

// Verdict is what the terminal record of a job says about an artifact that
// one of its attempts stored.
type Verdict int

// The verdicts. Undecided is the zero value because it changes nothing: the
// artifact stays hidden and is kept.
const (
	// Undecided: the job has not ended.
	Undecided Verdict = iota
	// Won: the job's terminal record lists the key.
	Won
	// Lost: the job has ended and its record does not list the key, or no
	// such job is known.
	Lost
)

// Config is what New needs.
type Config struct {
	// Blobs and Index are where bytes and metadata live.
	Blobs Blobs
	Index Index
	// Judge asks the job of ref whether the attempt that made it has won. It
	// heals what a crash between the end of a job and Publish left hidden.
	// ref.Key, JobID, Attempt, Tenant and Owner are set. Nil: all Undecided.
	Judge func(ctx context.Context, ref Ref) (Verdict, error)
	// LinkKey signs download links, at least 16 bytes; processes that honour
	// each other's links share it. Empty: a random one of this process.
	LinkKey []byte
	// DefaultTTL applies to drafts without one; 0: DefaultTTL, negative: for
	// ever.
	DefaultTTL time.Duration
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	Log zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.Judge == nil {
		c.Judge = func(context.Context, Ref) (Verdict, error) { return Undecided, nil }
	}
	if len(c.LinkKey) == 0 {
		c.LinkKey = make([]byte, 32)
		rand.Read(c.LinkKey) // never fails: the runtime aborts instead
	}
	if c.DefaultTTL == 0 {
		c.DefaultTTL = DefaultTTL
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func (c Config) validate() error {
	var faults []error
	if c.Blobs == nil {
		faults = append(faults, errors.New("no blobs"))
	}
	if c.Index == nil {
		faults = append(faults, errors.New("no index"))
	}
	if len(c.LinkKey) < 16 {
		faults = append(faults, errors.New("link key is shorter than 16 bytes"))
	}
	return errors.Join(faults...)
}

// Store is the artifact store every surface and every run uses. It is safe
// for concurrent use. It does not authorise: surfaces compare the Tenant and
// Owner of a Ref with their caller.
type Store struct {
	cfg Config

	mu   sync.Mutex
	idle map[string]time.Time // guarded by mu: stash key → when a sweep first saw its job in no stream
}

// New returns a store over cfg.Blobs and cfg.Index.
func New(cfg Config) (*Store, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure artifact store: %w", err)
	}
	return &Store{cfg: cfg, idle: map[string]time.Time{}}, nil
}

// Put streams r into a new artifact and returns its Ref. The artifact stays
// hidden until Publish. On an error nothing of it remains visible: ErrNoSpace,
// ErrBadNamespace, an error of r (wrapped), or the backend's.
func (s *Store) Put(ctx context.Context, d Draft, r io.Reader) (Ref, error) {
	if !ValidNamespace(d.Pack) {
		return Ref{}, fmt.Errorf("put artifact in %q: %w", d.Pack, ErrBadNamespace)
	}
	name := CleanName(d.Name)
	src := &source{r: r}
	contentType, body, err := detect(d.ContentType, name, src)
	if err != nil {
		return Ref{}, fmt.Errorf("read artifact %s: %w", name, err)
	}
	now := s.cfg.Now().UTC().Round(0)
	ref := Ref{
		Key:         newKey(d.Pack, name),
		Pack:        d.Pack,
		Name:        name,
		ContentType: contentType,
		CreatedAt:   now,
		JobID:       d.JobID,
		Attempt:     d.Attempt,
		Tenant:      d.Tenant,
		Owner:       d.Owner,
	}
	ttl := d.TTL
	if ttl == 0 {
		ttl = s.cfg.DefaultTTL
	}
	if ttl > 0 {
		ref.ExpiresAt = now.Add(ttl)
	}
	ref.Size, ref.SHA256, err = s.cfg.Blobs.Put(ctx, ref.Key, metaOf(ref), body)
	if src.err != nil { // the producer's own error says more than what became of it below
		err = src.err
	}
	if err != nil {
		return Ref{}, fmt.Errorf("put artifact %s: %w", ref.Key, err)
	}
	return ref, nil
}

// Publish makes stored artifacts visible. It may be repeated. What is
// recorded comes from the stored metadata, so refs read back from a job
// record, which lack tenant and owner, will do. Artifacts whose bytes are
// gone (deleted since) are passed over.
func (s *Store) Publish(ctx context.Context, refs ...Ref) error {
	for _, ref := range refs {
		stored, err := s.stored(ctx, ref.Key)
		if errors.Is(err, ErrNotFound) {
			s.cfg.Log.Debug().Str("artifact", ref.Key).Msg("artifact to publish is gone")
			continue
		}
		if err != nil {
			return fmt.Errorf("publish artifact %s: %w", ref.Key, err)
		}
		if err := s.cfg.Index.Put(ctx, stored); err != nil {
			return fmt.Errorf("publish artifact %s: %w", ref.Key, err)
		}
	}
	return nil
}

// Stat returns the visible artifact under key, or ErrNotFound.
func (s *Store) Stat(ctx context.Context, key string) (Ref, error) {
	ref, err := s.visible(ctx, key)
	if err != nil {
		return Ref{}, fmt.Errorf("stat artifact %s: %w", key, err)
	}
	return ref, nil
}

// Open streams the bytes in rng of the visible artifact under key. The caller
// closes the reader; ctx bounds the reading. ErrNotFound, ErrBadRange.
func (s *Store) Open(ctx context.Context, key string, rng Range) (Ref, io.ReadCloser, error) {
	ref, err := s.visible(ctx, key)
	if err != nil {
		return Ref{}, nil, fmt.Errorf("open artifact %s: %w", key, err)
	}
	body, err := s.cfg.Blobs.Open(ctx, key, rng)
	if err != nil {
		return Ref{}, nil, fmt.Errorf("open artifact %s: %w", key, err)
	}
	return ref, body, nil
}

// List returns visible artifacts newest first and the cursor of the next
// page, empty at the end. Limit 0 means 50; more than 1,000 means 1,000.
func (s *Store) List(ctx context.Context, q Query) ([]Ref, string, error) {
	if q.Limit <= 0 {
		q.Limit = defaultPage
	}
	q.Limit = min(q.Limit, maxPage)
	refs, next, err := s.cfg.Index.List(ctx, q)
	if err != nil {
		return nil, "", fmt.Errorf("list artifacts: %w", err)
	}
	return refs, next, nil
}

// Delete removes the visible artifact under key, or returns ErrNotFound.
func (s *Store) Delete(ctx context.Context, key string) error {
	if _, err := s.visible(ctx, key); err != nil {
		return fmt.Errorf("delete artifact %s: %w", key, err)
	}
	return s.remove(ctx, key)
}

// Discard removes what is stored under key, visible or not; an absent key is
// no error.
func (s *Store) Discard(ctx context.Context, key string) error {
	if !validKey(key) {
		return fmt.Errorf("discard artifact %s: %w", key, ErrNotFound)
	}
	return s.remove(ctx, key)
}

// remove hides key first, so that nobody sees a record without bytes.
func (s *Store) remove(ctx context.Context, key string) error {
	if err := s.cfg.Index.Delete(ctx, key); err != nil {
		return fmt.Errorf("delete artifact %s: %w", key, err)
	}
	if err := s.cfg.Blobs.Delete(ctx, key); err != nil {
		return fmt.Errorf("delete artifact %s: %w", key, err)
	}
	return nil
}

// visible looks key up in the index and, on a miss, asks the job: a worker
// may have died, or not come to it yet, between the job's end and Publish.
func (s *Store) visible(ctx context.Context, key string) (Ref, error) {
	if !validKey(key) {
		return Ref{}, ErrNotFound
	}
	ref, err := s.cfg.Index.Get(ctx, key)
	if err == nil || !errors.Is(err, ErrNotFound) {
		return ref, err
	}
	ref, err = s.stored(ctx, key)
	if err != nil {
		return Ref{}, err
	}
	if ref.JobID == "" || expired(ref, s.cfg.Now()) {
		return Ref{}, ErrNotFound
	}
	verdict, err := s.cfg.Judge(ctx, ref)
	if err != nil {
		return Ref{}, fmt.Errorf("ask job %s: %w", ref.JobID, err)
	}
	if verdict != Won {
		return Ref{}, ErrNotFound
	}
	if err := s.cfg.Index.Put(ctx, ref); err != nil {
		return Ref{}, err
	}
	return ref, nil
}

// stored rebuilds the Ref of a stored artifact, visible or not, from what is
// kept with its bytes.
func (s *Store) stored(ctx context.Context, key string) (Ref, error) {
	if !validKey(key) {
		return Ref{}, ErrNotFound
	}
	blob, err := s.cfg.Blobs.Stat(ctx, key)
	if err != nil {
		return Ref{}, err
	}
	return refOf(blob)
}

func expired(ref Ref, now time.Time) bool {
	return !ref.ExpiresAt.IsZero() && !now.Before(ref.ExpiresAt)
}

func newKey(namespace, name string) string {
	var id [8]byte
	rand.Read(id[:])
	return namespace + "/" + hex.EncodeToString(id[:]) + "-" + name
}

// source remembers the error of the producer's reader.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF { // io.Reader ends with io.EOF itself; wrapped it is a fault
		s.err = err
	}
	return n, err
}
