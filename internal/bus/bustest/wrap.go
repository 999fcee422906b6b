package bustest

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
)

var (
	_ bus.JetStream      = (*Faults)(nil)
	_ bus.LeaseConsumers = (*Faults)(nil)
)

// Publish implements bus.JetStream.
func (f *Faults) Publish(ctx context.Context, m bus.Outgoing) (uint64, error) {
	return get(ctx, f, OpPublish, m.Subject, func() (uint64, error) { return f.inner.Publish(ctx, m) })
}

// PublishBatch implements bus.JetStream.
func (f *Faults) PublishBatch(ctx context.Context, ms []bus.Outgoing) (uint64, error) {
	subject := ""
	if len(ms) > 0 {
		subject = ms[len(ms)-1].Subject
	}
	return get(ctx, f, OpBatch, subject, func() (uint64, error) { return f.inner.PublishBatch(ctx, ms) })
}

// Last implements bus.JetStream.
func (f *Faults) Last(ctx context.Context, stream, filter string, leader bool) (bus.Message, error) {
	return get(ctx, f, OpLast, filter, func() (bus.Message, error) { return f.inner.Last(ctx, stream, filter, leader) })
}

// Scan implements bus.JetStream. It is never made twice.
func (f *Faults) Scan(ctx context.Context, stream string, filters []string, from uint64, fn func(bus.Message) error) error {
	subject, done := "", false
	if len(filters) > 0 {
		subject = filters[0]
	}
	return f.do(ctx, OpScan, subject, func() error {
		if done {
			return nil
		}
		done = true
		return f.inner.Scan(ctx, stream, filters, from, fn)
	})
}

// Count implements bus.JetStream; its faults are those of OpScan.
func (f *Faults) Count(ctx context.Context, stream, filter string) (int, error) {
	return get(ctx, f, OpScan, filter, func() (int, error) { return f.inner.Count(ctx, stream, filter) })
}

// Purge implements bus.JetStream.
func (f *Faults) Purge(ctx context.Context, stream, filter string, upTo uint64) error {
	return f.do(ctx, OpPurge, filter, func() error { return f.inner.Purge(ctx, stream, filter, upTo) })
}

// Pull implements bus.JetStream. Under Twice each delivery comes twice, as
// after an AckWait that passed unnoticed; under After the deliveries are lost
// until AckWait.
func (f *Faults) Pull(ctx context.Context, stream, consumer string, batch int, expires time.Duration) ([]bus.Delivery, error) {
	var ds []bus.Delivery
	runs := 0
	err := f.do(ctx, OpPull, stream+"/"+consumer, func() error {
		if runs++; runs > 1 {
			ds = append(ds, ds...)
			return nil
		}
		got, err := f.inner.Pull(ctx, stream, consumer, batch, expires)
		for _, d := range got {
			ds = append(ds, &delivery{Delivery: d, faults: f})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return ds, nil
}

// Consumer implements bus.JetStream.
func (f *Faults) Consumer(ctx context.Context, stream, consumer string) (bus.ConsumerState, error) {
	return get(ctx, f, OpConsumer, stream+"/"+consumer, func() (bus.ConsumerState, error) { return f.inner.Consumer(ctx, stream, consumer) })
}

// Pause implements bus.JetStream.
func (f *Faults) Pause(ctx context.Context, stream, consumer string, until time.Time) error {
	return f.do(ctx, OpPause, stream+"/"+consumer, func() error { return f.inner.Pause(ctx, stream, consumer, until) })
}

// Next implements bus.JetStream.
func (f *Faults) Next(ctx context.Context, stream, filter string, from uint64) (bus.Message, error) {
	return get(ctx, f, OpNext, filter, func() (bus.Message, error) { return f.inner.Next(ctx, stream, filter, from) })
}

// Stream implements bus.JetStream.
func (f *Faults) Stream(ctx context.Context, stream, subjects string) (bus.StreamState, error) {
	return get(ctx, f, OpStream, stream, func() (bus.StreamState, error) { return f.inner.Stream(ctx, stream, subjects) })
}

// EnsureLeaseConsumer passes on to what is behind, without faults.
func (f *Faults) EnsureLeaseConsumer(ctx context.Context, image string) (stream, consumer string, err error) {
	lc, ok := f.inner.(bus.LeaseConsumers)
	if !ok {
		return "", "", fmt.Errorf("%T makes no lease consumers", f.inner)
	}
	return lc.EnsureLeaseConsumer(ctx, image)
}

type delivery struct {
	bus.Delivery
	faults *Faults
}

func (d *delivery) do(ctx context.Context, op Op, fn func() error) error {
	return d.faults.do(ctx, op, d.Message().Subject, fn)
}

func (d *delivery) AckLater(ctx context.Context) error {
	return d.do(ctx, OpAck, func() error { return d.Delivery.AckLater(ctx) })
}

func (d *delivery) Ack(ctx context.Context) error {
	return d.do(ctx, OpAck, func() error { return d.Delivery.Ack(ctx) })
}

func (d *delivery) Nak(ctx context.Context, delay time.Duration) error {
	return d.do(ctx, OpNak, func() error { return d.Delivery.Nak(ctx, delay) })
}

func (d *delivery) Working(ctx context.Context) error {
	return d.do(ctx, OpWorking, func() error { return d.Delivery.Working(ctx) })
}

func (d *delivery) Term(ctx context.Context, reason string) error {
	return d.do(ctx, OpTerm, func() error { return d.Delivery.Term(ctx, reason) })
}

// KV implements bus.JetStream; the bucket is under the rules as well.
func (f *Faults) KV(ctx context.Context, bucket string) (bus.KV, error) {
	inner, err := f.inner.KV(ctx, bucket)
	if err != nil {
		return nil, err
	}
	return &kv{inner: inner, faults: f, bucket: bucket}, nil
}

type kv struct {
	inner  bus.KV
	faults *Faults
	bucket string
}

func (k *kv) at(key string) string { return k.bucket + "/" + key }

func (k *kv) Get(ctx context.Context, key string) (bus.KVEntry, error) {
	return get(ctx, k.faults, OpKVGet, k.at(key), func() (bus.KVEntry, error) { return k.inner.Get(ctx, key) })
}

func (k *kv) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	return get(ctx, k.faults, OpKVCreate, k.at(key), func() (uint64, error) { return k.inner.Create(ctx, key, value, ttl) })
}

func (k *kv) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	return get(ctx, k.faults, OpKVUpdate, k.at(key), func() (uint64, error) { return k.inner.Update(ctx, key, value, revision) })
}

func (k *kv) Expire(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	return get(ctx, k.faults, OpKVUpdate, k.at(key), func() (uint64, error) { return k.inner.Expire(ctx, key, value, revision, ttl) })
}

func (k *kv) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	return get(ctx, k.faults, OpKVPut, k.at(key), func() (uint64, error) { return k.inner.Put(ctx, key, value) })
}

func (k *kv) Delete(ctx context.Context, key string) error {
	return k.faults.do(ctx, OpKVDelete, k.at(key), func() error { return k.inner.Delete(ctx, key) })
}

// Watch is subject to Before, Delayed and Disconnect at its start only: a
// watcher heals by itself.
func (k *kv) Watch(ctx context.Context, pattern string) (<-chan bus.KVEntry, error) {
	var ch <-chan bus.KVEntry
	err := k.faults.do(ctx, OpKVWatch, k.at(pattern), func() (err error) {
		if ch == nil {
			ch, err = k.inner.Watch(ctx, pattern)
		}
		return err
	})
	if err != nil && ch != nil { // made, then called an error: nobody will read it
		go func() {
			for range ch { // ends with ctx
			}
		}()
		return nil, err
	}
	return ch, err
}

// Objects implements bus.JetStream; the bucket is under the rules as well.
func (f *Faults) Objects(ctx context.Context, bucket string) (bus.Objects, error) {
	inner, err := f.inner.Objects(ctx, bucket)
	if err != nil {
		return nil, err
	}
	return &objects{Objects: inner, faults: f, bucket: bucket}, nil
}

// objects passes Walk and Reclaim on as they are.
type objects struct {
	bus.Objects
	faults *Faults
	bucket string
}

// Put is never made twice: its reader has one content to give.
func (o *objects) Put(ctx context.Context, name string, meta map[string]string, r io.Reader) (info bus.ObjectInfo, err error) {
	done := false
	err = o.faults.do(ctx, OpObjectPut, o.bucket+"/"+name, func() (err error) {
		if !done {
			done = true
			info, err = o.Objects.Put(ctx, name, meta, r)
		}
		return err
	})
	return info, err
}

func (o *objects) Get(ctx context.Context, name string) (r io.ReadCloser, info bus.ObjectInfo, err error) {
	err = o.faults.do(ctx, OpObjectGet, o.bucket+"/"+name, func() (err error) {
		if r == nil {
			r, info, err = o.Objects.Get(ctx, name)
		}
		return err
	})
	if err != nil && r != nil {
		_ = r.Close() // of no use to anybody
		return nil, bus.ObjectInfo{}, err
	}
	return r, info, err
}

func (o *objects) Info(ctx context.Context, name string) (bus.ObjectInfo, error) {
	return get(ctx, o.faults, OpObjectInfo, o.bucket+"/"+name, func() (bus.ObjectInfo, error) { return o.Objects.Info(ctx, name) })
}

func (o *objects) Delete(ctx context.Context, name string) error {
	return o.faults.do(ctx, OpObjectDelete, o.bucket+"/"+name, func() error { return o.Objects.Delete(ctx, name) })
}
