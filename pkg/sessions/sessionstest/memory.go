package sessionstest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// Registry is an in-memory sessions.Registry. The zero value is not usable:
// see NewRegistry.
type Registry struct {
	mu       sync.Mutex // guards the rest
	records  map[string]sessions.Entry
	revision uint64
	watchers map[*watcher]bool
	fault    func(op string) error
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{records: map[string]sessions.Entry{}, watchers: map[*watcher]bool{}}
}

// Fail makes every operation ("create", "update", "get", "delete", "watch")
// ask fault first and return its error without effect; nil ends that.
func (r *Registry) Fail(fault func(op string) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = fault
}

// BreakWatches ends all present watches, as a lost connection does.
func (r *Registry) BreakWatches() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers {
		w.cancel()
	}
}

// All returns the present records by id.
func (r *Registry) All() map[string]sessions.Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]sessions.Lease{}
	for id, e := range r.records {
		all[id] = e.Lease
	}
	return all
}

func (r *Registry) begin(ctx context.Context, op string) error {
	if r.fault != nil {
		if err := r.fault(op); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// store keeps e under the next revision and tells the watchers.
func (r *Registry) store(e sessions.Entry) uint64 {
	r.revision++
	e.Revision = r.revision
	if e.Deleted {
		delete(r.records, e.Lease.ID)
	} else {
		r.records[e.Lease.ID] = e
	}
	for w := range r.watchers {
		w.put(e)
	}
	return e.Revision
}

// Create implements sessions.Registry.
func (r *Registry) Create(ctx context.Context, l sessions.Lease) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin(ctx, "create"); err != nil {
		return 0, err
	}
	if _, ok := r.records[l.ID]; ok {
		return 0, sessions.ErrConflict
	}
	return r.store(sessions.Entry{Lease: l}), nil
}

// Update implements sessions.Registry.
func (r *Registry) Update(ctx context.Context, l sessions.Lease, revision uint64) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin(ctx, "update"); err != nil {
		return 0, err
	}
	if e, ok := r.records[l.ID]; !ok || e.Revision != revision {
		return 0, sessions.ErrConflict
	}
	return r.store(sessions.Entry{Lease: l}), nil
}

// Get implements sessions.Registry.
func (r *Registry) Get(ctx context.Context, id string) (sessions.Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin(ctx, "get"); err != nil {
		return sessions.Entry{}, err
	}
	e, ok := r.records[id]
	if !ok {
		return sessions.Entry{}, sessions.ErrNotFound
	}
	return e, nil
}

// Delete implements sessions.Registry.
func (r *Registry) Delete(ctx context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin(ctx, "delete"); err != nil {
		return err
	}
	if _, ok := r.records[id]; ok {
		r.store(sessions.Entry{Lease: sessions.Lease{ID: id, State: sessions.StateGone}, Deleted: true})
	}
	return nil
}

// Watch implements sessions.Registry.
func (r *Registry) Watch(ctx context.Context) (<-chan sessions.Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin(ctx, "watch"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{cancel: cancel, more: make(chan struct{}, 1)}
	present := slices.SortedFunc(maps.Values(r.records), func(a, b sessions.Entry) int { return cmp.Compare(a.Revision, b.Revision) })
	for _, e := range append(present, sessions.Entry{}) {
		w.put(e)
	}
	r.watchers[w] = true
	out := make(chan sessions.Entry)
	go func() {
		defer close(out)
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.watchers, w)
		}()
		w.run(ctx, out)
	}()
	return out, nil
}

// watcher is an unbounded queue, so that a slow reader never blocks a writer.
type watcher struct {
	cancel func()
	more   chan struct{}

	mu    sync.Mutex // guards queue
	queue []sessions.Entry
}

func (w *watcher) put(e sessions.Entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, e)
	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) run(ctx context.Context, out chan<- sessions.Entry) {
	defer w.cancel()
	for {
		w.mu.Lock()
		batch := w.queue
		w.queue = nil
		w.mu.Unlock()
		for _, e := range batch {
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-w.more:
		case <-ctx.Done():
			return
		}
	}
}

// Queue is an in-memory sessions.Queue; the zero value is ready. A request
// that is neither acked nor given back comes again when Redeliver is called.
type Queue struct {
	mu      sync.Mutex // guards the rest
	waiting []queued
	taken   []queued
	more    chan struct{} // closed and replaced when something waits
}

type queued struct{ image, id string }

// Offer implements sessions.Queue.
func (q *Queue) Offer(ctx context.Context, image, leaseID string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	q.put(queued{image, leaseID})
	return nil
}

func (q *Queue) put(r queued) {
	q.waiting = append(q.waiting, r)
	if q.more != nil {
		close(q.more)
		q.more = nil
	}
}

// Take implements sessions.Queue.
func (q *Queue) Take(ctx context.Context, images []string) (string, func(), func(), error) {
	for {
		q.mu.Lock()
		i := slices.IndexFunc(q.waiting, func(r queued) bool { return slices.Contains(images, r.image) })
		if i >= 0 {
			r := q.waiting[i]
			q.waiting = slices.Delete(q.waiting, i, i+1)
			q.taken = append(q.taken, r)
			q.mu.Unlock()
			return r.id, func() { q.settle(r, false) }, func() { q.settle(r, true) }, nil
		}
		if q.more == nil {
			q.more = make(chan struct{})
		}
		more := q.more
		q.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return "", nil, nil, context.Cause(ctx)
		}
	}
}

func (q *Queue) settle(r queued, again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.taken, r)
	if i < 0 {
		return
	}
	q.taken = slices.Delete(q.taken, i, i+1)
	if again {
		q.put(r)
	}
}

// Redeliver gives every request back that was taken and not settled.
func (q *Queue) Redeliver() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range q.taken {
		q.put(r)
	}
	q.taken = nil
}

// Position implements sessions.Queue.
func (q *Queue) Position(_ context.Context, image, leaseID string) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, r := range q.waiting {
		if r.id == leaseID {
			return n, nil
		}
		if r.image == image {
			n++
		}
	}
	return 0, sessions.ErrNotFound
}

var (
	_ sessions.Registry = (*Registry)(nil)
	_ sessions.Queue    = (*Queue)(nil)
)
