package packs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// fakeCalls answers every call with do.
type fakeCalls struct {
	do              func(ctx context.Context, i int) (packs.Child, error)
	lent, most, now atomic.Int32
}

func (f *fakeCalls) Lend() func(context.Context) error {
	f.lent.Add(1)
	return func(context.Context) error { f.lent.Add(-1); return nil }
}

func (f *fakeCalls) Call(ctx context.Context, c packs.Call) (packs.Child, error) {
	n := f.now.Add(1)
	defer f.now.Add(-1)
	for {
		most := f.most.Load()
		if n <= most || f.most.CompareAndSwap(most, n) {
			break
		}
	}
	var i int
	if err := json.Unmarshal(c.Input, &i); err != nil {
		return packs.Child{}, err
	}
	if c.Progress != nil {
		c.Progress(50)
	}
	child, err := f.do(ctx, i)
	child.JobID = fmt.Sprint(i)
	if err == nil && child.Output == nil {
		child.Output = json.RawMessage(fmt.Sprint(i))
	}
	return child, err
}

type nothing struct{}

// mapped runs a Map inside a pack and returns what it returned.
func mapped(t *testing.T, f *fakeCalls, in packs.Inputs, o packs.MapOptions) (children []packs.Child, progress []string, err error) {
	t.Helper()
	p := packs.Define(packs.Spec[nothing, nothing]{Name: "t.t", Summary: "s", Needs: packs.Needs{Calls: true},
		Run: func(ctx context.Context, run *packs.Run, _ nothing) (nothing, error) {
			children, err = run.Map(ctx, "a.b@v2", in, o)
			return nothing{}, nil
		}})
	var mu sync.Mutex
	_, failed := (&packs.Engine{}).Execute(t.Context(), p, packs.Invocation{JobID: "j", Services: packs.Services{Calls: f,
		Progress: func(percent float64, message string) {
			mu.Lock()
			defer mu.Unlock()
			progress = append(progress, fmt.Sprintf("%.0f %s", percent, message))
		}}})
	if failed != nil {
		t.Fatal(failed)
	}
	if f.lent.Load() != 0 {
		t.Error("the slot was not taken back")
	}
	return children, progress, err
}

func numbers(n int) packs.Inputs { return packs.Generate(n, func(i int) any { return i }) }

func fine(context.Context, int) (packs.Child, error) { return packs.Child{}, nil }

// TestMapKeepsItsLimits at their edges.
func TestMapKeepsItsLimits(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		n    int
		o    packs.MapOptions
		code packs.Code
	}{
		{"most children", packs.MaxMap, packs.MapOptions{}, ""},
		{"one too many", packs.MaxMap + 1, packs.MapOptions{}, packs.InvalidInput},
		{"most at once", 300, packs.MapOptions{Parallel: packs.MaxParallel}, ""},
		{"too many at once", 300, packs.MapOptions{Parallel: packs.MaxParallel + 1}, packs.InvalidInput},
		{"fewer than one at once", 300, packs.MapOptions{Parallel: -1}, packs.InvalidInput},
		{"all must succeed", 3, packs.MapOptions{Policy: packs.MinSuccess(3)}, ""},
		{"more than all must succeed", 3, packs.MapOptions{Policy: packs.MinSuccess(4)}, packs.InvalidInput},
		{"one key for all", 3, packs.MapOptions{CallOptions: packs.CallOptions{Key: "k"}}, packs.InvalidInput},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &fakeCalls{do: fine}
			children, _, err := mapped(t, f, numbers(tt.n), tt.o)
			var pe *packs.Error
			switch {
			case tt.code == "" && (err != nil || len(children) != tt.n):
				t.Errorf("got %d children, %v", len(children), err)
			case tt.code != "" && (!errors.As(err, &pe) || pe.Code != tt.code):
				t.Errorf("got %v, want %s", err, tt.code)
			}
			want := packs.DefaultParallel
			if tt.o.Parallel > 0 {
				want = tt.o.Parallel
			}
			if got := int(f.most.Load()); got > want {
				t.Errorf("%d at once, want at most %d", got, want)
			}
			for i, c := range children {
				if string(c.Output) != fmt.Sprint(i) {
					t.Fatalf("child %d has output %s", i, c.Output)
				}
			}
		})
	}
}

// TestMapTakesOutputsUpToALimit unless they are taken one by one.
func TestMapTakesOutputsUpToALimit(t *testing.T) {
	t.Parallel()
	piece := json.RawMessage(`"` + strings.Repeat("x", packs.MaxKept/4-2) + `"`)
	big := func(context.Context, int) (packs.Child, error) { return packs.Child{Output: piece}, nil }
	if _, _, err := mapped(t, &fakeCalls{do: big}, numbers(4), packs.MapOptions{}); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	var pe *packs.Error
	if _, _, err := mapped(t, &fakeCalls{do: big}, numbers(5), packs.MapOptions{}); !errors.As(err, &pe) || pe.Code != packs.ResourceExhausted {
		t.Errorf("above: %v", err)
	}
	each := func(int, packs.Child) error { return nil }
	if kept, _, err := mapped(t, &fakeCalls{do: big}, numbers(5), packs.MapOptions{Each: each}); err != nil || kept != nil {
		t.Errorf("one by one: %d kept, %v", len(kept), err)
	}
}

// TestMapRunsNotFarAhead of a child that is slow, when they are taken one by
// one: what waits for its turn stays in memory.
func TestMapRunsNotFarAhead(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	var begun atomic.Int32
	const n, parallel = 1000, 4
	f := &fakeCalls{do: func(_ context.Context, i int) (packs.Child, error) {
		if begun.Add(1) == 4*parallel { // all that may begin before the first has ended
			close(slow)
		}
		if i == 0 {
			<-slow
			if got := begun.Load(); got > 4*parallel {
				t.Errorf("%d begun", got)
			}
		}
		return packs.Child{}, nil
	}}
	next := 0
	_, _, err := mapped(t, f, numbers(n), packs.MapOptions{Parallel: parallel, Each: func(i int, c packs.Child) error {
		if i != next || c.JobID != fmt.Sprint(i) {
			t.Errorf("child %s as %d, want %d", c.JobID, i, next)
		}
		next++
		return nil
	}})
	if err != nil || next != n {
		t.Errorf("%d taken, %v", next, err)
	}
}

// TestMapThatEndsEarlySaysWhatBecameOfEach.
func TestMapThatEndsEarlySaysWhatBecameOfEach(t *testing.T) {
	t.Parallel()
	two := func(ctx context.Context, i int) (packs.Child, error) {
		switch i {
		case 0:
			return packs.Child{}, nil
		case 1:
			e := packs.ChildFailed("1", "a.b", packs.Timeout, "late")
			return packs.Child{Err: e}, e
		}
		<-ctx.Done()
		return packs.Child{}, fmt.Errorf("wait: %w", context.Cause(ctx))
	}
	children, progress, err := mapped(t, &fakeCalls{do: two}, numbers(50), packs.MapOptions{Parallel: 3, From: 10, To: 20})
	var pe *packs.Error
	if !errors.As(err, &pe) || pe.Code != packs.Timeout || pe.Retry == nil || *pe.Retry {
		t.Errorf("got %v", err)
	}
	if len(children) != 50 || children[0].Err != nil && children[0].Err.Code != packs.Cancelled || children[1].Err.Code != packs.Timeout {
		t.Fatalf("got %d children, %+v", len(children), children[:2])
	}
	for i, c := range children[2:] {
		if c.Err == nil || c.Err.Code != packs.Cancelled {
			t.Errorf("child %d: %v", i+2, c.Err)
		}
	}
	for _, p := range progress {
		var percent float64
		if _, err := fmt.Sscan(p, &percent); err != nil || percent < 10 || percent > 20 {
			t.Errorf("progress %q, %v: outside its span", p, err)
		}
	}
	stop := errors.New("enough")
	if _, _, err := mapped(t, &fakeCalls{do: fine}, numbers(9), packs.MapOptions{Each: func(int, packs.Child) error { return stop }}); !errors.Is(err, stop) {
		t.Errorf("each: %v", err)
	}
}

// TestTypedCalls decode what they get.
func TestTypedCalls(t *testing.T) {
	t.Parallel()
	f := &fakeCalls{do: func(_ context.Context, i int) (packs.Child, error) {
		if i == 1 {
			return packs.Child{}, packs.ChildFailed("1", "a.b", packs.NotFound, "")
		}
		return packs.Child{Output: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i))}, nil
	}}
	type out struct{ N int }
	p := packs.Define(packs.Spec[nothing, nothing]{Name: "t.t", Summary: "s", Needs: packs.Needs{Calls: true},
		Run: func(ctx context.Context, run *packs.Run, _ nothing) (nothing, error) {
			if got, err := packs.CallAs[out](ctx, run, "a.b", 7, packs.CallOptions{}); err != nil || got.N != 7 {
				t.Errorf("got %+v, %v", got, err)
			}
			all, err := packs.MapAs[out](ctx, run, "a.b", packs.Slice([]int{4, 1, 6}), packs.MapOptions{Policy: packs.CollectAll})
			if err != nil || len(all) != 3 || all[0].Out.N != 4 || all[1].Err == nil || all[2].Out.N != 6 {
				t.Errorf("got %+v, %v", all, err)
			}
			_, err = packs.CallAs[int](ctx, run, "a.b", 7, packs.CallOptions{})
			return nothing{}, err
		}})
	_, err := (&packs.Engine{}).Execute(t.Context(), p, packs.Invocation{JobID: "j", Services: packs.Services{Calls: f}})
	if err == nil || !strings.Contains(err.Error(), "decode output of child job 7") {
		t.Errorf("output of another type: %v", err)
	}
}

// TestCallsMustBeDeclared.
func TestCallsMustBeDeclared(t *testing.T) {
	t.Parallel()
	p := packs.Define(packs.Spec[nothing, nothing]{Name: "t.t", Summary: "s",
		Run: func(ctx context.Context, run *packs.Run, _ nothing) (nothing, error) {
			_, err := run.Call(ctx, "a.b", 1)
			return nothing{}, err
		}})
	_, err := (&packs.Engine{}).Execute(t.Context(), p, packs.Invocation{JobID: "j", Services: packs.Services{Calls: &fakeCalls{do: fine}}})
	if err == nil || !strings.Contains(err.Error(), "uses Needs.Calls without declaring it") {
		t.Errorf("got %v", err)
	}
}
