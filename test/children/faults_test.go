package children

import (
	"fmt"
	"testing"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/test/history"
	"github.com/helmdeck/helmdeck/test/rig"
)

// TestFamiliesSurviveABadBus: what the parent's worker says or hears comes
// twice, is refused, or is done although it seems to have failed.
func TestFamiliesSurviveABadBus(t *testing.T) {
	t.Parallel()
	jobsOf := func(k bustest.Kind, nth int) bustest.Rule {
		return bustest.Rule{Op: bustest.OpPublish, Subject: "job.core.call", Kind: k, Nth: nth}
	}
	tests := []struct {
		name  string
		rules []bustest.Rule
	}{
		{"every delivery twice", []bustest.Rule{{Op: bustest.OpPull, Kind: bustest.Twice}}},
		{"every write twice", []bustest.Rule{{Op: bustest.OpPublish, Kind: bustest.Twice}}},
		{"a submit refused", []bustest.Rule{jobsOf(bustest.Before, 2), jobsOf(bustest.Before, 4)}},
		{"a submit done, its answer lost", []bustest.Rule{jobsOf(bustest.After, 1), jobsOf(bustest.After, 3)}},
		{"queue full for a while", []bustest.Rule{{Op: bustest.OpPublish, Subject: "job.core.call", Nth: 1, Kind: bustest.Before, Err: bus.ErrFull}}},
		{"the bus away", []bustest.Rule{{Op: bustest.OpPublish, Subject: "job.core.call", Nth: 2, Kind: bustest.Disconnect, Calls: 20}}},
		{"a lost key of a shared child", []bustest.Rule{
			{Op: bustest.OpKVCreate, Subject: bus.BucketIdem, Nth: 1, Kind: bustest.After},
			{Op: bustest.OpKVCreate, Subject: bus.BucketIdem, Nth: 3, Kind: bustest.Before}}},
		{"reads fail", []bustest.Rule{{Op: bustest.OpLast, Subject: "evt.", Kind: bustest.Before, Nth: 1}, {Op: bustest.OpLast, Subject: "evt.", Kind: bustest.Before, Nth: 3}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			_, f := r.FaultyWorker("w", slots(2))
			f.Add(tt.rules...)
			l := history.NewLog()
			var parents []string
			for i := range 2 {
				value := fmt.Sprintf("value-%d-", i)
				in := map[string]any{"count": 6, "parallel": 3, "times": 1, "input": map[string]any{"message": value + "{i}"}}
				if i == 1 {
					in["key"] = "k"
				}
				j := r.Submit("test.parent", in)
				l.Accepted(j.ID, value+"5")
				parents = append(parents, j.ID)
			}
			for _, id := range parents {
				got := r.Ends(id)
				l.Ended(id, got.State)
				if out := decode(t, got); len(out.Jobs) != 6 {
					t.Errorf("%d children", len(out.Jobs))
				}
				r.Until("children are listed as ended", func() bool {
					n := 0
					for _, c := range kids(r, id) {
						if c.State == jobs.Succeeded {
							n++
						}
					}
					return n == 6
				})
				if n := len(kids(r, id)); n != 6 {
					t.Errorf("parent %s has %d children", id, n)
				}
			}
			atRest(r, l)
		})
	}
}

// TestEndOfAChildIsReadWhenNobodyTells: the live message of its end is lost.
func TestEndOfAChildIsReadWhenNobodyTells(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Worker("w", slots(1), func(c *worker.Config) {
		cfg := r.Config()
		cfg.Follow = deaf{}
		c.Jobs = jobs.New(cfg)
	})
	if got := r.Ends(r.Submit("test.parent", map[string]any{"in_turn": true}).ID); got.State != jobs.Succeeded {
		t.Errorf("got %s %+v", got.State, got.Error)
	}
}

// deaf hears of nothing.
type deaf struct{}

func (deaf) Follow(jobs.Key, func(jobs.Sight)) (func(), error) { return func() {}, nil }
