package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
)

// NoHash is the previous hash of the very first record.
var NoHash = strings.Repeat("0", 2*sha256.Size)

// Nobody is the owner under which events without an actor are filed.
const Nobody = "none"

// OwnerOf is the owner under which the events of a subject are filed.
func OwnerOf(subject string) string {
	if subject == "" {
		return Nobody
	}
	return identity.Caller{Subject: subject}.Owner()
}

// FiledRight reports whether a record that is filed under a kind and an owner
// belongs there, as far as the record tells.
func FiledRight(r Record, kind, owner string) bool {
	if r.EventType != kind {
		return false
	}
	if len(r.ActorSubject) >= maxField || strings.Contains(r.ActorSubject, marker) {
		return true // the whole name is not recorded
	}
	return OwnerOf(r.ActorSubject) == owner
}

// hashField begins what Seal adds to the canonical form.
const hashField = `,"hash":"`

// sealLength is the length of the hash, its quotes and the closing brace.
const sealLength = len(hashField) + 2*sha256.Size + len(`"}`)

// Seal gives p its place behind the record with the hash prev and returns the
// record with its stored form: the canonical form with the hash as last key.
func Seal(p Pending, id uint64, prev string, now time.Time) (Record, []byte, error) {
	r := p.Record
	r.ID, r.PrevHash, r.SealedAt, r.Hash = id, prev, now.UTC(), ""
	b, err := encodePlain(r)
	if err != nil {
		return r, nil, fmt.Errorf("encode record %d: %w", id, err)
	}
	// hash is the last key, so the canonical form is what stands before it.
	canonical, ok := bytes.CutSuffix(b, []byte(hashField+`"}`))
	if !ok {
		return r, nil, fmt.Errorf("encode record %d: no place for its hash", id)
	}
	canonical = append(canonical, '}')
	sum := sha256.Sum256(canonical)
	r.Hash = hex.EncodeToString(sum[:])
	stored := append(canonical[:len(canonical)-1], hashField...)
	stored = append(stored, r.Hash...)
	return r, append(stored, `"}`...), nil
}

// ErrEdited says that a record is not as it was sealed.
var ErrEdited = errors.New("the record does not match its hash")

// Open reads the stored form of a record and checks its hash.
func Open(stored []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(stored, &r); err != nil {
		return r, fmt.Errorf("%w: %w", ErrEdited, err)
	}
	at := len(stored) - sealLength
	if at < 1 || !bytes.HasPrefix(stored[at:], []byte(hashField)) {
		return r, ErrEdited
	}
	h := sha256.New()
	h.Write(stored[:at])
	h.Write([]byte("}"))
	if hex.EncodeToString(h.Sum(nil)) != r.Hash {
		return r, ErrEdited
	}
	return r, nil
}

// DayOf is the day of the chain that a record belongs to.
func DayOf(r Record) string { return r.SealedAt.UTC().Format(time.DateOnly) }
