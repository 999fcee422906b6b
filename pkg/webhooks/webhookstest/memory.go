// Package webhookstest is the test kit of webhooks: the ports in memory, and
// the suite that they and the real ones pass.
package webhookstest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// Memory implements the ports of webhooks. It is safe for concurrent use.
type Memory struct {
	mu       sync.Mutex // guards what follows
	revision uint64
	records  []webhooks.Record
	queue    []webhooks.Delivery
	log      map[string][]entry
}

type entry struct {
	webhooks.Attempt
	sequence uint64
}

// NewMemory returns empty ports.
func NewMemory() *Memory { return &Memory{log: map[string][]entry{}} }

// Service returns a Service over m.
func (m *Memory) Service(s *webhooks.Sealer) *webhooks.Service {
	return webhooks.New(webhooks.Config{Registry: m, Queue: m, Log: m, Courier: m, Sealer: s})
}

func sameOwner(a, b webhooks.Record) bool {
	return a.Caller.TenantToken() == b.Caller.TenantToken() && a.Caller.Owner() == b.Caller.Owner()
}

// Create implements webhooks.Registry.
func (m *Memory) Create(_ context.Context, r webhooks.Record) (webhooks.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, other := range m.records {
		if sameOwner(r, other) {
			n++
		}
	}
	if n >= webhooks.MaxPerOwner {
		return r, webhooks.ErrTooMany
	}
	m.revision++
	r.Revision = m.revision
	m.records = append(m.records, r)
	return r, nil
}

func (m *Memory) at(r webhooks.Record) (int, error) {
	i := slices.IndexFunc(m.records, func(o webhooks.Record) bool { return o.ID == r.ID })
	if i < 0 || m.records[i].Revision != r.Revision {
		return 0, webhooks.ErrConflict
	}
	return i, nil
}

// Update implements webhooks.Registry.
func (m *Memory) Update(_ context.Context, r webhooks.Record) (webhooks.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.at(r)
	if err != nil {
		return r, err
	}
	m.revision++
	r.Revision = m.revision
	m.records[i] = r
	return r, nil
}

// Delete implements webhooks.Registry.
func (m *Memory) Delete(_ context.Context, r webhooks.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.at(r)
	if err != nil {
		return err
	}
	m.records = slices.Delete(m.records, i, i+1)
	m.queue = slices.DeleteFunc(m.queue, func(d webhooks.Delivery) bool { return d.Endpoint == r.ID })
	delete(m.log, r.Caller.TenantToken()+"."+r.ID)
	return nil
}

// Of implements webhooks.Registry.
func (m *Memory) Of(_ context.Context, tenant, owner string) ([]webhooks.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []webhooks.Record
	for _, r := range m.records {
		if tenant+owner == "" || r.Caller.Owns(tenant, owner) {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b webhooks.Record) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}

// Find implements webhooks.Registry.
func (m *Memory) Find(_ context.Context, id string) (webhooks.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.records {
		if r.ID == id {
			return r, nil
		}
	}
	return webhooks.Record{}, webhooks.ErrNotFound
}

// Enqueue implements webhooks.Queue.
func (m *Memory) Enqueue(_ context.Context, d webhooks.Delivery, _ bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.ContainsFunc(m.queue, func(o webhooks.Delivery) bool { return o.ID == d.ID && o.Endpoint == d.Endpoint }) {
		return webhooks.ErrPending
	}
	m.queue = append(m.queue, d)
	return nil
}

// Recall implements webhooks.Queue; there is no ladder in memory.
func (m *Memory) Recall(context.Context, webhooks.Delivery) error { return nil }

// Queued returns what waits.
func (m *Memory) Queued() []webhooks.Delivery {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.queue)
}

// Append implements webhooks.Log.
func (m *Memory) Append(_ context.Context, tenant, endpoint string, a webhooks.Attempt) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision++
	key := tenant + "." + endpoint
	m.log[key] = append(m.log[key], entry{a, m.revision})
	return nil
}

// List implements webhooks.Log.
func (m *Memory) List(_ context.Context, tenant, endpoint string, q webhooks.LogQuery) ([]webhooks.Attempt, string, error) {
	before := uint64(0)
	if q.Cursor != "" {
		var err error
		if before, err = strconv.ParseUint(q.Cursor, 10, 64); err != nil {
			return nil, "", packs.Errorf(packs.InvalidInput, "cursor is not one this list handed out")
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	page, next := []webhooks.Attempt{}, ""
	for _, e := range slices.Backward(m.log[tenant+"."+endpoint]) {
		if before > 0 && e.sequence >= before || q.Delivery != "" && q.Delivery != e.Delivery {
			continue
		}
		if len(page) == q.Limit {
			return page, next, nil
		}
		page, next = append(page, e.Attempt), strconv.FormatUint(e.sequence, 10)
	}
	return page, "", nil
}

// Test implements webhooks.Courier.
func (m *Memory) Test(ctx context.Context, r webhooks.Record) (string, error) {
	m.mu.Lock()
	m.revision++
	id := fmt.Sprintf("test-%d", m.revision)
	m.mu.Unlock()
	return id, m.Enqueue(ctx, webhooks.Delivery{
		ID: id, Endpoint: r.ID, Tenant: r.Caller.TenantToken(), Owner: r.Caller.Owner(), Event: webhooks.EventTest,
	}, false)
}

// Again implements webhooks.Courier.
func (m *Memory) Again(ctx context.Context, o webhooks.Origin, r *webhooks.Record) error {
	d := webhooks.Delivery{ID: o.Event, Endpoint: o.JobID, Tenant: o.Tenant, Owner: o.Owner, JobID: o.JobID}
	if r != nil {
		d.Endpoint = r.ID
	}
	return m.Enqueue(ctx, d, false)
}
