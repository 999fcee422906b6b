package bus

import (
	"crypto/sha256"
	"encoding/base32"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// DefaultPrefix is the first token of every subject of an installation that
// chose none.
const DefaultPrefix = "hd"

// The streams. Pools have one of their own for the queue and for jobs held
// back: JobsStream and HoldStream.
const (
	StreamEvents   = "EVT"     // evt.>: the lifecycle of jobs, source of truth
	StreamProgress = "PROG"    // prog.>: progress and log lines
	StreamSchedule = "SCHED"   // sched.>: delayed jobs, timers of schedules, retries of webhooks, fired ones
	StreamDead     = "DLQ"     // dlq.>: dead letters
	StreamHooks    = "HOOK"    // hook.>: webhook deliveries
	StreamHookLog  = "HOOKLOG" // hooklog.>: what became of their attempts
	StreamAudit    = "AUDIT"   // the advisories of the server that matter
	StreamLeases   = "LEASE"   // lease.req.>: lease requests
	StreamTrail    = "TRAIL"   // trail.>: the sealed audit trail, one message a record
	StreamTrailIn  = "TRAILIN" // trailin.>: audit events to be sealed
)

// The durable consumers that are not lanes of a pool.
const (
	ConsumerMover        = "mover"        // of SCHED: fired schedules to the queue
	ConsumerSchedules    = "schedules"    // of SCHED: what there is to do for schedules
	ConsumerConsequences = "consequences" // of EVT: what follows from lifecycle events
	ConsumerSenders      = "senders"      // of HOOK: webhook deliveries to be sent
	ConsumerHookMover    = "hook-mover"   // of SCHED: fired retries of deliveries to HOOK
)

// The buckets.
const (
	BucketLeases    = "leases"
	BucketLimits    = "limits"
	BucketIdem      = "idem"
	BucketTokens    = "tokens"
	BucketVault     = "vault"
	BucketSessions  = "sessions"
	BucketSchedules = "schedules"
	BucketPacks     = "packs"
	BucketTenants   = "tenants"
	BucketPools     = "pools"    // which pools are paused
	BucketExpiries  = "expiries" // when the results of jobs go away
	BucketWebhooks  = "webhooks" // endpoints of webhooks
	BucketTrail     = "trail"    // anchors of the audit trail, places of its readers
	// BucketArtifacts is both the index of visible artifacts (KV) and the
	// object bucket of their bytes.
	BucketArtifacts = "artifacts"
)

// JobsStream is the work queue of a pool: job.<pool>.<lane>.<shard>.<tenant>.<owner>.<jobid>.
func JobsStream(pool packs.Pool) string { return "JOBS_" + string(pool) }

// HoldStream keeps the jobs of a pool that are over a limit:
// hold.<pool>.<key>.<tenant>.<owner>.<jobid>. What is put there is told to the
// processes that release it under HeldPrefix, without its content.
func HoldStream(pool packs.Pool) string { return "HOLD_" + string(pool) }

// HeldPrefix begins the subject that tells of a held job; its place in the
// stream follows, without "hold".
const HeldPrefix = "ctl.held."

// AdvisorySubjects matches the advisories of the server that AUDIT keeps.
const AdvisorySubjects = "$JS.EVENT.ADVISORY.>"

// Streams lists the streams, those of the buckets aside.
func Streams() []string {
	all := []string{StreamEvents, StreamProgress, StreamSchedule, StreamDead, StreamHooks, StreamAudit, StreamLeases, StreamTrail, StreamTrailIn}
	for _, p := range packs.Pools {
		all = append(all, JobsStream(p), HoldStream(p))
	}
	return all
}

// LaneConsumer is the durable consumer of one lane and shard of a pool.
func LaneConsumer(lane jobs.Priority, shard int) string {
	return string(lane) + "-" + strconv.Itoa(shard)
}

// Lane is one lane and shard of a pool's queue: one consumer.
type Lane struct {
	Priority jobs.Priority
	Shard    int
}

// PoolLanes lists the lanes of a pool whose priorities have so many shards.
// Those of called jobs come first, the deepest before all; they have one shard
// each, for no caller can fill them: every parent has few calls under way.
func PoolLanes(shards int) []Lane {
	var out []Lane
	for i := len(jobs.CallLanes) - 1; i >= 0; i-- {
		out = append(out, Lane{jobs.CallLanes[i], 0})
	}
	for _, p := range jobs.Lanes {
		for shard := range max(shards, 1) {
			out = append(out, Lane{p, shard})
		}
	}
	return out
}

// LeaseConsumer is the durable consumer of the lease requests of an image.
// Image names that cannot stand in a subject are hashed.
func LeaseConsumer(image string) string { return "image-" + imageToken(image) }

// LeaseSubject is the subject of one lease request.
func LeaseSubject(image, leaseID string) string {
	return "lease.req." + imageToken(image) + "." + leaseID
}

func imageToken(image string) string {
	plain := image != "" && image[0] != 'x'
	for _, c := range image {
		plain = plain && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-')
	}
	if plain {
		return image
	}
	sum := sha256.Sum256([]byte(image))
	return "x" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:16]
}

// ShardOf spreads tenants over n shards.
func ShardOf(tenant string, n int) int {
	if n <= 1 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(tenant)) // never fails
	return int(h.Sum32() % uint32(n))
}

// names turns the names of this package into those of one installation on the
// wire. Subjects get the prefix as their first token. Streams and buckets keep
// their names for the default prefix and get another prefix in front, so that
// several installations can share a server.
type names struct{ prefix string }

// inputTail follows the subject of a job's input on the wire. A stream can
// republish through one filter only; EVT's is evt.*.*.*.*, which one token
// more escapes, so that inputs are never republished to live.>.
const inputTail = ".body"

func (n names) subject(s string) string {
	if strings.HasPrefix(s, "$") { // the server's own, which have no prefix
		return s
	}
	if isInput(s, 0) {
		return n.prefix + "." + s + inputTail
	}
	return n.prefix + "." + s
}

func (n names) plain(wire string) string {
	s := strings.TrimPrefix(wire, n.prefix+".")
	if strings.HasSuffix(s, ".in"+inputTail) && isInput(s, len(inputTail)) {
		return s[:len(s)-len(inputTail)]
	}
	return s
}

// isInput reports whether s without its last cut bytes is
// evt.<tenant>.<owner>.<jobid>.in.
func isInput(s string, cut int) bool {
	s = s[:len(s)-cut]
	return strings.HasPrefix(s, "evt.") && strings.HasSuffix(s, ".in") && strings.Count(s, ".") == 4
}

func (n names) stream(s string) string {
	if n.prefix == DefaultPrefix {
		return s
	}
	return n.prefix + "_" + s
}

func (n names) bucket(b string) string    { return n.stream(b) }
func (n names) kvStream(b string) string  { return "KV_" + n.bucket(b) }
func (n names) objStream(b string) string { return "OBJ_" + n.bucket(b) }
