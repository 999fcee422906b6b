package artifacts

import (
	"cmp"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Matches reports whether a listing for q shows ref, cursor and limit aside.
func (q Query) Matches(ref Ref) bool {
	switch {
	case q.Tenant != "" && ref.Tenant != q.Tenant:
		return false
	case q.Owner != "" && ref.Owner != q.Owner:
		return false
	case q.Pack != "" && ref.Pack != q.Pack:
		return false
	}
	return q.Name == "" || strings.Contains(strings.ToLower(ref.Name), strings.ToLower(q.Name))
}

// Page is the page of refs that q asks for, newest first, and the cursor of
// the next. Index implementations that have the candidates in memory use it.
// refs is reordered. Limit 0 means all. ErrBadCursor.
//
// The cursor is a place in the order (creation time, then key), not a count,
// so artifacts that come or go between two pages move no others.
func (q Query) Page(refs []Ref) ([]Ref, string, error) {
	after, err := parseCursor(q.Cursor)
	if err != nil {
		return nil, "", err
	}
	q.Name = strings.ToLower(q.Name)
	refs = slices.DeleteFunc(refs, func(r Ref) bool {
		return !q.Matches(r) || q.Cursor != "" && newestFirst(r, after) <= 0
	})
	slices.SortFunc(refs, newestFirst)
	if q.Limit <= 0 || len(refs) <= q.Limit {
		return refs, "", nil
	}
	refs = refs[:q.Limit]
	return refs, formatCursor(refs[q.Limit-1]), nil
}

// From is the creation time the page of q begins at: nothing younger is on
// it. Zero without a cursor. ErrBadCursor.
func (q Query) From() (time.Time, error) {
	after, err := parseCursor(q.Cursor)
	return after.CreatedAt, err
}

func newestFirst(a, b Ref) int {
	return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.Key, b.Key))
}

func formatCursor(r Ref) string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(r.CreatedAt.UnixNano(), 10) + " " + r.Key))
}

func parseCursor(cursor string) (Ref, error) {
	if cursor == "" {
		return Ref{}, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return Ref{}, ErrBadCursor
	}
	at, key, ok := strings.Cut(string(text), " ")
	nanos, err := strconv.ParseInt(at, 10, 64)
	if !ok || err != nil {
		return Ref{}, ErrBadCursor
	}
	return Ref{CreatedAt: time.Unix(0, nanos), Key: key}, nil
}
