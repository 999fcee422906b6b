package artifacts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// stashPrefix is the unlisted namespace of the claim check: inputs and
// outputs too large for a message. No artifact key begins with "_".
const stashPrefix = "_jobs/"

// InputKey is the stash key of a job's input. A suffix "-<text>" makes further ones,
// for tries of a submit that must not share theirs.
func InputKey(jobID string) string { return stashPrefix + jobID + "/input" }

// OutputKey is the stash key of the output of one run of a job. Runs have
// their own, for a run that loses may have stored its output first.
func OutputKey(jobID string, run int) string {
	return stashPrefix + jobID + "/output-" + strconv.Itoa(run)
}

// stashJob is the job of a stash key.
func stashJob(key string) (string, bool) {
	rest, ok := strings.CutPrefix(key, stashPrefix)
	if !ok {
		return "", false
	}
	jobID, part, ok := strings.Cut(rest, "/")
	return jobID, ok && jobID != "" && part != "" && !strings.Contains(part, "/")
}

// Stash streams r into a key made by InputKey or OutputKey. It never shows in
// Stat, Open or List. Stashing the same bytes again is no error, other bytes
// are ErrExists.
func (s *Store) Stash(ctx context.Context, key string, r io.Reader) error {
	if _, ok := stashJob(key); !ok {
		return fmt.Errorf("stash %s: %w", key, ErrBadNamespace)
	}
	src := &source{r: r}
	_, _, err := s.cfg.Blobs.Put(ctx, key, nil, src)
	switch {
	case src.err != nil:
		err = src.err
	case errors.Is(err, ErrExists): // r is untouched
		err = s.sameBytes(ctx, key, src)
	}
	if err != nil {
		return fmt.Errorf("stash %s: %w", key, err)
	}
	return nil
}

func (s *Store) sameBytes(ctx context.Context, key string, r io.Reader) error {
	blob, err := s.cfg.Blobs.Stat(ctx, key)
	if err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != blob.SHA256 {
		return ErrExists
	}
	return nil
}

// Unstash streams what Stash stored, or ErrNotFound. The caller closes it.
func (s *Store) Unstash(ctx context.Context, key string) (io.ReadCloser, error) {
	if _, ok := stashJob(key); !ok {
		return nil, fmt.Errorf("unstash %s: %w", key, ErrNotFound)
	}
	body, err := s.cfg.Blobs.Open(ctx, key, Range{})
	if err != nil {
		return nil, fmt.Errorf("unstash %s: %w", key, err)
	}
	return body, nil
}

// DropStash removes what Stash stored; an absent key is no error. Nobody has
// to call it: Sweep removes what no job needs any more.
func (s *Store) DropStash(ctx context.Context, key string) error {
	if _, ok := stashJob(key); !ok {
		return fmt.Errorf("drop stash %s: %w", key, ErrBadNamespace)
	}
	if err := s.cfg.Blobs.Delete(ctx, key); err != nil {
		return fmt.Errorf("drop stash %s: %w", key, err)
	}
	return nil
}
