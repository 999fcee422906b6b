package egress

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"
)

// fail answers a request whose destination was refused or cannot be reached.
func (p *Proxy) fail(w http.ResponseWriter, x *exchange, err error) {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		x.report.Rule = refusal.Rule
		if x.report.Host == "" {
			x.report.Host = printable(refusal.Host)
		}
		p.reject(w, x, http.StatusForbidden, Denied, refusal.Error())
		return
	}
	var lookup *LookupError
	if errors.As(err, &lookup) {
		p.reject(w, x, http.StatusBadGateway, Unreachable, "egress unreachable: "+lookup.Error())
		return
	}
	// A dial error names the address, which has passed the guard.
	p.reject(w, x, http.StatusBadGateway, Unreachable, "egress unreachable: "+err.Error())
}

// reject answers without having reached the destination, and reports it.
func (p *Proxy) reject(w http.ResponseWriter, x *exchange, status int, verdict Verdict, text string) {
	x.report.Reason = text
	answer(w, status, verdict, text)
	p.finish(x, verdict)
}

func answer(w http.ResponseWriter, status int, verdict Verdict, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set(VerdictHeader, string(verdict))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // a client that left misses nothing
}

func (p *Proxy) finish(x *exchange, verdict Verdict) {
	c := &x.report
	c.Verdict = verdict
	c.Up, c.Down = x.flow.up.Load(), x.flow.down.Load()
	c.Duration = time.Since(c.StartedAt)
	if cut, ok := x.flow.cut.Load().(error); ok {
		c.Reason = cut.Error()
	}
	event := p.config.Log.Debug()
	if verdict == Denied || verdict == Unauthenticated {
		event = p.config.Log.Info()
	}
	event.Str("lease", c.Lease).Str("job", c.Job).Str("host", c.Host).Uint16("port", c.Port).
		Str("verdict", string(verdict)).Str("rule", string(c.Rule)).Str("reason", c.Reason).
		Int64("up_bytes", c.Up).Int64("down_bytes", c.Down).Dur("duration", c.Duration).
		Msg("egress connection ended")
	p.config.Observe(*c)
}

// tunnel accepts a CONNECT and carries bytes both ways until both directions
// have ended, one fails, or ctx ends.
func tunnel(ctx context.Context, w http.ResponseWriter, upstream *meter, f *flow) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		answer(w, http.StatusInternalServerError, Malformed, "this server cannot carry a tunnel")
		return
	}
	client := &meter{Conn: conn, flow: f}
	defer client.Close()
	defer closeWith(ctx, client, upstream)()

	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	// A client may send its first bytes along with the CONNECT.
	if n := buffered.Reader.Buffered(); n > 0 {
		early, _ := buffered.Reader.Peek(n) // cannot fail: n bytes are there
		if _, err := upstream.Write(early); err != nil {
			return
		}
	}
	var both sync.WaitGroup
	both.Go(func() { carry(upstream, client) })
	both.Go(func() { carry(client, upstream) })
	both.Wait()
}

// carry copies src to dst. An orderly end is passed on as one, so that the other
// direction may finish; a failure ends both directions.
func carry(dst, src *meter) {
	if _, err := io.Copy(dst, src); err != nil {
		_ = dst.Close()
		_ = src.Close()
		return
	}
	_ = dst.CloseWrite()
}

// forward sends a plain request over upstream, a connection made for it alone,
// and returns when the response, or the WebSocket it turned into, has ended.
func forward(ctx context.Context, w http.ResponseWriter, r *http.Request, upstream *meter) {
	defer closeWith(ctx, upstream)()
	unused := make(chan net.Conn, 1)
	unused <- upstream
	transport := &http.Transport{
		Proxy: nil,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			select {
			case conn := <-unused:
				return conn, nil
			default:
				return nil, errors.New("connection already used")
			}
		},
		DisableKeepAlives:      true,
		DisableCompression:     true,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxResponseHeader,
	}
	reverse := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // event streams must not wait for a buffer to fill
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		Rewrite: func(pr *httputil.ProxyRequest) {
			// Undo what suits a reverse proxy: a forward proxy does not touch
			// the query or headers between the two ends. (The server has already
			// set the host from the absolute URL.)
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values, ok := pr.In.Header[name]; ok {
					pr.Out.Header[name] = values
				}
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del(VerdictHeader) // ours alone to set
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			answer(w, http.StatusBadGateway, Unreachable, "egress unreachable: "+err.Error())
		},
	}
	reverse.ServeHTTP(&closingWriter{ResponseWriter: w, ctx: ctx}, r.WithContext(ctx))
}

// closingWriter closes a connection taken over for a protocol switch when ctx
// ends; net/http and httputil leave that to its new owner.
type closingWriter struct {
	http.ResponseWriter
	ctx context.Context // lives for one request, like the writer
}

// Hijack takes over the client's connection.
func (w *closingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	closeWith(w.ctx, conn)
	return conn, rw, nil
}

// Unwrap lets a response controller reach the other abilities of the writer.
func (w *closingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
