package jobs_test

import (
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// TestMoves walks every pair of states: what the table does not allow is
// refused, and nothing leaves a terminal state.
func TestMoves(t *testing.T) {
	t.Parallel()
	const states = "scheduled queued running retrying succeeded failed cancelled"
	legal := map[string]string{
		"scheduled": "queued running cancelled failed",
		"queued":    "running cancelled failed",
		"running":   "running retrying succeeded failed cancelled",
		"retrying":  "running cancelled failed",
	}
	for _, from := range strings.Fields(states) {
		for _, to := range strings.Fields(states) {
			want := false
			for _, l := range strings.Fields(legal[from]) {
				want = want || l == to
			}
			if got := jobs.CheckMove(jobs.State(from), jobs.State(to)) == nil; got != want {
				t.Errorf("%s to %s: allowed %v, want %v", from, to, got, want)
			}
		}
	}
}

func TestInlineCountsWhatEncodingAdds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		raw  string
		want bool
	}{
		{"at the limit", strings.Repeat("x", jobs.InlineLimit), true},
		{"one more", strings.Repeat("x", jobs.InlineLimit+1), false},
		{"escaped at the limit", strings.Repeat("<", jobs.InlineLimit/6), true},
		{"escaped above it", strings.Repeat("<", jobs.InlineLimit/6+1), false},
	} {
		if got := jobs.Inline([]byte(tt.raw)); got != tt.want {
			t.Errorf("%s: got %v", tt.name, got)
		}
	}
}
