package auditstore

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
)

// anchor says, apart from the trail, where the trail was at some time: what a
// cut end or a rewritten chain disagrees with. Its code needs the keys of the
// installation, which the bus does not have.
type anchor struct {
	Day  string    `json:"day"` // of the record
	ID   uint64    `json:"id"`
	Hash string    `json:"hash"`
	At   time.Time `json:"at"` // when the record was sealed
	// Found is, in the note of a cut, the record the trail ended with.
	Found uint64 `json:"found,omitempty"`
	Code  string `json:"code"`
}

// Keys of the bucket: the newest record, the last one of each day, and cuts.
const (
	keyHead = "head"
	keyDay  = "day."
	keyCut  = "cut."
)

func (a anchor) code(secret []byte) string {
	m := hmac.New(sha256.New, secret)
	fmt.Fprintf(m, "%s %d %s %d %d", a.Day, a.ID, a.Hash, a.At.UnixNano(), a.Found)
	return hex.EncodeToString(m.Sum(nil))
}

// errForged says that an anchor was not written with the installation's keys.
var errForged = errors.New("the anchor was not written by this installation")

type anchors struct {
	js     bus.JetStream
	secret []byte
}

func (s anchors) put(ctx context.Context, key string, a anchor) error {
	kv, err := s.js.KV(ctx, bus.BucketTrail)
	if err != nil {
		return err
	}
	a.At = a.At.UTC()
	a.Code = a.code(s.secret)
	value, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode anchor: %w", err)
	}
	_, err = kv.Put(ctx, key, value)
	return err
}

func (s anchors) decode(value []byte) (anchor, error) {
	var a anchor
	if err := json.Unmarshal(value, &a); err != nil {
		return a, fmt.Errorf("%w: %w", errForged, err)
	}
	if !hmac.Equal([]byte(a.Code), []byte(a.code(s.secret))) {
		return a, errForged
	}
	return a, nil
}

// get returns an anchor; ok is false when there is none. The error may be
// errForged.
func (s anchors) get(ctx context.Context, key string) (a anchor, ok bool, err error) {
	kv, err := s.js.KV(ctx, bus.BucketTrail)
	if err != nil {
		return a, false, err
	}
	e, err := kv.Get(ctx, key)
	if errors.Is(err, bus.ErrNoMessage) {
		return a, false, nil
	}
	if err != nil {
		return a, false, err
	}
	a, err = s.decode(e.Value)
	return a, err == nil, err
}

// book is every anchor there is.
type book struct {
	head   *anchor
	days   map[string]anchor
	cuts   []anchor
	forged []string // keys
}

// all reads every anchor: one for each day the installation has lived.
func (s anchors) all(ctx context.Context) (book, error) {
	b := book{days: map[string]anchor{}}
	kv, err := s.js.KV(ctx, bus.BucketTrail)
	if err != nil {
		return b, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	entries, err := kv.Watch(ctx, ">")
	if err != nil {
		return b, err
	}
	for e := range entries {
		if e.Key == "" {
			return b, nil
		}
		anchored := e.Key == keyHead || strings.HasPrefix(e.Key, keyDay) || strings.HasPrefix(e.Key, keyCut)
		if e.Deleted || !anchored {
			continue
		}
		a, err := s.decode(e.Value)
		switch {
		case err != nil:
			b.forged = append(b.forged, e.Key)
		case e.Key == keyHead:
			b.head = &a
		case strings.HasPrefix(e.Key, keyDay):
			b.days[a.Day] = a
		default:
			b.cuts = append(b.cuts, a)
		}
	}
	if err := ctx.Err(); err != nil {
		return b, err
	}
	return b, fmt.Errorf("%w: the anchors were not read to the end", audit.ErrUnavailable)
}
