package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const headerKV = "KV-Operation"

// kv is a bucket. It keeps the client library's layout, so that other NATS
// tools can read it, but asks the server directly: the library looks buckets
// up first and knows nothing of reconnects.
type kv struct {
	conn   *Conn
	bucket string
	stream string
	prefix string // of the keys' subjects
}

func (j *jetStream) KV(_ context.Context, bucket string) (KV, error) {
	c := (*Conn)(j)
	if !validName(bucket) {
		return nil, fmt.Errorf("open bucket %q: malformed name", bucket)
	}
	return &kv{conn: c, bucket: bucket, stream: c.names.kvStream(bucket), prefix: "$KV." + c.names.bucket(bucket) + "."}, nil
}

func validName(s string) bool {
	return s != "" && !strings.ContainsAny(s, ". *>\t\r\n")
}

func (k *kv) key(key string) (string, error) {
	bad := key == "" || key[0] == '.' || key[len(key)-1] == '.' || strings.Contains(key, "..")
	for _, r := range key {
		bad = bad || r <= ' ' || r >= 0x7f || r == '*' || r == '>'
	}
	if bad {
		return "", fmt.Errorf("bucket %s: malformed key %q", k.bucket, key)
	}
	return k.prefix + key, nil
}

// gone reports whether s is the marker of a removed or expired key.
func gone(h nats.Header) bool {
	op := h.Get(headerKV)
	return op == "DEL" || op == "PURGE" || h.Get(headerMarker) != ""
}

func (k *kv) Get(ctx context.Context, key string) (KVEntry, error) {
	subject, err := k.key(key)
	if err != nil {
		return KVEntry{}, err
	}
	s, err := k.conn.last(ctx, k.stream, subject, k.conn.profile.Replicas > 1)
	if err == nil && gone(s.header) {
		err = ErrNoMessage
	}
	if err != nil {
		return KVEntry{}, fmt.Errorf("read key %s of %s: %w", key, k.bucket, err)
	}
	return KVEntry{Key: key, Value: s.data, Revision: s.sequence, Created: s.time}, nil
}

// createTries bounds a Create that meets another one still in flight, which
// lasts as long as a change of leader may; the pauses between double, and come
// to about two seconds.
const (
	createTries = 8
	createPause = 4 * time.Millisecond
)

func (k *kv) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	subject, err := k.key(key)
	if err != nil {
		return 0, err
	}
	var expect uint64
	for try := range createTries {
		if try > 1 { // a write of the key is in flight: let it land
			select {
			case <-ctx.Done():
				return 0, k.wrap("create", key, k.conn.translate(ctx.Err()))
			case <-time.After(createPause << try):
			}
		}
		var seq uint64
		seq, err = k.put(ctx, subject, value, &expect, ttl)
		if !errors.Is(err, ErrWrongSequence) {
			return seq, k.wrap("create", key, err)
		}
		// There is something: the key itself, or the marker of an old one.
		s, lerr := k.conn.last(ctx, k.stream, subject, true)
		switch {
		case lerr == nil && !gone(s.header):
			return 0, k.wrap("create", key, ErrExists)
		case lerr == nil:
			expect = s.sequence
		case errors.Is(lerr, ErrNoMessage):
			expect = 0
		default:
			return 0, k.wrap("create", key, lerr)
		}
	}
	// Its outcome is not known, as after a time-out of our own.
	return 0, k.wrap("create", key, fmt.Errorf("%w: another write of it stays in flight: %v", ErrUnavailable, err))
}

func (k *kv) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	subject, err := k.key(key)
	if err != nil {
		return 0, err
	}
	seq, err := k.put(ctx, subject, value, &revision, 0)
	return seq, k.wrap("update", key, err)
}

func (k *kv) Expire(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	subject, err := k.key(key)
	if err != nil {
		return 0, err
	}
	seq, err := k.put(ctx, subject, value, &revision, ttl)
	return seq, k.wrap("expire", key, err)
}

func (k *kv) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	subject, err := k.key(key)
	if err != nil {
		return 0, err
	}
	seq, err := k.put(ctx, subject, value, nil, 0)
	return seq, k.wrap("put", key, err)
}

func (k *kv) put(ctx context.Context, subject string, value []byte, expect *uint64, ttl time.Duration) (uint64, error) {
	h := nats.Header{}
	if expect != nil {
		h[headerExpect] = []string{strconv.FormatUint(*expect, 10)}
	}
	if ttl > 0 {
		h[headerTTL] = []string{ttlValue(ttl)}
	}
	began := time.Now()
	ack, err := k.conn.store(ctx, &nats.Msg{Subject: subject, Header: h, Data: value})
	k.conn.observe("kv", time.Since(began), err)
	return ack.Sequence, err
}

// Delete leaves a marker for watchers that goes away by itself.
func (k *kv) Delete(ctx context.Context, key string) error {
	subject, err := k.key(key)
	if err != nil {
		return err
	}
	h := nats.Header{
		headerKV: {"PURGE"}, headerRollup: {"sub"}, headerTTL: {ttlValue(kvMarkerTTL)},
	}
	_, err = k.conn.store(ctx, &nats.Msg{Subject: subject, Header: h})
	return k.wrap("delete", key, err)
}

func (k *kv) wrap(verb, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s key %s of %s: %w", verb, key, k.bucket, err)
}

// Watch keeps its promise over reconnects and server restarts: a new watcher
// takes over, of which the entries already sent are left out.
func (k *kv) Watch(ctx context.Context, pattern string) (<-chan KVEntry, error) {
	bound, cancel := k.conn.bound(ctx, k.conn.timeout)
	defer cancel()
	if err := k.conn.ready(bound, nil); err != nil {
		return nil, fmt.Errorf("watch %s of %s: %w", pattern, k.bucket, err)
	}
	bucket, err := k.conn.js.KeyValue(bound, k.conn.names.bucket(k.bucket))
	if err != nil {
		return nil, fmt.Errorf("watch %s of %s: %w", pattern, k.bucket, k.conn.translate(err))
	}
	ctx, stop := context.WithCancel(ctx)
	w := &watch{kv: k, bucket: bucket, pattern: pattern, out: make(chan KVEntry, 64)}
	if err := w.open(ctx); err != nil {
		stop()
		return nil, fmt.Errorf("watch %s of %s: %w", pattern, k.bucket, k.conn.translate(err))
	}
	k.conn.watches.Add(1)
	go func() {
		defer k.conn.watches.Done()
		defer close(w.out)
		defer stop()
		defer context.AfterFunc(k.conn.alive, stop)()
		w.run(ctx)
	}()
	return w.out, nil
}

// watch is one running Watch; its goroutine alone uses it.
type watch struct {
	kv      *kv
	bucket  jetstream.KeyValue
	pattern string
	out     chan KVEntry
	source  jetstream.KeyWatcher
	lost    <-chan struct{} // closed when the connection source was made on goes
	marked  bool            // the mark after the present entries was sent
	last    uint64          // newest revision sent; they come in order
}

func (w *watch) open(ctx context.Context) (err error) {
	w.lost = w.kv.conn.lost()
	w.source, err = w.bucket.Watch(ctx, w.pattern)
	return err
}

func (w *watch) run(ctx context.Context) {
	for w.forward(ctx) {
		_ = w.source.Stop() // it may have ended by itself
		for attempt := 0; ; attempt++ {
			if w.kv.conn.ready(ctx, nil) != nil {
				return
			}
			err := w.open(ctx)
			if err == nil {
				break
			}
			w.kv.conn.log.Warn().Err(err).Str("bucket", w.kv.bucket).Msg("bucket watch broke off, trying again")
			select {
			case <-ctx.Done():
				return
			case <-time.After(reconnectDelay(attempt)):
			}
		}
	}
	_ = w.source.Stop() // it may have ended by itself
}

// forward passes entries on; it returns false when ctx ended and true when
// another watcher has to take over.
func (w *watch) forward(ctx context.Context) bool {
	for {
		var entry KVEntry
		select {
		case <-ctx.Done():
			return false
		case <-w.lost:
			return true
		case e, ok := <-w.source.Updates():
			switch {
			case !ok:
				return ctx.Err() == nil
			case e == nil && w.marked, e != nil && e.Revision() <= w.last:
				continue
			case e == nil:
				w.marked = true
			default:
				w.last = e.Revision()
				entry = KVEntry{
					Key: e.Key(), Value: e.Value(), Revision: e.Revision(), Created: e.Created(),
					Deleted: e.Operation() != jetstream.KeyValuePut,
				}
			}
		}
		select {
		case w.out <- entry:
		case <-ctx.Done():
			return false
		}
	}
}
