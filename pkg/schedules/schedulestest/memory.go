// Package schedulestest holds the contract of the stores of schedules, and one
// in memory that keeps it, for tests of what stands on schedules.Service.
package schedulestest

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/pkg/schedules"
)

// Memory implements schedules.Store, schedules.Names and schedules.Timers. Its
// timers do not fire by themselves: see Due. It is safe for concurrent use.
type Memory struct {
	mu       sync.Mutex // guards all below
	revision uint64
	records  map[string]entry
	names    map[string]schedules.Holder
	timers   map[string]Timer
}

type entry struct {
	data     []byte
	revision uint64
}

// Timer is a timer that is set.
type Timer struct{ At, When time.Time }

// NewMemory returns an empty Memory.
func NewMemory() *Memory {
	return &Memory{records: map[string]entry{}, names: map[string]schedules.Holder{}, timers: map[string]Timer{}}
}

// Due takes the timers out that fire at or before now, and returns the time
// each was set for by schedule.
func (m *Memory) Due(now time.Time) map[string]time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	fired := map[string]time.Time{}
	for id, t := range m.timers {
		if !t.When.After(now) {
			fired[id] = t.At
			delete(m.timers, id)
		}
	}
	return fired
}

// Timer returns the timer of a schedule.
func (m *Memory) Timer(id string) (Timer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok := m.timers[id]
	return t, ok
}

// Create implements schedules.Store.
func (m *Memory) Create(_ context.Context, r schedules.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.records[r.ID]; ok {
		return schedules.ErrExists
	}
	return m.put(r)
}

// put stores a record; the caller holds mu.
func (m *Memory) put(r schedules.Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	m.revision++
	m.records[r.ID] = entry{data, m.revision}
	return nil
}

// Get implements schedules.Store.
func (m *Memory) Get(_ context.Context, id string) (r schedules.Record, revision uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.records[id]
	if !ok {
		return r, 0, schedules.ErrNotFound
	}
	return r, e.revision, json.Unmarshal(e.data, &r)
}

// Update implements schedules.Store.
func (m *Memory) Update(_ context.Context, r schedules.Record, revision uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.records[r.ID].revision != revision {
		return schedules.ErrConflict
	}
	return m.put(r)
}

// Delete implements schedules.Store.
func (m *Memory) Delete(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, id)
	return nil
}

// List implements schedules.Store.
func (m *Memory) List(ctx context.Context) ([]*schedules.Record, error) {
	m.mu.Lock()
	ids := slices.Collect(maps.Keys(m.records))
	m.mu.Unlock()
	var all []*schedules.Record
	for _, id := range ids {
		if r, _, err := m.Get(ctx, id); err == nil {
			all = append(all, &r)
		}
	}
	return all, nil
}

// Claim implements schedules.Names.
func (m *Memory) Claim(_ context.Context, name, id string) (schedules.Holder, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if held, ok := m.names[name]; ok {
		return held, false, nil
	}
	m.revision++
	m.names[name] = schedules.Holder{ID: id, Since: time.Now(), Revision: m.revision}
	return schedules.Holder{}, true, nil
}

// TakeOver implements schedules.Names.
func (m *Memory) TakeOver(_ context.Context, name, id string, held schedules.Holder) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name].Revision != held.Revision {
		return schedules.ErrConflict
	}
	m.revision++
	m.names[name] = schedules.Holder{ID: id, Since: time.Now(), Revision: m.revision}
	return nil
}

// Free implements schedules.Names.
func (m *Memory) Free(_ context.Context, name, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name].ID == id {
		delete(m.names, name)
	}
	return nil
}

// Arm implements schedules.Timers.
func (m *Memory) Arm(_ context.Context, id string, at, when time.Time) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.timers[id] = Timer{at, when}
	return nil
}

// Disarm implements schedules.Timers.
func (m *Memory) Disarm(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.timers, id)
	return nil
}

// Armed implements schedules.Timers.
func (m *Memory) Armed(_ context.Context, fn func(string, time.Time) error) error {
	m.mu.Lock()
	timers := maps.Clone(m.timers)
	m.mu.Unlock()
	for id, t := range timers {
		if err := fn(id, t.At); err != nil {
			return err
		}
	}
	return nil
}
