package events

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// ErrSubject is wrapped by every error about a subject or one of its tokens.
var ErrSubject = errors.New("malformed subject")

// Family is what a subject begins with and decides the tokens that follow.
type Family string

// The families. Subjects carry no installation prefix here; the bus adds it.
const (
	FamilyJob       Family = "job"           // job.<pool>.<lane>.<shard>.<tenant>.<owner>.<jobid>
	FamilyEvt       Family = "evt"           // evt.<tenant>.<owner>.<jobid>.<lc|in|art>
	FamilyProg      Family = "prog"          // prog.<tenant>.<owner>.<jobid>.<progress|log>
	FamilySchedAt   Family = "sched.at"      // sched.at.<jobid>
	FamilySchedCron Family = "sched.cron"    // sched.cron.<id>
	FamilySchedFire Family = "sched.fire"    // sched.fire.<id>
	FamilySchedDue  Family = "sched.due"     // sched.due.<pool>.<lane>.<shard>.<tenant>.<owner>.<jobid>
	FamilySchedHook Family = "sched.hook"    // sched.hook.<tenant>.<endpoint>.<evtid>
	FamilyHookDue   Family = "sched.hookdue" // sched.hookdue.<tenant>.<endpoint>.<evtid>
	FamilyHold      Family = "hold"          // hold.<pool>.<key>.<tenant>.<owner>.<jobid>
	FamilyDLQMark   Family = "dlq.mark"      // dlq.mark.<pool>.<tenant>.<owner>.<jobid>.<kind>
	FamilyDLQ       Family = "dlq"           // dlq.<pool>.<tenant>.<owner>.<jobid>
	FamilyHook      Family = "hook"          // hook.<tenant>.<endpoint>.<evtid>
	FamilyHookLog   Family = "hooklog"       // hooklog.<tenant>.<endpoint>
	FamilyAudit     Family = "audit"         // audit.<tenant>.<kind>
	FamilyLive      Family = "live"          // live.<tenant>.<owner>.<jobid>.<kind>
	FamilyReq       Family = "req"           // req.<tenant>.<owner>.<history>
	FamilyCtl       Family = "ctl"           // ctl.<worker>.<cancel|drain>
	FamilyHb        Family = "hb"            // hb.<role>.<id>
)

// The last tokens of subjects, called Kind in Subject.
const (
	KindLifecycle = "lc"
	KindInput     = "in"
	KindArtifacts = "art"
	KindPoison    = "poison"
	KindReplay    = "replay"
	KindDropped   = "dropped"
	KindProgress  = "progress"
	KindLog       = "log"
	KindQueued    = "queued"
	KindHistory   = "history"
	KindCancel    = "cancel"
	KindDrain     = "drain"
)

// HeartbeatPing asks every worker for a heartbeat at once.
const HeartbeatPing = "hb.ping"

// AnyShard stands for every shard in a filter.
const AnyShard = -1

// maxSubject keeps subjects well inside the server's control line of 4096.
const maxSubject = 1024

// Subject is a subject taken apart. Fields that the family does not use are
// empty.
type Subject struct {
	Family Family
	Pool   string
	Lane   jobs.Priority
	Shard  int
	Tenant string
	Owner  string
	JobID  string
	// Key is the limit key of a hold and the endpoint of a hook.
	Key string
	// ID is the event id of a hook, the id of a schedule, the worker of ctl
	// and the sender of a heartbeat.
	ID string
	// Kind is the last token of evt, prog, live, req, ctl and audit, and the
	// role of a heartbeat.
	Kind string
}

type token byte

const (
	pool token = iota
	lane
	shard
	tenant
	owner
	jobID
	key
	id
	kind
)

type layout struct {
	family Family
	tokens []token
	kinds  []string // nil: any token
}

// layouts must list no family before another whose subjects it begins. No pool
// is called mark.
var layouts = []layout{
	{FamilyJob, []token{pool, lane, shard, tenant, owner, jobID}, nil},
	{FamilyEvt, []token{tenant, owner, jobID, kind}, []string{KindLifecycle, KindInput, KindArtifacts}},
	{FamilyProg, []token{tenant, owner, jobID, kind}, []string{KindProgress, KindLog}},
	{FamilySchedAt, []token{jobID}, nil},
	{FamilySchedCron, []token{id}, nil},
	{FamilySchedFire, []token{id}, nil},
	{FamilySchedDue, []token{pool, lane, shard, tenant, owner, jobID}, nil},
	{FamilyHold, []token{pool, key, tenant, owner, jobID}, nil},
	{FamilyDLQMark, []token{pool, tenant, owner, jobID, kind}, []string{KindPoison, KindReplay, KindDropped}},
	{FamilyDLQ, []token{pool, tenant, owner, jobID}, nil},
	{FamilyHook, []token{tenant, key, id}, nil},
	{FamilySchedHook, []token{tenant, key, id}, nil},
	{FamilyHookDue, []token{tenant, key, id}, nil},
	{FamilyHookLog, []token{tenant, key}, nil},
	{FamilyAudit, []token{tenant, kind}, nil},
	{FamilyLive, []token{tenant, owner, jobID, kind}, nil},
	{FamilyReq, []token{tenant, owner, kind}, []string{KindHistory}},
	{FamilyCtl, []token{id, kind}, []string{KindCancel, KindDrain}},
	{FamilyHb, []token{kind, id}, nil},
}

func layoutOf(f Family) (layout, bool) {
	for _, l := range layouts {
		if l.family == f {
			return l, true
		}
	}
	return layout{}, false
}

func (s *Subject) get(t token) string {
	switch t {
	case pool:
		return s.Pool
	case lane:
		return string(s.Lane)
	case shard:
		if s.Shard < 0 {
			return ""
		}
		return strconv.Itoa(s.Shard)
	case tenant:
		return s.Tenant
	case owner:
		return s.Owner
	case jobID:
		return s.JobID
	case key:
		return s.Key
	case id:
		return s.ID
	default:
		return s.Kind
	}
}

func (s *Subject) set(t token, v string) error {
	switch t {
	case pool:
		s.Pool = v
	case lane:
		s.Lane = jobs.Priority(v)
	case shard:
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil || strconv.FormatUint(n, 10) != v {
			return fmt.Errorf("%w: shard %q", ErrSubject, v)
		}
		s.Shard = int(n)
	case tenant:
		s.Tenant = v
	case owner:
		s.Owner = v
	case jobID:
		s.JobID = v
	case key:
		s.Key = v
	case id:
		s.ID = v
	default:
		s.Kind = v
	}
	return nil
}

// Build returns the subject that s describes, or an error wrapping ErrSubject
// when a token is missing or would break the subject.
func (s Subject) Build() (string, error) { return s.build(false) }

// Filter is Build with a wildcard for every empty token and for AnyShard.
func (s Subject) Filter() (string, error) { return s.build(true) }

func (s *Subject) build(wild bool) (string, error) {
	l, ok := layoutOf(s.Family)
	if !ok {
		return "", fmt.Errorf("%w: unknown family %q", ErrSubject, s.Family)
	}
	b := make([]byte, 0, 128)
	b = append(b, l.family...)
	for _, t := range l.tokens {
		v := s.get(t)
		b = append(b, '.')
		if wild && v == "" {
			b = append(b, '*')
			continue
		}
		if err := l.check(t, v); err != nil {
			return "", err
		}
		b = append(b, v...)
	}
	if len(b) > maxSubject {
		return "", fmt.Errorf("%w: %d bytes", ErrSubject, len(b))
	}
	return string(b), nil
}

func (l *layout) check(t token, v string) error {
	if !ValidToken(v) {
		return fmt.Errorf("%w: token %q in %s", ErrSubject, v, l.family)
	}
	switch {
	case t == lane && !slices.Contains(jobs.Lanes, jobs.Priority(v)) && !slices.Contains(jobs.CallLanes, jobs.Priority(v)):
		return fmt.Errorf("%w: lane %q", ErrSubject, v)
	case t == kind && l.kinds != nil && !slices.Contains(l.kinds, v):
		return fmt.Errorf("%w: kind %q in %s", ErrSubject, v, l.family)
	}
	return nil
}

// Parse takes a subject without installation prefix apart. Parse(x) and Build
// are inverse; anything Build would not make is an error wrapping ErrSubject.
func Parse(subject string) (Subject, error) {
	if len(subject) > maxSubject {
		return Subject{}, fmt.Errorf("%w: %d bytes", ErrSubject, len(subject))
	}
	for _, l := range layouts {
		rest, ok := strings.CutPrefix(subject, string(l.family))
		if !ok || !strings.HasPrefix(rest, ".") {
			continue
		}
		return l.parse(rest[1:])
	}
	return Subject{}, fmt.Errorf("%w: unknown family in %q", ErrSubject, subject)
}

func (l *layout) parse(rest string) (Subject, error) {
	s := Subject{Family: l.family}
	for i, t := range l.tokens {
		v, tail, more := strings.Cut(rest, ".")
		if more == (i == len(l.tokens)-1) {
			return Subject{}, fmt.Errorf("%w: %s takes %d tokens", ErrSubject, l.family, len(l.tokens))
		}
		if err := l.check(t, v); err != nil {
			return Subject{}, err
		}
		if err := s.set(t, v); err != nil {
			return Subject{}, err
		}
		rest = tail
	}
	return s, nil
}

// ValidToken reports whether v can stand as one token of a subject: printable
// ASCII without a dot, a wildcard, a space or a leading dollar sign.
func ValidToken(v string) bool {
	if v == "" || v[0] == '$' {
		return false
	}
	for i := range len(v) {
		switch c := v[i]; {
		case c <= ' ' || c >= 0x7f, c == '.', c == '*', c == '>':
			return false
		}
	}
	return true
}
