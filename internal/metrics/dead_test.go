package metrics_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/metrics"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/test/rig"
)

// TestDeadLettersAreCounted by pool and by whether they were quarantined.
func TestDeadLettersAreCounted(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	for id, poison := range map[string]bool{"a": false, "b": true, "c": true} {
		d := jobs.DeadLetter{Poison: poison, Submission: jobs.Submission{Job: jobs.Job{ID: id, Pool: "media", Caller: rig.Ann}}}
		if err := r.Store.Bury(r.Ctx(), d); err != nil {
			t.Fatal(err)
		}
	}
	reg := prometheus.NewRegistry()
	metrics.Dead(reg, r.Store.CountDead)
	want(t, reg, `helmdeck_dead_letters{poison="true",pool="media"} 2`, `helmdeck_dead_letters{poison="false",pool="media"} 1`,
		`helmdeck_dead_letters{poison="true",pool="core"} 0`)
}
