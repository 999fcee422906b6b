package app

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

func newRepaired(reg prometheus.Registerer) func(jobs.Key) {
	c := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "helmdeck_reconciler_repaired_jobs_total",
		Help: "Jobs that were in no queue and were put back. More than zero needs a look.",
	})
	reg.MustRegister(c)
	return func(jobs.Key) { c.Inc() }
}

// newEnded counts the attempts of a worker.
func newEnded(reg prometheus.Registerer) func(pack, pool string, state jobs.State, code packs.Code, took time.Duration) {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "helmdeck_attempts_total", Help: "Attempts of jobs that ended, by the state they left the job in.",
	}, []string{"pack", "pool", "state", "code"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "helmdeck_attempt_duration_seconds", Help: "Length of attempts.",
		Buckets: []float64{.005, .025, .1, .5, 1, 5, 15, 60, 300, 1800},
	}, []string{"pack", "pool"})
	reg.MustRegister(total, seconds)
	return func(pack, pool string, state jobs.State, code packs.Code, took time.Duration) {
		total.WithLabelValues(pack, pool, string(state), string(code)).Inc()
		seconds.WithLabelValues(pack, pool).Observe(took.Seconds())
	}
}
