// Package bus is the one place that speaks to NATS: the embedded server and
// connections to outside ones, the users of the roles, the topology of
// streams, consumers and buckets (version-stamped and idempotent), and the
// narrow JetStream interface everything durable is built on.
//
// What the streams mean to jobs, artifacts and leases is the business of the
// sub-packages jobstore, artifactstore and leasestore.
package bus

import (
	"context"
	"errors"
	"io"
	"time"
)

// Errors of the narrow interface a store may branch on.
var (
	// ErrNoMessage: no message matches.
	ErrNoMessage = errors.New("no message")
	// ErrWrongSequence: the expected last sequence was another (10071), or a
	// write to the subject is still in flight (10164): re-read and decide.
	ErrWrongSequence = errors.New("wrong last sequence")
	// ErrSubjectTaken: the subject holds its one message already (10077).
	ErrSubjectTaken = errors.New("subject already holds a message")
	// ErrFull: the stream is at its message or byte limit.
	ErrFull = errors.New("stream is full")
	// ErrFrozen: the server stopped the stream after a storage error; it
	// needs space and a restart.
	ErrFrozen = errors.New("stream storage failed")
	// ErrExists: the key of a Create exists.
	ErrExists = errors.New("key exists")
)

// Outgoing is a message to store.
type Outgoing struct {
	Subject string // without the installation's prefix
	Header  map[string][]string
	Data    []byte
	// MsgID de-duplicates within the stream's window; empty: none.
	MsgID string
	// Expect is the last sequence of Subject that must hold, 0 for none yet;
	// nil: not checked.
	Expect *uint64
	// ExpectStream is the last sequence of the stream that must hold; nil: not
	// checked. In a batch the first message alone may have it.
	ExpectStream *uint64
	// TTL removes the message after a while; 0: the stream's limits.
	TTL time.Duration
	// At and Target make the message a schedule: at At its content is
	// published to Target in the same stream.
	At     time.Time
	Target string
	// TargetTTL removes what the schedule published after a while; 0: the
	// stream's limits.
	TargetTTL time.Duration
}

// Message is a stored message.
type Message struct {
	Stream   string
	Subject  string // without the prefix
	Header   map[string][]string
	Data     []byte
	Sequence uint64
	Time     time.Time
}

// Delivery is one message handed to a consumer.
type Delivery interface {
	Message() Message
	// Delivered counts deliveries, 1 for the first.
	Delivered() uint64
	// Ack ends the message and waits for the server's confirmation.
	Ack(ctx context.Context) error
	// AckLater ends the message without waiting for a confirmation: if it is
	// lost the message comes again. For handlers that do not mind.
	AckLater(ctx context.Context) error
	// Nak asks for redelivery after delay.
	Nak(ctx context.Context, delay time.Duration) error
	// Working resets the acknowledgement timer.
	Working(ctx context.Context) error
	// Term ends the message for good with a reason for the advisory.
	Term(ctx context.Context, reason string) error
}

// JetStream is the durable side of the bus, narrow enough for a
// fault-injecting wrapper (package bustest) to stand in front of it.
// It is larger than the house's five methods because a wrapper has to see
// every durable call in one place.
type JetStream interface {
	// Publish stores one message and returns its sequence.
	Publish(ctx context.Context, m Outgoing) (uint64, error)
	// PublishBatch stores all messages of one stream or none, and returns
	// the sequence of the last.
	PublishBatch(ctx context.Context, ms []Outgoing) (uint64, error)
	// Last returns the newest message whose subject matches filter. leader
	// asks the stream's leader instead of any replica.
	Last(ctx context.Context, stream, filter string, leader bool) (Message, error)
	// Scan calls fn for the messages matching any filter from sequence from
	// (0: the first) that are stored when it is called, oldest first.
	Scan(ctx context.Context, stream string, filters []string, from uint64, fn func(Message) error) error
	// Count returns how many messages match filter.
	Count(ctx context.Context, stream, filter string) (int, error)
	// Purge removes messages matching filter; upTo > 0 spares those from that
	// sequence on.
	Purge(ctx context.Context, stream, filter string, upTo uint64) error
	// Pull waits until at least one message of the durable consumer is there,
	// expires passes (no deliveries, nil error) or ctx ends.
	Pull(ctx context.Context, stream, consumer string, batch int, expires time.Duration) ([]Delivery, error)
	// KV opens a bucket.
	KV(ctx context.Context, bucket string) (KV, error)
	// Objects opens an object bucket.
	Objects(ctx context.Context, bucket string) (Objects, error)
	// Consumer returns the state of a durable consumer, as its leader knows it.
	Consumer(ctx context.Context, stream, consumer string) (ConsumerState, error)
	// Pause stops the deliveries of a durable consumer until a time; the zero
	// time lets them go on. What was delivered is not touched.
	Pause(ctx context.Context, stream, consumer string, until time.Time) error
	// Next returns the first message from sequence from on whose subject
	// matches filter, or ErrNoMessage. A replica may answer.
	Next(ctx context.Context, stream, filter string, from uint64) (Message, error)
	// Stream returns the state of a stream, as its leader knows it, and counts
	// its messages by the subjects that match the filter; "" counts none.
	// Subjects are those on the wire, with the prefix.
	Stream(ctx context.Context, stream, subjects string) (StreamState, error)
}

// Core is the fire-and-forget side of the bus.
type Core interface {
	// Publish sends data to subject without storing it.
	Publish(ctx context.Context, subject string, header map[string][]string, data []byte) error
	// Subscribe calls fn for each message until the returned stop is called.
	// fn runs on one goroutine per subscription.
	Subscribe(subject string, fn func(CoreMessage)) (stop func(), err error)
	// Request sends a request and waits for one reply. ErrNoListener when
	// nobody subscribes to the subject.
	Request(ctx context.Context, subject string, data []byte) (CoreMessage, error)
	// Losses counts the times at which subscribers may have missed messages:
	// the connection went away, or one of them was too slow.
	Losses() uint64
}

// CoreMessage is a message of the fire-and-forget side.
type CoreMessage struct {
	Subject string // without the prefix
	Header  map[string][]string
	Data    []byte
	// Reply answers a request; nil when none was asked for.
	Reply func(data []byte) error
}

// KV is a key-value bucket: one method for each of its calls, as in JetStream.
type KV interface {
	// Get returns ErrNoMessage when the key is absent.
	Get(ctx context.Context, key string) (KVEntry, error)
	// Create stores a new key, or ErrExists.
	Create(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error)
	// Update stores value if the key is at revision, or ErrWrongSequence.
	Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error)
	// Expire is Update of a key that goes away by itself after ttl, unless it
	// is updated again.
	Expire(ctx context.Context, key string, value []byte, revision uint64, ttl time.Duration) (uint64, error)
	// Put stores value whatever was there.
	Put(ctx context.Context, key string, value []byte) (uint64, error)
	// Delete removes the key.
	Delete(ctx context.Context, key string) error
	// Watch sends the present entries matching pattern (">" for all), then an
	// entry with an empty Key, then changes, until ctx ends and the channel
	// is closed.
	Watch(ctx context.Context, pattern string) (<-chan KVEntry, error)
}

// KVEntry is one revision of a key.
type KVEntry struct {
	Key      string
	Value    []byte
	Revision uint64
	Deleted  bool
	Created  time.Time
}

// Objects is an object bucket: large values, stored in chunks.
type Objects interface {
	// Put streams r into name with metadata; nothing is visible if it fails.
	Put(ctx context.Context, name string, meta map[string]string, r io.Reader) (ObjectInfo, error)
	// Get streams an object, or ErrNoMessage.
	Get(ctx context.Context, name string) (io.ReadCloser, ObjectInfo, error)
	// Info returns ErrNoMessage when absent.
	Info(ctx context.Context, name string) (ObjectInfo, error)
	Delete(ctx context.Context, name string) error
	// Walk calls fn for every object.
	Walk(ctx context.Context, fn func(ObjectInfo) error) error
	// Reclaim removes chunks older than age that belong to no object, and
	// returns how many messages it removed.
	Reclaim(ctx context.Context, age time.Duration) (int, error)
}

// ObjectInfo describes an object.
type ObjectInfo struct {
	Name     string
	Size     int64
	SHA256   string // lower-case hex
	Meta     map[string]string
	Modified time.Time
}
