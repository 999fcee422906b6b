package bus

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	chunkSize = 128 << 10
	// chunksInFlight bounds what an upload holds unacknowledged: 2 MiB hide
	// the sync of a slow disk without filling memory.
	chunksInFlight = 16
	// lagTries bounds the wait for a replica that has not got all chunks yet.
	lagTries = 20
)

// objects is an object bucket in the client library's layout: chunks under
// $O.<bucket>.C.<nuid>, then one description under $O.<bucket>.M.<name>, which
// makes them visible. The library's own Put keeps thousands of chunks in
// flight and its Get ends after one call's time-out, hence this one.
type objects struct {
	conn   *Conn
	bucket string
	stream string
}

func (j *jetStream) Objects(_ context.Context, bucket string) (Objects, error) {
	c := (*Conn)(j)
	if !validName(bucket) {
		return nil, fmt.Errorf("open object bucket %q: malformed name", bucket)
	}
	return &objects{conn: c, bucket: c.names.bucket(bucket), stream: c.names.objStream(bucket)}, nil
}

func (o *objects) chunks(id string) string { return "$O." + o.bucket + ".C." + id }

func (o *objects) meta(name string) string {
	return "$O." + o.bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

func (o *objects) wrap(verb, name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s object %s: %w", verb, name, err)
}

func (o *objects) Put(ctx context.Context, name string, meta map[string]string, r io.Reader) (ObjectInfo, error) {
	if name == "" {
		return ObjectInfo{}, errors.New("put object: no name")
	}
	old, err := o.describe(ctx, name)
	if err != nil && !errors.Is(err, ErrNoMessage) {
		return ObjectInfo{}, o.wrap("put", name, err)
	}
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{
			Name: name, Metadata: meta, Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkSize},
		},
		Bucket: o.bucket, NUID: nuid.Next(),
	}
	if err := o.upload(ctx, &info, r); err != nil {
		o.discardChunks(ctx, info.NUID)
		return ObjectInfo{}, o.wrap("put", name, err)
	}
	if err := o.show(ctx, info); err != nil {
		return ObjectInfo{}, o.wrap("put", name, err)
	}
	o.discard(ctx, old)
	info.ModTime = time.Now()
	return objectInfo(info)
}

// upload stores the chunks and fills in size, digest and count.
func (o *objects) upload(ctx context.Context, info *jetstream.ObjectInfo, r io.Reader) (err error) {
	u := uploader{conn: o.conn, subject: o.chunks(info.NUID)}
	defer func() {
		if err != nil {
			u.settle()
		}
	}()
	sum := sha256.New()
	buf := make([]byte, chunkSize)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			_, _ = sum.Write(buf[:n]) // never fails
			if err := u.send(ctx, buf[:n]); err != nil {
				return err
			}
			info.Size += uint64(n)
			info.Chunks++
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read content: %w", err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	info.Digest = "SHA-256=" + base64.URLEncoding.EncodeToString(sum.Sum(nil))
	return u.flush(ctx)
}

// show makes an uploaded object visible. When the answer is lost, the object
// may be visible or become so: its chunks stay, and Reclaim judges them later.
func (o *objects) show(ctx context.Context, info jetstream.ObjectInfo) error {
	err := o.publish(ctx, info, 0)
	if err == nil || !errors.Is(err, ErrUnavailable) {
		return err
	}
	s, lerr := o.conn.last(ctx, o.stream, o.meta(info.Name), true)
	if lerr != nil {
		return err
	}
	if now, derr := describe(s); derr == nil && now.NUID == info.NUID {
		return nil
	}
	return err
}

// publish stores the description, which replaces an earlier one.
func (o *objects) publish(ctx context.Context, info jetstream.ObjectInfo, ttl time.Duration) error {
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	h := nats.Header{headerRollup: {"sub"}}
	if ttl > 0 {
		h[headerTTL] = []string{ttlValue(ttl)}
	}
	_, err = o.conn.store(ctx, &nats.Msg{Subject: o.meta(info.Name), Header: h, Data: b})
	return err
}

// discard removes the chunks of a replaced object. What it misses is left to
// Reclaim.
func (o *objects) discard(ctx context.Context, old jetstream.ObjectInfo) {
	if old.NUID != "" && !old.Deleted {
		o.discardChunks(ctx, old.NUID)
	}
}

func (o *objects) discardChunks(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.conn.timeout)
	defer cancel()
	if _, err := o.conn.purge(ctx, o.stream, o.chunks(id), 0); err != nil {
		o.conn.log.Warn().Err(err).Str("bucket", o.bucket).Msg("chunks left for the sweep")
	}
}

// describe returns the description of name, deleted ones as ErrNoMessage.
func (o *objects) describe(ctx context.Context, name string) (jetstream.ObjectInfo, error) {
	s, err := o.conn.last(ctx, o.stream, o.meta(name), o.conn.profile.Replicas > 1)
	if err != nil {
		return jetstream.ObjectInfo{}, err
	}
	return describe(s)
}

func describe(s stored) (jetstream.ObjectInfo, error) {
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(s.data, &info); err != nil {
		return info, fmt.Errorf("malformed description: %w", err)
	}
	if info.Deleted {
		return jetstream.ObjectInfo{}, ErrNoMessage
	}
	info.ModTime = s.time
	return info, nil
}

func objectInfo(i jetstream.ObjectInfo) (ObjectInfo, error) {
	sum, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(i.Digest, "SHA-256="))
	if err != nil {
		return ObjectInfo{}, fmt.Errorf("malformed digest of object %s: %w", i.Name, err)
	}
	return ObjectInfo{
		Name: i.Name, Size: int64(i.Size), SHA256: hex.EncodeToString(sum), Meta: i.Metadata, Modified: i.ModTime,
	}, nil
}

func (o *objects) Info(ctx context.Context, name string) (ObjectInfo, error) {
	info, err := o.describe(ctx, name)
	if err != nil {
		return ObjectInfo{}, o.wrap("look at", name, err)
	}
	return objectInfo(info)
}

func (o *objects) Delete(ctx context.Context, name string) error {
	info, err := o.describe(ctx, name)
	if err != nil {
		return o.wrap("delete", name, err)
	}
	id := info.NUID
	info.Deleted, info.Size, info.Chunks, info.Digest = true, 0, 0, ""
	if err := o.publish(ctx, info, kvMarkerTTL); err != nil {
		return o.wrap("delete", name, err)
	}
	_, err = o.conn.purge(ctx, o.stream, o.chunks(id), 0)
	return o.wrap("delete", name, err)
}

func (o *objects) Walk(ctx context.Context, fn func(ObjectInfo) error) error {
	return o.walk(ctx, func(info jetstream.ObjectInfo) error {
		out, err := objectInfo(info)
		if err != nil {
			return err
		}
		return fn(out)
	})
}

func (o *objects) walk(ctx context.Context, fn func(jetstream.ObjectInfo) error) error {
	err := o.conn.scan(ctx, o.stream, []string{"$O." + o.bucket + ".M.>"}, 0, func(s stored) error {
		info, err := describe(s)
		if errors.Is(err, ErrNoMessage) {
			return nil
		}
		if err != nil {
			return err
		}
		return fn(info)
	})
	if err != nil {
		return fmt.Errorf("walk object bucket %s: %w", o.bucket, err)
	}
	return nil
}
