package limits

import (
	"crypto/sha256"
	"encoding/base32"
	"slices"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Slot is one of Limit places under Key that a job must hold to run.
type Slot struct {
	Key   string
	Limit int
}

// Holder is who holds a slot: a run of a job, so that whether it still needs
// the slot can be read from the job's lifecycle.
type Holder struct {
	Job jobs.Key
	Run int
}

// The kinds of slot keys, their first letter.
const (
	kindConcurrency = "c"
	kindSubject     = "s"
	kindTenant      = "t"
	kindPack        = "p"
	kindPool        = "g"
)

// slotKey hashes what users and operators name: it becomes a KV key and a
// token of subjects.
func slotKey(kind string, parts ...string) string {
	h := sha256.New()
	for _, p := range append([]string{kind}, parts...) {
		h.Write([]byte{byte(len(p) >> 8), byte(len(p))})
		h.Write([]byte(p))
	}
	return kind + strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)))[:16]
}

// Concerned reports whether j may need a slot at all: the question of every
// claim, answered without computing anything.
func (p *Policy) Concerned(j *jobs.Job) bool { return p.capped || j.ConcurrencyKey != "" }

// Slots returns the slots j needs to run, in the canonical order in which all
// of them are taken by everybody; nil for none.
func (p *Policy) Slots(j *jobs.Job) []Slot {
	if !p.Concerned(j) {
		return nil
	}
	k := j.Key()
	var out []Slot
	if j.ConcurrencyKey != "" {
		out = append(out, Slot{slotKey(kindConcurrency, k.Tenant, j.ConcurrencyKey), max(1, j.ConcurrencyLimit)})
	}
	if p.capped && j.Depth() > 0 {
		// A called job counts with the job at the top of its family, which has
		// these slots and waits: were it to need more of them, neither might
		// ever go on. What protects one pack holds for it as well.
		if n := p.Packs[j.Pack]; n > 0 {
			out = append(out, Slot{slotKey(kindPack, j.Pack), n})
		}
	} else if p.capped {
		l := p.Of(j.Caller)
		if n := l.Subject.Concurrent; n > 0 {
			out = append(out, Slot{slotKey(kindSubject, k.Tenant, k.Owner), n})
		}
		if n := l.Tenant.Concurrent; n > 0 {
			out = append(out, Slot{slotKey(kindTenant, k.Tenant), n})
		}
		if n := p.Packs[j.Pack]; n > 0 {
			out = append(out, Slot{slotKey(kindPack, j.Pack), n})
		}
		if n := p.Pools[j.Pool]; n > 0 {
			out = append(out, Slot{slotKey(kindPool, j.Pool), n})
		}
	}
	slices.SortFunc(out, func(a, b Slot) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// Keys returns the keys of slots.
func Keys(all []Slot) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = s.Key
	}
	return out
}
