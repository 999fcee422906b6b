package telemetry_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/trace"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/helmdeck/helmdeck/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func noEnv(string) string { return "" }

const traceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestSpansReachTheCollector(t *testing.T) {
	t.Parallel()
	got := make(chan *coltrace.ExportTraceServiceRequest, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		req := &coltrace.ExportTraceServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(body, req)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("export to %s: %v", r.URL.Path, err)
			return
		}
		got <- req
	}))
	defer collector.Close()
	tel, err := telemetry.New(t.Context(), telemetry.Config{
		Service: "helmdeck-test", Version: "v1.2.3", Instance: "one", Getenv: noEnv, Endpoint: collector.URL,
	})
	if err != nil {
		t.Fatal(err)
	}
	if !tel.Tracing {
		t.Error("tracing is off, want it on")
	}
	ctx := telemetry.WithTraceParent(t.Context(), traceParent)
	_, span := tel.Tracer.Tracer("test").Start(ctx, "render")
	span.End()
	stop, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tel.Shutdown(stop); err != nil {
		t.Fatal(err)
	}
	select {
	case req := <-got:
		spans := req.GetResourceSpans()[0]
		s := spans.GetScopeSpans()[0].GetSpans()[0]
		if s.GetName() != "render" || trace.TraceID(s.GetTraceId()).String() != "0af7651916cd43dd8448eb211c80319c" ||
			trace.SpanID(s.GetParentSpanId()).String() != "b7ad6b7169203331" {
			t.Errorf("got span %v, want render below the remote parent", s)
		}
		attrs := map[string]string{}
		for _, a := range spans.GetResource().GetAttributes() {
			attrs[a.GetKey()] = a.GetValue().GetStringValue()
		}
		if attrs["service.name"] != "helmdeck-test" || attrs["service.version"] != "v1.2.3" || attrs["service.instance.id"] != "one" {
			t.Errorf("got resource %v", attrs)
		}
	case <-stop.Done():
		t.Fatal("no span was exported")
	}
}

func TestTracingIsOffUnlessAskedFor(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		env  map[string]string
		want bool
	}{
		"nothing":         {nil, false},
		"enabled":         {map[string]string{"HELMDECK_OTEL_ENABLED": "True"}, true},
		"not quite":       {map[string]string{"HELMDECK_OTEL_ENABLED": "1"}, false},
		"endpoint":        {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, true},
		"traces endpoint": {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tel, err := telemetry.New(t.Context(), telemetry.Config{Getenv: func(k string) string { return tt.env[k] }})
			if err != nil {
				t.Fatal(err)
			}
			if tel.Tracing != tt.want {
				t.Errorf("got tracing %t, want %t", tel.Tracing, tt.want)
			}
			if err := tel.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTraceParent(t *testing.T) {
	t.Parallel()
	ctx := telemetry.WithTraceParent(t.Context(), traceParent)
	if diff := cmp.Diff(traceParent, telemetry.TraceParent(ctx)); diff != "" {
		t.Errorf("traceparent (-want +got):\n%s", diff)
	}
	if got := telemetry.TraceParent(telemetry.WithTraceParent(t.Context(), "rubbish")); got != "" {
		t.Errorf("got %q from rubbish, want nothing", got)
	}
	// A process that does not trace passes the context on.
	tel, err := telemetry.New(t.Context(), telemetry.Config{Getenv: noEnv})
	if err != nil {
		t.Fatal(err)
	}
	child, span := tel.Tracer.Tracer("test").Start(ctx, "x")
	defer span.End()
	if diff := cmp.Diff(traceParent, telemetry.TraceParent(child)); diff != "" {
		t.Errorf("traceparent below a span that is not recorded (-want +got):\n%s", diff)
	}
}

func TestRegistry(t *testing.T) {
	t.Parallel()
	tel, err := telemetry.New(t.Context(), telemetry.Config{Version: "v1.2.3", Getenv: noEnv})
	if err != nil {
		t.Fatal(err)
	}
	families, err := tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
		if f.GetName() == "helmdeck_build_info" && f.GetMetric()[0].GetLabel()[0].GetValue() != "v1.2.3" {
			t.Errorf("got %v, want the version", f)
		}
	}
	all := strings.Join(names, " ")
	for _, want := range []string{"helmdeck_build_info", "go_goroutines", "process_cpu_seconds_total"} {
		if !strings.Contains(all, want) {
			t.Errorf("metric %s is missing in %s", want, all)
		}
	}
}
