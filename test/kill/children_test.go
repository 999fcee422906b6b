package kill

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// children reads the children of a job.
func (c *cluster) children(parent string) []jobs.Job {
	c.t.Helper()
	var list client.JobList
	c.insist("list children", func(ctx context.Context, api *client.Client) (err error) {
		list, err = api.Jobs(ctx, jobs.Query{Parent: parent, Limit: 200})
		return err
	})
	return list.Jobs
}

// family checks the children of a parent that succeeded: each the parent
// tells of is there and succeeded, and no other was made.
func (c *cluster) family(parent string, want int) {
	c.t.Helper()
	var out struct {
		Jobs []string `json:"jobs"`
	}
	c.insist("read parent", func(ctx context.Context, api *client.Client) error {
		job, err := api.Job(ctx, parent)
		if err != nil {
			return err
		}
		return json.Unmarshal(job.Output, &out)
	})
	if len(out.Jobs) != want {
		c.t.Errorf("parent %s tells of %d children, want %d", parent, len(out.Jobs), want)
	}
	c.until("all children are listed as ended", func() bool {
		for _, k := range c.children(parent) {
			if !k.State.Terminal() {
				return false
			}
		}
		return true
	})
	list := c.children(parent)
	if len(list) != want {
		c.t.Errorf("parent %s has %d children, want %d", parent, len(list), want)
	}
	for _, k := range list {
		if k.State != jobs.Succeeded {
			c.t.Errorf("child %s of %s: %s %+v", k.ID, parent, k.State, k.Error)
		}
	}
}

// TestKillAtEveryStepOfACall ends the parent's worker at each step: a parent
// whose children run in its own slot still ends, each child once, and one that
// is cancelled leaves none behind.
func TestKillAtEveryStepOfACall(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addAPI("api")
	for _, step := range failpoint.CallSteps {
		t.Run(step, func(t *testing.T) {
			c.t = t
			mark := filepath.Join(c.dir, "hit-"+step)
			worker := "worker-" + step
			value := uuid.NewString()
			parent := c.submit("test.parent", map[string]any{"in_turn": true, "count": 3, "input": map[string]any{"message": value + "{i}"}}, value)
			c.addWorker(worker, []string{"HELMDECK_FAILPOINT=" + step, "HELMDECK_FAILPOINT_FILE=" + mark}, "--pools", "core", "--slots", "1")
			if got := c.ends(parent); got != jobs.Succeeded {
				t.Errorf("parent ended %s", got)
			}
			c.family(parent, 3)
			stopped := c.submit("test.parent", map[string]any{"pack": "test.sleep", "count": 4, "input": map[string]any{"ms": 600000}}, "")
			c.until("a child runs", func() bool {
				for _, k := range c.children(stopped) {
					if k.State == jobs.Running {
						return true
					}
				}
				return false
			})
			c.cancel(stopped)
			if got := c.ends(stopped); got != jobs.Cancelled {
				t.Errorf("stopped parent ended %s", got)
			}
			for _, k := range c.children(stopped) {
				if got := c.ends(k.ID); got != jobs.Cancelled {
					t.Errorf("child %s of a stopped parent ended %s", k.ID, got)
				}
			}
			if !c.died(worker) {
				t.Errorf("no process died at %s", step)
			}
			c.check()
			c.end(worker, syscall.SIGTERM)
		})
	}
	c.t = t
	c.check()
}

// TestKillAnythingOfAFamily kills processes at random, the bus among them,
// while parents run many children on two workers of few slots.
func TestKillAnythingOfAFamily(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addAPI("api-1")
	c.addAPI("api-2")
	for i := range 2 {
		c.addWorker(fmt.Sprintf("worker-%d", i), nil, "--pools", "core", "--slots", "2")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, seed))
	const count = 12
	var parents []string
	for range 3 {
		parents = append(parents, c.submit("test.parent", map[string]any{"pack": "test.sleep", "count": count, "parallel": 6,
			"input": map[string]any{"ms": 700}}, ""))
	}
	for _, victim := range []string{"worker-0", "api-1", "worker-1", "bus", "worker-0"} {
		id := parents[rng.IntN(len(parents))]
		seen := len(c.children(id))
		c.until("a family grows", func() bool { return len(c.children(id)) > seen || c.state(id).Terminal() })
		c.crash(victim)
	}
	for _, id := range parents {
		if got := c.ends(id); got != jobs.Succeeded {
			t.Errorf("parent %s ended %s", id, got)
			continue
		}
		c.family(id, count)
	}
	c.check()
}
