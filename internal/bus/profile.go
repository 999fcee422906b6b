package bus

import (
	"errors"
	"fmt"
	"time"
)

const (
	day = 24 * time.Hour
	gib = int64(1) << 30
)

// Profile is how durable and how wide an installation is. The zero value of a
// field takes the profile's default.
type Profile struct {
	Name     string // "embedded", "single" or "ha"
	Replicas int    // of every stream and bucket
	Shards   int    // consumers per pool and lane, 1 to 8
	// SyncAlways syncs every write before it is acknowledged; otherwise the
	// server syncs every SyncInterval.
	SyncAlways   bool
	SyncInterval time.Duration

	AckWait       time.Duration // until an unacknowledged delivery comes again
	MaxAckPending int           // deliveries in flight per lane and shard
	QueueMaxMsgs  int64         // per pool
	QueueMaxBytes int64         // per pool
	EventsMaxAge  time.Duration
	// EventsMaxBytes bounds EVT; the oldest events go first.
	EventsMaxBytes   int64
	ProgressMaxAge   time.Duration
	ProgressMaxBytes int64
	DeadMaxAge       time.Duration
	AuditMaxAge      time.Duration // records of the audit trail
	AuditMaxBytes    int64         // of the audit trail; the oldest records go first
	LeaseMaxAge      time.Duration // lease requests nobody took
	HookLogMaxAge    time.Duration // attempts of webhook deliveries
	HookLogMaxBytes  int64
}

// Embedded is the profile of helmdeck up: one server in the process. A killed
// process loses nothing, a power cut at most a second.
func Embedded() Profile { return Profile{Name: "embedded"}.withDefaults() }

// Single is the profile of one server that syncs every write.
func Single() Profile { return Profile{Name: "single", SyncAlways: true}.withDefaults() }

// HA is the profile of three servers.
func HA() Profile { return Profile{Name: "ha", SyncAlways: true}.withDefaults() }

// ProfileByName returns the profile of a configuration value.
func ProfileByName(name string) (Profile, error) {
	switch name {
	case "", "embedded":
		return Embedded(), nil
	case "single":
		return Single(), nil
	case "ha":
		return HA(), nil
	}
	return Profile{}, fmt.Errorf("unknown bus profile %q: use embedded, single or ha", name)
}

func (p Profile) withDefaults() Profile {
	if p.Name == "" {
		p.Name = "embedded"
	}
	replicas, shards := 1, 1
	if p.Name == "ha" {
		replicas, shards = 3, 4
	}
	set(&p.Replicas, replicas)
	set(&p.Shards, shards)
	set(&p.SyncInterval, time.Second)
	set(&p.AckWait, 30*time.Second)
	// Twice the slots of the largest fleet; the server's 1,000 stalls silently.
	set(&p.MaxAckPending, 4000)
	set(&p.QueueMaxMsgs, 1_000_000)
	set(&p.QueueMaxBytes, 4*gib)
	set(&p.EventsMaxAge, 30*day)
	set(&p.EventsMaxBytes, 10*gib)
	set(&p.ProgressMaxAge, day)
	set(&p.ProgressMaxBytes, 2*gib)
	set(&p.DeadMaxAge, 90*day)
	set(&p.AuditMaxAge, 90*day)
	set(&p.AuditMaxBytes, 10*gib)
	set(&p.LeaseMaxAge, 15*time.Minute)
	set(&p.HookLogMaxAge, 7*day)
	set(&p.HookLogMaxBytes, gib)
	return p
}

func set[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (p Profile) validate() error {
	var errs []error
	if p.Shards < 1 || p.Shards > 8 {
		errs = append(errs, fmt.Errorf("%d shards: use 1 to 8", p.Shards))
	}
	switch p.Replicas {
	case 1, 3, 5:
	default:
		errs = append(errs, fmt.Errorf("%d replicas: use 1, 3 or 5", p.Replicas))
	}
	if p.AckWait < 0 || p.QueueMaxMsgs < 0 || p.QueueMaxBytes < 0 || p.EventsMaxBytes < 0 {
		errs = append(errs, errors.New("negative limit"))
	}
	return errors.Join(errs...)
}
