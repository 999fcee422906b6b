package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/poolstore"
)

// scrapeTimeout bounds what one scrape asks the bus.
const scrapeTimeout = 5 * time.Second

// pools reads the load of the pools when somebody scrapes. Every replica
// tells the same.
type pools struct {
	loads func(context.Context) ([]poolstore.Load, error)
	all   []poolGauge
}

type poolGauge struct {
	*prometheus.Desc
	value func(poolstore.Load) float64
}

// Pools registers the gauges of the pools.
func Pools(reg prometheus.Registerer, loads func(context.Context) ([]poolstore.Load, error)) {
	g := func(name, help string, value func(poolstore.Load) float64) poolGauge {
		return poolGauge{desc("pool_"+name, help, "pool"), value}
	}
	reg.MustRegister(&pools{loads: loads, all: []poolGauge{
		g("waiting_jobs", "Jobs in the queue that were not handed out.", func(l poolstore.Load) float64 { return float64(l.Waiting) }),
		g("unacknowledged_jobs", "Jobs handed to a worker that have not ended.", func(l poolstore.Load) float64 { return float64(l.Unacked) }),
		g("running_jobs", "Jobs live workers say they run.", func(l poolstore.Load) float64 { return float64(l.Running) }),
		g("workers", "Live workers that take jobs.", func(l poolstore.Load) float64 { return float64(l.Workers) }),
		g("draining_workers", "Live workers that take no more jobs.", func(l poolstore.Load) float64 { return float64(l.Draining) }),
		g("slots", "Jobs the workers take at once.", func(l poolstore.Load) float64 { return float64(l.Slots) }),
		g("oldest_age_seconds", "Age of the oldest waiting job.", func(l poolstore.Load) float64 { return l.OldestAge.Seconds() }),
		g("autoscale_jobs", "Waiting + unacknowledged - running: what to scale on.", func(l poolstore.Load) float64 { return float64(l.Autoscale()) }),
		g("unserved_jobs", "Jobs that wait although no live worker will take them: it lacks the pool, or the version of the pack. More than zero for minutes needs a look.", func(l poolstore.Load) float64 { return float64(l.Unserved()) }),
		g("paused", "1 while the pool is paused.", func(l poolstore.Load) float64 {
			if l.Paused != nil {
				return 1
			}
			return 0
		}),
	}})
}

// Describe implements prometheus.Collector.
func (p *pools) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range p.all {
		ch <- g.Desc
	}
}

// Collect implements prometheus.Collector.
func (p *pools) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	loads, err := p.loads(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(p.all[0].Desc, err)
		return
	}
	for _, l := range loads {
		for _, g := range p.all {
			put(ch, g.Desc, g.value(l), l.Pool)
		}
	}
}

// Workers registers what this replica hears of workers.
func Workers(reg prometheus.Registerer, workers *jobfeed.Workers) {
	gauge(reg, "workers", "Live workers, as this replica hears them.", func() float64 { return float64(len(workers.Live())) })
	reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: namespace + "workers_lost_total", Help: "Workers whose heartbeats ended without a farewell, as this replica heard it.",
	}, func() float64 { return float64(workers.Lost()) }))
}

// Sidecars registers the load of the scheduler of a host.
func Sidecars(reg prometheus.Registerer, load func() (running, slots int)) {
	gauge(reg, "scheduler_sidecars", "Sidecars that run on this host.", func() float64 { n, _ := load(); return float64(n) })
	gauge(reg, "scheduler_slots", "Sidecars that may run on this host at once.", func() float64 { _, n := load(); return float64(n) })
}
