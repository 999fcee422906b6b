// Package limits says how much of the job system one caller may take: what an
// operator configures (Policy), what follows from it for a caller (Limits) and
// for a job (the Slots it needs to run), whether a submit is admitted, and
// whose turn it is when several tenants wait (Share).
//
// It counts nothing durable itself. Slots are kept in internal/bus/limitstore,
// jobs that are over a limit wait in internal/hold.
package limits

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Bounds of what a policy may say.
const (
	// MaxWeight is how many times the share of another tenant one may have.
	MaxWeight = 100
	// MaxConcurrent bounds every cap on concurrent jobs: the holders of a cap
	// are one message of the bus, of about 70 bytes each.
	MaxConcurrent = 5000
	// MaxRate is in submits a second, MaxBurst in submits.
	MaxRate, MaxBurst = 1e6, 1_000_000
	// MaxDepth is in jobs: as many as the queue of a pool takes.
	MaxDepth = 1_000_000
)

// Quota bounds the jobs of one tenant or of one subject. A field that is
// absent is inherited; 0 is no limit.
type Quota struct {
	// Rate is in submits a second and Burst the submits that may come at
	// once; without a Burst it is one second's worth.
	Rate  *float64 `json:"rate,omitempty" yaml:"rate"`
	Burst *int     `json:"burst,omitempty" yaml:"burst"`
	// Depth bounds the jobs that wait: queued, held, scheduled or retrying.
	Depth *int `json:"depth,omitempty" yaml:"depth"`
	// Bytes bounds the inputs of those jobs together.
	Bytes *int64 `json:"bytes,omitempty" yaml:"bytes"`
	// Concurrent bounds the jobs that run at once.
	Concurrent *int `json:"concurrent,omitempty" yaml:"concurrent"`
}

// Profile is what a policy says of one tenant, or of every one. What is absent
// is inherited from the default.
type Profile struct {
	// Weight is the tenant's share of the slots of a cap that other tenants'
	// jobs wait for too.
	Weight int `json:"weight,omitempty" yaml:"weight"`
	// Priority is that of a job whose submit names none.
	Priority jobs.Priority `json:"priority,omitempty" yaml:"priority"`
	// Tenant bounds all subjects together, Subject each one.
	Tenant  Quota `json:"tenant,omitzero" yaml:"tenant"`
	Subject Quota `json:"subject,omitzero" yaml:"subject"`
	// Subjects are exceptions by subject; the default has none.
	Subjects map[string]Exception `json:"subjects,omitempty" yaml:"subjects"`
}

// Exception is what differs for one subject.
type Exception struct {
	Priority jobs.Priority `json:"priority,omitempty" yaml:"priority"`
	Quota    `yaml:",inline"`
}

// Policy is what an operator configures. The zero value limits nobody and
// gives every tenant the same share.
type Policy struct {
	Default Profile            `json:"default,omitzero" yaml:"default"`
	Tenants map[string]Profile `json:"tenants,omitempty" yaml:"tenants"`
	// Packs and Pools bound the jobs that run at once by pack and by pool, over
	// all tenants. 0 is no limit.
	Packs map[string]int `json:"packs,omitempty" yaml:"packs"`
	Pools map[string]int `json:"pools,omitempty" yaml:"pools"`
	// Lanes is how the lanes of a pool are served: LanesWeighted (the default,
	// eight high for three normal for one low) or LanesStrict (no normal job
	// while a high one waits, no low one while a normal one does).
	Lanes string `json:"lanes,omitempty" yaml:"lanes"`

	byToken map[string]Profile
	// capped: there may be a cap that concerns a job without a concurrency key.
	capped bool
}

// The ways to serve lanes.
const (
	LanesWeighted = "weighted"
	LanesStrict   = "strict"
)

// Bounds is a quota with everything settled; 0 is no limit.
type Bounds struct {
	Rate       float64 `json:"rate,omitempty"`
	Burst      int     `json:"burst,omitempty"`
	Depth      int     `json:"depth,omitempty"`
	Bytes      int64   `json:"bytes,omitempty"`
	Concurrent int     `json:"concurrent,omitempty"`
}

// Limits is what a policy means for one caller.
type Limits struct {
	Weight   int           `json:"weight"`
	Priority jobs.Priority `json:"priority"`
	Subject  Bounds        `json:"subject"`
	Tenant   Bounds        `json:"tenant"`
}

// Seal checks the policy, every fault at once, and readies it for use.
func (p *Policy) Seal() error {
	var faults []error
	add := func(where, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s: %s", where, fmt.Sprintf(format, args...)))
	}
	p.Default.check("default", add)
	if len(p.Default.Subjects) > 0 {
		add("default.subjects", "a subject belongs to a tenant; write it below tenants.<tenant>.subjects")
	}
	p.byToken = map[string]Profile{}
	for _, name := range slices.Sorted(maps.Keys(p.Tenants)) {
		t := p.Tenants[name]
		t.check("tenants."+name, add)
		p.byToken[identity.Caller{Tenant: name}.TenantToken()] = t
	}
	for _, name := range slices.Sorted(maps.Keys(p.Packs)) {
		checkRange("packs."+name, p.Packs[name], MaxConcurrent, add)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Pools)) {
		if !slices.Contains(packs.Pools, packs.Pool(name)) {
			add("pools."+name, "there is no such pool; the pools are %v", packs.Pools)
		}
		checkRange("pools."+name, p.Pools[name], MaxConcurrent, add)
	}
	if p.Lanes != "" && p.Lanes != LanesWeighted && p.Lanes != LanesStrict {
		add("lanes", "must be %s or %s, got %q", LanesWeighted, LanesStrict, p.Lanes)
	}
	p.capped = p.caps()
	return errors.Join(faults...)
}

type fault func(where, format string, args ...any)

func checkRange[T int | int64 | float64](where string, v, most T, add fault) {
	if v < 0 || v > most {
		add(where, "must be between 0 (no limit) and %v, got %v", most, v)
	}
}

func (t Profile) check(where string, add fault) {
	if t.Weight < 0 || t.Weight > MaxWeight {
		add(where+".weight", "must be between 1 and %d, got %d", MaxWeight, t.Weight)
	}
	checkPriority(where, t.Priority, add)
	t.Tenant.check(where+".tenant", add)
	t.Subject.check(where+".subject", add)
	for _, name := range slices.Sorted(maps.Keys(t.Subjects)) {
		e := t.Subjects[name]
		checkPriority(where+".subjects."+name, e.Priority, add)
		e.check(where+".subjects."+name, add)
	}
}

func checkPriority(where string, v jobs.Priority, add fault) {
	if v != "" && !slices.Contains(jobs.Lanes, v) {
		add(where+".priority", "must be high, normal or low, got %q", v)
	}
}

func (q Quota) check(where string, add fault) {
	if q.Rate != nil {
		checkRange(where+".rate", *q.Rate, MaxRate, add)
	}
	if q.Burst != nil {
		checkRange(where+".burst", *q.Burst, MaxBurst, add)
		if q.Rate == nil || *q.Rate == 0 {
			add(where+".burst", "has no meaning without a rate beside it; add rate")
		}
	}
	if q.Depth != nil {
		checkRange(where+".depth", *q.Depth, MaxDepth, add)
	}
	if q.Bytes != nil && *q.Bytes < 0 {
		add(where+".bytes", "must be 0 (no limit) or more, got %d", *q.Bytes)
	}
	if q.Concurrent != nil {
		checkRange(where+".concurrent", *q.Concurrent, MaxConcurrent, add)
	}
}

func (p *Policy) caps() bool {
	capped := func(q Quota) bool { return q.Concurrent != nil && *q.Concurrent > 0 }
	all := slices.AppendSeq([]Profile{p.Default}, maps.Values(p.Tenants))
	for _, t := range all {
		if capped(t.Tenant) || capped(t.Subject) {
			return true
		}
		for _, e := range t.Subjects {
			if capped(e.Quota) {
				return true
			}
		}
	}
	return len(p.Packs) > 0 || len(p.Pools) > 0
}

// settle fills b from q, whose absent fields leave b as it is.
func (b *Bounds) settle(q Quota) {
	if q.Rate != nil {
		b.Rate, b.Burst = *q.Rate, max(1, int(*q.Rate))
		if q.Burst != nil {
			b.Burst = max(1, *q.Burst)
		}
		if b.Rate == 0 {
			b.Burst = 0
		}
	}
	if q.Depth != nil {
		b.Depth = *q.Depth
	}
	if q.Bytes != nil {
		b.Bytes = *q.Bytes
	}
	if q.Concurrent != nil {
		b.Concurrent = *q.Concurrent
	}
}

// Of returns what the policy means for c.
func (p *Policy) Of(c identity.Caller) Limits {
	l := Limits{Weight: p.Default.Weight, Priority: p.Default.Priority}
	l.Tenant.settle(p.Default.Tenant)
	l.Subject.settle(p.Default.Subject)
	if t, ok := p.byToken[c.TenantToken()]; ok {
		if t.Weight > 0 {
			l.Weight = t.Weight
		}
		if t.Priority != "" {
			l.Priority = t.Priority
		}
		l.Tenant.settle(t.Tenant)
		l.Subject.settle(t.Subject)
		if e, ok := t.Subjects[c.Subject]; ok {
			if e.Priority != "" {
				l.Priority = e.Priority
			}
			l.Subject.settle(e.Quota)
		}
	}
	if l.Weight == 0 {
		l.Weight = 1
	}
	if l.Priority == "" {
		l.Priority = jobs.Normal
	}
	return l
}

// WeightOf is the weight of a tenant by its token.
func (p *Policy) WeightOf(token string) int {
	if t, ok := p.byToken[token]; ok && t.Weight > 0 {
		return t.Weight
	}
	return max(1, p.Default.Weight)
}

// StrictLanes reports whether a lane is served only while none before it has
// a job.
func (p *Policy) StrictLanes() bool { return p.Lanes == LanesStrict }
