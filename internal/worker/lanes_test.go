package worker_test

import (
	"testing"

	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/test/rig"
)

// TestHighLaneIsPreferredAndLowIsNotStarved: with a backlog in all lanes and
// one slot, high jobs start earlier on average, and low ones do not wait for
// the last of them.
func TestHighLaneIsPreferredAndLowIsNotStarved(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	const each = 120 // enough that chance decides nothing
	ids := map[jobs.Priority][]string{}
	for range each {
		for _, p := range []jobs.Priority{jobs.Low, jobs.Normal, jobs.High} {
			j := r.Submit("test.echo", map[string]any{"message": "x"}, func(q *jobs.Request) { q.Priority = p })
			ids[p] = append(ids[p], j.ID)
		}
	}
	r.Worker("a", func(c *worker.Config) { c.Slots = map[string]int{"core": 1} })
	sum := map[jobs.Priority]int64{}
	firstLow, lastHigh := int64(1<<62), int64(0)
	for p, list := range ids {
		for _, id := range list {
			at := r.Ends(id).StartedAt.UnixNano()
			sum[p] += at / 1000
			if p == jobs.Low {
				firstLow = min(firstLow, at)
			}
			if p == jobs.High {
				lastHigh = max(lastHigh, at)
			}
		}
	}
	if sum[jobs.High] >= sum[jobs.Normal] || sum[jobs.Normal] >= sum[jobs.Low] {
		t.Errorf("mean starts are not in the order of the lanes: %v", sum)
	}
	if firstLow > lastHigh {
		t.Error("no low job started before the last high one")
	}
}

// TestStrictLanes: with a backlog in all lanes and one slot no normal job
// starts before the last high one, no low one before the last normal one.
func TestStrictLanes(t *testing.T) {
	t.Parallel()
	r := rig.NewLimited(t, "lanes: strict")
	ids := map[jobs.Priority][]string{}
	for range 20 {
		for _, p := range []jobs.Priority{jobs.Low, jobs.Normal, jobs.High} {
			j := r.Submit("test.echo", map[string]any{"message": "x"}, func(q *jobs.Request) { q.Priority = p })
			ids[p] = append(ids[p], j.ID)
		}
	}
	r.Worker("a", func(c *worker.Config) { c.Slots = map[string]int{"core": 1} })
	var before int64
	for _, p := range jobs.Lanes {
		last := before
		for _, id := range ids[p] {
			at := r.Ends(id).StartedAt.UnixNano()
			if at < before {
				t.Errorf("a %s job started before one of the lane before it", p)
			}
			last = max(last, at)
		}
		before = last
	}
}
