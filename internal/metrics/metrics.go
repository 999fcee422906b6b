// Package metrics holds the instruments of helmdeck's processes: their names,
// labels and buckets, and collectors of what is asked for when somebody
// scrapes. Who measures calls the functions it gets from here; the instruments
// of HTTP requests are the API's own.
//
// Labels come from closed sets: packs of the catalogue, pools, states, codes,
// streams; never an id, a caller or a URL. Names end in _total for what counts
// up and in _seconds for durations; those in _duration_seconds, _wait_seconds
// and _lateness_seconds are histograms. docs/metrics.md lists them all; a test
// compares it with what the processes register.
package metrics

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "helmdeck_"

func counter(reg prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	return register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: namespace + name, Help: help}, labels))
}

// register registers c, or returns what is registered under its name already:
// roles that share a process share their instruments.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	var twice prometheus.AlreadyRegisteredError
	err := reg.Register(c)
	if errors.As(err, &twice) {
		return twice.ExistingCollector.(C)
	}
	if err != nil {
		panic(err) // a mistake in this package
	}
	return c
}

func histogram(reg prometheus.Registerer, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: namespace + name, Help: help, Buckets: buckets}, labels))
}

// gauge is one number that is looked up when somebody scrapes.
func gauge(reg prometheus.Registerer, name, help string, value func() float64) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: namespace + name, Help: help}, value))
}

// desc describes a metric that a collector makes.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+name, help, labels, nil)
}

// put sends one value of a collector.
func put(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

// Buckets reach from what a no-op pack takes to the longest attempt.
var (
	runBuckets  = []float64{.005, .025, .1, .5, 1, 5, 15, 60, 300, 1800, 7200}
	waitBuckets = []float64{.005, .025, .1, .5, 1, 5, 15, 60, 300, 1800, 7200, 86400}
	busBuckets  = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .1, .5, 2.5, 10}
)
