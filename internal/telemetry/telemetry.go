// Package telemetry makes the metrics registry and the tracer of a process,
// and carries trace context through the bus as W3C traceparent text.
//
// Metrics are pulled (Prometheus), traces are pushed (OTLP over HTTP) when the
// environment asks for it. Who measures what is up to the packages that do
// the work: they take a Registry and a TracerProvider.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// batchTimeout is how long a span may wait for company (spec env, Telemetry).
const batchTimeout = 2 * time.Second

// Config is what New needs.
type Config struct {
	// Service is the service name of traces unless OTEL_SERVICE_NAME is set,
	// for instance "helmdeck-api".
	Service string
	// Version is the version of the program, Instance tells processes apart.
	Version, Instance string
	// Getenv reads the environment; nil: os.Getenv. It decides whether
	// tracing is on; the exporter reads OTEL_EXPORTER_OTLP_* by itself.
	Getenv func(string) string
	// Endpoint overrides the collector of the environment ("http://host:4318")
	// and turns tracing on.
	Endpoint string
	Log      zerolog.Logger
}

// Telemetry holds the instruments of a process.
type Telemetry struct {
	// Registry has the metrics of the Go runtime and the process.
	Registry *prometheus.Registry
	// Tracer makes spans; it makes none, but passes trace context on, when
	// tracing is off.
	Tracer trace.TracerProvider
	// Tracing reports whether spans are exported.
	Tracing bool

	shutdown func(context.Context) error
}

// New makes the registry and, when HELMDECK_OTEL_ENABLED is "true" or an OTLP
// endpoint is set, the exporting tracer. It does not connect: a collector
// that is away costs spans, never the start.
func New(ctx context.Context, cfg Config) (*Telemetry, error) {
	if cfg.Getenv == nil {
		cfg.Getenv = os.Getenv
	}
	t := &Telemetry{
		Registry: newRegistry(cfg.Version),
		Tracer:   noop.NewTracerProvider(),
		shutdown: func(context.Context) error { return nil },
	}
	if !cfg.tracing() {
		return t, nil
	}
	provider, err := newTracer(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: %w", err)
	}
	t.Tracer, t.Tracing = provider, true
	t.shutdown = func(ctx context.Context) error {
		return errors.Join(provider.ForceFlush(ctx), provider.Shutdown(ctx))
	}
	return t, nil
}

// Shutdown exports what is pending and stops. It is bounded by ctx.
func (t *Telemetry) Shutdown(ctx context.Context) error { return t.shutdown(ctx) }

func (c Config) tracing() bool {
	return c.Endpoint != "" ||
		strings.EqualFold(c.Getenv("HELMDECK_OTEL_ENABLED"), "true") ||
		c.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" ||
		c.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

func newTracer(ctx context.Context, cfg Config) (*sdktrace.TracerProvider, error) {
	var opts []otlptracehttp.Option
	if cfg.Endpoint != "" {
		opts = append(opts, otlptracehttp.WithEndpointURL(strings.TrimSuffix(cfg.Endpoint, "/")+"/v1/traces"))
	}
	exporter, err := otlptracehttp.New(ctx, opts...)
	if err != nil {
		return nil, err
	}
	// The SDK reports failed exports to a handler of the process, not to us.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		cfg.Log.Warn().Err(err).Msg("trace export failed")
	}))
	name := cfg.Getenv("OTEL_SERVICE_NAME")
	if name == "" {
		name = cfg.Service
	}
	res, err := resource.Merge(resource.Default(), resource.NewSchemaless(
		attribute.String("service.name", name),
		attribute.String("service.version", cfg.Version),
		attribute.String("service.instance.id", cfg.Instance),
	))
	if err != nil {
		return nil, err
	}
	return sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(batchTimeout)),
		sdktrace.WithResource(res),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.AlwaysSample())),
	), nil
}

func newRegistry(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "helmdeck_build_info", Help: "Always 1; the label holds the version of the program.",
	}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), info)
	return r
}

// propagator is the W3C format without baggage: callers must not be able to
// put data of theirs into our messages.
var propagator = propagation.TraceContext{}

// Propagator is the format trace context travels in over HTTP.
func Propagator() propagation.TextMapPropagator { return propagator }

// TraceParent returns the trace context of ctx as the value of a traceparent
// header or CloudEvents extension, "" when there is none.
func TraceParent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// WithTraceParent returns ctx with the remote trace context that traceparent
// names, or ctx itself when it names none.
func WithTraceParent(ctx context.Context, traceparent string) context.Context {
	return propagator.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
}
