package limits_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// counts is a read model that knows what it is told.
type counts struct {
	use  map[string]limits.Use
	pace time.Duration
}

func (c *counts) Use(tenant, owner string) limits.Use {
	u := c.use[tenant+"."+owner]
	u.Pace = c.pace
	return u
}

func (c *counts) Submitted(j jobs.Job) {
	k := j.Key()
	for _, owner := range []string{"", k.Owner} {
		u := c.use[k.Tenant+"."+owner]
		u.Waiting++
		u.Bytes += j.InputBytes
		c.use[k.Tenant+"."+owner] = u
	}
}

type desk struct {
	*limits.Admission
	t      *testing.T
	counts *counts
	now    time.Time
	n      int
}

func newDesk(t *testing.T, replicas int, policy string) *desk {
	d := &desk{t: t, counts: &counts{use: map[string]limits.Use{}}, now: time.Unix(1e9, 0)}
	d.Admission = limits.NewAdmission(limits.AdmissionConfig{
		Source: limits.Fixed(parse(t, policy)), Counts: d.counts, Replicas: func() int { return replicas }, Now: func() time.Time { return d.now },
	})
	return d
}

func (d *desk) job(subject string, bytes int64) jobs.Job {
	d.n++
	return jobs.Job{ID: fmt.Sprint(d.n), Caller: identity.Caller{Subject: subject}, InputBytes: bytes}
}

// submit admits and accepts a job; it returns after how long to come again, -1
// when it was accepted.
func (d *desk) submit(subject string, bytes int64) time.Duration {
	d.t.Helper()
	done, err := d.Admit(d.job(subject, bytes))
	if err == nil {
		done(true)
		return -1
	}
	var pe *packs.Error
	if !errors.As(err, &pe) || pe.Code != packs.RateLimited || pe.RetryAfter <= 0 {
		d.t.Fatalf("refused with %v", err)
	}
	return pe.RetryAfter
}

// burst counts the submits accepted at once.
func (d *desk) burst(subject string) (n int, after time.Duration) {
	for {
		if after = d.submit(subject, 0); after >= 0 {
			return n, after
		}
		n++
	}
}

func TestRateLetsABurstThroughAndThenItsPace(t *testing.T) {
	t.Parallel()
	d := newDesk(t, 1, "default: {subject: {rate: 2, burst: 5}}")
	if n, after := d.burst("ann"); n != 5 || after != 500*time.Millisecond {
		t.Errorf("got %d, then %s; want 5, then half a second", n, after)
	}
	if n, _ := d.burst("bob"); n != 5 {
		t.Errorf("another subject got %d", n)
	}
	d.now = d.now.Add(499 * time.Millisecond)
	if after := d.submit("ann", 0).Round(time.Microsecond); after != time.Millisecond {
		t.Errorf("a millisecond early: %s", after)
	}
	d.now = d.now.Add(time.Millisecond)
	if n, _ := d.burst("ann"); n != 1 {
		t.Errorf("after half a second: %d", n)
	}
	d.now = d.now.Add(time.Hour)
	if n, _ := d.burst("ann"); n != 5 {
		t.Errorf("after an hour: %d", n)
	}
	d.now = d.now.Add(-time.Hour)
	if n, _ := d.burst("ann"); n != 0 {
		t.Errorf("after the clock was put back: %d", n)
	}
}

func TestReplicasShareTheRate(t *testing.T) {
	t.Parallel()
	d := newDesk(t, 4, "default: {subject: {rate: 8, burst: 8}}")
	if n, after := d.burst("ann"); n != 2 || after != 500*time.Millisecond {
		t.Errorf("got %d, then %s", n, after)
	}
}

// TestRefusedSubmitCostsNothing: neither one that another limit refused nor
// one the bus did not take.
func TestRefusedSubmitCostsNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t, 1, "default: {subject: {rate: 1, burst: 2, depth: 100}, tenant: {rate: 1, burst: 3}}")
	done, err := d.Admit(d.job("ann", 0))
	if err != nil {
		t.Fatal(err)
	}
	done(false)
	if n, _ := d.burst("ann"); n != 2 {
		t.Errorf("ann got %d of 2", n)
	}
	if n, _ := d.burst("bob"); n != 1 { // the tenant is at its limit
		t.Errorf("bob got %d of the tenant's last", n)
	}
	d.now = d.now.Add(time.Second)
	if n, _ := d.burst("bob"); n != 1 {
		t.Errorf("a second later bob got %d", n)
	}
}

func TestDepthAndBytesAtTheirEdge(t *testing.T) {
	t.Parallel()
	d := newDesk(t, 1, "default: {subject: {depth: 3, bytes: 100}, tenant: {depth: 4}}")
	for i := range 3 {
		if after := d.submit("ann", 10); after >= 0 {
			t.Fatalf("job %d refused", i+1)
		}
	}
	if after := d.submit("ann", 10); after != 5*time.Second {
		t.Errorf("fourth: %s; want 5 s while the pace is unknown", after)
	}
	d.counts.pace = 3 * time.Second
	if after := d.submit("ann", 10); after != 3*time.Second {
		t.Errorf("at a known pace: %s", after)
	}
	if after := d.submit("bob", 100); after >= 0 {
		t.Error("bob refused at exactly the bytes allowed")
	}
	if after := d.submit("bob", 0); after < 0 {
		t.Error("the tenant's fifth job accepted")
	}
	fresh := newDesk(t, 1, "default: {subject: {bytes: 100}}")
	fresh.submit("ann", 60)
	if after := fresh.submit("ann", 41); after < 0 {
		t.Error("101 bytes accepted")
	}
	if after := fresh.submit("ann", 40); after >= 0 {
		t.Error("100 bytes refused")
	}
	_, err := fresh.Admit(fresh.job("bob", 101))
	var pe *packs.Error
	if !errors.As(err, &pe) || pe.Code != packs.PayloadTooLarge {
		t.Errorf("an input that can never fit: %v", err)
	}
}

// TestAdmittedJobsCountBeforeTheyAreHeardOf, or many at once would pass.
func TestAdmittedJobsCountBeforeTheyAreHeardOf(t *testing.T) {
	t.Parallel()
	d := newDesk(t, 1, "default: {subject: {depth: 2}}")
	a, err := d.Admit(d.job("ann", 0))
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Admit(d.job("ann", 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Admit(d.job("ann", 0)); err == nil {
		t.Error("a third was admitted beside two on their way")
	}
	a(false)
	b(true)
	if after := d.submit("ann", 0); after >= 0 {
		t.Error("refused although one was not accepted")
	}
	if after := d.submit("ann", 0); after < 0 {
		t.Error("a third was admitted")
	}
}
