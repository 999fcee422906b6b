// Package children holds tests of packs that call other packs, on a whole job
// system.
package children

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

// output is that of test.parent.
type output struct {
	Attempt int      `json:"attempt"`
	Jobs    []string `json:"jobs"`
	Outputs []struct {
		Message string  `json:"message"`
		Outputs []any   `json:"outputs"`
		Attempt float64 `json:"attempt"`
	} `json:"outputs"`
	Errors []string `json:"errors"`
}

func decode(t *testing.T, j jobs.Job) (out output) {
	t.Helper()
	if j.State != jobs.Succeeded {
		t.Fatalf("job %s: got %s %+v", j.ID, j.State, j.Error)
	}
	if err := json.Unmarshal(j.Output, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func slots(n int) func(*worker.Config) {
	return func(c *worker.Config) { c.Slots = map[string]int{"core": n} }
}

// nest makes the input of a chain of parents of the given depth around pack.
func nest(depth int, pack string, input map[string]any) map[string]any {
	for range depth {
		input = map[string]any{"pack": pack, "input": input, "in_turn": true}
		pack = "test.parent"
	}
	return input
}

// TestCallsRunInTheSlotOfTheirParent: one worker, one slot, and calls in turn,
// in a map and as deep as they nest.
func TestCallsRunInTheSlotOfTheirParent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		input map[string]any
		want  int
	}{
		{"one", map[string]any{"in_turn": true}, 1},
		{"in turn", map[string]any{"in_turn": true, "count": 3, "input": map[string]any{"message": "m{i}"}}, 3},
		{"map", map[string]any{"count": 40, "input": map[string]any{"message": "m{i}"}}, 40},
		{"map taken one by one", map[string]any{"count": 40, "each": true, "parallel": 3, "input": map[string]any{"message": "m{i}"}}, 40},
		{"none", map[string]any{"count": 0}, 0},
		{"as deep as it goes", nest(jobs.MaxDepth, "test.echo", map[string]any{"message": "x"}), 1},
		{"maps of maps", map[string]any{"pack": "test.parent", "count": 5, "input": map[string]any{"count": 5}}, 5},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			r.Worker("w", slots(1))
			parent := r.Ends(r.Submit("test.parent", tt.input).ID)
			out := decode(t, parent)
			if len(out.Jobs) != tt.want {
				t.Fatalf("got %d children, want %d", len(out.Jobs), tt.want)
			}
			for i, id := range out.Jobs {
				child, err := r.Jobs.Get(r.Ctx(), rig.Ann, id)
				if err != nil {
					t.Fatal(err)
				}
				want := &jobs.Called{Depth: 1, Run: 1, Attempt: 1}
				if diff := cmp.Diff(want, child.Call); diff != "" || child.ParentID != parent.ID || len(child.Labels) > 0 {
					t.Errorf("child %d: parent %s, labels %v, call %s", i, child.ParentID, child.Labels, diff)
				}
				if strings.Contains(fmt.Sprint(tt.input["input"]), "m{i}") && out.Outputs[i].Message != fmt.Sprintf("m%d", i) {
					t.Errorf("output %d is %q", i, out.Outputs[i].Message)
				}
			}
			r.Until("queue is empty", func() bool { return r.Queued() == 0 })
		})
	}
}

// TestCallsNestSoDeepAndNoDeeper; a circle ends there as well.
func TestCallsNestSoDeepAndNoDeeper(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w", slots(1))
	got := r.Ends(r.Submit("test.parent", nest(jobs.MaxDepth+1, "test.echo", map[string]any{"message": "x"})).ID)
	if got.State != jobs.Failed || got.Error.Code != packs.HandlerFailed || !strings.Contains(got.Error.Message, "nest at most 4 deep") {
		t.Errorf("got %s %+v", got.State, got.Error)
	}
}

// TestParentsAtEverySlotStarveNobody: more parents than slots, in two pools
// that call each other, all begun before any child.
func TestParentsAtEverySlotStarveNobody(t *testing.T) {
	t.Parallel()
	other := packs.Define(packs.Spec[calling, called]{Name: "other.parent", Summary: "s", Pool: packs.PoolLLM,
		Needs: packs.Needs{Calls: true}, Timeout: time.Minute,
		Run: func(ctx context.Context, run *packs.Run, in calling) (called, error) {
			c, err := run.Call(ctx, in.Pack, in.Input)
			return called{c.JobID}, err
		}})
	r := rig.New(t, other)
	for _, w := range []string{"core", "llm"} {
		r.Worker(w, func(c *worker.Config) { c.Slots = map[string]int{w: 1} })
	}
	var ids []string
	for range 6 {
		// core waits for llm, which waits for core, and the other way round.
		leaf := map[string]any{"message": "x"}
		ids = append(ids,
			r.Submit("test.parent", map[string]any{"pack": "other.parent", "input": map[string]any{"pack": "test.echo", "input": leaf}}).ID,
			r.Submit("other.parent", map[string]any{"pack": "test.parent", "input": map[string]any{"pack": "other.parent",
				"input": map[string]any{"pack": "test.echo", "input": leaf}}}).ID)
	}
	for _, id := range ids {
		if got := r.Ends(id); got.State != jobs.Succeeded {
			t.Errorf("got %s %+v", got.State, got.Error)
		}
	}
}

// calling is the input of a pack that calls another.
type calling struct {
	Pack  string         `json:"pack"`
	Input map[string]any `json:"input"`
}

type called struct {
	Job string `json:"job"`
}
