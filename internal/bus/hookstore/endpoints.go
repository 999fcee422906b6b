package hookstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// revisionKey is written after every change of an endpoint and before the
// change is answered. Who has seen its newest revision has seen every change
// that was answered: the bucket hands its entries out in order.
const revisionKey = "rev"

// Endpoints implements webhooks.Registry. It keeps the endpoints of the whole
// installation in memory, fed by one watcher, and asks the bus before each
// read whether it has heard of everything; readers share the question. Run
// must be running.
//
// An owner has webhooks.MaxPerOwner places, one key each, so that no race
// makes more endpoints than that. A deleted one leaves an empty record, which
// the next one made takes over.
type Endpoints struct {
	kv    bus.KV
	store *Store
	log   zerolog.Logger
	asks  chan chan error // readers who want the memory up to date

	mu      sync.Mutex // guards what follows
	places  map[string]place
	byOwner map[string][]webhooks.Record // "<tenant>.<owner>", oldest first; never changed in place
	byID    map[string]webhooks.Record
	seen    uint64
	loaded  bool
	moved   chan struct{} // closed and replaced when seen or loaded changes
}

// place is a key that holds an endpoint, or did.
type place struct {
	revision uint64
	record   webhooks.Record // its ID is empty when there is none
}

// NewEndpoints returns the registry over the bucket of js. store is what a
// deleted endpoint's deliveries are removed from.
func NewEndpoints(ctx context.Context, js bus.JetStream, store *Store, log zerolog.Logger) (*Endpoints, error) {
	kv, err := js.KV(ctx, bus.BucketWebhooks)
	if err != nil {
		return nil, err
	}
	return &Endpoints{
		kv: kv, store: store, log: log, asks: make(chan chan error),
		places: map[string]place{}, byOwner: map[string][]webhooks.Record{},
		byID: map[string]webhooks.Record{}, moved: make(chan struct{}),
	}, nil
}

const (
	// watchAgain is the pause before a watch that broke off is begun anew.
	watchAgain = time.Second
	// behind is how long a reader waits for the watcher to catch up.
	behind = 10 * time.Second
)

// Run keeps the memory up to date until ctx ends.
func (e *Endpoints) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { e.answer(ctx) })
	defer wg.Wait()
	for ctx.Err() == nil {
		entries, err := e.kv.Watch(ctx, ">")
		if err == nil {
			for entry := range entries {
				e.apply(entry)
			}
		} else if ctx.Err() == nil {
			e.log.Warn().Err(err).Msg("endpoints cannot be watched, trying again")
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchAgain):
		}
	}
	return nil
}

func (e *Endpoints) apply(entry bus.KVEntry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case entry.Key == "":
		e.loaded = true
	case entry.Revision <= e.seen:
		return // a new watch repeats what is known
	case strings.Count(entry.Key, ".") == 2:
		e.set(entry)
	}
	e.seen = max(e.seen, entry.Revision)
	close(e.moved)
	e.moved = make(chan struct{})
}

func (e *Endpoints) set(entry bus.KVEntry) {
	p := place{revision: entry.Revision}
	if !entry.Deleted {
		if err := json.Unmarshal(entry.Value, &p.record); err != nil {
			e.log.Error().Err(err).Str("key", entry.Key).Msg("endpoint not understood, passed over")
			p.record = webhooks.Record{}
		}
	}
	p.record.Revision = entry.Revision
	delete(e.byID, e.places[entry.Key].record.ID)
	e.places[entry.Key] = p
	owner := entry.Key[:strings.LastIndexByte(entry.Key, '.')]
	var own []webhooks.Record
	for slot := range webhooks.MaxPerOwner {
		if r := e.places[slotKey(owner, slot)].record; r.ID != "" {
			r.Slot = slot
			own = append(own, r)
			e.byID[r.ID] = r
		}
	}
	slices.SortFunc(own, older)
	if e.byOwner[owner] = own; len(own) == 0 {
		delete(e.byOwner, owner)
	}
}

func older(a, b webhooks.Record) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
}

func ownerKey(tenant, owner string) string { return tenant + "." + owner }

func slotKey(owner string, slot int) string { return fmt.Sprintf("%s.%02d", owner, slot) }

// answer lets one question to the bus serve all who asked before it was put.
func (e *Endpoints) answer(ctx context.Context) {
	for {
		var asked []chan error
		select {
		case <-ctx.Done():
			return
		case a := <-e.asks:
			asked = append(asked, a)
		}
		for more := true; more; {
			select {
			case a := <-e.asks:
				asked = append(asked, a)
			default:
				more = false
			}
		}
		err := e.catchUp(ctx)
		for _, a := range asked {
			a <- err // has room for one
		}
	}
}

// catchUp waits until the memory holds every change answered before.
func (e *Endpoints) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, behind)
	defer cancel()
	var newest uint64
	entry, err := e.kv.Get(ctx, revisionKey)
	switch {
	case err == nil:
		newest = entry.Revision
	case !errors.Is(err, bus.ErrNoMessage):
		return busError(err)
	}
	for {
		e.mu.Lock()
		there, moved := e.loaded && e.seen >= newest, e.moved
		e.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return fmt.Errorf("%w: the watcher of endpoints is behind: %w", webhooks.ErrUnavailable, ctx.Err())
		}
	}
}

func (e *Endpoints) fresh(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case e.asks <- answer:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Of implements webhooks.Registry.
func (e *Endpoints) Of(ctx context.Context, tenant, owner string) ([]webhooks.Record, error) {
	if err := e.fresh(ctx); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if tenant+owner != "" {
		return e.byOwner[ownerKey(tenant, owner)], nil
	}
	var all []webhooks.Record
	for _, own := range e.byOwner {
		all = append(all, own...)
	}
	slices.SortFunc(all, older)
	return all, nil
}

// Find implements webhooks.Registry.
func (e *Endpoints) Find(ctx context.Context, id string) (webhooks.Record, error) {
	if err := e.fresh(ctx); err != nil {
		return webhooks.Record{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.byID[id]
	if !ok {
		return r, webhooks.ErrNotFound
	}
	return r, nil
}

// Create implements webhooks.Registry.
func (e *Endpoints) Create(ctx context.Context, r webhooks.Record) (webhooks.Record, error) {
	if err := e.fresh(ctx); err != nil {
		return r, err
	}
	value, err := json.Marshal(r)
	if err != nil {
		return r, fmt.Errorf("encode endpoint: %w", err)
	}
	owner := ownerKey(r.Caller.TenantToken(), r.Caller.Owner())
	for slot := range webhooks.MaxPerOwner {
		key := slotKey(owner, slot)
		e.mu.Lock()
		p := e.places[key]
		e.mu.Unlock()
		if p.record.ID != "" {
			continue
		}
		// The place may never have been used, or hold what a deleted one left.
		r.Revision, err = e.kv.Update(ctx, key, value, p.revision)
		if errors.Is(err, bus.ErrWrongSequence) {
			continue // another one was faster
		}
		if err != nil {
			return r, busError(err)
		}
		r.Slot = slot
		return r, e.published(ctx)
	}
	return r, webhooks.ErrTooMany
}

// published makes a change known to all replicas before it is answered.
func (e *Endpoints) published(ctx context.Context) error {
	_, err := e.kv.Put(ctx, revisionKey, []byte("{}"))
	return busError(err)
}

// Update implements webhooks.Registry.
func (e *Endpoints) Update(ctx context.Context, r webhooks.Record) (webhooks.Record, error) {
	value, err := json.Marshal(r)
	if err != nil {
		return r, fmt.Errorf("encode endpoint: %w", err)
	}
	key := slotKey(ownerKey(r.Caller.TenantToken(), r.Caller.Owner()), r.Slot)
	if r.Revision, err = e.kv.Update(ctx, key, value, r.Revision); err != nil {
		return r, busError(err)
	}
	return r, e.published(ctx)
}

// Delete implements webhooks.Registry.
func (e *Endpoints) Delete(ctx context.Context, r webhooks.Record) error {
	tenant := r.Caller.TenantToken()
	empty := webhooks.Record{Slot: r.Slot, Revision: r.Revision}
	empty.Caller = r.Caller // names the place
	if _, err := e.Update(ctx, empty); err != nil {
		return err
	}
	return e.store.forget(ctx, tenant, r.ID)
}
