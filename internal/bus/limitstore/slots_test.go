package limitstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/limitstore"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

func open(t testing.TB, js bus.JetStream) *limitstore.Slots {
	t.Helper()
	s, err := limitstore.Open(t.Context(), js)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func run(id string, n int) limits.Holder {
	return limits.Holder{Job: jobs.Key{ID: id, Tenant: "default", Owner: "ann"}, Run: n}
}

func take(t *testing.T, s *limitstore.Slots, h limits.Holder, held bool, want ...limits.Slot) string {
	t.Helper()
	full, err := s.Take(bustest.Context(t), h, want, held)
	if err != nil {
		t.Fatal(err)
	}
	return full
}

func holders(t *testing.T, s *limitstore.Slots, key string) []string {
	t.Helper()
	st, err := s.State(bustest.Context(t), key)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, h := range st.Holders {
		out = append(out, fmt.Sprintf("%s#%d", h.Job.ID, h.Run))
	}
	slices.Sort(out)
	return out
}

// TestTakeAllOrNone: what a job got of other keys it gives back.
func TestTakeAllOrNone(t *testing.T) {
	t.Parallel()
	s := open(t, bustest.Start(t).Conn(bus.RoleWorker).JetStream())
	a, b := limits.Slot{Key: "a", Limit: 2}, limits.Slot{Key: "b", Limit: 1}
	if full := take(t, s, run("1", 1), false, a, b); full != "" {
		t.Fatalf("first: %s is full", full)
	}
	if full := take(t, s, run("2", 1), false, a, b); full != "b" {
		t.Errorf("second: got %q, want b", full)
	}
	if got := holders(t, s, "a"); !slices.Equal(got, []string{"1#1"}) {
		t.Errorf("a is held by %v", got)
	}
}

// TestRunsOfAJobShareItsSlot: a later run takes it over, an earlier one cannot
// free it, and taking it twice takes it once.
func TestRunsOfAJobShareItsSlot(t *testing.T) {
	t.Parallel()
	s := open(t, bustest.Start(t).Conn(bus.RoleWorker).JetStream())
	one, ctx := limits.Slot{Key: "a", Limit: 1}, bustest.Context(t)
	for _, n := range []int{1, 1, 2, 1} {
		if full := take(t, s, run("1", n), false, one); full != "" {
			t.Fatalf("run %d refused", n)
		}
	}
	if err := s.Free(ctx, run("1", 1), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if got := holders(t, s, "a"); !slices.Equal(got, []string{"1#2"}) {
		t.Errorf("held by %v", got)
	}
	for range 2 {
		if err := s.Free(ctx, run("1", 2), []string{"a", "never"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := holders(t, s, "a"); got != nil {
		t.Errorf("still held by %v", got)
	}
	if all, err := s.All(ctx); err != nil || len(all) != 0 {
		t.Errorf("left: %v, %v", all, err)
	}
}

// TestNobodyOvertakesHeldJobs: once one was refused, free slots go to held
// jobs, until it is said that none waits.
func TestNobodyOvertakesHeldJobs(t *testing.T) {
	t.Parallel()
	env := bustest.Start(t)
	worker, other := open(t, env.Conn(bus.RoleWorker).JetStream()), open(t, env.Conn(bus.RoleAPI).JetStream())
	one, ctx := limits.Slot{Key: "a", Limit: 1}, bustest.Context(t)
	take(t, worker, run("1", 1), false, one)
	if full := take(t, worker, run("2", 1), false, one); full != "a" {
		t.Fatal("no limit")
	}
	if err := other.Free(ctx, run("1", 1), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if full := take(t, worker, run("3", 1), false, one); full != "a" {
		t.Error("a fresh job overtook a held one")
	}
	if full := take(t, other, run("2", 1), true, one); full != "" {
		t.Error("the held job was refused")
	}
	if err := other.Free(ctx, run("2", 1), []string{"a"}); err != nil {
		t.Fatal(err)
	}
	if err := other.Unqueue(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if full := take(t, worker, run("3", 1), false, one); full != "" {
		t.Error("refused although nobody waits")
	}
}

// TestLimitAtItsEdge: exactly so many, in one process and in several at once.
func TestLimitAtItsEdge(t *testing.T) {
	t.Parallel()
	env := bustest.Start(t)
	const limit, tries = 40, 100
	var wg sync.WaitGroup
	var mu sync.Mutex // guards got
	got := 0
	for p := range 3 {
		s := open(t, env.TCP(bus.RoleWorker).JetStream())
		for i := range tries {
			wg.Go(func() {
				full, err := s.Take(bustest.Context(t), run(fmt.Sprintf("%d-%d", p, i), 1), []limits.Slot{{Key: "a", Limit: limit}}, true)
				if err != nil {
					t.Error(err)
				}
				if full == "" {
					mu.Lock()
					got++
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if got != limit {
		t.Errorf("%d slots taken, want %d", got, limit)
	}
}

// TestSlotsAreConserved: whatever several processes take and free, on a bus
// that fails before and after it did what it was asked, no key has more
// holders than its limit, each holder asked for its slot and did not give it
// back, and in the end all are free.
func TestSlotsAreConserved(t *testing.T) {
	t.Parallel()
	env := bustest.Start(t)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		var procs []*limitstore.Slots
		for range 3 {
			f := bustest.NewFaults(env.Conn(bus.RoleWorker).JetStream())
			f.Random(rapid.Uint64().Draw(rt, "seed"), map[bustest.Kind]float64{bustest.Before: .1, bustest.After: .1, bustest.Twice: .1}, 0)
			procs = append(procs, open(t, f))
		}
		keys := []limits.Slot{{Key: fmt.Sprintf("r%d-a", round), Limit: 1}, {Key: fmt.Sprintf("r%d-b", round), Limit: 3}}
		names := limits.Keys(keys)
		has := map[string]int{} // job → run that holds all
		runs := map[string]int{}
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			s := rapid.SampledFrom(procs).Draw(rt, "process")
			job := fmt.Sprint(rapid.IntRange(1, 5).Draw(rt, "job"))
			want := rapid.SampledFrom([][]limits.Slot{keys, keys[1:]}).Draw(rt, "want")
			if rapid.Bool().Draw(rt, "free") {
				if err := s.Free(ctx, run(job, runs[job]), names); err != nil {
					rt.Fatal(err)
				}
				delete(has, job)
			} else {
				runs[job]++
				full, err := s.Take(ctx, run(job, runs[job]), want, true)
				switch {
				case err != nil:
					rt.Fatal(err)
				case full == "":
					has[job] = runs[job]
				case has[job] > 0 && len(want) == 2:
					// It may have held the second key alone, and gave it up.
					delete(has, job)
					if err := s.Free(ctx, run(job, runs[job]), names); err != nil {
						rt.Fatal(err)
					}
				}
			}
			for _, k := range keys {
				st, err := procs[0].State(ctx, k.Key)
				for err != nil {
					if ctx.Err() != nil {
						rt.Fatal(err)
					}
					st, err = procs[0].State(ctx, k.Key)
				}
				if len(st.Holders) > k.Limit {
					rt.Fatalf("%d holders of %d slots", len(st.Holders), k.Limit)
				}
				for id := range st.Holders {
					if has[id] == 0 {
						rt.Fatalf("job %s holds a slot of %s it does not have", id, k.Key)
					}
				}
			}
		}
		for job := range runs {
			if err := procs[1].Free(ctx, run(job, runs[job]), names); err != nil {
				rt.Fatal(err)
			}
		}
		for _, k := range names {
			if got := holders(t, open(t, env.Conn(bus.RoleAPI).JetStream()), k); got != nil {
				rt.Fatalf("%s is still held by %v", k, got)
			}
		}
	})
}
