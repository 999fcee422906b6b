package auditstore

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
)

// ends knows of the ends of jobs that were sealed lately, so that one that is
// told twice has one record.
type ends struct {
	known map[uint64]bool // by the sequence of the job's last event
	order []uint64
}

const (
	// maxEnds is how many are remembered.
	maxEnds = 1 << 16
	// clockSkew is how far the clocks of worker and sealer may be apart.
	clockSkew = 10 * time.Minute
)

func (n *ends) add(events []audit.Pending) {
	for _, e := range events {
		if e.Once > 0 {
			n.note(e.Once)
		}
	}
}

func (n *ends) note(once uint64) {
	if n.known == nil {
		n.known = map[uint64]bool{}
	}
	if n.known[once] {
		return
	}
	n.known[once] = true
	if n.order = append(n.order, once); len(n.order) > maxEnds {
		for _, old := range n.order[:maxEnds/4] {
			delete(n.known, old)
		}
		n.order = slices.Delete(n.order, 0, maxEnds/4)
	}
}

// choose drops the ends that have a record. Those that may have one which is
// not remembered are looked up in the trail.
func (n *ends) choose(ctx context.Context, js bus.JetStream, events []audit.Pending) ([]audit.Pending, error) {
	var oldest time.Time
	filters := map[string]bool{}
	for _, e := range events {
		if !e.Repeated || e.Once == 0 || n.known[e.Once] {
			continue
		}
		if oldest.IsZero() || e.Timestamp.Before(oldest) {
			oldest = e.Timestamp
		}
		filters[subjectOf(e.TenantToken, e.EventType, e.Owner, "*")] = true
	}
	if len(filters) > 0 {
		if err := n.recall(ctx, js, filters, oldest.Add(-clockSkew)); err != nil {
			return nil, err
		}
	}
	mine := map[uint64]bool{}
	var out []audit.Pending
	for _, e := range events {
		if e.Once > 0 {
			if n.known[e.Once] || mine[e.Once] {
				continue
			}
			mine[e.Once] = true
		}
		out = append(out, e)
	}
	return out, nil
}

// maxFilters bounds the filters of one look-up; beyond, all ends are read.
const maxFilters = 8

// recall reads the ends sealed since a time.
func (n *ends) recall(ctx context.Context, js bus.JetStream, filters map[string]bool, since time.Time) error {
	var list []string
	for f := range filters {
		list = append(list, f)
	}
	if len(list) > maxFilters {
		list = []string{subjectOf("*", string(audit.JobEnd), "*", "*")}
	}
	from, err := sealedSince(ctx, js, since)
	if err != nil || from == 0 {
		return err
	}
	return js.Scan(ctx, bus.StreamTrail, list, from, func(m bus.Message) error {
		var r struct {
			Payload struct {
				Sequence uint64 `json:"sequence"`
			} `json:"payload"`
		}
		if json.Unmarshal(m.Data, &r) == nil && r.Payload.Sequence > 0 {
			n.note(r.Payload.Sequence)
		}
		return nil
	})
}
