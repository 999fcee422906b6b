package limits_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

const example = `
default:
  weight: 1
  subject: {rate: 10, burst: 20, depth: 100, concurrent: 5}
  tenant: {depth: 1000}
tenants:
  acme:
    weight: 3
    priority: high
    subject: {depth: 50, rate: 0}
    tenant: {concurrent: 40, bytes: 1048576}
    subjects:
      ann@acme.example: {priority: low, depth: 7, concurrent: 0}
  "Größe & Söhne": {weight: 2}
packs: {slides.narrate: 2}
pools: {browser: 8}
`

func parse(t *testing.T, text string) *limits.Policy {
	t.Helper()
	p, err := limits.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPolicyInherits: subject from tenant from default, 0 ends a limit.
func TestPolicyInherits(t *testing.T) {
	t.Parallel()
	p := parse(t, example)
	for name, tt := range map[string]struct {
		caller identity.Caller
		want   limits.Limits
	}{
		"anybody": {identity.Caller{Subject: "bob"}, limits.Limits{Weight: 1, Priority: jobs.Normal,
			Subject: limits.Bounds{Rate: 10, Burst: 20, Depth: 100, Concurrent: 5}, Tenant: limits.Bounds{Depth: 1000}}},
		"of a tenant": {identity.Caller{Subject: "bob", Tenant: "acme"}, limits.Limits{Weight: 3, Priority: jobs.High,
			Subject: limits.Bounds{Depth: 50, Concurrent: 5}, Tenant: limits.Bounds{Depth: 1000, Concurrent: 40, Bytes: 1 << 20}}},
		"an exception": {identity.Caller{Subject: "ann@acme.example", Tenant: "acme"}, limits.Limits{Weight: 3, Priority: jobs.Low,
			Subject: limits.Bounds{Depth: 7}, Tenant: limits.Bounds{Depth: 1000, Concurrent: 40, Bytes: 1 << 20}}},
		"only of its tenant": {identity.Caller{Subject: "ann@acme.example"}, limits.Limits{Weight: 1, Priority: jobs.Normal,
			Subject: limits.Bounds{Rate: 10, Burst: 20, Depth: 100, Concurrent: 5}, Tenant: limits.Bounds{Depth: 1000}}},
	} {
		if diff := cmp.Diff(tt.want, p.Of(tt.caller)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if w := p.WeightOf(identity.Caller{Tenant: "Größe & Söhne"}.TenantToken()); w != 2 {
		t.Errorf("weight by token: got %d, want 2", w)
	}
	if w := p.WeightOf("nobody"); w != 1 {
		t.Errorf("weight of a stranger: got %d", w)
	}
}

// TestPolicyFaultsAreToldTogether with the place of each.
func TestPolicyFaultsAreToldTogether(t *testing.T) {
	t.Parallel()
	_, err := limits.Parse([]byte(`
default: {weight: 101, priority: urgent, subjects: {bob: {}}}
tenants:
  acme: {subject: {rate: -1, depth: 1000001}, tenant: {burst: 3, bytes: -1}, subjects: {ann: {concurrent: 5001}}}
packs: {a.b: -1}
pools: {ballroom: 3}
`))
	if err == nil {
		t.Fatal("want faults")
	}
	for _, want := range []string{
		"default.weight: must be between 1 and 100, got 101", "default.priority: must be high, normal or low", "default.subjects:",
		"tenants.acme.subject.rate:", "tenants.acme.subject.depth:", "tenants.acme.tenant.burst: has no meaning without a rate",
		"tenants.acme.tenant.bytes:", "tenants.acme.subjects.ann.concurrent:", "packs.a.b:", "pools.ballroom: there is no such pool",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v\nwant %q in it", err, want)
		}
	}
	for name, bad := range map[string]string{
		"unknown key": "defaults: {}", "no YAML": "a: [", "two documents": "packs: {}\n---\npacks: {}", "text for a number": "packs: {a.b: many}",
	} {
		if _, err := limits.Parse([]byte(bad)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, good := range map[string]string{
		"nothing": "", "JSON": `{"default":{"subject":{"depth":1000000}},"packs":{"a.b":5000}}`, "greatest weight": "default: {weight: 100}",
	} {
		if _, err := limits.Parse([]byte(good)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSlotsAreCanonical: in one order for everybody, apart for each tenant,
// none for a job that nothing concerns.
func TestSlotsAreCanonical(t *testing.T) {
	t.Parallel()
	p := parse(t, "default: {subject: {concurrent: 1}, tenant: {concurrent: 2}}\npacks: {a.b: 3}\npools: {core: 4}")
	job := func(tenant, subject, key string) *jobs.Job {
		return &jobs.Job{ID: "1", Pack: "a.b", Pool: "core", ConcurrencyKey: key, ConcurrencyLimit: 5,
			Caller: identity.Caller{Tenant: tenant, Subject: subject}}
	}
	a := p.Slots(job("t1", "ann", "k"))
	if len(a) != 5 {
		t.Fatalf("got %v", a)
	}
	sum := 0
	for i, s := range a {
		sum += s.Limit
		if i > 0 && a[i-1].Key >= s.Key {
			t.Errorf("out of order: %v", a)
		}
		if len(s.Key) != 17 {
			t.Errorf("key %q", s.Key)
		}
	}
	if sum != 15 {
		t.Errorf("limits: %v", a)
	}
	common := func(x, y []limits.Slot) (n int) {
		for _, s := range x {
			for _, o := range y {
				if s.Key == o.Key {
					n++
				}
			}
		}
		return n
	}
	if n := common(a, p.Slots(job("t2", "ann", "k"))); n != 2 {
		t.Errorf("another tenant has %d keys in common, want pack and pool", n)
	}
	if n := common(a, p.Slots(job("t1", "bob", "k"))); n != 4 {
		t.Errorf("another subject has %d keys in common, want all but its own", n)
	}
	var none *limits.Source
	if s := none.Policy().Slots(job("t1", "ann", "")); s != nil {
		t.Errorf("without limits: %v", s)
	}
	if s := none.Policy().Slots(job("t1", "ann", "k")); len(s) != 1 || s[0].Limit != 5 {
		t.Errorf("a key alone: %v", s)
	}
}

// TestSourceFollowsItsFile; a bad one changes nothing.
func TestSourceFollowsItsFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("packs: {a.b: x}")
	if _, err := limits.Open(path, zerolog.Nop()); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("bad file at start: %v", err)
	}
	if _, err := limits.Open(path+"?", zerolog.Nop()); err == nil {
		t.Error("no file at start: accepted")
	}
	write("packs: {a.b: 1}")
	s, err := limits.Open(path, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	changed := make(chan struct{}, 8)
	s.OnChange(func() { changed <- struct{}{} })
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	write("packs: {a.b: nothing}")
	write("packs: {a.b: 2}")
	select {
	case <-changed:
	case <-ctx.Done():
		t.Fatal("no change heard of")
	}
	if n := s.Policy().Packs["a.b"]; n != 2 {
		t.Errorf("got %d", n)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestCalledJobsCountWithTheirFamily: else a parent that waits would hold the
// very slot its child needs.
func TestCalledJobsCountWithTheirFamily(t *testing.T) {
	t.Parallel()
	p := parse(t, "default: {subject: {concurrent: 1}, tenant: {concurrent: 1}}\npacks: {a.b: 3}\npools: {core: 1}")
	child := &jobs.Job{ID: "1", Pack: "a.b", Pool: "core", Call: &jobs.Called{Depth: 1}, Caller: identity.Caller{Subject: "ann"}}
	if got := p.Slots(child); len(got) != 1 || got[0].Limit != 3 {
		t.Errorf("got %v, want the one of the pack", got)
	}
	child.Pack = "c.d"
	if got := p.Slots(child); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
}
