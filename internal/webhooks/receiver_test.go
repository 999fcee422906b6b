package webhooks_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// got is one request that a receiver was sent.
type got struct {
	Header http.Header
	Body   []byte
}

func (g got) id() string { return g.Header.Get(webhooks.HeaderID) }

// receiver is an endpoint of the test's own.
type receiver struct {
	URL string

	mu     sync.Mutex // guards what follows
	all    []got
	answer func(n int, w http.ResponseWriter, r *http.Request)
}

// receive starts a receiver. answer, which may be nil for 200, is told which
// request it is, 1 for the first.
func receive(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	r := &receiver{answer: answer}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	r.URL = s.URL + "/hook"
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender went away
	}
	r.mu.Lock()
	r.all = append(r.all, got{req.Header.Clone(), body})
	n, answer := len(r.all), r.answer
	r.mu.Unlock()
	if answer != nil {
		answer(n, w, req)
	}
}

func (r *receiver) got() []got {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]got(nil), r.all...)
}

func (r *receiver) count() int { return len(r.got()) }

// status answers with a status, and with 200 from request n on; 0: never.
func status(code, until int) func(int, http.ResponseWriter, *http.Request) {
	return func(n int, w http.ResponseWriter, _ *http.Request) {
		if until == 0 || n < until {
			w.WriteHeader(code)
		}
	}
}
