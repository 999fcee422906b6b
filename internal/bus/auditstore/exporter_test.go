package auditstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/audit/otlp"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/auditstore"
)

// collector is an OTLP receiver: it reads the binary encoding as the
// specification has it, and answers in it.
type collector struct {
	*httptest.Server
	t       *testing.T
	mu      sync.Mutex
	got     []*logs.LogRecord
	service string
	answers []func(http.ResponseWriter) // before it takes anything
}

func newCollector(t *testing.T, answers ...func(http.ResponseWriter)) *collector {
	c := &collector{t: t, answers: answers}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	var req collogs.ExportLogsServiceRequest
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/logs" || r.Header.Get("Content-Type") != "application/x-protobuf" ||
		r.Header.Get("X-Key") != "k" || proto.Unmarshal(body, &req) != nil {
		c.t.Errorf("not OTLP logs: %s %s %v", r.Method, r.URL, r.Header)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if len(c.answers) > 0 {
		answer := c.answers[0]
		c.answers = c.answers[1:]
		answer(w)
		return
	}
	for _, res := range req.GetResourceLogs() {
		for _, a := range res.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				c.service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range res.GetScopeLogs() {
			c.got = append(c.got, scope.GetLogRecords()...)
		}
	}
	answer(c.t, w, &collogs.ExportLogsServiceResponse{})
}

func answer(t *testing.T, w http.ResponseWriter, m *collogs.ExportLogsServiceResponse) {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Error(err)
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	if _, err := w.Write(b); err != nil {
		t.Error(err)
	}
}

// ids lists the different records in the order in which they first came.
func (c *collector) ids() (all []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[int64]bool{}
	for _, r := range c.got {
		id := attribute(r, "helmdeck.audit.id")
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			c.t.Errorf("record with id %q", id)
		}
		if !seen[n] {
			seen[n] = true
			all = append(all, n)
		}
	}
	return all
}

func attribute(r *logs.LogRecord, key string) string {
	for _, a := range r.GetAttributes() {
		if a.GetKey() == key {
			if s := a.GetValue().GetStringValue(); s != "" {
				return s
			}
			return strconv.FormatInt(a.GetValue().GetIntValue(), 10)
		}
	}
	return ""
}

// export runs an exporter to c until the returned function is called.
func (r *rig) export(c *collector) (stop func()) {
	r.Helper()
	client, err := otlp.New(otlp.Config{Endpoint: c.URL, Headers: map[string]string{"X-Key": "k"}, Installation: "i", Version: "v1"})
	if err != nil {
		r.Fatal(err)
	}
	e := &auditstore.Exporter{JS: r.js, Name: "otlp", Log: zerolog.Nop(),
		Send: func(ctx context.Context, records []audit.Record, stored [][]byte) (time.Duration, error) {
			err := client.Send(ctx, records, stored)
			if refused, ok := errors.AsType[*otlp.Refused](err); ok {
				return refused.After, err
			}
			return 0, err
		}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := e.Run(ctx); err != nil {
			r.Error(err)
		}
	}()
	stop = func() { cancel(); <-done; client.Close() }
	r.Cleanup(stop)
	return stop
}

func upTo(n int64) (all []int64) {
	for i := int64(1); i <= n; i++ {
		all = append(all, i)
	}
	return all
}

// TestRecordsReachACollector in order, also when it is away for a while, when
// another exporter takes over, and when two run.
func TestRecordsReachACollector(t *testing.T) {
	t.Parallel()
	r := setup(t)
	away := func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	c := newCollector(t, away, func(w http.ResponseWriter) { w.WriteHeader(http.StatusTooManyRequests) })
	r.sealer(r.js)
	for i := range 30 {
		r.put("a", uint64(i+1), fmt.Sprint("/", i))
	}
	r.records(30)
	first, second := r.export(c), r.export(c)
	r.await("30 records", func() bool { return len(c.ids()) == 30 })
	first()
	second()
	r.put("a", 31, "/30")
	r.records(31)
	r.export(c)
	r.await("31 records", func() bool { return len(c.ids()) == 31 })
	if diff := cmp.Diff(upTo(31), c.ids()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.got[len(c.got)-1]
	rec, err := audit.Open([]byte(last.GetBody().GetStringValue()))
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"user.id": "ann", "url.path": "/30", "http.request.method": "GET", "http.response.status_code": "200", "helmdeck.audit.hash": rec.Hash,
	} {
		if got := attribute(last, key); got != want {
			t.Errorf("%s: got %q, want %q", key, got, want)
		}
	}
	if last.GetSeverityNumber() != logs.SeverityNumber_SEVERITY_NUMBER_INFO || last.GetEventName() != "helmdeck.audit.request" ||
		last.GetTimeUnixNano() != uint64(rec.Timestamp.UnixNano()) || last.GetObservedTimeUnixNano() != uint64(rec.SealedAt.UnixNano()) || c.service != "helmdeck" {
		t.Errorf("got %v of %q", last, c.service)
	}
}

// TestCollectorRejectsRecords: a partial success is told apart from a refusal.
func TestCollectorRejectsRecords(t *testing.T) {
	t.Parallel()
	c := newCollector(t, func(w http.ResponseWriter) {
		answer(t, w, &collogs.ExportLogsServiceResponse{PartialSuccess: &collogs.ExportLogsPartialSuccess{RejectedLogRecords: 1, ErrorMessage: "too old"}})
	}, func(w http.ResponseWriter) { http.Redirect(w, &http.Request{}, "http://127.0.0.2/", http.StatusFound) })
	client, err := otlp.New(otlp.Config{Endpoint: c.URL + "/v1/logs", Headers: map[string]string{"X-Key": "k"}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	rec, stored, err := audit.Seal(pending(audit.Event{At: time.Now(), Kind: audit.Request}), 1, audit.NoHash, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	send := func() error { return client.Send(t.Context(), []audit.Record{rec}, [][]byte{stored}) }
	if err := send(); !errors.Is(err, otlp.ErrPartial) {
		t.Errorf("got %v, want %v", err, otlp.ErrPartial)
	}
	if refused, ok := errors.AsType[*otlp.Refused](send()); !ok || refused.Status != http.StatusFound {
		t.Errorf("a redirect: got %v", refused)
	}
	if err := send(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "collector:4318", "ftp://x", "http://"} {
		if _, err := otlp.New(otlp.Config{Endpoint: bad}); err == nil {
			t.Errorf("%q is taken for a URL", bad)
		}
	}
}

// TestExportAfterAnOlderBackup goes on with what is new.
func TestExportAfterAnOlderBackup(t *testing.T) {
	t.Parallel()
	r := setup(t)
	kv, err := r.js.KV(r.ctx, bus.BucketTrail)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(r.ctx, "otlp", []byte(`{"id":1000}`)); err != nil {
		t.Fatal(err)
	}
	c := newCollector(t)
	r.fill(3)
	r.export(c)
	r.await("a new place", func() bool {
		e, err := kv.Get(r.ctx, "otlp")
		return err == nil && strings.Contains(string(e.Value), `"id":3,`)
	})
	r.sealer(r.js)
	r.put("more", 1, "/more")
	r.await("the new record", func() bool { return slices.Equal(c.ids(), []int64{4}) })
}
