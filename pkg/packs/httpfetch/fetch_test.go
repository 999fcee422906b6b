package httpfetch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/httpfetch"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
)

type output struct {
	Status     int               `json:"status"`
	Headers    map[string]string `json:"headers"`
	Body       string            `json:"body"`
	BodyBase64 string            `json:"body_base64"`
	Truncated  bool              `json:"truncated"`
}

type seen struct {
	Method, Path, Host, Body string
	Header                   http.Header
}

// serve answers with h and counts and keeps the requests.
func serve(t *testing.T, h http.HandlerFunc) (url string, last *atomic.Pointer[seen], count *atomic.Int64) {
	t.Helper()
	last, count = &atomic.Pointer[seen]{}, &atomic.Int64{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		last.Store(&seen{r.Method, r.URL.Path, r.Host, string(body), r.Header})
		count.Add(1)
		if h != nil {
			h(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, last, count
}

func TestCase1Get(t *testing.T) {
	t.Parallel()
	url, last, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "text/plain")
		w.Header()["X-Many"] = []string{"first", "second"}
		fmt.Fprint(w, "grüß dich")
	})
	var got output
	packstest.Run(t, httpfetch.Pack, map[string]any{"url": url + "/hello"}).Decode(t, &got)
	if got.Status != 200 || got.Truncated || got.Body != "grüß dich" || got.BodyBase64 != "" {
		t.Errorf("got %+v", got)
	}
	if got.Headers["Content-Type"] != "text/plain" || got.Headers["X-Many"] != "first" {
		t.Errorf("got headers %v", got.Headers)
	}
	s := last.Load()
	if s.Method != "GET" || s.Path != "/hello" || !strings.HasPrefix(s.Header.Get("User-Agent"), "helmdeck/") {
		t.Errorf("the server saw %+v", s)
	}
}

func TestRequestIsSentAsAsked(t *testing.T) {
	t.Parallel()
	url, last, _ := serve(t, nil)
	for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "post"} {
		res := packstest.Run(t, httpfetch.Pack, map[string]any{
			"url": url, "method": method, "body": "payload",
			"headers": map[string]string{"x-a": "1", "User-Agent": "mine", "Host": "virtual.test"},
		})
		if res.Err != nil {
			t.Fatalf("%s: %v", method, res.Err)
		}
		s := last.Load()
		if s.Method != strings.ToUpper(method) || s.Host != "virtual.test" || s.Body != "payload" || s.Header.Get("X-A") != "1" || s.Header.Get("User-Agent") != "mine" {
			t.Errorf("%s: the server saw %+v", method, s)
		}
	}
}

func TestCase4AndOtherBadInput(t *testing.T) {
	t.Parallel()
	url, _, count := serve(t, nil)
	tests := []struct {
		name    string
		change  map[string]any
		message string
	}{
		{"4 method OPTIONS", map[string]any{"method": "OPTIONS"}, "use one of GET, POST"},
		{"blank url", map[string]any{"url": "  "}, "must begin with http://"},
		{"no url", map[string]any{"url": nil}, "/url: is required"},
		{"scheme", map[string]any{"url": "file:///etc/passwd"}, "must begin with http://"},
		{"no host", map[string]any{"url": "http:///x"}, "must begin with http://"},
		{"control character in url", map[string]any{"url": url + "/\x00"}, "not a valid URL"},
		{"header name", map[string]any{"headers": map[string]string{"a b": "1"}}, "not a valid header name"},
		{"header value", map[string]any{"headers": map[string]string{"a": "1\r\nb: 2"}}, "a line break"},
		{"header kind", map[string]any{"headers": map[string]any{"a": 1}}, "/headers/a: expected string"},
		{"host header", map[string]any{"headers": map[string]string{"host": "a b\n"}}, "/headers/host"},
		{"placeholder in url", map[string]any{"url": url + "/${vault:t}"}, "vault is not available"},
		{"3 placeholder in a header", map[string]any{"headers": map[string]string{"Authorization": "Bearer ${vault:none}"}}, "vault is not available"},
		{"placeholder in the body", map[string]any{"method": "POST", "body": strings.Repeat("x", 5<<20) + "${vault:t}"}, "vault is not available"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := map[string]any{"url": url}
			maps.Copy(in, tt.change)
			res := packstest.Run(t, httpfetch.Pack, in)
			res.WantCode(t, packs.InvalidInput)
			if !strings.Contains(res.Err.Message, tt.message) {
				t.Errorf("got message %q, want it to contain %q", res.Err.Message, tt.message)
			}
		})
	}
	t.Cleanup(func() {
		if n := count.Load(); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

func TestCase5RefusedAddresses(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://[::]/", "http://169.254.169.254/", "http://0.0.0.0/", "http://name.invalid/"} {
		res := packstest.Run(t, httpfetch.Pack, map[string]any{"url": url})
		res.WantCode(t, packs.InvalidInput)
		if !strings.HasPrefix(res.Err.Message, "egress denied: ") {
			t.Errorf("%s: got message %q", url, res.Err.Message)
		}
	}
}

func TestCase6RedirectToRefusedAddress(t *testing.T) {
	t.Parallel()
	url, _, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
	})
	res := packstest.Run(t, httpfetch.Pack, map[string]any{"url": url})
	res.WantCode(t, packs.InvalidInput)
	if want := "egress denied: 169.254.169.254"; !strings.HasPrefix(res.Err.Message, want) {
		t.Errorf("got message %q, want prefix %q", res.Err.Message, want)
	}
}

// TestCase7LongReply also covers replies of exactly the limit and those cut
// within a character.
func TestCase7LongReply(t *testing.T) {
	t.Parallel()
	const limit = 16 << 20
	tests := []struct {
		name      string
		body      string
		wantLen   int
		truncated bool
	}{
		{"17 MiB", strings.Repeat("a", 17<<20), limit, true},
		{"16 MiB", strings.Repeat("a", limit), limit, false},
		{"cut within a character", "a" + strings.Repeat("é", limit/2), limit - 1, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			url, _, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, tt.body) })
			var got output
			packstest.Run(t, httpfetch.Pack, map[string]any{"url": url}, packstest.WithTimeout(5*time.Minute)).Decode(t, &got)
			if len(got.Body) != tt.wantLen || got.Truncated != tt.truncated || got.BodyBase64 != "" {
				t.Errorf("got %d bytes, truncated %v, %d bytes of base64; want %d bytes, truncated %v",
					len(got.Body), got.Truncated, len(got.BodyBase64), tt.wantLen, tt.truncated)
			}
			if !strings.HasPrefix(tt.body, got.Body) {
				t.Error("the bytes are not those of the server")
			}
		})
	}
}

func TestCase8ErrorStatusIsASuccess(t *testing.T) {
	t.Parallel()
	url, _, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "gone", http.StatusNotFound) })
	var got output
	packstest.Run(t, httpfetch.Pack, map[string]any{"url": url}).Decode(t, &got)
	if diff := cmp.Diff([]any{404, "gone\n"}, []any{got.Status, got.Body}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBytesThatAreNoText(t *testing.T) {
	t.Parallel()
	url, _, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte{0xff, 0x00, 0xfe}) })
	var got output
	packstest.Run(t, httpfetch.Pack, map[string]any{"url": url}).Decode(t, &got)
	if got.Body != "" || got.BodyBase64 != "/wD+" {
		t.Errorf("got %+v", got)
	}
}

func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	url, _, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	packstest.Run(t, httpfetch.Pack, map[string]any{"url": url}, packstest.WithTimeout(50*time.Millisecond)).WantCode(t, packs.Timeout)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	gone := errors.New("caller is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	url, _, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel(gone)
		<-r.Context().Done()
	})
	res := packstest.Run(t, httpfetch.Pack, map[string]any{"url": url}, packstest.WithContext(ctx))
	res.WantCode(t, packs.Cancelled)
	if !errors.Is(res.Err, gone) {
		t.Errorf("%v does not wrap the cause", res.Err)
	}
}

func TestNetworkErrors(t *testing.T) {
	t.Parallel()
	closed := httptest.NewServer(nil)
	closed.Close()
	broken, _, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write(bytes.Repeat([]byte("x"), 10)) // the client sees it broken
	})
	loop, _, _ := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.String(), http.StatusFound) })
	for name, url := range map[string]string{"refused": closed.URL, "broken": broken, "loop": loop} {
		res := packstest.Run(t, httpfetch.Pack, map[string]any{"url": url + "/?token=hush"})
		res.WantCode(t, packs.HandlerFailed)
		if strings.Contains(res.Err.Error(), "hush") || !strings.Contains(res.Err.Message, "127.0.0.1") {
			t.Errorf("%s: got %v, want the host without the query", name, res.Err)
		}
	}
}
