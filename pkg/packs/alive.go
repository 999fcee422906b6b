package packs

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// alive tells the host that the run shows life. Whatever goes through a Run
// does: bytes of programs, files, artifacts, HTTP and the browser.
func (r *Run) alive() {
	if r.services.Alive != nil && !r.isClosed() {
		r.services.Alive()
	}
}

// liveReader shows life with every piece that is read.
type liveReader struct {
	io.Reader
	alive func()
}

// Read implements io.Reader.
func (l liveReader) Read(p []byte) (int, error) {
	n, err := l.Reader.Read(p)
	l.alive()
	return n, err
}

// liveBody is a liveReader that is closed after use.
type liveBody struct {
	liveReader
	io.Closer
}

func newLiveBody(b io.ReadCloser, alive func()) io.ReadCloser {
	return liveBody{liveReader{b, alive}, b}
}

// liveWriter shows life with every piece that is written.
type liveWriter struct {
	io.Writer
	alive func()
}

// Write implements io.Writer.
func (l liveWriter) Write(p []byte) (int, error) {
	l.alive()
	return l.Writer.Write(p)
}

// liveTransport shows life with the bytes of requests and answers.
type liveTransport struct {
	http.RoundTripper
	alive func()
}

// RoundTrip implements http.RoundTripper.
func (l liveTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil && req.Body != http.NoBody {
		own := req.WithContext(req.Context()) // a transport must not change the request
		own.Body = newLiveBody(req.Body, l.alive)
		req = own
	}
	l.alive()
	res, err := l.RoundTripper.RoundTrip(req)
	if err != nil {
		return res, err
	}
	l.alive()
	if _, upgraded := res.Body.(io.Writer); !upgraded {
		res.Body = newLiveBody(res.Body, l.alive)
	}
	return res, nil
}

// CloseIdleConnections lets http.Client reach the transport below.
func (l liveTransport) CloseIdleConnections() {
	if c, ok := l.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func liveClient(c *http.Client, alive func()) *http.Client {
	own := *c
	if own.Transport == nil {
		own.Transport = http.DefaultTransport
	}
	own.Transport = liveTransport{own.Transport, alive}
	return &own
}

// liveSession shows life when it is used and with every byte that passes.
type liveSession struct {
	sessions.Session
	alive func()
}

// Exec implements sessions.Session.
func (l *liveSession) Exec(ctx context.Context, c sessions.Command) (sessions.Result, error) {
	var stdout, stderr bytes.Buffer
	keptOut, keptErr := c.Stdout == nil, c.Stderr == nil
	if keptOut {
		c.Stdout = &stdout
	}
	if keptErr {
		c.Stderr = &stderr
	}
	c.Stdout, c.Stderr = liveWriter{c.Stdout, l.alive}, liveWriter{c.Stderr, l.alive}
	if c.Stdin != nil {
		c.Stdin = liveReader{c.Stdin, l.alive}
	}
	l.alive()
	res, err := l.Session.Exec(ctx, c)
	l.alive()
	if keptOut {
		res.Stdout = stdout.Bytes()
	}
	if keptErr {
		res.Stderr = stderr.Bytes()
	}
	return res, err
}

// WriteFile implements sessions.Session.
func (l *liveSession) WriteFile(ctx context.Context, path string, r io.Reader) error {
	return l.Session.WriteFile(ctx, path, liveReader{r, l.alive})
}

// ReadFile implements sessions.Session.
func (l *liveSession) ReadFile(ctx context.Context, path string) (io.ReadCloser, error) {
	l.alive()
	body, err := l.Session.ReadFile(ctx, path)
	if err != nil {
		return nil, err
	}
	return newLiveBody(body, l.alive), nil
}

// Browser implements sessions.Session.
func (l *liveSession) Browser(ctx context.Context) (sessions.Browser, error) {
	l.alive()
	b, err := l.Session.Browser(ctx)
	b.Alive = l.alive
	return b, err
}
