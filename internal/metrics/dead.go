package metrics

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
)

// dead counts the dead letters when somebody scrapes.
type dead struct {
	*prometheus.Desc
	count func(context.Context) (map[string]jobstore.DeadCount, error)
}

// Dead registers the gauge of the dead letters.
func Dead(reg prometheus.Registerer, count func(context.Context) (map[string]jobstore.DeadCount, error)) {
	reg.MustRegister(&dead{count: count, Desc: desc("dead_letters",
		"Jobs that failed for good and are kept, by whether they were quarantined because workers died on them.", "pool", "poison")})
}

// Describe implements prometheus.Collector.
func (d *dead) Describe(ch chan<- *prometheus.Desc) { ch <- d.Desc }

// Collect implements prometheus.Collector.
func (d *dead) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	counts, err := d.count(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(d.Desc, err)
		return
	}
	for pool, n := range counts {
		put(ch, d.Desc, float64(n.Poison), pool, "true")
		// The two are counted one after the other.
		put(ch, d.Desc, float64(max(n.All-n.Poison, 0)), pool, "false")
	}
}
