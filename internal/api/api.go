package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/auth"
	"github.com/helmdeck/helmdeck/internal/telemetry"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// Config is what New needs. Fields without a remark are required.
type Config struct {
	Jobs      *jobs.Service
	Schedules *schedules.Service
	Packs     Packs
	Artifacts *artifacts.Store
	Webhooks  *webhooks.Service
	Events    Events
	Pools     Pools
	Workers   Workers
	Quotas    Quotas
	Auth      auth.Authenticator
	Trail     audit.Trail
	// Audit takes a record of each call; nil: none is made.
	Audit audit.Recorder
	// Health maps the name of each part that /readyz requires, for instance
	// "bus" and "store", to its check; may be empty.
	Health map[string]Health
	// Unavailable says why a pack cannot be used here, and which variable to
	// set; "" when it can. Nil: all can.
	Unavailable func(packs.Info) string

	Version string
	// PublicURL is where callers reach the API, for links; empty: whatever
	// host a request came to.
	PublicURL string
	// AllowedOrigins are the further origins whose pages may call the API
	// ("https://deck.example"). Pages of the API's own host always may.
	AllowedOrigins []string
	// PublicMetrics serves /metrics without a token.
	PublicMetrics bool
	Limits        Limits

	Log zerolog.Logger
	// Registry takes the metrics of the API and is what /metrics serves; nil:
	// one of its own.
	Registry *prometheus.Registry
	// Tracer makes a span for each request; nil: the process's own
	// (otel.SetTracerProvider). Without one the trace context of callers is
	// still passed on.
	Tracer trace.TracerProvider
}

// Limits bounds requests. The zero value of each field is its default.
type Limits struct {
	// Body is the largest JSON body in bytes, unless a pack allows more; 8 MiB.
	Body int64
	// Batch is the largest body of a batch in bytes; 32 MiB.
	Batch int64
	// Upload is the largest uploaded file in bytes; 5 GiB.
	Upload int64
	// Wait is how long a call of a pack waits for the result unless it says
	// otherwise, MaxWait how long it may ask for; 60 s and 900 s.
	Wait, MaxWait time.Duration
	// KeepAlive is the pause after which an event stream that is silent sends
	// a comment; 15 s, below the idle limit of common proxies.
	KeepAlive time.Duration
	// Logs is how much of a job's log one request without follow reads, in
	// bytes; 16 MiB. What is beyond is there for the asking.
	Logs int64
	// Stall is how long a client may leave us waiting for it to send or take
	// the next bytes of a transfer; 60 s.
	Stall time.Duration
}

func (l Limits) withDefaults() Limits {
	set(&l.Body, 8<<20)
	set(&l.Batch, 32<<20)
	set(&l.Upload, 5<<30)
	set(&l.Logs, 16<<20)
	set(&l.Wait, 60*time.Second)
	set(&l.MaxWait, 900*time.Second)
	set(&l.KeepAlive, 15*time.Second)
	set(&l.Stall, 60*time.Second)
	return l
}

func set[T ~int64](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

func (c Config) validate() error {
	var faults []error
	need := func(ok bool, name string) {
		if !ok {
			faults = append(faults, errors.New(name+" is missing"))
		}
	}
	need(c.Jobs != nil, "Jobs")
	need(c.Schedules != nil, "Schedules")
	need(c.Packs != nil, "Packs")
	need(c.Artifacts != nil, "Artifacts")
	need(c.Webhooks != nil, "Webhooks")
	need(c.Events != nil, "Events")
	need(c.Pools != nil, "Pools")
	need(c.Workers != nil, "Workers")
	need(c.Quotas != nil, "Quotas")
	need(c.Auth != nil, "Auth")
	need(c.Trail != nil, "Trail")
	if c.PublicURL != "" {
		if u, err := url.Parse(c.PublicURL); err != nil || u.Host == "" {
			faults = append(faults, fmt.Errorf("PublicURL %q is no absolute URL", c.PublicURL))
		}
	}
	return errors.Join(faults...)
}

// API is the HTTP surface as a handler.
type API struct {
	cfg     Config
	mux     *http.ServeMux
	handler http.Handler
	metrics *metrics
	origins map[string]bool
	openAPI func() ([]byte, error)

	// life ends when the server shuts down: event streams end with it, and
	// calls that wait answer 202. It bounds requests and is passed to none.
	life context.Context
	stop context.CancelFunc
}

// New makes the handler. It registers the API's metrics, so a Registry takes
// one API only.
func New(cfg Config) (*API, error) {
	cfg.Limits = cfg.Limits.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configure api: %w", err)
	}
	if cfg.Registry == nil {
		cfg.Registry = prometheus.NewRegistry()
	}
	if cfg.Tracer == nil {
		cfg.Tracer = otel.GetTracerProvider()
	}
	if cfg.Unavailable == nil {
		cfg.Unavailable = func(packs.Info) string { return "" }
	}
	cfg.PublicURL = strings.TrimSuffix(cfg.PublicURL, "/")
	a := &API{cfg: cfg, mux: http.NewServeMux(), origins: map[string]bool{}}
	for _, o := range cfg.AllowedOrigins {
		a.origins[strings.ToLower(strings.TrimSuffix(o, "/"))] = true
	}
	a.life, a.stop = context.WithCancel(context.Background())
	var err error
	if a.metrics, err = newMetrics(cfg.Registry); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	for _, rt := range a.routes() {
		a.mux.HandleFunc(rt.Method+" "+rt.Path, func(w http.ResponseWriter, r *http.Request) {
			x := w.(*exchange) // ServeHTTP alone calls the mux
			x.err = a.handle(rt, x, r)
		})
	}
	a.openAPI = sync.OnceValues(a.describe)
	a.handler = otelhttp.NewHandler(http.HandlerFunc(a.serve), "http",
		otelhttp.WithTracerProvider(cfg.Tracer),
		otelhttp.WithPropagators(telemetry.Propagator()),
		otelhttp.WithFilter(func(r *http.Request) bool { return !quiet(r.URL.Path) }),
	)
	return a, nil
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.handler.ServeHTTP(w, r) }

// EndStreams ends every event stream and lets every waiting call answer 202,
// now and from now on. Server calls it at shutdown.
func (a *API) EndStreams() { a.stop() }

// Server returns an HTTP server for a. Its Shutdown ends event streams and
// waiting calls first. There is no write time-out, because streams stay open;
// a client that takes nothing is bounded by Limits.Stall.
func (a *API) Server() *http.Server {
	s := &http.Server{
		Handler:           a,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
	s.RegisterOnShutdown(a.EndStreams)
	return s
}

// handle is a request that matched rt.
func (a *API) handle(rt *route, x *exchange, r *http.Request) error {
	x.route = rt.Path
	if !rt.guarded {
		c, err := a.authorise(r, rt.Scope)
		x.caller = c // also of a call that is refused for want of a scope
		if err != nil {
			return err
		}
		r = asCaller(r, c)
	}
	return rt.serve(x, r)
}

// unclean reports whether the mux would redirect from p. A path with an empty
// or dotted segment comes from an empty or hostile value in it: what it would
// lead to is not what was meant.
func unclean(p string) bool {
	return len(p) > 1 && path.Clean(p) != strings.TrimSuffix(p, "/")
}

// unmatched answers a request that no route takes.
func (a *API) unmatched(x *exchange, r *http.Request, h http.Handler) error {
	// Paths below /api tell strangers nothing, not even whether they exist.
	if strings.HasPrefix(r.URL.Path, "/api/") {
		c, err := a.authorise(r, anyScope)
		x.caller = c
		if err != nil {
			return err
		}
	}
	probe := probe{header: http.Header{}}
	h.ServeHTTP(&probe, r)
	if probe.status == http.StatusMethodNotAllowed {
		allow := probe.header.Get("Allow")
		x.Header().Set("Allow", allow)
		return packs.Errorf(packs.MethodNotAllowed, "%.20s does not work on this path; use %s", r.Method, allow)
	}
	return packs.Errorf(packs.NotFound,
		"there is nothing at this path; GET /docs shows every path, GET /api/v1/packs the packs")
}

// probe learns what the mux would answer.
type probe struct {
	header http.Header
	status int
}

func (p *probe) Header() http.Header         { return p.header }
func (p *probe) Write(b []byte) (int, error) { return len(b), nil }
func (p *probe) WriteHeader(status int)      { p.status = status }

// serve is one request.
func (a *API) serve(w http.ResponseWriter, r *http.Request) {
	x := newExchange(w, r, a.cfg.Limits.Stall)
	defer a.finish(x, r)
	if done, err := a.checkOrigin(x, r); err != nil || done {
		x.err = err
		return
	}
	h, pattern := a.mux.Handler(r)
	if unclean(r.URL.EscapedPath()) {
		h, pattern = http.NotFoundHandler(), ""
	}
	if pattern == "" {
		x.err = a.unmatched(x, r, h)
		return
	}
	r.Pattern = pattern // names the span
	a.mux.ServeHTTP(x, r)
}

// finish answers with the error, if there is one, and writes the log line.
func (a *API) finish(x *exchange, r *http.Request) {
	aborted := x.recovered(recover())
	x.gone = x.err != nil && (r.Context().Err() != nil || errors.Is(x.err, wire.ErrClientGone))
	if x.err != nil && x.status == 0 {
		// Also when the client seems gone: one that only closed its sending
		// side would read an empty 200 otherwise.
		wire.WriteError(x, x.err, x.failedJob)
	}
	a.record(x, r)
	if aborted {
		panic(http.ErrAbortHandler) // the way to close a connection half-way
	}
}
