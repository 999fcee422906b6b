package kill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// crash ends a process by SIGKILL; the supervisor starts it again.
func (c *cluster) crash(name string) {
	c.t.Helper()
	c.mu.Lock()
	p := c.procs[name]
	done := p.done
	c.mu.Unlock()
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		c.t.Logf("kill %s: %v", name, err)
	}
	select {
	case <-done:
	case <-time.After(patience):
		c.t.Fatalf("%s did not die", name)
	}
}

// TestKillAnything kills processes at random, the bus among them, while
// clients submit, fail, retry and cancel.
func TestKillAnything(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addAPI("api-1")
	c.addAPI("api-2")
	c.subscribe()
	for i := range 2 {
		c.addWorker(fmt.Sprintf("worker-%d", i), nil, "--pools", "core", "--slots", "3")
	}
	kills := 6
	if os.Getenv("HELMDECK_SOAK") != "" {
		kills = 150
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, seed))
	victims := []string{"bus", "api-1", "api-2", "worker-0", "worker-1"}
	var ids []string
	for n := range kills {
		for range 4 {
			ids = append(ids, c.randomJob(rng))
		}
		victim := victims[n%len(victims)]
		if n >= len(victims) {
			victim = victims[rng.IntN(len(victims))]
		}
		c.crash(victim)
		if rng.IntN(3) == 0 {
			c.cancel(ids[rng.IntN(len(ids))])
		}
	}
	for _, id := range ids {
		c.ends(id)
	}
	c.check()
	for i := range 2 {
		c.end(fmt.Sprintf("worker-%d", i), syscall.SIGTERM)
		if left, _ := filepath.Glob(c.path(fmt.Sprintf("worker-%d", i), "scratch", "*", "*")); len(left) > 0 {
			t.Errorf("scratch folders are left: %v", left)
		}
	}
}

func (c *cluster) randomJob(rng *rand.Rand) string {
	switch rng.IntN(4) {
	case 0:
		return c.submit("test.sleep", map[string]any{"ms": 300 + rng.IntN(1500)}, "")
	case 1:
		return c.submit("test.fail", map[string]any{"code": "session_unavailable", "times": 1}, "")
	case 2:
		return c.submit("test.artifact", map[string]any{"bytes": 300_000, "name": "a.bin"}, "")
	default:
		value := uuid.NewString()
		return c.submit("test.echo", map[string]any{"message": value}, value)
	}
}

// TestScaleOut: any replica answers for any job, and every worker added takes
// its share of a sleeping pack at once.
func TestScaleOut(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addAPI("api-1")
	c.addAPI("api-2")
	c.addScheduler("scheduler")
	const slots, workers = 2, 3
	var ids []string
	for range slots * workers {
		ids = append(ids, c.submit("test.sleep", map[string]any{"ms": 120_000}, ""))
	}
	for n := 1; n <= workers; n++ {
		c.addWorker(fmt.Sprintf("worker-%d", n), nil, "--pools", "core", "--slots", fmt.Sprint(slots))
		c.until(fmt.Sprintf("%d workers run %d jobs", n, n*slots), func() bool { return c.running() == n*slots })
	}
	for _, id := range ids {
		c.cancel(id)
	}
	for _, id := range ids {
		if got := c.ends(id); got != jobs.Cancelled {
			t.Errorf("job %s: %s", id, got)
		}
	}
	value := uuid.NewString()
	id := c.submit("test.echo", map[string]any{"message": value}, value)
	for i, api := range c.api {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		r, err := api.Await(ctx, id)
		cancel()
		if err != nil {
			t.Errorf("replica %d: %v", i, err)
		} else if r.JobID != id {
			t.Errorf("replica %d answers for %s", i, r.JobID)
		}
	}
	c.check()
}

func (c *cluster) running() int {
	n := 0
	c.insist("list running jobs", func(ctx context.Context, api *client.Client) error {
		list, err := api.Jobs(ctx, jobs.Query{State: jobs.Running})
		n = len(list.Jobs)
		return err
	})
	return n
}

// slowPage answers no request until the test ends.
func slowPage(t *testing.T) string {
	return serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })) + "/"
}

// TestPoisonJobIsQuarantined: a job that kills every worker it meets ends as a
// dead letter marked as poison, once its budget of lost workers is used up.
func TestPoisonJobIsQuarantined(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.addAPI("api")
	c.addWorker("worker", nil, "--pools", "core", "--slots", "2")
	id := c.submit("test.crash", map[string]any{"mode": "exit"}, "")
	if got := c.ends(id); got != jobs.Failed {
		t.Errorf("the job ended %s", got)
	}
	c.check()
	c.insist("read dead letter", func(ctx context.Context, api *client.Client) error {
		d, err := api.DeadLetter(ctx, id)
		if err == nil && (!d.Poison || d.Submission.Job.Lost != 4) {
			t.Errorf("poison %v, lost %d workers", d.Poison, d.Submission.Job.Lost)
		}
		return err
	})
	value := uuid.NewString()
	if got := c.ends(c.submit("test.echo", map[string]any{"message": value}, value)); got != jobs.Succeeded {
		t.Errorf("the next job ended %s", got)
	}
}

// TestKillWithALease kills each process that holds a leased sidecar in turn:
// the job ends, and neither Chromium, agent nor scratch folder stays.
func TestKillWithALease(t *testing.T) {
	t.Parallel()
	for _, victim := range []string{"worker", "scheduler"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.addAPI("api")
			c.addScheduler("scheduler")
			c.addWorker("worker", nil, "--pools", "browser", "--slots", "1")
			id := c.submit("browser.screenshot_url", map[string]any{"url": slowPage(t)}, "")
			c.until("Chromium runs", func() bool { return c.browsers() > 0 })
			c.crash(victim)
			c.ends(id)
			c.until("no browser is left", func() bool { return c.browsers() == 0 })
			c.end("worker", syscall.SIGTERM)
			// A lease whose worker died is swept a minute after its last renewal.
			for range 2 {
				if c.soon(func() bool { return c.sidecars() == 0 }) {
					break
				}
			}
			if n := c.sidecars(); n > 0 {
				t.Errorf("%d sidecars are left", n)
			}
			c.check()
			c.end("scheduler", syscall.SIGTERM)
			c.end("api", syscall.SIGTERM)
			if left := c.leftovers(); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
		})
	}
}

// sidecars counts the scratch folders of sidecars.
func (c *cluster) sidecars() int {
	left, _ := filepath.Glob(c.path("scheduler", "sidecars", "*"))
	return len(left)
}

// browsers counts the processes of Chromium that belong to this installation.
func (c *cluster) browsers() int {
	n := 0
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err == nil && containsAll(string(b), c.dir, "--remote-debugging-pipe") {
			n++
		}
	}
	return n
}

func containsAll(s string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}
