package api_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

func TestNineMiB(t *testing.T) {
	t.Parallel()
	r := setup(t)
	nine := `{"pack":"test.echo","text":"` + strings.Repeat("a", 9<<20) + `"}`
	for _, path := range []string{"/api/v1/packs/test.echo", "/api/v1/jobs", "/api/v1/dead/replay"} {
		decode[client.Problem](t, r.call("POST", path, ann, nine).want(t, 413))
		decode[client.Problem](t, r.chunked(path, nine).want(t, 413))
	}
}

// TestBodyLimits has limits of 64 KiB for what is 8 MiB by default.
func TestBodyLimits(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) { c.Limits.Body = 64 << 10 })
	text := `{"text":"` + strings.Repeat("a", 72<<10) + `"}`
	for name, tt := range map[string]struct {
		path, body string
		status     int
	}{
		"pack":                      {"/api/v1/packs/test.echo", text, 413},
		"pack that allows more":     {"/api/v1/packs/test.big", text, 200},
		"and no more than that":     {"/api/v1/packs/test.big", strings.Repeat("a", 100<<10), 413},
		"job":                       {"/api/v1/jobs", `{"pack":"test.echo","input":` + text + `}`, 413},
		"job that allows more":      {"/api/v1/jobs", `{"pack":"test.big","input":` + text + `}`, 202},
		"job with huge labels":      {"/api/v1/jobs", `{"pack":"test.big","labels":` + text + `}`, 413},
		"retry":                     {"/api/v1/jobs/01890000-0000-7000-8000-000000000000/retry", text, 413},
		"replay":                    {"/api/v1/dead/replay", text, 413},
		"just within":               {"/api/v1/packs/test.echo", `{"text":"` + strings.Repeat("a", 64<<10-11) + `"}`, 200},
		"one byte over, and no end": {"/api/v1/packs/test.echo", strings.Repeat("[", 64<<10+1), 413},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := r.call("POST", tt.path, ann, tt.body).want(t, tt.status)
			if tt.status != 413 {
				return
			}
			if p := decode[client.Problem](t, a); p.Error != packs.PayloadTooLarge || !strings.Contains(p.Message, "artifact") {
				t.Errorf("got %+v", p)
			}
			// Without a length in advance the answer is the same.
			decode[client.Problem](t, r.chunked(tt.path, tt.body).want(t, 413))
		})
	}
}

// chunked sends a body whose length is not announced.
func (r *rig) chunked(path, body string) answer {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), "POST", r.url+path, io.MultiReader(strings.NewReader(body)))
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+ann)
	res, err := r.http.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(b)}
}

func TestGarbage(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for name, body := range map[string]string{
		"zeroes":        "\x00\x00\x00",
		"png":           "\x89PNG\r\n\x1a\n\x00\x00",
		"gzip":          "\x1f\x8b\x08\x00",
		"half a string": `{"text":"`,
		"deep":          strings.Repeat(`{"a":`, 12000),
		"deep list":     strings.Repeat("[", 20000),
		"two values":    `{"text":"a"}{"text":"b"}`,
		"a number":      "1e999999999",
		"a form":        "text=hi&count=2",
		"bom":           "\ufeff{}",
	} {
		for _, path := range []string{"/api/v1/packs/test.echo", "/api/v1/jobs", "/api/v1/dead/replay"} {
			t.Run(name+path, func(t *testing.T) {
				t.Parallel()
				p := decode[client.Problem](t, r.call("POST", path, ann, body).want(t, 400))
				if p.Error != packs.InvalidInput || p.Message == "" || p.Retryable {
					t.Errorf("got %+v", p)
				}
			})
		}
	}
	// Text that is not UTF-8 inside a string is replaced, as encoding/json does.
	r.call("POST", "/api/v1/packs/test.echo", ann, "{\"text\":\"\xff\xfe\"}").want(t, 200)
}

// TestRawRequests sends bytes that no HTTP client would.
func TestRawRequests(t *testing.T) {
	t.Parallel()
	r := setup(t)
	auth := "Host: x\r\nAuthorization: Bearer " + ann + "\r\n"
	for name, tt := range map[string]struct {
		text   string
		status int
	}{
		"huge header":          {"GET /api/v1/packs HTTP/1.1\r\n" + auth + "X-Big: " + strings.Repeat("a", 128<<10) + "\r\n\r\n", 431},
		"huge path":            {"GET /" + strings.Repeat("a", 128<<10) + " HTTP/1.1\r\n" + auth + "\r\n", 431},
		"huge token":           {"GET /api/v1/packs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + strings.Repeat("a", 32<<10) + "\r\n\r\n", 401},
		"traversal":            {"GET /api/v1/artifacts/download/../../../etc/passwd HTTP/1.1\r\n" + auth + "\r\n", 404},
		"empty id":             {"GET /api/v1/jobs//events HTTP/1.1\r\n" + auth + "\r\n", 404},
		"dots":                 {"GET /api/v1/jobs/./../packs HTTP/1.1\r\n" + auth + "\r\n", 404},
		"encoded traversal":    {"GET /api/v1/artifacts/download/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n" + auth + "\r\n", 404},
		"nul in a key":         {"GET /api/v1/artifacts/download/a%00b HTTP/1.1\r\n" + auth + "\r\n", 404},
		"backslashes":          {"DELETE /api/v1/artifacts/..%5c..%5cx HTTP/1.1\r\n" + auth + "\r\n", 404},
		"unknown method":       {"BREW /api/v1/packs HTTP/1.1\r\n" + auth + "\r\n", 405},
		"asterisk":             {"OPTIONS * HTTP/1.1\r\n" + auth + "\r\n", 200},
		"connect":              {"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n", 405},
		"not http":             {"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n", 400},
		"bad escape":           {"GET /api/v1/packs/%zz HTTP/1.1\r\n" + auth + "\r\n", 400},
		"bad query":            {"GET /api/v1/jobs?limit=%zz HTTP/1.1\r\n" + auth + "\r\n", 400},
		"two lengths":          {"POST /api/v1/jobs HTTP/1.1\r\n" + auth + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
		"body ends early":      {"POST /api/v1/jobs HTTP/1.1\r\n" + auth + "Content-Length: 100\r\nConnection: close\r\n\r\n{", 400},
		"odd idempotency key":  {"POST /api/v1/packs/test.echo HTTP/1.1\r\n" + auth + "Idempotency-Key: \xff\xfe\r\nContent-Length: 12\r\n\r\n{\"text\":\"a\"}", 400},
		"long idempotency key": {"POST /api/v1/packs/test.echo HTTP/1.1\r\n" + auth + "Idempotency-Key: " + strings.Repeat("k", 257) + "\r\nContent-Length: 12\r\n\r\n{\"text\":\"a\"}", 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := r.raw(t, tt.text); got != tt.status {
				t.Errorf("got status %d, want %d", got, tt.status)
			}
		})
	}
	r.call("GET", "/healthz", "", "").want(t, 200) // still there
}

// raw sends text and half-closes; it returns the status of the answer.
func (r *rig) raw(t *testing.T, text string) int {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	// The server may answer, and stop reading, before it has everything.
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := io.WriteString(conn, text); err == nil {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
	}()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	defer res.Body.Close()
	conn.Close()
	<-sent
	return res.StatusCode
}

func TestHeadHasNoBody(t *testing.T) {
	t.Parallel()
	r := setup(t)
	job := r.submit(ann, `{"pack":"test.wait"}`)
	r.until(job.ID, running)
	for _, path := range []string{"/api/v1/packs", "/api/v1/jobs", "/api/v1/jobs/" + job.ID, "/api/v1/jobs/" + job.ID + "/events",
		"/api/v1/jobs/" + job.ID + "/logs?follow=true", "/healthz", "/docs", "/api/v1/openapi.json"} {
		if a := r.call("HEAD", path, ann, "").want(t, 200); a.body != "" || a.header.Get("Content-Type") == "" {
			t.Errorf("HEAD %s: got %q and type %q", path, a.body, a.header.Get("Content-Type"))
		}
	}
	r.release <- struct{}{}
}

func TestAPanicIsOneInternalError(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) { c.Pools = panicking{} })
	for range 2 { // the connection and the process go on
		p := decode[client.Problem](t, r.call("GET", "/api/v1/pools", ann, "").want(t, 500))
		if p.Error != packs.Internal || strings.Contains(p.Message, "secret") {
			t.Errorf("got %+v, want internal without the cause", p)
		}
	}
}

type panicking struct{ *fixedPools }

func (panicking) Pools(context.Context) ([]api.PoolStatus, error) { panic("a secret cause") }
