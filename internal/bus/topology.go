package bus

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// TopologyVersion is the version of the streams, consumers and buckets this
// program makes; it stands in the metadata of each. Raise it with every change
// that an older program could not live with.
const TopologyVersion = 1

const (
	metaVersion = "dev.helmdeck.topology" // TopologyVersion
	metaConfig  = "dev.helmdeck.config"   // the configuration as last written, JSON
)

// maxWaiting cannot be changed later; the server's default of 512 refuses the
// 513th waiting worker.
const maxWaiting = 4096

// kvMarkerTTL is how long buckets keep the marker of a key that expired, for
// watchers that were away.
const kvMarkerTTL = 15 * time.Minute

// streamSpec is one stream with its durable consumers.
type streamSpec struct {
	config    jetstream.StreamConfig
	consumers []jetstream.ConsumerConfig
}

// topology is everything Init makes, in the order it is made.
func topology(n names, p Profile) []streamSpec {
	var specs []streamSpec
	for _, pool := range packs.Pools {
		specs = append(specs, jobsSpec(n, p, pool), holdSpec(n, p, pool))
	}
	specs = append(specs,
		eventsSpec(n, p), progressSpec(n, p), scheduleSpec(n, p),
		deadSpec(n, p), hooksSpec(n, p), hookLogSpec(n, p), auditSpec(n, p), trailInSpec(n, p), trailSpec(n, p), leasesSpec(n, p))
	for _, b := range kvBuckets {
		specs = append(specs, kvSpec(n, p, b))
	}
	return append(specs, objectsSpec(n, p, BucketArtifacts))
}

// stream starts a configuration with every bound spelled out, so that what
// the server echoes compares equal.
func (n names) config(p Profile, name string, subjects ...string) jetstream.StreamConfig {
	for i, s := range subjects {
		subjects[i] = n.prefix + "." + s
	}
	return jetstream.StreamConfig{
		Name: n.stream(name), Subjects: subjects, Storage: jetstream.FileStorage, Replicas: p.Replicas,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxConsumers: -1, MaxMsgs: -1, MaxBytes: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1,
		Duplicates: 2 * time.Minute, AllowDirect: true,
	}
}

func jobsSpec(n names, p Profile, pool packs.Pool) streamSpec {
	c := n.config(p, JobsStream(pool), "job."+string(pool)+".*.*.*.*.*")
	c.Retention = jetstream.WorkQueuePolicy
	// One subject per job: a queued duplicate is impossible, a queued job can
	// be read and removed by id, and a full queue refuses instead of dropping.
	c.Discard, c.DiscardNewPerSubject, c.MaxMsgsPerSubject = jetstream.DiscardNew, true, 1
	c.MaxMsgs, c.MaxBytes = p.QueueMaxMsgs, p.QueueMaxBytes
	c.AllowMsgTTL, c.AllowAtomicPublish = true, true
	c.RePublish = &jetstream.RePublish{
		Source:      n.prefix + ".job." + string(pool) + ".*.*.*.*.*",
		Destination: n.prefix + ".live.{{wildcard(3)}}.{{wildcard(4)}}.{{wildcard(5)}}.queued",
		HeadersOnly: true,
	}
	s := streamSpec{config: c}
	for _, l := range PoolLanes(p.Shards) {
		filter := n.prefix + ".job." + string(pool) + "." + string(l.Priority) + "." + strconv.Itoa(l.Shard) + ".>"
		s.consumers = append(s.consumers, durable(p, LaneConsumer(l.Priority, l.Shard), filter))
	}
	return s
}

func holdSpec(n names, p Profile, pool packs.Pool) streamSpec {
	c := n.config(p, HoldStream(pool), "hold."+string(pool)+".*.*.*.*")
	c.Discard, c.DiscardNewPerSubject, c.MaxMsgsPerSubject = jetstream.DiscardNew, true, 1
	c.MaxMsgs, c.MaxBytes = p.QueueMaxMsgs, p.QueueMaxBytes
	c.AllowMsgTTL, c.AllowAtomicPublish = true, true
	c.RePublish = &jetstream.RePublish{
		Source:      n.prefix + ".hold." + string(pool) + ".*.*.*.*",
		Destination: n.prefix + "." + HeldPrefix + string(pool) + ".{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(4)}}",
		HeadersOnly: true,
	}
	return streamSpec{config: c}
}

// eventsSpec is not compressed: a killed node of nats-server 2.15.3 was seen
// with a block it could not read again ("s2: corrupt input"), after which its
// replica stayed behind for good.
func eventsSpec(n names, p Profile) streamSpec {
	c := n.config(p, StreamEvents, "evt.*.*.*.lc", "evt.*.*.*.art", "evt.*.*.*.in"+inputTail)
	c.MaxAge, c.MaxBytes = p.EventsMaxAge, p.EventsMaxBytes
	c.AllowAtomicPublish, c.AllowMsgTTL = true, true
	c.RePublish = &jetstream.RePublish{
		Source:      n.prefix + ".evt.*.*.*.*",
		Destination: n.prefix + ".live.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(4)}}",
	}
	return streamSpec{config: c, consumers: []jetstream.ConsumerConfig{
		durable(p, ConsumerConsequences, n.prefix+".evt.*.*.*.lc"),
	}}
}

func progressSpec(n names, p Profile) streamSpec {
	c := n.config(p, StreamProgress, "prog.*.*.*.*")
	c.MaxAge, c.MaxBytes, c.MaxMsgsPerSubject = p.ProgressMaxAge, p.ProgressMaxBytes, 1000
	c.RePublish = &jetstream.RePublish{
		Source:      n.prefix + ".prog.*.*.*.*",
		Destination: n.prefix + ".live.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(4)}}",
	}
	return streamSpec{config: c}
}

// scheduleSpec has no age and no limit: a bound would drop schedules silently.
func scheduleSpec(n names, p Profile) streamSpec {
	c := n.config(p, StreamSchedule, "sched.at.*", "sched.cron.*", "sched.due.>", "sched.fire.*", "sched.hook.*.*.*", "sched.hookdue.*.*.*")
	c.AllowMsgSchedules, c.AllowMsgTTL, c.AllowRollup = true, true, true
	return streamSpec{config: c, consumers: []jetstream.ConsumerConfig{
		durable(p, ConsumerMover, n.prefix+".sched.due.>"),
		durable(p, ConsumerSchedules, n.prefix+".sched.fire.*"),
		durable(p, ConsumerHookMover, n.prefix+".sched.hookdue.>"),
	}}
}

func deadSpec(n names, p Profile) streamSpec {
	c := n.config(p, StreamDead, "dlq.*.*.*.*", "dlq.mark.*.*.*.*.*")
	c.MaxAge, c.AllowMsgTTL, c.AllowAtomicPublish = p.DeadMaxAge, true, true
	return streamSpec{config: c}
}

// hooksSpec keeps one message for a delivery: an attempt that is due while the
// one before is not yet acknowledged waits for it. A full stream makes the
// consequence consumer wait, and loses nothing.
func hooksSpec(n names, p Profile) streamSpec {
	c := n.config(p, StreamHooks, "hook.*.*.*")
	c.Retention, c.AllowMsgTTL = jetstream.WorkQueuePolicy, true
	c.Discard, c.DiscardNewPerSubject, c.MaxMsgsPerSubject = jetstream.DiscardNew, true, 1
	c.MaxMsgs, c.MaxBytes = p.QueueMaxMsgs, p.QueueMaxBytes
	return streamSpec{config: c, consumers: []jetstream.ConsumerConfig{
		durable(p, ConsumerSenders, n.prefix+".hook.>"),
	}}
}

// HookLogPerEndpoint is how many attempts are kept for one endpoint.
const HookLogPerEndpoint = 1000

func hookLogSpec(n names, p Profile) streamSpec {
	c := n.config(p, StreamHookLog, "hooklog.*.*")
	c.MaxAge, c.MaxBytes, c.MaxMsgsPerSubject = p.HookLogMaxAge, p.HookLogMaxBytes, HookLogPerEndpoint
	return streamSpec{config: c}
}

// auditAdvisories are an alarm for people; nothing of the job system depends
// on them. They belong to the server's account, so only the installation with
// the default prefix records them.
var auditAdvisories = []string{
	"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
	"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
	"$JS.EVENT.ADVISORY.CONSUMER.LEADER_ELECTED.>",
	"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.>",
	"$JS.EVENT.ADVISORY.STREAM.QUORUM_LOST.>",
}

func auditSpec(n names, p Profile) streamSpec {
	c := n.config(p, StreamAudit, "audit.*.*")
	if n.prefix == DefaultPrefix {
		c.Subjects = append(c.Subjects, auditAdvisories...)
	}
	c.MaxAge, c.AllowMsgTTL = p.AuditMaxAge, true
	return streamSpec{config: c}
}

// trailSpec holds the sealed audit trail: the sequence of a record is its id,
// so a record that is missing shows. What leaves is the oldest, by age or bytes;
// no role but the administrator's can take one out.
func trailSpec(n names, p Profile) streamSpec {
	c := n.config(p, StreamTrail, "trail.*.*.*.*")
	c.MaxAge, c.MaxBytes, c.AllowAtomicPublish = p.AuditMaxAge, p.AuditMaxBytes, true
	return streamSpec{config: c}
}

// trailInMaxBytes holds what is to be sealed: at 500 bytes an event two
// million of them. A full stream refuses, and its writers spool.
const trailInMaxBytes = gib

func trailInSpec(n names, p Profile) streamSpec {
	c := n.config(p, StreamTrailIn, "trailin.*")
	c.Discard, c.MaxBytes = jetstream.DiscardNew, trailInMaxBytes
	return streamSpec{config: c}
}

func leasesSpec(n names, p Profile) streamSpec {
	c := n.config(p, StreamLeases, "lease.req.*.*")
	c.Retention = jetstream.WorkQueuePolicy
	c.Discard, c.DiscardNewPerSubject, c.MaxMsgsPerSubject = jetstream.DiscardNew, true, 1
	c.MaxMsgs, c.MaxAge, c.AllowMsgTTL = 100_000, p.LeaseMaxAge, true
	return streamSpec{config: c}
}

func leaseConsumer(n names, p Profile, image string) jetstream.ConsumerConfig {
	return durable(p, LeaseConsumer(image), n.prefix+".lease.req."+imageToken(image)+".*")
}

func durable(p Profile, name, filter string) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Name: name, Durable: name, FilterSubject: filter,
		DeliverPolicy: jetstream.DeliverAllPolicy, ReplayPolicy: jetstream.ReplayInstantPolicy,
		AckPolicy: jetstream.AckExplicitPolicy, AckWait: p.AckWait,
		// Poison is judged by the worker, never by a count of the server.
		MaxDeliver: -1, MaxAckPending: p.MaxAckPending, MaxWaiting: maxWaiting,
		Replicas: p.Replicas,
	}
}

var kvBuckets = []string{
	BucketLeases, BucketLimits, BucketIdem, BucketTokens, BucketVault,
	BucketSessions, BucketSchedules, BucketPacks, BucketTenants, BucketArtifacts,
	BucketPools, BucketExpiries,
	BucketWebhooks, BucketTrail,
}

// kvSpec is what the client library makes of a KeyValueConfig, so that other
// NATS tools see an ordinary bucket.
func kvSpec(n names, p Profile, bucket string) streamSpec {
	c := n.config(p, "")
	c.Name, c.Subjects = n.kvStream(bucket), []string{"$KV." + n.bucket(bucket) + ".>"}
	c.Discard, c.MaxMsgsPerSubject = jetstream.DiscardNew, 1
	c.AllowRollup, c.DenyDelete = true, true
	c.AllowMsgTTL, c.SubjectDeleteMarkerTTL = true, kvMarkerTTL
	if bucket == BucketIdem {
		// A key is good for as long as the events of its job are kept.
		c.MaxAge = p.EventsMaxAge
	}
	return streamSpec{config: c}
}

// objectsSpec is what the client library makes of an ObjectStoreConfig.
func objectsSpec(n names, p Profile, bucket string) streamSpec {
	c := n.config(p, "")
	b := n.bucket(bucket)
	c.Name, c.Subjects = n.objStream(bucket), []string{"$O." + b + ".C.>", "$O." + b + ".M.>"}
	c.Discard, c.AllowRollup = jetstream.DiscardNew, true
	c.AllowMsgTTL = true // the descriptions of deleted objects go away
	return streamSpec{config: c}
}
