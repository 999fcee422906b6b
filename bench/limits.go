package main

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// tenants is how many take part in the runs with limits.
const tenants = 8

// bounded measures what limits cost that hold nobody up: each run does the
// same work, the first without limits. Limits are wide, for a limit that holds
// jobs up costs what it is meant to.
func bounded(ctx context.Context, dir string) error {
	p, err := start(ctx, dir, "127.0.0.1:0", "--roles=none")
	if err != nil {
		return err
	}
	defer p.stop()
	runs := []struct {
		name, policy string
		keyed        bool
		sides
	}{
		{name: "no limits"},
		{name: "a policy that concerns no job", policy: "packs: {other.pack: 1}\ntenants: {other: {tenant: {concurrent: 1}}}"},
		{name: "quotas of rate, depth and bytes", policy: "default: {subject: {rate: 1000000, depth: 1000000, bytes: 1000000000}}"},
		{name: "a concurrency key a tenant", policy: "{}", keyed: true},
		{name: "a global cap", policy: "pools: {core: 1000}"},
	}
	for range *rounds {
		for i := range runs {
			r := &runs[i]
			err := r.measure(p, func() (float64, error) { return underPolicy(ctx, p, r.policy, r.keyed) })
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	fmt.Printf("%d jobs of %d tenants, %d in flight, no-op pack, medians of %d\n", *count, tenants, *flight, *rounds)
	free := median(runs[0].rate)
	for i := range runs {
		r := &runs[i]
		fmt.Printf("  %-32s %8.0f jobs/s, ratio %.2f; CPU a job: %s\n", r.name+":", median(r.rate), median(r.rate)/free, r.cpu())
	}
	fmt.Printf("  (aim: a ratio of at least 0.85)\n\n")
	return nil
}

func underPolicy(ctx context.Context, p *process, policy string, keyed bool) (float64, error) {
	var source *limits.Source
	if policy != "" {
		parsed, err := limits.Parse([]byte(policy))
		if err != nil {
			return 0, err
		}
		source = limits.Fixed(parsed)
	}
	o, err := newBounded(ctx, p, source)
	if err != nil {
		return 0, err
	}
	defer o.stop()
	stop, err := o.work(ctx, *flight)
	if err != nil {
		return 0, err
	}
	defer stop()
	var next atomic.Int64
	began := time.Now()
	err = each(ctx, *count, *flight, func(ctx context.Context) error {
		r := request
		who := identity.Caller{Subject: "bench", Tenant: "t" + strconv.FormatInt(next.Add(1)%tenants, 10)}
		if keyed {
			r.ConcurrencyKey, r.ConcurrencyLimit = "key", jobs.MaxConcurrencyLimit
		}
		job, done, err := o.svc.Run(ctx, who, r)
		if err == nil && (!done || job.State != jobs.Succeeded) {
			err = fmt.Errorf("job %s ended %s", job.ID, job.State)
		}
		return err
	})
	return float64(*count) / time.Since(began).Seconds(), err
}
