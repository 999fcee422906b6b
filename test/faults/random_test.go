// Package faults runs the job system under random faults of the bus and lets
// the checker judge what is left when they have ended.
package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/test/history"
	"github.com/helmdeck/helmdeck/test/rig"
)

// steps of one run; HELMDECK_FAULT_SEED repeats one.
const steps = 300

// chance of each fault per call of the bus.
var chance = map[bustest.Kind]float64{
	bustest.Before: 0.02, bustest.After: 0.02, bustest.Delayed: 0.02, bustest.Twice: 0.02, bustest.Disconnect: 0.005,
}

func seed(t *testing.T) uint64 {
	if text := os.Getenv("HELMDECK_FAULT_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return rand.Uint64()
}

// TestRandomFaults: clients submit, fail, retry and cancel, limits hold jobs
// back, while calls of
// both sides fail before or after they are made, come late, come twice or not
// at all. Every accepted job has one end when the bus is well again.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	n := seed(t)
	t.Logf("HELMDECK_FAULT_SEED=%d", n)
	rng := rand.New(rand.NewPCG(n, n))
	r := rig.NewLimited(t, "pools: {core: 6}\npacks: {test.artifact: 2}")
	all := []*bustest.Faults{r.Client}
	for i := range 2 {
		_, f := r.FaultyWorker(fmt.Sprintf("w%d", i), func(c *worker.Config) {
			c.MaxLost = 100 // the faults, not the jobs, lose workers here
			if i == 1 {
				c.RetryInQueue = -1
			}
		})
		all = append(all, f)
	}
	for i, f := range all {
		f.Random(n+uint64(i), chance, 20*time.Millisecond)
	}
	l := history.NewLog()
	for step := range steps {
		submit(t, r, l, rng, step)
		if step%20 == 0 {
			aJobEnds(r, l) // so that the faults meet workers, not only clients
		}
	}
	for _, f := range all {
		t.Logf("%d faults", len(f.Injected()))
		f.Heal()
	}
	for _, id := range l.IDs() {
		l.Ended(id, r.Ends(id).State)
	}
	var found []history.Violation
	defer func() {
		for _, v := range found {
			t.Error(v)
		}
	}()
	r.Until("nothing is left", func() bool {
		var err error
		found, err = history.Check(r.Ctx(), r.Env.Conn(bus.RoleAdmin).JetStream(), r.Store, l, history.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return len(found) == 0
	})
}

// aJobEnds waits for the end of one of the accepted jobs, faults or not.
func aJobEnds(r *rig.Rig, l *history.Log) {
	ids := l.IDs()
	if len(ids) == 0 {
		return
	}
	r.Until("a job ends", func() bool {
		j, err := r.Jobs.Get(r.Ctx(), rig.Ann, ids[len(ids)-1])
		return err == nil && j.State.Terminal()
	})
}

// submit makes one step. A call that is refused was promised nothing.
func submit(t *testing.T, r *rig.Rig, l *history.Log, rng *rand.Rand, step int) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	value := fmt.Sprintf("value-%d.", step)
	pack, input, want := "test.echo", fmt.Sprintf(`{"message":%q}`, value), value
	switch rng.IntN(7) {
	case 0:
		pack, input, want = "test.fail", `{"code":"session_unavailable","times":1}`, ""
	case 1:
		pack, input, want = "test.fail", `{"code":"handler_failed"}`, ""
	case 2:
		pack, input, want = "test.artifact", `{"bytes":2000,"name":"a.bin"}`, ""
	case 3:
		pack, input = "test.parent", fmt.Sprintf(`{"count":3,"input":{"message":"%s{i}"}}`, value)
	}
	q := jobs.Request{Pack: pack, Input: []byte(input)}
	if rng.IntN(2) == 0 {
		q.IdempotencyKey = value
	}
	if rng.IntN(2) == 0 {
		q.ConcurrencyKey = fmt.Sprint(rng.IntN(4))
		q.ConcurrencyLimit = 1 + rng.IntN(2)
	}
	j, err := r.Jobs.Submit(ctx, rig.Ann, q)
	if err != nil && q.IdempotencyKey != "" {
		j, err = r.Jobs.Submit(ctx, rig.Ann, q)
	}
	if err != nil {
		return
	}
	l.Accepted(j.ID, want)
	if rng.IntN(8) == 0 {
		_, _ = r.Jobs.Cancel(ctx, rig.Ann, j.ID) // refused or not, the job has one end
	}
}
