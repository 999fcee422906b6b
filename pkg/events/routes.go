package events

import (
	"crypto/sha256"
	"encoding/base32"
	"hash/fnv"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// JobSubject is where a job queues: one subject per job.
func JobSubject(pool string, lane jobs.Priority, shard int, k jobs.Key) (string, error) {
	return Subject{Family: FamilyJob, Pool: pool, Lane: lane, Shard: shard,
		Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID}.Build()
}

// JobFilter matches queued jobs. Empty tokens and AnyShard match anything, so
// that a job is found by its id alone.
func JobFilter(pool string, lane jobs.Priority, shard int, k jobs.Key) (string, error) {
	return Subject{Family: FamilyJob, Pool: pool, Lane: lane, Shard: shard,
		Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID}.Filter()
}

// EvtSubject is where the durable events of a job go; kind is KindLifecycle,
// KindInput or KindArtifacts.
func EvtSubject(k jobs.Key, kind string) (string, error) {
	return Subject{Family: FamilyEvt, Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID, Kind: kind}.Build()
}

// EvtFilter matches durable events; empty tokens match anything.
func EvtFilter(k jobs.Key, kind string) (string, error) {
	return Subject{Family: FamilyEvt, Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID, Kind: kind}.Filter()
}

// ProgSubject is where progress and log events of a job go; kind is
// KindProgress or KindLog.
func ProgSubject(k jobs.Key, kind string) (string, error) {
	return Subject{Family: FamilyProg, Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID, Kind: kind}.Build()
}

// ProgFilter matches progress and log events; empty tokens match anything.
func ProgFilter(k jobs.Key, kind string) (string, error) {
	return Subject{Family: FamilyProg, Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID, Kind: kind}.Filter()
}

// SchedAtSubject is the schedule of a delayed job.
func SchedAtSubject(jobID string) (string, error) {
	return Subject{Family: FamilySchedAt, JobID: jobID}.Build()
}

// SchedDueSubject is where a schedule fires: the queue's subject behind
// "sched.due.".
func SchedDueSubject(pool string, lane jobs.Priority, shard int, k jobs.Key) (string, error) {
	return Subject{Family: FamilySchedDue, Pool: pool, Lane: lane, Shard: shard,
		Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID}.Build()
}

// SchedDueFilter matches fired schedules; empty tokens and AnyShard match
// anything.
func SchedDueFilter(pool string, lane jobs.Priority, shard int, k jobs.Key) (string, error) {
	return Subject{Family: FamilySchedDue, Pool: pool, Lane: lane, Shard: shard,
		Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID}.Filter()
}

// HoldSubject is where a job over its limit waits; key is a limit key passed
// through Token.
func HoldSubject(pool, key string, k jobs.Key) (string, error) {
	return Subject{Family: FamilyHold, Pool: pool, Key: key,
		Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID}.Build()
}

// HoldFilter matches held jobs; empty tokens match anything.
func HoldFilter(pool, key string, k jobs.Key) (string, error) {
	return Subject{Family: FamilyHold, Pool: pool, Key: key,
		Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID}.Filter()
}

// DLQSubject is where a dead letter lies.
func DLQSubject(pool string, k jobs.Key) (string, error) {
	return Subject{Family: FamilyDLQ, Pool: pool, Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID}.Build()
}

// DLQFilter matches dead letters; empty tokens match anything.
func DLQFilter(pool string, k jobs.Key) (string, error) {
	return Subject{Family: FamilyDLQ, Pool: pool, Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID}.Filter()
}

// DLQMarkSubject is what is noted of a dead letter: KindPoison when it was
// quarantined, KindReplay when it was replayed, KindDropped for a while after
// it was dropped.
func DLQMarkSubject(pool string, k jobs.Key, kind string) (string, error) {
	return Subject{Family: FamilyDLQMark, Pool: pool, Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID, Kind: kind}.Build()
}

// DLQMarkFilter matches notes; empty tokens match anything.
func DLQMarkFilter(pool string, k jobs.Key, kind string) (string, error) {
	return Subject{Family: FamilyDLQMark, Pool: pool, Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID, Kind: kind}.Filter()
}

// HookSubject is one webhook delivery.
func HookSubject(tenant, endpoint, eventID string) (string, error) {
	return Subject{Family: FamilyHook, Tenant: tenant, Key: endpoint, ID: eventID}.Build()
}

// HookFilter matches webhook deliveries; empty tokens match anything.
func HookFilter(tenant, endpoint, eventID string) (string, error) {
	return Subject{Family: FamilyHook, Tenant: tenant, Key: endpoint, ID: eventID}.Filter()
}

// SchedHookFilter matches deliveries on the retry ladder, those that wait and,
// with due, those whose time has come; empty tokens match anything. Without
// empty tokens it is the subject of one.
func SchedHookFilter(due bool, tenant, endpoint, eventID string) (string, error) {
	family := FamilySchedHook
	if due {
		family = FamilyHookDue
	}
	return Subject{Family: family, Tenant: tenant, Key: endpoint, ID: eventID}.Filter()
}

// HookLogSubject is the log of the deliveries of an endpoint.
func HookLogSubject(tenant, endpoint string) (string, error) {
	return Subject{Family: FamilyHookLog, Tenant: tenant, Key: endpoint}.Build()
}

// AuditSubject is one kind of audit row of a tenant.
func AuditSubject(tenant, kind string) (string, error) {
	return Subject{Family: FamilyAudit, Tenant: tenant, Kind: kind}.Build()
}

// LiveSubject is where a stored event is repeated for followers.
func LiveSubject(k jobs.Key, kind string) (string, error) {
	return Subject{Family: FamilyLive, Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID, Kind: kind}.Build()
}

// LiveFilter matches repeated events; empty tokens match anything.
func LiveFilter(k jobs.Key, kind string) (string, error) {
	return Subject{Family: FamilyLive, Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID, Kind: kind}.Filter()
}

// HistorySubject is where a follower asks for past events of its owner.
func HistorySubject(tenant, owner string) (string, error) {
	return Subject{Family: FamilyReq, Tenant: tenant, Owner: owner, Kind: KindHistory}.Build()
}

// HistoryFilter matches the history requests of everybody, for the side that
// answers them.
func HistoryFilter() string { return string(FamilyReq) + ".*.*." + KindHistory }

// CancelSubject is the push channel to one worker.
func CancelSubject(worker string) (string, error) {
	return Subject{Family: FamilyCtl, ID: worker, Kind: KindCancel}.Build()
}

// DrainSubject is where one worker is asked to take no more jobs and to end.
func DrainSubject(worker string) (string, error) {
	return Subject{Family: FamilyCtl, ID: worker, Kind: KindDrain}.Build()
}

// HeartbeatSubject is where a process of role ("worker", "api", …) reports
// that it lives.
func HeartbeatSubject(role, id string) (string, error) {
	return Subject{Family: FamilyHb, Kind: role, ID: id}.Build()
}

// Shard spreads tenants over n shards, the same tenant always to the same
// one. n below 2 gives 0.
func Shard(tenant string, n int) int {
	if n < 2 {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(tenant)) // never fails
	return int(h.Sum32() % uint32(n))
}

// Token makes one subject token of any text. A short plain name stands as it
// is; any other is hashed and starts with "x", which no plain one does, so
// that two texts do not share a token. It is meant for names from outside
// (limit keys, host names), not for tenants and owners, whose tokens come
// from identity.Caller.
func Token(text string) string {
	if plain(text) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return "x" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:16]
}

func plain(text string) bool {
	if text == "" || len(text) > 64 || text[0] == 'x' || text[0] == '-' {
		return false
	}
	for i := range len(text) {
		c := text[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// SchedCronSubject is the timer of a schedule.
func SchedCronSubject(id string) (string, error) {
	return Subject{Family: FamilySchedCron, ID: id}.Build()
}

// SchedFireSubject is where a schedule hears that there is something to do.
func SchedFireSubject(id string) (string, error) {
	return Subject{Family: FamilySchedFire, ID: id}.Build()
}
