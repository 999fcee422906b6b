package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

// shortCall bounds the calls that do no work: renewals and health.
const shortCall = 5 * time.Second

// Agent is a client of the agent inside one sidecar. It is safe for
// concurrent use and holds no resources of its own.
type Agent struct {
	endpoint   string
	token      string
	generation uint64
	client     *http.Client
}

// agentTransport is shared by all agents: connections to a sidecar that ended
// are dropped by the idle limit. Proxies from the environment never apply.
var agentTransport = &http.Transport{
	MaxIdleConnsPerHost: 4,
	IdleConnTimeout:     15 * time.Second,
	WriteBufferSize:     64 << 10,
	ReadBufferSize:      64 << 10,
}

// NewAgent returns a client of the agent at endpoint, a base URL.
func NewAgent(endpoint, token string, generation uint64) *Agent {
	return &Agent{
		endpoint: strings.TrimSuffix(endpoint, "/"), token: token, generation: generation,
		client: &http.Client{Transport: agentTransport, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}},
	}
}

// Health reports whether the agent answers and which lease it serves.
func (a *Agent) Health(ctx context.Context) (wire.Health, error) {
	ctx, cancel := context.WithTimeout(ctx, shortCall)
	defer cancel()
	var h wire.Health
	resp, err := a.do(ctx, http.MethodGet, wire.PathHealth, nil)
	if err != nil {
		return h, fmt.Errorf("ask agent for its health: %w", err)
	}
	defer drain(resp)
	if err := json.NewDecoder(resp.Body).Decode(&h); err != nil {
		return h, fmt.Errorf("decode health of agent: %w", err)
	}
	return h, nil
}

// Renew feeds the agent's dead-man timer.
func (a *Agent) Renew(ctx context.Context) error {
	return a.post(ctx, "renew at agent", wire.PathRenew, nil)
}

// Shutdown asks the agent to end everything in the sidecar and itself.
func (a *Agent) Shutdown(ctx context.Context) error {
	return a.post(ctx, "shut agent down", wire.PathShutdown, nil)
}

// SetUpstream says where the sidecar's traffic goes from now on; for a
// scheduler that adopted the sidecar and has a proxy of its own.
func (a *Agent) SetUpstream(ctx context.Context, proxyURL string) error {
	return a.post(ctx, "set upstream of agent", wire.PathUpstream, wire.Upstream{ProxyURL: proxyURL})
}

// Browser starts Chromium when it is not running; see Session.
func (a *Agent) Browser(ctx context.Context) (Browser, error) {
	resp, err := a.do(ctx, http.MethodPost, wire.PathBrowser, nil)
	if err != nil {
		return Browser{}, fmt.Errorf("start browser: %w", err)
	}
	drain(resp)
	ws := "ws" + strings.TrimPrefix(a.endpoint, "http") + wire.PathDevTools
	return Browser{URL: ws, Header: a.header(ctx)}, nil
}

// WriteFile streams r to path; see Session. The file appears whole or not at
// all.
func (a *Agent) WriteFile(ctx context.Context, path string, r io.Reader) error {
	// A pipe, because the transport waits for a body it is still reading even
	// when ctx ended, and r may stand still for ever.
	body, in := io.Pipe()
	defer func() { _ = body.Close() }()
	defer context.AfterFunc(ctx, func() { _ = body.CloseWithError(context.Cause(ctx)) })()
	go func() {
		_, err := io.Copy(in, r)
		_ = in.CloseWithError(err)
	}()
	resp, err := a.do(ctx, http.MethodPut, filePath(path), body)
	if err != nil {
		return fmt.Errorf("write file %s in session: %w", path, err)
	}
	drain(resp)
	return nil
}

// ReadFile streams a file; see Session. The caller closes it.
func (a *Agent) ReadFile(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := a.do(ctx, http.MethodGet, filePath(path), nil)
	if err != nil {
		return nil, fmt.Errorf("read file %s in session: %w", path, err)
	}
	return resp.Body, nil
}

func filePath(path string) string {
	return wire.PathFile + "?path=" + url.QueryEscape(path)
}

func (a *Agent) post(ctx context.Context, what, path string, body any) error {
	ctx, cancel := context.WithTimeout(ctx, shortCall)
	defer cancel()
	var r io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		r = strings.NewReader(string(data))
	}
	resp, err := a.do(ctx, http.MethodPost, path, r)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	drain(resp)
	return nil
}

func (a *Agent) header(ctx context.Context) http.Header {
	h := http.Header{}
	h.Set("Authorization", "Bearer "+a.token)
	h.Set(wire.HeaderGeneration, strconv.FormatUint(a.generation, 10))
	otel.GetTextMapPropagator().Inject(ctx, propagation.HeaderCarrier(h))
	return h
}

// do sends one request; the answer is 2xx, or an error says what was wrong.
func (a *Agent) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.endpoint+path, body)
	if err != nil {
		return nil, err
	}
	req.Header = a.header(ctx)
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, transportError(ctx, err)
	}
	if resp.StatusCode/100 != 2 {
		defer drain(resp)
		return nil, answerError(resp)
	}
	return resp, nil
}

// transportError tells a sidecar that is gone from a caller that gave up. The
// URL is left out: it says nothing to a reader.
func transportError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	for _, gone := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, gone) {
			return fmt.Errorf("%w: sidecar does not answer: %w", ErrLost, err)
		}
	}
	return err
}

// AgentError is a refusal by the agent.
type AgentError struct {
	Status  int    // of HTTP
	Code    string // of package wire
	Message string
}

func (e *AgentError) Error() string { return e.Code + ": " + e.Message }

// Is makes ErrNotFound and ErrLost testable.
func (e *AgentError) Is(target error) bool {
	switch e.Code {
	case wire.CodeNotFound:
		return target == ErrNotFound
	case wire.CodeExpired, wire.CodeGeneration, wire.CodeDenied:
		return target == ErrLost
	}
	return false
}

func answerError(resp *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var body wire.Error
	if err := json.Unmarshal(data, &body); err != nil || body.Code == "" {
		body = wire.Error{Code: wire.CodeFailed, Message: "agent answered " + resp.Status}
	}
	return &AgentError{Status: resp.StatusCode, Code: body.Code, Message: body.Message}
}

// drain lets the connection be used again when little is left to read.
func drain(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
	_ = resp.Body.Close()
}
