package kill

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// spans is a collector that keeps "service: name" of the spans of one trace.
type spans struct {
	trace string // hex

	mu   sync.Mutex // guards seen
	seen map[string]bool
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var req collector.ExportTraceServiceRequest
	if err != nil || proto.Unmarshal(body, &req) != nil {
		http.Error(w, "not an OTLP trace", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range req.ResourceSpans {
		service := ""
		for _, a := range rs.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range rs.ScopeSpans {
			for _, sp := range scope.Spans {
				if fmt.Sprintf("%x", sp.TraceId) == s.trace {
					s.seen[service+": "+sp.Name] = true
				}
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (s *spans) has(service, prefix string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.seen {
		if strings.HasPrefix(name, service+": "+prefix) {
			return true
		}
	}
	return false
}

// TestOneTraceFromRequestToSidecar: the trace of a request goes on in the
// worker that runs its job and in the agent of the sidecar the job leases.
func TestOneTraceFromRequestToSidecar(t *testing.T) {
	t.Parallel()
	s := &spans{trace: "0af7651916cd43dd8448eb211c80319c", seen: map[string]bool{}}
	endpoint := serve(t, s)
	page := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<h1>traced</h1>") // a client that left
	}))
	c := newUp(t, filepath.Join(t.TempDir(), "data"), "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint)
	req, err := http.NewRequest(http.MethodPost, c.urls[0]+"/api/v1/packs/browser.screenshot_url", strings.NewReader(`{"url":"`+page+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.token())
	req.Header.Set("Traceparent", "00-"+s.trace+"-b7ad6b7169203331-01")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close() // read to the end
	if res.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", res.StatusCode, body)
	}
	c.until("spans of request, worker and agent arrive", func() bool {
		return s.has("helmdeck-up", "POST") && s.has("helmdeck-up", "run browser.screenshot_url") && s.has("helmdeck-agent", "")
	})
}

func serve(t *testing.T, h http.Handler) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: patience}
	go func() { _ = srv.Serve(ln) }() // ends with Close
	t.Cleanup(func() { _ = srv.Close() })
	return "http://" + ln.Addr().String()
}
