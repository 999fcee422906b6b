package artifactstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// Index implements artifacts.Index on the key-value bucket, with two entries
// for each artifact, where id is the hash of its key:
//
//	rec.<tenant>.<owner>.<created>.<id>   the record
//	ptr.<id>                              its key: for Get, which knows no owner
//
// A listing reads one owner's records only, and decodes those of its page
// only, for created (Unix nanoseconds, 16 hex digits) puts them in order.
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
	key := fmt.Sprintf("rec.%s.%s.%016x.%s", tenant, owner, uint64(ref.CreatedAt.UnixNano()), id)
	if _, err := x.kv.Put(ctx, "ptr."+id, []byte(key)); err != nil {
		return translate("record record of", ref.Key, err)
	}
	if _, err := x.kv.Put(ctx, key, value); err != nil {
		return translate("record record of", ref.Key, err)
	}
	return nil
}

// Get implements artifacts.Index.
func (x *Index) Get(ctx context.Context, key string) (artifacts.Ref, error) {
	pointer, err := x.kv.Get(ctx, "ptr."+idOf(key))
	if err != nil {
		return artifacts.Ref{}, translate("read record of", key, err)
	}
	entry, err := x.kv.Get(ctx, string(pointer.Value))
	if err != nil {
		return artifacts.Ref{}, translate("read record of", key, err)
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
	from, err := q.From()
	if err != nil {
		return nil, "", fmt.Errorf("list artifacts: %w", err)
	}
	entries, err := x.present(ctx, "rec."+tenant+"."+owner+".*.*", from)
	if err != nil {
		return nil, "", fmt.Errorf("list artifacts: %w", err)
	}
	refs, err := decode(entries, q, from)
	if err != nil {
		return nil, "", fmt.Errorf("list artifacts: %w", err)
	}
	return q.Page(refs)
}

// entry is a record not decoded yet.
type entry struct {
	key     string
	created int64
	value   []byte
}

// present reads the records whose keys match pattern and that are not younger
// than from (zero: all), newest first. A watch is the bucket's only bulk read;
// this one ends where the changes begin.
func (x *Index) present(ctx context.Context, pattern string, from time.Time) ([]entry, error) {
	ctx, cancel := context.WithTimeout(ctx, listBound)
	defer cancel()
	updates, err := x.kv.Watch(ctx, pattern)
	if err != nil {
		return nil, err
	}
	found := map[string]entry{} // one written meanwhile may come twice
	for u := range updates {
		switch {
		case u.Key == "":
			return slices.SortedFunc(maps.Values(found), func(a, b entry) int {
				return cmp.Compare(b.created, a.created)
			}), nil
		case u.Deleted:
			delete(found, u.Key)
			continue
		}
		created, err := createdOf(u.Key)
		if err != nil {
			return nil, err
		}
		if from.IsZero() || created <= from.UnixNano() {
			found[u.Key] = entry{u.Key, created, u.Value}
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, bus.ErrUnavailable
}

// decode returns the records matching q from entries, newest first, until it
// has more than a page: Page then knows that there is a next one.
func decode(entries []entry, q artifacts.Query, from time.Time) ([]artifacts.Ref, error) {
	var refs []artifacts.Ref
	var last int64
	sure := 0 // of refs that Page will not drop for being on an earlier page
	for _, e := range entries {
		// Records of one moment are ordered by key and so come together.
		if q.Limit > 0 && sure > q.Limit && e.created != last {
			break
		}
		var rec record
		if err := json.Unmarshal(e.value, &rec); err != nil {
			return nil, fmt.Errorf("decode %s: %w", e.key, err)
		}
		ref := rec.ref()
		if !q.Matches(ref) {
			continue
		}
		refs, last = append(refs, ref), e.created
		if from.IsZero() || e.created < from.UnixNano() {
			sure++
		}
	}
	return refs, nil
}

func createdOf(key string) (int64, error) {
	parts := strings.Split(key, ".")
	created, err := strconv.ParseUint(parts[max(len(parts)-2, 0)], 16, 64)
	if err != nil {
		return 0, fmt.Errorf("key %s is none of the index", key)
	}
	return int64(created), nil
}

// Delete implements artifacts.Index.
func (x *Index) Delete(ctx context.Context, key string) error {
	pointer, err := x.kv.Get(ctx, "ptr."+idOf(key))
	if errors.Is(err, bus.ErrNoMessage) {
		return nil
	}
	if err != nil {
		return translate("forget record of", key, err)
	}
	for _, entry := range []string{string(pointer.Value), pointer.Key} {
		if err := x.kv.Delete(ctx, entry); err != nil {
			return translate("forget record of", key, err)
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
