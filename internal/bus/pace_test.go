package bus

import (
	"testing"
	"time"
)

func TestPaceTakesTheShorterWay(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, tt := range map[string]struct {
		pace pace
		n    int
		want bool
	}{
		"few":                         {pace{alone: 10 * ms, batch: ms}, minGroup - 1, false},
		"nothing known":               {pace{}, minGroup, true},
		"only batches known, few":     {pace{batch: ms}, minGroup, false},
		"only batches known, many":    {pace{batch: ms}, 4 * minGroup, true},
		"quick disk, slow files":      {pace{alone: ms, batch: 25 * ms}, 20, false},
		"quick disk, more than a few": {pace{alone: ms, batch: 25 * ms}, 40, true},
		"slow disk":                   {pace{alone: 10 * ms, batch: 25 * ms}, minGroup, true},
	} {
		if got := tt.pace.groups(tt.n); got != tt.want {
			t.Errorf("%s: got %t, want %t", name, got, tt.want)
		}
	}
}

// TestPaceTriesTheOtherWayAgain: a disk may change.
func TestPaceTriesTheOtherWayAgain(t *testing.T) {
	t.Parallel()
	p := pace{alone: time.Millisecond, batch: 40 * time.Millisecond}
	for _, first := range []bool{false, true} {
		n := 20
		if first {
			n = 100
		}
		turned := false
		for range 1000 {
			if p.groups(n) != first {
				turned = true
				break
			}
		}
		if !turned {
			t.Errorf("%d messages: the other way is never tried again", n)
		}
	}
}
