package limits_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/helmdeck/helmdeck/pkg/limits"
)

// TestShareFollowsWeights: while the same parties wait, what each gets is its
// part by weight, to within one thing each.
func TestShareFollowsWeights(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.IntRange(1, 10), 2, 6).Draw(t, "weights")
		costs := rapid.SliceOfN(rapid.Float64Range(0.5, 2), len(weights), len(weights)).Draw(t, "costs")
		var s limits.Share
		// A past in which some were alone must not matter.
		for range rapid.IntRange(0, 50).Draw(t, "past") {
			s.Serve("0", costs[0], weights[0])
		}
		var names []string
		total := 0
		for i, w := range weights {
			names = append(names, fmt.Sprint(i))
			total += w
		}
		got, sum := map[string]float64{}, 0.0
		const rounds = 3000
		for range rounds {
			name := s.Next(names)
			var i int
			_, _ = fmt.Sscan(name, &i)
			s.Serve(name, costs[i], weights[i])
			got[name] += costs[i]
			sum += costs[i]
		}
		for i, w := range weights {
			share := sum * float64(w) / float64(total)
			if got[names[i]] < 0.95*share-2*costs[i] {
				t.Fatalf("party %d of weight %d got %.1f of its %.1f", i, w, got[names[i]], share)
			}
		}
	})
}

// TestShareSavesNothingUp: who was away has no more right than who waited.
func TestShareSavesNothingUp(t *testing.T) {
	t.Parallel()
	var s limits.Share
	for range 1000 {
		s.Serve("a", 1, 1)
	}
	n := 0
	for range 10 {
		name := s.Next([]string{"a", "b"})
		if name == "b" {
			n++
		}
		s.Serve(name, 1, 1)
	}
	if n < 5 || n > 6 {
		t.Errorf("b got %d of 10", n)
	}
	if s.Next(nil) != "" {
		t.Error("nobody waits, but somebody is next")
	}
}
