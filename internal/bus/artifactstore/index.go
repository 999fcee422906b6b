package artifactstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// Index implements artifacts.Index on the key-value bucket, with two entries
// for each artifact, where id is the hash of its key:
//
//	rec.<tenant>.<owner>.<id>   the record: a listing reads one owner's only
//	ptr.<id>                    the record's key: for Get, which knows no owner
//
// The record decides. It is written after its pointer and removed before it,
// so that whatever a crash leaves is no artifact at all; a pointer without a
// record is overwritten or stays as a few unused bytes.
type Index struct {
	kv bus.KV
}

// listBound ends a listing whose context has no nearer deadline.
const listBound = 30 * time.Second

// nobody stands in keys for an empty tenant or owner.
const nobody = "_"

var token = regexp.MustCompile(`^[A-Za-z0-9-][A-Za-z0-9_-]*$`)

// NewIndex opens the key-value bucket, which must exist (bus init).
func NewIndex(ctx context.Context, js bus.JetStream) (*Index, error) {
	kv, err := js.KV(ctx, bus.BucketArtifacts)
	if err != nil {
		return nil, fmt.Errorf("open artifact index: %w", err)
	}
	return &Index{kv: kv}, nil
}

// record is a Ref as it is stored: with the tokens a Ref does not show, and
// without the link.
type record struct {
	artifacts.Ref
	Tenant string `json:"tenant,omitempty"`
	Owner  string `json:"owner,omitempty"`
}

func (r record) ref() artifacts.Ref {
	r.Ref.Tenant, r.Ref.Owner = r.Tenant, r.Owner
	return r.Ref
}

// Put implements artifacts.Index.
func (x *Index) Put(ctx context.Context, ref artifacts.Ref) error {
	tenant, err := keyToken(ref.Tenant, nobody)
	if err != nil {
		return fmt.Errorf("record artifact %s: %w", ref.Key, err)
	}
	owner, err := keyToken(ref.Owner, nobody)
	if err != nil {
		return fmt.Errorf("record artifact %s: %w", ref.Key, err)
	}
	ref.URL = ""
	value, err := json.Marshal(record{Ref: ref, Tenant: ref.Tenant, Owner: ref.Owner})
	if err != nil {
		return fmt.Errorf("encode record of artifact %s: %w", ref.Key, err)
	}
	id := idOf(ref.Key)
	key := "rec." + tenant + "." + owner + "." + id
	if _, err := x.kv.Put(ctx, "ptr."+id, []byte(key)); err != nil {
		return translateIndex("record", ref.Key, err)
	}
	if _, err := x.kv.Put(ctx, key, value); err != nil {
		return translateIndex("record", ref.Key, err)
	}
	return nil
}

// Get implements artifacts.Index.
func (x *Index) Get(ctx context.Context, key string) (artifacts.Ref, error) {
	pointer, err := x.kv.Get(ctx, "ptr."+idOf(key))
	if err != nil {
		return artifacts.Ref{}, translateIndex("read", key, err)
	}
	entry, err := x.kv.Get(ctx, string(pointer.Value))
	if err != nil {
		return artifacts.Ref{}, translateIndex("read", key, err)
	}
	var rec record
	if err := json.Unmarshal(entry.Value, &rec); err != nil {
		return artifacts.Ref{}, fmt.Errorf("decode record of artifact %s: %w", key, err)
	}
	return rec.ref(), nil
}

// List implements artifacts.Index.
func (x *Index) List(ctx context.Context, q artifacts.Query) ([]artifacts.Ref, string, error) {
	tenant, err := keyToken(q.Tenant, "*")
	if err != nil {
		return nil, "", fmt.Errorf("list artifacts: %w", err)
	}
	owner, err := keyToken(q.Owner, "*")
	if err != nil {
		return nil, "", fmt.Errorf("list artifacts: %w", err)
	}
	refs, err := x.present(ctx, "rec."+tenant+"."+owner+".*", q)
	if err != nil {
		return nil, "", fmt.Errorf("list artifacts: %w", err)
	}
	return q.Page(refs)
}

// present reads the records whose keys match pattern, in no order. A watch is
// the bucket's only bulk read; this one ends where the changes begin.
func (x *Index) present(ctx context.Context, pattern string, q artifacts.Query) ([]artifacts.Ref, error) {
	ctx, cancel := context.WithTimeout(ctx, listBound)
	defer cancel()
	entries, err := x.kv.Watch(ctx, pattern)
	if err != nil {
		return nil, err
	}
	found := map[string]artifacts.Ref{} // by entry: one written meanwhile may come twice
	for entry := range entries {
		switch {
		case entry.Key == "":
			refs := make([]artifacts.Ref, 0, len(found))
			for _, ref := range found {
				refs = append(refs, ref)
			}
			return refs, nil
		case entry.Deleted:
			delete(found, entry.Key)
			continue
		}
		var rec record
		if err := json.Unmarshal(entry.Value, &rec); err != nil {
			return nil, fmt.Errorf("decode %s: %w", entry.Key, err)
		}
		if ref := rec.ref(); q.Matches(ref) {
			found[entry.Key] = ref
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, bus.ErrUnavailable
}

// Delete implements artifacts.Index.
func (x *Index) Delete(ctx context.Context, key string) error {
	pointer, err := x.kv.Get(ctx, "ptr."+idOf(key))
	if errors.Is(err, bus.ErrNoMessage) {
		return nil
	}
	if err != nil {
		return translateIndex("forget", key, err)
	}
	for _, entry := range []string{string(pointer.Value), pointer.Key} {
		if err := x.kv.Delete(ctx, entry); err != nil {
			return translateIndex("forget", key, err)
		}
	}
	return nil
}

// idOf is the token that stands for key in the bucket's keys.
func idOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// keyToken is s as a token of a key, or empty when s is.
func keyToken(s, empty string) (string, error) {
	switch {
	case s == "":
		return empty, nil
	case token.MatchString(s):
		return s, nil
	}
	return "", fmt.Errorf("%q is not a tenant or owner token", strings.ToValidUTF8(s, "?"))
}

// translateIndex puts the errors a caller branches on into the words of
// artifacts.
func translateIndex(verb, key string, err error) error {
	switch {
	case errors.Is(err, bus.ErrNoMessage):
		err = fmt.Errorf("%w: %w", artifacts.ErrNotFound, err)
	case errors.Is(err, bus.ErrFull), errors.Is(err, bus.ErrFrozen):
		err = fmt.Errorf("%w: %w", artifacts.ErrNoSpace, err)
	}
	return fmt.Errorf("%s artifact %s: %w", verb, key, err)
}
