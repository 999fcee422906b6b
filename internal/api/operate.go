package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/helmdeck/helmdeck/pkg/client"
)

// checkTimeout bounds each check of /readyz; a probe asks again soon.
const checkTimeout = 2 * time.Second

func (a *API) healthz(x *exchange, _ *http.Request) error {
	return x.writeJSON(http.StatusOK, map[string]string{"status": "ok"})
}

func (a *API) version(x *exchange, _ *http.Request) error {
	return x.writeJSON(http.StatusOK, client.VersionInfo{Version: a.cfg.Version})
}

// readyz tells whether calls can be served: every check passes and every
// pool in ?pools=a,b has a worker.
func (a *API) readyz(x *exchange, r *http.Request) error {
	ready := client.Readiness{Status: "ready", Checks: a.checks(r.Context()), Pools: []PoolStatus{}}
	ctx, stop := context.WithTimeout(r.Context(), checkTimeout)
	defer stop()
	pools, err := a.cfg.Pools.Pools(ctx)
	if err == nil {
		ready.Pools = append(ready.Pools, pools...)
	}
	for name := range strings.SplitSeq(r.URL.Query().Get("pools"), ",") {
		if name = strings.TrimSpace(name); name != "" {
			ready.Checks["pool "+name] = poolCheck(pools, err, name)
		}
	}
	status := http.StatusOK
	for _, result := range ready.Checks {
		if result != checkOK {
			status, ready.Status = http.StatusServiceUnavailable, "unavailable"
		}
	}
	return x.writeJSON(status, ready)
}

const checkOK = "ok"

// checks runs all checks at once: one that hangs must not hide another.
func (a *API) checks(ctx context.Context) map[string]string {
	ctx, stop := context.WithTimeout(ctx, checkTimeout)
	defer stop()
	var mu sync.Mutex // guards results
	results := map[string]string{}
	var wg sync.WaitGroup
	for name, health := range a.cfg.Health {
		wg.Go(func() {
			result := checkOK
			if err := health.Ready(ctx); err != nil {
				result = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			results[name] = result
		})
	}
	wg.Wait()
	return results
}

func poolCheck(pools []PoolStatus, err error, name string) string {
	if err != nil {
		return "cannot tell: " + err.Error()
	}
	i := slices.IndexFunc(pools, func(p PoolStatus) bool { return p.Pool == name })
	switch {
	case i < 0:
		return "there is no such pool"
	case pools[i].Workers == 0:
		return "no worker serves it"
	}
	return checkOK
}

func (a *API) serveMetrics(x *exchange, r *http.Request) error {
	if !a.cfg.PublicMetrics {
		c, err := a.authorise(r, adminOnly)
		if err != nil {
			return err
		}
		x.caller = c
	}
	promhttp.HandlerFor(a.cfg.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(x, r)
	return nil
}

// metrics are the instruments of the API. Labels come from the route table
// and from closed sets. What /metrics shows besides is up to whoever registers
// it: the pools are one collector of the process, not one of each surface.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	streams  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "helmdeck_http_requests_total", Help: "Requests answered, by route, method and status; 499: the client left.",
		}, []string{"route", "method", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "helmdeck_http_request_duration_seconds", Help: "Time to the end of the answer, waiting for results included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .1, .5, 2.5, 10, 60, 300, 900},
		}, []string{"route", "method"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "helmdeck_http_streams", Help: "Open event and log streams.",
		}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.seconds, m.streams} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// otherRoute stands for all requests that matched no route.
const otherRoute = "other"

func (m *metrics) observe(route, method string, status int, took time.Duration) {
	if route == "" {
		route = otherRoute
	}
	if !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete}, method) {
		method = otherRoute
	}
	m.requests.WithLabelValues(route, method, fmt.Sprint(status)).Inc()
	m.seconds.WithLabelValues(route, method).Observe(took.Seconds())
}
