package limits_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/history"
	"github.com/helmdeck/helmdeck/test/rig"
)

// counter is a pack that notes how many of its runs by name are in at once.
type counter struct {
	mu      sync.Mutex // guards the fields below
	now     map[string]int
	most    map[string]int
	order   []string
	started chan string
	release chan struct{} // one receive lets one run end; closed: all
}

func newCounter() *counter {
	return &counter{now: map[string]int{}, most: map[string]int{}, started: make(chan string, 10_000), release: make(chan struct{})}
}

type counted struct {
	Name string `json:"name"`
}

func (c *counter) pack(name string) packs.Pack {
	return packs.Define(packs.Spec[counted, counted]{Name: name, Summary: "s",
		Run: func(ctx context.Context, _ *packs.Run, in counted) (counted, error) {
			c.mu.Lock()
			c.order = append(c.order, in.Name)
			for _, k := range []string{in.Name, ""} {
				c.now[k]++
				c.most[k] = max(c.most[k], c.now[k])
			}
			c.mu.Unlock()
			defer func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.now[in.Name]--
				c.now[""]--
			}()
			c.started <- in.Name
			select {
			case <-c.release:
				return in, nil
			case <-ctx.Done():
				return in, context.Cause(ctx)
			}
		}})
}

func (c *counter) mostOf(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most[name]
}

// atRest waits until the checker is content and no slot is held.
func atRest(t *testing.T, r *rig.Rig, l *history.Log) {
	t.Helper()
	var last any
	r.Until("at rest", func() bool {
		found, err := history.Check(r.Ctx(), r.Env.Conn(bus.RoleAdmin).JetStream(), r.Store, l, history.Options{})
		held, err2 := r.Slots.All(r.Ctx())
		if err = errors.Join(err, err2); err != nil || len(found) > 0 || len(held) > 0 {
			last = []any{err, found, held}
			return false
		}
		return true
	})
	_ = last
}

func keyed(key string, limit int) func(*jobs.Request) {
	return func(r *jobs.Request) { r.ConcurrencyKey, r.ConcurrencyLimit = key, limit }
}

// TestConcurrencyKeyBoundsRunningJobs, and every job runs in the end.
func TestConcurrencyKeyBoundsRunningJobs(t *testing.T) {
	t.Parallel()
	c := newCounter()
	r := rig.New(t, c.pack("t.count"))
	r.Worker("a")
	r.Worker("b")
	l := history.NewLog()
	for range 12 {
		l.Accepted(r.Submit("t.count", counted{"x"}, keyed("schlüssel 🔑.*>", 2)).ID, "")
		l.Accepted(r.Submit("t.count", counted{"free"}).ID, "")
	}
	for range l.IDs() {
		<-c.started
		c.release <- struct{}{}
	}
	for _, id := range l.IDs() {
		if got := r.Ends(id); got.State != jobs.Succeeded || got.Lost != 0 {
			t.Errorf("got %s, lost %d", got.State, got.Lost)
		}
	}
	if n := c.mostOf("x"); n > 2 {
		t.Errorf("%d jobs of the key at once, want at most 2", n)
	}
	atRest(t, r, l)
}

var _ = identity.Caller{}
