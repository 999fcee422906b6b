package app

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/bus/poolstore"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// poolGauges reads the load of the pools when somebody scrapes.
type poolGauges struct {
	pools *poolstore.Store

	waiting, unacked, running, count, oldest, autoscale, unserved *prometheus.Desc
}

func registerPools(reg prometheus.Registerer, pools *poolstore.Store) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("helmdeck_pool_"+name, help, []string{"pool"}, nil)
	}
	reg.MustRegister(&poolGauges{
		pools:     pools,
		waiting:   desc("waiting_jobs", "Jobs in the queue that were not handed out."),
		unacked:   desc("unacknowledged_jobs", "Jobs handed to a worker that have not ended."),
		running:   desc("running_jobs", "Jobs live workers say they run."),
		count:     desc("workers", "Workers heard from lately."),
		oldest:    desc("oldest_age_seconds", "Age of the oldest waiting job."),
		autoscale: desc("autoscale_jobs", "Waiting + unacknowledged - running: what to scale on."),
		unserved:  desc("unserved_jobs", "Jobs that wait although no live worker will take them: it lacks the pool, or the version of the pack. More than zero for minutes needs a look."),
	})
}

func (g *poolGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.waiting, g.unacked, g.running, g.count, g.oldest, g.autoscale, g.unserved} {
		ch <- d
	}
}

func (g *poolGauges) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	loads, err := g.pools.Loads(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(g.waiting, err)
		return
	}
	for _, l := range loads {
		put := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, l.Pool)
		}
		put(g.waiting, float64(l.Waiting))
		put(g.unacked, float64(l.Unacked))
		put(g.running, float64(l.Running))
		put(g.count, float64(l.Workers))
		put(g.oldest, l.OldestAge.Seconds())
		put(g.autoscale, float64(l.Autoscale()))
		put(g.unserved, float64(l.Unserved()))
	}
}

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
