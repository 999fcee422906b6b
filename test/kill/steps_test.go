package kill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// submit submits until it is accepted, as a client with an idempotency key
// may, and notes what was promised.
func (c *cluster) submit(pack string, input map[string]any, value string, change ...func(*jobs.Request)) string {
	c.t.Helper()
	body, err := json.Marshal(input)
	if err != nil {
		c.t.Fatal(err)
	}
	r := jobs.Request{Pack: pack, Input: body, IdempotencyKey: uuid.NewString(), Webhook: c.hooks.own()}
	for _, f := range change {
		f(&r)
	}
	var job jobs.Job
	c.insist("submit "+pack, func(ctx context.Context, api *client.Client) error {
		job, err = api.Submit(ctx, r)
		return err
	})
	c.log.Accepted(job.ID, value)
	return job.ID
}

// insist repeats a call at one replica after the other until it is answered.
func (c *cluster) insist(what string, call func(context.Context, *client.Client) error) {
	c.t.Helper()
	end := time.Now().Add(patience)
	var last error
	for i := 0; time.Now().Before(end); i++ {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		last = call(ctx, c.api[i%len(c.api)])
		cancel()
		if last == nil {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-c.t.Context().Done():
			return
		}
	}
	c.t.Fatalf("%s: %v", what, last)
}

func (c *cluster) state(id string) jobs.State {
	var job jobs.Job
	c.insist("read "+id, func(ctx context.Context, api *client.Client) (err error) {
		job, err = api.Job(ctx, id)
		return err
	})
	return job.State
}

func (c *cluster) ends(id string) jobs.State {
	c.t.Helper()
	var state jobs.State
	c.until("end of "+id, func() bool {
		state = c.state(id)
		return state.Terminal()
	})
	c.log.Ended(id, state)
	return state
}

// cancel asks until it is answered; a job that is over already is answered too.
func (c *cluster) cancel(id string) {
	c.insist("cancel "+id, func(ctx context.Context, api *client.Client) error {
		_, err := api.Cancel(ctx, id)
		if e, ok := errors.AsType[*client.Error](err); ok && e.Code == packs.SchemaMismatch {
			return nil
		}
		return err
	})
}

// workload visits every step of the life of a job. worker starts the worker,
// once there are jobs in the queue.
func (c *cluster) workload(worker func()) {
	c.t.Helper()
	echo := uuid.NewString()
	first := c.submit("test.echo", map[string]any{"message": echo}, echo)
	queued := c.submit("test.echo", map[string]any{"message": "never"}, "")
	c.cancel(queued)
	again := c.submit("test.fail", map[string]any{"code": "session_unavailable", "times": 1}, "")
	dead := c.submit("test.fail", map[string]any{"code": "handler_failed"}, "")
	// One at a time: while the first runs the others are held back.
	key := uuid.NewString()
	oneByOne := func(r *jobs.Request) { r.ConcurrencyKey = key }
	slow := c.submit("test.sleep", map[string]any{"ms": 500}, "", oneByOne)
	held := c.submit("test.echo", map[string]any{"message": key}, key, oneByOne)
	last := c.submit("test.echo", map[string]any{"message": key}, key, oneByOne)
	worker()
	running := c.submit("test.sleep", map[string]any{"ms": 20000}, "")
	c.until("a job runs", func() bool { s := c.state(running); return s == jobs.Running || s.Terminal() })
	c.cancel(running)
	want := map[string]jobs.State{
		slow: jobs.Succeeded, held: jobs.Succeeded, last: jobs.Succeeded,
		first: jobs.Succeeded, queued: jobs.Cancelled, again: jobs.Succeeded, dead: jobs.Failed, running: jobs.Cancelled,
	}
	for id, state := range want {
		if got := c.ends(id); got != state {
			c.t.Errorf("job %s: got %s, want %s", id, got, state)
		}
	}
}

// TestKillAtEveryStep ends the process that is at a step, at each step once.
func TestKillAtEveryStep(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	rounds := 1
	if os.Getenv("HELMDECK_SOAK") != "" {
		rounds = 20
	}
	c.addAPI("api-steady")
	c.subscribe()
	for round := range rounds {
		for _, step := range failpoint.Steps {
			t.Run(fmt.Sprintf("%s#%d", step, round), func(t *testing.T) {
				c.t = t
				c.step(step, fmt.Sprintf("%d", round))
			})
		}
	}
	c.t = t
	c.check()
}

// apiSteps happen in an API replica, the others in a worker.
func apiStep(step string) bool {
	for _, family := range []string{"submit.", "cancel.", "mover.", "consequence.", "release.", "hook.", failpoint.SlotAfterFree} {
		if strings.HasPrefix(step, family) {
			return true
		}
	}
	return false
}

func (c *cluster) step(step, round string) {
	c.t.Helper()
	mark := filepath.Join(c.dir, "hit-"+step+"-"+round)
	arm := []string{"HELMDECK_FAILPOINT=" + step, "HELMDECK_FAILPOINT_FILE=" + mark}
	apiEnv, workerEnv := []string(nil), arm
	if apiStep(step) {
		apiEnv, workerEnv = arm, nil
	}
	api, worker := "api-"+step+round, "worker-"+step+round
	// The steady replica is stopped meanwhile, so that the armed one serves.
	c.end("api-steady", syscall.SIGTERM)
	c.api, c.urls = nil, nil
	c.addAPI(api, apiEnv...)
	c.workload(func() { c.addWorker(worker, workerEnv, "--pools", "core", "--slots", "2") })
	if !c.died(api) && !c.died(worker) {
		c.t.Errorf("no process died at %s", step)
	}
	c.check()
	c.end(worker, syscall.SIGTERM)
	if left, _ := filepath.Glob(c.path(worker, "scratch", "*", "*")); len(left) > 0 {
		c.t.Errorf("scratch folders are left: %v", left)
	}
	c.end(api, syscall.SIGTERM)
	c.api, c.urls = nil, nil
	c.addAPI("api-steady")
	if left := c.leftovers(); len(left) > 0 {
		c.t.Errorf("processes are left: %v", left)
	}
}
