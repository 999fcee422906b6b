// Package leasestore keeps leases on the bus: the records in the bucket
// "leases", a revision being the bucket's, and the requests in the work-queue
// stream LEASE with one durable consumer per image.
//
// What the states of a lease mean is the business of pkg/sessions and
// internal/scheduler.
package leasestore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/records"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// Config is what a Store is made of.
type Config struct {
	JetStream bus.JetStream
	// Ensure makes the durable consumer of an image, for schedulers; workers,
	// which never Take, leave it nil. See bus.Conn.EnsureLeaseConsumer.
	Ensure func(ctx context.Context, image string) (stream, consumer string, err error)
	Log    zerolog.Logger
}

// Store is a sessions.Registry and a sessions.Queue.
type Store struct {
	cfg Config
	kv  bus.KV

	mu        sync.Mutex // guards the rest
	consumers map[string]consumer
	places    map[string]places // by image
}

type consumer struct{ stream, name string }

var (
	_ sessions.Registry = (*Store)(nil)
	_ sessions.Queue    = (*Store)(nil)
)

// Open opens the bucket.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	kv, err := cfg.JetStream.KV(ctx, bus.BucketLeases)
	if err != nil {
		return nil, fmt.Errorf("open leases: %w", err)
	}
	return &Store{cfg: cfg, kv: kv, consumers: map[string]consumer{}, places: map[string]places{}}, nil
}

// Create implements sessions.Registry.
func (s *Store) Create(ctx context.Context, l sessions.Lease) (uint64, error) {
	data, err := records.Encode(l, l.Unknown)
	if err != nil {
		return 0, fmt.Errorf("encode lease %s: %w", l.ID, err)
	}
	revision, err := s.kv.Create(ctx, l.ID, data, 0)
	if errors.Is(err, bus.ErrExists) {
		err = sessions.ErrConflict
	}
	if err != nil {
		return 0, fmt.Errorf("create lease %s: %w", l.ID, err)
	}
	return revision, nil
}

// inFlightTries is how often an Update that met nothing newer is repeated: the
// server refuses a write while another to the same key is under way.
const inFlightTries = 5

// Update implements sessions.Registry.
func (s *Store) Update(ctx context.Context, l sessions.Lease, revision uint64) (uint64, error) {
	data, err := records.Encode(l, l.Unknown)
	if err != nil {
		return 0, fmt.Errorf("encode lease %s: %w", l.ID, err)
	}
	for range inFlightTries {
		var next uint64
		next, err = s.kv.Update(ctx, l.ID, data, revision)
		if err == nil {
			return next, nil
		}
		if !errors.Is(err, bus.ErrWrongSequence) {
			break
		}
		now, gerr := s.kv.Get(ctx, l.ID)
		if gerr == nil && now.Revision == revision {
			continue
		}
		err = sessions.ErrConflict
		if gerr != nil && !errors.Is(gerr, bus.ErrNoMessage) {
			err = gerr
		}
		break
	}
	return 0, fmt.Errorf("update lease %s: %w", l.ID, err)
}

// Get implements sessions.Registry.
func (s *Store) Get(ctx context.Context, id string) (sessions.Entry, error) {
	e, err := s.kv.Get(ctx, id)
	if errors.Is(err, bus.ErrNoMessage) {
		err = sessions.ErrNotFound
	}
	if err != nil {
		return sessions.Entry{}, fmt.Errorf("read lease %s: %w", id, err)
	}
	return decode(e)
}

var form = records.FormOf(sessions.Lease{})

func decode(e bus.KVEntry) (sessions.Entry, error) {
	entry := sessions.Entry{Revision: e.Revision}
	var err error
	if entry.Lease.Unknown, err = form.Decode(e.Value, &entry.Lease); err != nil {
		return entry, fmt.Errorf("decode lease %s: %w", e.Key, err)
	}
	return entry, nil
}

// Delete implements sessions.Registry.
func (s *Store) Delete(ctx context.Context, id string) error {
	if err := s.kv.Delete(ctx, id); err != nil && !errors.Is(err, bus.ErrNoMessage) {
		return fmt.Errorf("delete lease %s: %w", id, err)
	}
	return nil
}

// Watch implements sessions.Registry.
func (s *Store) Watch(ctx context.Context) (<-chan sessions.Entry, error) {
	entries, err := s.kv.Watch(ctx, ">")
	if err != nil {
		return nil, fmt.Errorf("watch leases: %w", err)
	}
	out := make(chan sessions.Entry)
	go func() {
		defer close(out)
		marked := false
		for e := range entries {
			var entry sessions.Entry
			switch {
			case e.Key == "":
				marked = true
			case e.Deleted && !marked:
				continue // what is left of one deleted long ago
			case e.Deleted:
				entry = sessions.Entry{
					Lease:    sessions.Lease{ID: e.Key, State: sessions.StateGone},
					Revision: e.Revision, Deleted: true,
				}
			default:
				if entry, err = decode(e); err != nil {
					// Written by a newer version, or not by this product.
					s.cfg.Log.Error().Err(err).Msg("lease is unreadable")
					continue
				}
			}
			select {
			case out <- entry:
			case <-ctx.Done():
				// The source closes its channel on the same ctx.
			}
		}
	}()
	return out, nil
}

// Offer implements sessions.Queue. A request that is queued already is no
// error.
func (s *Store) Offer(ctx context.Context, image, leaseID string) error {
	_, err := s.cfg.JetStream.Publish(ctx, bus.Outgoing{Subject: bus.LeaseSubject(image, leaseID)})
	if err != nil && !errors.Is(err, bus.ErrSubjectTaken) {
		return fmt.Errorf("queue lease request %s: %w", leaseID, err)
	}
	return nil
}

// pullFor is how long one pull waits on the server.
const pullFor = 30 * time.Second

// settleWithin bounds the answer to a delivery; one that does not get through
// comes again, which is harmless.
const settleWithin = 5 * time.Second

// Take implements sessions.Queue. It asks for all images at once and gives
// back what came second.
func (s *Store) Take(ctx context.Context, images []string) (string, func(), func(), error) {
	pullCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		delivery bus.Delivery
		err      error
	}
	answers := make(chan answer, len(images))
	for _, image := range images {
		go func() {
			d, err := s.pull(pullCtx, image)
			answers <- answer{d, err}
		}()
	}
	var first bus.Delivery
	var fault error
	for range images {
		a := <-answers
		switch {
		case a.err != nil && fault == nil && first == nil:
			fault = a.err
		case a.delivery != nil && first == nil:
			first = a.delivery
		case a.delivery != nil:
			s.giveBack(ctx, a.delivery)
		}
		cancel() // the rest returns at once, with what it holds or nothing
	}
	if first == nil {
		if err := context.Cause(ctx); err != nil {
			return "", nil, nil, err
		}
		return "", nil, nil, fmt.Errorf("take lease request: %w", fault)
	}
	subject := first.Message().Subject
	id := subject[strings.LastIndexByte(subject, '.')+1:]
	return id, func() { s.ack(ctx, id, first) }, func() { s.giveBack(ctx, first) }, nil
}

// pull waits for one request of an image.
func (s *Store) pull(ctx context.Context, image string) (bus.Delivery, error) {
	c, err := s.consumer(ctx, image)
	if err != nil {
		return nil, err
	}
	for {
		ds, err := s.cfg.JetStream.Pull(ctx, c.stream, c.name, 1, pullFor)
		if len(ds) > 0 {
			return ds[0], nil
		}
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

func (s *Store) consumer(ctx context.Context, image string) (consumer, error) {
	s.mu.Lock()
	c, ok := s.consumers[image]
	s.mu.Unlock()
	if ok {
		return c, nil
	}
	if s.cfg.Ensure == nil {
		return consumer{}, errors.New("this role takes no lease requests")
	}
	stream, name, err := s.cfg.Ensure(ctx, image)
	if err != nil {
		return consumer{}, err
	}
	c = consumer{stream, name}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumers[image] = c
	return c, nil
}

func (s *Store) ack(ctx context.Context, id string, d bus.Delivery) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	if err := d.Ack(ctx); err != nil {
		s.cfg.Log.Warn().Err(err).Str("lease", id).Msg("lease request not acknowledged, it will come again")
	}
}

func (s *Store) giveBack(ctx context.Context, d bus.Delivery) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	if err := d.Nak(ctx, 0); err != nil {
		s.cfg.Log.Warn().Err(err).Msg("lease request not given back, it will come again")
	}
}

// places is the queue of one image as it was a moment ago.
type places struct {
	at time.Time
	of map[string]int
}

// placesFor is how long one reading of a queue serves all that wait in it.
const placesFor = time.Second

// Position implements sessions.Queue. Requests being worked on count as
// waiting.
func (s *Store) Position(ctx context.Context, image, leaseID string) (int, error) {
	s.mu.Lock()
	p := s.places[image]
	s.mu.Unlock()
	if n, ok := p.of[leaseID]; ok && time.Since(p.at) < placesFor {
		return n, nil
	}
	p = places{at: time.Now(), of: map[string]int{}}
	err := s.cfg.JetStream.Scan(ctx, bus.StreamLeases, []string{bus.LeaseSubject(image, "*")}, 0, func(m bus.Message) error {
		p.of[m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]] = len(p.of)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read lease requests: %w", err)
	}
	s.mu.Lock()
	s.places[image] = p
	s.mu.Unlock()
	n, ok := p.of[leaseID]
	if !ok {
		return 0, fmt.Errorf("lease request %s: %w", leaseID, sessions.ErrNotFound)
	}
	return n, nil
}
