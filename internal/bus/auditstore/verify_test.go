package auditstore_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/client"
)

func encode(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// resealed makes a sound chain of records again, as somebody would who has the
// bus but not the keys.
func resealed(t *testing.T, all []message) []message {
	t.Helper()
	prev := audit.NoHash
	for i := range all {
		var p audit.Pending
		if err := json.Unmarshal(all[i].data, &p); err != nil {
			t.Fatal(err)
		}
		at := p.SealedAt
		rec, stored, err := audit.Seal(p, uint64(i+1), prev, at)
		if err != nil {
			t.Fatal(err)
		}
		all[i].data, prev = stored, rec.Hash
	}
	return all
}

// TestTamperingShows: whatever is changed in a trail of ten records, a check
// names it.
func TestTamperingShows(t *testing.T) {
	t.Parallel()
	const n = 10
	for name, tt := range map[string]struct {
		change func(*testing.T, []message) []message
		kind   string
		id     uint64
	}{
		"edited": {func(_ *testing.T, all []message) []message {
			all[3].data = bytes.Replace(all[3].data, []byte("/3"), []byte("/X"), 1)
			return all
		}, "edited", 4},
		"one byte of a hash": {func(_ *testing.T, all []message) []message {
			d := slices.Clone(all[3].data)
			d[len(d)-3] ^= 1
			all[3].data = d
			return all
		}, "edited", 4},
		"replaced with a hash of its own": {func(t *testing.T, all []message) []message {
			var p audit.Pending
			if err := json.Unmarshal(all[3].data, &p); err != nil {
				t.Fatal(err)
			}
			p.Path = "/X"
			_, stored, err := audit.Seal(p, 4, p.PrevHash, p.SealedAt)
			if err != nil {
				t.Fatal(err)
			}
			all[3].data = stored
			return all
		}, "edited", 5},
		"removed and moved up": {func(_ *testing.T, all []message) []message {
			return slices.Delete(all, 3, 4)
		}, "reordered", 4},
		"swapped": {func(_ *testing.T, all []message) []message {
			all[3], all[4] = all[4], all[3]
			return all
		}, "reordered", 4},
		"filed under another actor": {func(_ *testing.T, all []message) []message {
			all[3].subject = "hd.trail.default.request.aaaaaaaaaaaaaaaa.n"
			return all
		}, "misfiled", 4},
		"cut at the end": {func(_ *testing.T, all []message) []message {
			return all[:n-2]
		}, "truncated", n - 1},
		"rewritten from the start": {func(t *testing.T, all []message) []message {
			all[3].data = bytes.Replace(all[3].data, []byte("/3"), []byte("/X"), 1)
			return resealed(t, all)
		}, "anchor", n},
		"no record": {func(_ *testing.T, all []message) []message {
			all[3].data = []byte("{}")
			return all
		}, "edited", 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.fill(n)
			r.rewrite(func(all []message) []message { return tt.change(t, all) })
			r.faulty(tt.kind, tt.id)
		})
	}
}

// fill seals n records and stops, so that their anchor is written.
func (r *rig) fill(n int) {
	r.Helper()
	stop := r.sealer(r.js)
	for i := range n {
		r.put("fill", uint64(i+1), fmt.Sprint("/", i))
	}
	r.records(n)
	stop()
	r.sound()
}

// faulty checks the trail, which must have a fault.
func (r *rig) faulty(kind string, id uint64) {
	r.Helper()
	rep, err := r.trail.Verify(r.ctx, time.Time{}, time.Time{}, 0)
	if err != nil {
		r.Fatal(err)
	}
	if rep.OK || !slices.ContainsFunc(rep.Faults, func(f client.AuditFault) bool {
		return f.Kind == kind && (f.ID == id || f.ID < id && f.To >= id)
	}) {
		r.Errorf("got %+v, want a fault %s of record %d", rep.Faults, kind, id)
	}
}

func TestDeletedRecordsShow(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ from, to uint64 }{
		"in the middle": {4, 6}, "at the end": {9, 10}, "at the start": {1, 3}, "all": {1, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.fill(10)
			s, err := r.admin().Stream(r.ctx, bus.StreamTrail)
			if err != nil {
				t.Fatal(err)
			}
			for seq := tt.from; seq <= tt.to; seq++ {
				if err := s.DeleteMsg(r.ctx, seq); err != nil {
					t.Fatal(err)
				}
			}
			r.faulty("removed", tt.from)
			// The chain goes on, and the hole stays to be seen.
			r.sealer(r.js)
			r.put("more", 1, "/more")
			r.records(11)
			r.faulty("removed", tt.from)
		})
	}
}

// TestCutIsNotForgotten: a sealer that goes on behind a cut leaves a note of it.
func TestCutIsNotForgotten(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(10)
	r.rewrite(func(all []message) []message { return all[:7] })
	stop := r.sealer(r.js)
	for i := range 8 {
		r.put("more", uint64(i+1), fmt.Sprint("/more/", i))
	}
	r.records(15)
	stop()
	r.faulty("truncated", 8)
}

// TestForgedAnchorShows: who has the bus but not the keys cannot write an
// anchor.
func TestForgedAnchorShows(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(10)
	kv, err := r.js.KV(r.ctx, bus.BucketTrail)
	if err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(r.ctx, "head")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(r.ctx, "head", bytes.Replace(e.Value, []byte(`"id":10`), []byte(`"id":9`), 1)); err != nil {
		t.Fatal(err)
	}
	r.faulty("anchor", 0)
}

// TestOldRecordsMayLeave: what retention removes is no fault.
func TestOldRecordsMayLeave(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.fill(5)
	s, err := r.admin().Stream(r.ctx, bus.StreamTrail)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= 3; seq++ {
		if err := s.DeleteMsg(r.ctx, seq); err != nil {
			t.Fatal(err)
		}
	}
	r.faulty("removed", 1)
	r.clock.Store(int64(90 * 24 * time.Hour)) // their age explains it now
	r.sound()
}
