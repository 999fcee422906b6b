// Package otlp sends audit records to a collector as OpenTelemetry log records,
// by OTLP over HTTP in its binary encoding (OTLP 1.x, /v1/logs).
package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"

	"github.com/helmdeck/helmdeck/internal/audit"
)

const (
	logsPath = "/v1/logs"
	// sendTimeout bounds one request.
	sendTimeout = 10 * time.Second
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = 64 << 10
)

// Config says where records go.
type Config struct {
	// Endpoint is the collector's URL; without a path /v1/logs is added.
	Endpoint string
	Headers  map[string]string
	// Installation and Version describe who sends.
	Installation, Version string
}

// Client sends records. It is safe for concurrent use.
type Client struct {
	cfg  Config
	http *http.Client
}

// New returns a client for cfg; it does not connect.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.Endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("OTLP endpoint %q is no URL such as http://127.0.0.1:4318", cfg.Endpoint)
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = logsPath
	}
	cfg.Endpoint = u.String()
	return &Client{cfg: cfg, http: &http.Client{
		Timeout: sendTimeout,
		// What a redirect leads to is nobody the operator named.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Refused says that the collector did not take a batch.
type Refused struct {
	Status int
	// After is how long it asks to be left alone; 0: it does not say.
	After time.Duration
	Text  string
}

// Error names the status.
func (e *Refused) Error() string {
	return fmt.Sprintf("the OTLP collector answered %d: %s", e.Status, e.Text)
}

// ErrPartial says that the collector took a batch but for some records, which
// it will not take when they are sent again.
var ErrPartial = errors.New("the OTLP collector rejected records")

// Send sends records, each with its stored form as body. Errors are *Refused,
// ErrPartial or of the connection.
func (c *Client) Send(ctx context.Context, records []audit.Record, stored [][]byte) error {
	body, err := proto.Marshal(c.request(records, stored))
	if err != nil {
		return fmt.Errorf("encode OTLP logs: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.cfg.Endpoint, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make OTLP request: %w", err)
	}
	for k, v := range c.cfg.Headers {
		req.Header.Set(k, v)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("send OTLP logs: %w", err)
	}
	defer func() { _ = res.Body.Close() }() // read-only
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the answer of the OTLP collector: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return refused(res, answer)
	}
	var ok collogs.ExportLogsServiceResponse
	if err := proto.Unmarshal(answer, &ok); err != nil {
		return fmt.Errorf("read the answer of the OTLP collector: %w", err)
	}
	if n := ok.GetPartialSuccess().GetRejectedLogRecords(); n > 0 {
		return fmt.Errorf("%w: %d of %d: %.200s", ErrPartial, n, len(records), ok.GetPartialSuccess().GetErrorMessage())
	}
	return nil
}

func refused(res *http.Response, answer []byte) error {
	e := &Refused{Status: res.StatusCode, Text: strings.ToValidUTF8(fmt.Sprintf("%.200s", answer), "?")}
	if n, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && n > 0 {
		e.After = time.Duration(n) * time.Second
	}
	return e
}

func (c *Client) request(records []audit.Record, stored [][]byte) *collogs.ExportLogsServiceRequest {
	out := make([]*logs.LogRecord, len(records))
	for i := range records {
		out[i] = record(&records[i], stored[i])
	}
	return &collogs.ExportLogsServiceRequest{ResourceLogs: []*logs.ResourceLogs{{
		Resource: &resource.Resource{Attributes: texts(
			"service.name", "helmdeck", "service.version", c.cfg.Version, "service.namespace", c.cfg.Installation)},
		ScopeLogs: []*logs.ScopeLogs{{Scope: &common.InstrumentationScope{Name: "helmdeck.audit", Version: c.cfg.Version}, LogRecords: out}},
	}}}
}

var severities = map[string]logs.SeverityNumber{
	audit.Info:    logs.SeverityNumber_SEVERITY_NUMBER_INFO,
	audit.Warning: logs.SeverityNumber_SEVERITY_NUMBER_WARN,
	audit.Error:   logs.SeverityNumber_SEVERITY_NUMBER_ERROR,
}

func record(r *audit.Record, stored []byte) *logs.LogRecord {
	attributes := texts(
		"user.id", r.ActorSubject, "helmdeck.client", r.ActorClient, "helmdeck.tenant", r.Tenant, "session.id", r.SessionID,
		"helmdeck.job.id", r.JobID, "http.request.method", r.Method, "url.path", r.Path, "helmdeck.audit.hash", r.Hash)
	attributes = append(attributes, number("helmdeck.audit.id", int64(r.ID)))
	if r.StatusCode != 0 {
		attributes = append(attributes, number("http.response.status_code", int64(r.StatusCode)))
	}
	return &logs.LogRecord{
		TimeUnixNano: uint64(r.Timestamp.UnixNano()), ObservedTimeUnixNano: uint64(r.SealedAt.UnixNano()),
		SeverityNumber: severities[r.Severity], SeverityText: r.Severity, EventName: "helmdeck.audit." + r.EventType,
		Body: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: string(stored)}}, Attributes: attributes,
	}
}

// texts makes attributes of pairs, leaving out what is empty.
func texts(pairs ...string) []*common.KeyValue {
	var out []*common.KeyValue
	for i := 0; i < len(pairs); i += 2 {
		if v := pairs[i+1]; v != "" {
			out = append(out, &common.KeyValue{Key: pairs[i], Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: v}}})
		}
	}
	return out
}

func number(key string, n int64) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: n}}}
}
