package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server and returns a client of it.
func serve(t *testing.T, h http.HandlerFunc) (*client.Client, context.Context) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := client.New(s.URL, "secret")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(stop)
	return c, ctx
}

func problem(w http.ResponseWriter, status int, p client.Problem) {
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p)
}

func TestNewRefusesWhatIsNoURL(t *testing.T) {
	t.Parallel()
	for _, u := range []string{"", "localhost:3000", "ftp://host", "http://", "://"} {
		if _, err := client.New(u, ""); err == nil {
			t.Errorf("address %q: want an error", u)
		}
	}
}

func TestWhatIsRepeated(t *testing.T) {
	t.Parallel()
	away := client.Problem{Error: packs.SessionUnavailable, Message: "away", Retryable: true}
	for name, tt := range map[string]struct {
		call    func(context.Context, *client.Client) error
		status  int
		problem client.Problem
		want    int32 // requests, the second of which succeeds
	}{
		"a read": {func(ctx context.Context, c *client.Client) error { _, err := c.Job(ctx, "x"); return err }, 503, away, 2},
		"a keyed submit": {func(ctx context.Context, c *client.Client) error {
			_, err := c.Submit(ctx, jobs.Request{Pack: "a.b", IdempotencyKey: "k"})
			return err
		}, 503, away, 2},
		"not a submit without a key": {func(ctx context.Context, c *client.Client) error {
			_, err := c.Submit(ctx, jobs.Request{Pack: "a.b"})
			return err
		}, 503, away, 1},
		"not a retry": {func(ctx context.Context, c *client.Client) error { _, err := c.Retry(ctx, "x", nil); return err }, 503, away, 1},
		"not the failure of a job": {func(ctx context.Context, c *client.Client) error { _, err := c.Await(ctx, "x"); return err }, 503,
			client.Problem{Error: packs.SessionUnavailable, JobID: "x"}, 1},
		"not another code": {func(ctx context.Context, c *client.Client) error { _, err := c.Job(ctx, "x"); return err }, 404,
			client.Problem{Error: packs.NotFound}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			c, ctx := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer secret" {
					t.Errorf("got Authorization %q", r.Header.Get("Authorization"))
				}
				if requests.Add(1) == 1 {
					problem(w, tt.status, tt.problem)
					return
				}
				_, _ = io.WriteString(w, `{"id":"x"}`)
			})
			err := tt.call(ctx, c)
			if got := requests.Load(); got != tt.want {
				t.Errorf("got %d requests, want %d", got, tt.want)
			}
			var e *client.Error
			if tt.want == 1 && (!errors.As(err, &e) || e.Code != tt.problem.Error || e.RetryAfter != time.Second) {
				t.Errorf("got error %v, want %s", err, tt.problem.Error)
			}
			if tt.want == 2 && err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	c, err := client.New("http://"+addr, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ready(t.Context()); !errors.Is(err, client.ErrUnreachable) {
		t.Errorf("got %v, want %v", err, client.ErrUnreachable)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := c.Packs(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that of the context", err)
	}
}

func TestAnAnswerOfAProxy(t *testing.T) {
	t.Parallel()
	c, ctx := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusGatewayTimeout)
		_, _ = io.WriteString(w, "<html>upstream timed out</html>")
	})
	_, err := c.Job(ctx, "x")
	want := &client.Error{Status: 504, Code: packs.Timeout, Retryable: true,
		Message: "the server answered 504 Gateway Timeout: <html>upstream timed out</html>"}
	var got *client.Error
	if !errors.As(err, &got) {
		t.Fatalf("got %v, want a *client.Error", err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func event(id int, typ, data string) string {
	return fmt.Sprintf("id: EVT:%d\nevent: dev.helmdeck.job.%s\ndata: {\"data\":%s}\n\n", id, typ, data)
}

func TestEventsComeOnceOverLostConnections(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	c, ctx := serve(t, func(w http.ResponseWriter, r *http.Request) {
		last := r.Header.Get("Last-Event-ID")
		switch connections.Add(1) {
		case 1:
			_, _ = io.WriteString(w, "retry: 1\n\n: keep-alive\n\n"+event(1, "started", `{"id":"x","state":"running"}`)+
				event(2, "progress", `{"percent":50,"message":"half"}`)+"id: EVT:3\nevent: half-sent\ndata: {")
		case 2:
			if last != "EVT:2" {
				t.Errorf("got Last-Event-ID %q, want EVT:2", last)
			}
			problem(w, 503, client.Problem{Error: packs.SessionUnavailable})
		case 3:
			_, _ = io.WriteString(w, event(3, "log", `{"lines":["a","b"]}`)+event(4, "succeeded", `{"id":"x","state":"succeeded"}`)+
				event(5, "never", `{}`))
		default:
			t.Errorf("connection after the terminal event, Last-Event-ID %q", last)
		}
	})
	var got []string
	for e, err := range c.Events(ctx, "x", "") {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.ID)
		if p, ok := e.Progress(); ok {
			got = append(got, p.Message)
		}
		got = append(got, e.Lines()...)
		if j, ok := e.Job(); ok {
			got = append(got, string(j.State))
		}
	}
	want := []string{"EVT:1", "running", "EVT:2", "half", "EVT:3", "a", "b", "EVT:4", "succeeded"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestEventsEndWithTheServersError(t *testing.T) {
	t.Parallel()
	c, ctx := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		problem(w, 404, client.Problem{Error: packs.NotFound, Message: "no such job"})
	})
	n := 0
	for _, err := range c.Events(ctx, "x", "") {
		var e *client.Error
		if n++; !errors.As(err, &e) || e.Code != packs.NotFound {
			t.Errorf("got %v, want not_found", err)
		}
	}
	if n != 1 {
		t.Errorf("got %d items, want one error", n)
	}
	gone, ctx := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for e, err := range gone.Events(ctx, "x", "EVT:9") {
		t.Errorf("got %v, %v from a job that has ended before; want nothing", e, err)
	}
}

func TestDownloadGoesOnWhereItEnded(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("helmdeck"), 32<<10)
	const sum = `"8f3f3f0b0f3f3f0b0f3f3f0b0f3f3f0b0f3f3f0b0f3f3f0b0f3f3f0b0f3f3f0b"`
	for name, tt := range map[string]struct {
		etag  string
		fails string
	}{
		"resumed":        {`"v1"`, ""},
		"wrong checksum": {sum, "SHA-256"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			c, ctx := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("ETag", tt.etag)
				w.Header().Set("Content-Disposition", `attachment; filename="a b.bin"`)
				if requests.Add(1) == 1 {
					w.Header().Set("Content-Length", fmt.Sprint(len(content)))
					_, _ = w.Write(content[:100<<10])
					panic(http.ErrAbortHandler)
				}
				if r.Header.Get("If-Range") != tt.etag {
					t.Errorf("got If-Range %q, want %q", r.Header.Get("If-Range"), tt.etag)
				}
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
			})
			var got bytes.Buffer
			d, err := c.Download(ctx, "ns/0123456789abcdef-a b.bin", &got)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("got %v, want an error about %s", err, tt.fails)
				}
				return
			}
			if err != nil || !bytes.Equal(content, got.Bytes()) || d.Name != "a b.bin" || requests.Load() != 2 {
				t.Errorf("got %d bytes, %+v, %v after %d requests", got.Len(), d, err, requests.Load())
			}
		})
	}
}

type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }
func (b broken) Read([]byte) (int, error)  { return 0, b.err }

func TestErrorsOfTheCallersFiles(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	c, ctx := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			_, _ = io.WriteString(w, "{}")
		}
	})
	if _, err := c.Download(ctx, "ns/key", broken{full}); !errors.Is(err, full) {
		t.Errorf("download: got %v, want %v", err, full)
	}
	if _, err := c.Upload(ctx, "x", "", broken{full}); !errors.Is(err, full) {
		t.Errorf("upload: got %v, want %v", err, full)
	}
}
