package limits

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Use is what a tenant or a subject takes at present.
type Use struct {
	Waiting int   `json:"waiting"` // queued, held, scheduled or retrying
	Bytes   int64 `json:"bytes"`   // of their inputs
	Running int   `json:"running"`
	// Pace is the time between two jobs that stop waiting, 0 when unknown.
	Pace time.Duration `json:"-"`
}

// Counts is the read model admission counts by.
type Counts interface {
	// Use returns what a tenant takes, or one owner of it, as far as this
	// replica has heard.
	Use(tenant, owner string) Use
	// Submitted tells of a job this replica has just submitted, before the
	// bus does.
	Submitted(jobs.Job)
}

// Admission decides about submits: rate by token buckets of this replica,
// which get a fair part of the rate each, depth and bytes by the read model.
// It implements jobs.Admission. Safe for concurrent use.
//
// Depth and bytes are exact for the submits of one replica. Each other replica
// may add those it accepts before this one hears of them, a few milliseconds'
// worth; after lost messages counts lag by one refresh of the read model, 30 s.
type Admission struct {
	source   *Source
	counts   Counts
	replicas func() int
	now      func() time.Time

	mu      sync.Mutex // guards the fields below
	buckets map[string]*bucket
	pending map[string]pending // by the caller's path: admitted, not yet in counts
}

type pending struct {
	jobs  int
	bytes int64
}

type bucket struct {
	tokens, rate, burst float64 // as of at
	at                  time.Time
}

func (b *bucket) fill(now time.Time) {
	b.tokens = min(b.burst, b.tokens+b.rate*max(0, now.Sub(b.at).Seconds()))
	b.at = now
}

// AdmissionConfig is what an Admission is built from.
type AdmissionConfig struct {
	Source *Source
	Counts Counts
	// Replicas says how many share the rates; nil: this one alone.
	Replicas func() int
	Now      func() time.Time // nil: time.Now
}

// NewAdmission returns an Admission.
func NewAdmission(c AdmissionConfig) *Admission {
	if c.Replicas == nil {
		c.Replicas = func() int { return 1 }
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Admission{
		source: c.Source, counts: c.Counts, replicas: c.Replicas, now: c.Now,
		buckets: map[string]*bucket{}, pending: map[string]pending{},
	}
}

// Priority implements jobs.Admission.
func (a *Admission) Priority(c identity.Caller) jobs.Priority {
	return a.source.Policy().Of(c).Priority
}

// party is a tenant or a subject asked for its bounds.
type party struct {
	name          string
	tenant, owner string
	bounds        Bounds
}

func (p party) key() string { return p.tenant + "." + p.owner }

// Admit implements jobs.Admission.
func (a *Admission) Admit(j jobs.Job) (done func(accepted bool), err error) {
	k, l := j.Key(), a.source.Policy().Of(j.Caller)
	parties := []party{
		{"you", k.Tenant, k.Owner, l.Subject},
		{"your tenant", k.Tenant, "", l.Tenant},
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range parties {
		if err := a.room(p, j.InputBytes); err != nil {
			return nil, err
		}
	}
	var took []party
	for _, p := range parties {
		if err := a.take(p); err != nil {
			for _, t := range took {
				a.buckets[t.key()].tokens++
			}
			return nil, err
		}
		if p.bounds.Rate > 0 {
			took = append(took, p)
		}
	}
	a.reserve(parties, 1, j.InputBytes)
	return func(accepted bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.reserve(parties, -1, -j.InputBytes)
		if accepted {
			a.counts.Submitted(j)
			return
		}
		for _, t := range took {
			if b := a.buckets[t.key()]; b != nil {
				b.tokens++
			}
		}
	}, nil
}

func (a *Admission) reserve(parties []party, n int, bytes int64) {
	for _, p := range parties {
		if p.bounds.Depth == 0 && p.bounds.Bytes == 0 {
			continue
		}
		r := a.pending[p.key()]
		r.jobs, r.bytes = r.jobs+n, r.bytes+bytes
		if r.jobs <= 0 {
			delete(a.pending, p.key())
			continue
		}
		a.pending[p.key()] = r
	}
}

// room checks depth and bytes.
func (a *Admission) room(p party, bytes int64) error {
	if p.bounds.Depth == 0 && p.bounds.Bytes == 0 {
		return nil
	}
	u, r := a.counts.Use(p.tenant, p.owner), a.pending[p.key()]
	waiting, waitingBytes := u.Waiting+r.jobs, u.Bytes+r.bytes
	if d := p.bounds.Depth; d > 0 && waiting >= d {
		return refuse(waitFor(u, waiting-d+1), "%s may have %d jobs waiting and %s; wait until some have run, or cancel some", p.name, d, have(waiting))
	}
	if most := p.bounds.Bytes; most > 0 && waitingBytes+bytes > most {
		if bytes > most {
			return packs.Errorf(packs.PayloadTooLarge,
				"the input has %d bytes and %s may have %d waiting in all; upload large content and pass its key", bytes, p.name, most)
		}
		return refuse(waitFor(u, 1), "%s may have inputs of %d bytes waiting, there are %d and this one has %d; wait until some jobs have run",
			p.name, most, waitingBytes, bytes)
	}
	return nil
}

func have(n int) string {
	if n == 1 {
		return "there is 1"
	}
	return fmt.Sprintf("there are %d", n)
}

// waitFor is when n jobs will have stopped waiting at the present pace.
func waitFor(u Use, n int) time.Duration {
	const least, most, unknown = time.Second, time.Minute, 5 * time.Second
	if u.Pace <= 0 {
		return unknown
	}
	return min(max(time.Duration(n)*u.Pace, least), most)
}

// take takes a token, or says when there will be one.
func (a *Admission) take(p party) error {
	if p.bounds.Rate <= 0 {
		return nil
	}
	n := float64(max(1, a.replicas()))
	rate, burst := p.bounds.Rate/n, max(1, float64(p.bounds.Burst)/n)
	now := a.now()
	b := a.buckets[p.key()]
	if b == nil {
		a.forget(now)
		b = &bucket{tokens: burst, at: now}
		a.buckets[p.key()] = b
	}
	b.rate, b.burst = rate, burst
	b.fill(now)
	if b.tokens < 1 {
		wait := time.Duration(math.Ceil((1 - b.tokens) / rate * float64(time.Second)))
		return refuse(wait, "%s may submit %g jobs a second, %d at once; slow down", p.name, p.bounds.Rate, p.bounds.Burst)
	}
	b.tokens--
	return nil
}

// maxBuckets is when buckets that are full, and so as good as none, are looked
// for.
const maxBuckets = 10_000

// forget drops full buckets; a.mu is held.
func (a *Admission) forget(now time.Time) {
	if len(a.buckets) < maxBuckets {
		return
	}
	for k, b := range a.buckets {
		if b.fill(now); b.tokens >= b.burst {
			delete(a.buckets, k)
		}
	}
}

func refuse(after time.Duration, format string, args ...any) error {
	e := packs.Errorf(packs.RateLimited, format, args...)
	e.RetryAfter = after
	return e
}
