package events_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"

	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// testBus is a real server with the streams an installation has, and the side
// that answers history requests.
type testBus struct {
	t      *testing.T
	srv    *server.Server
	nc     *nats.Conn // of the system itself
	js     jetstream.JetStream
	src    events.Source
	prefix string

	mu      sync.Mutex
	asked   int
	failing bool
}

const deadline = 45 * time.Second

func newBus(t *testing.T, prefix string) *testBus {
	t.Helper()
	owner := caller.Owner()
	opts := &server.Options{
		ServerName: "events-test", Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoLog: true, NoSigs: true,
		Users: []*server.User{
			{Username: "system", Password: "s"},
			// What bus.md grants an outside program, and no more.
			{Username: "outside", Password: "o", Permissions: &server.Permissions{
				Subscribe: &server.SubjectPermission{Allow: []string{
					prefix + ".live." + caller.TenantToken() + "." + owner + ".>", "_INBOX." + owner + ".>"}},
				Publish: &server.SubjectPermission{Allow: []string{
					prefix + ".req." + caller.TenantToken() + "." + owner + ".history"}},
			}},
		},
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(deadline) {
		t.Fatal("server is not ready")
	}
	b := &testBus{t: t, srv: srv, prefix: prefix, src: source(t)}
	if b.nc, err = nats.Connect(srv.ClientURL(), nats.UserInfo("system", "s")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.nc.Close)
	if b.js, err = jetstream.New(b.nc); err != nil {
		t.Fatal(err)
	}
	b.createStreams()
	b.serveHistory()
	return b
}

func (b *testBus) stream(name string) string {
	if b.prefix == events.DefaultInstallation {
		return name
	}
	return b.prefix + "_" + name
}

func (b *testBus) createStreams() {
	b.t.Helper()
	live := b.prefix + ".live.{{wildcard(1)}}.{{wildcard(2)}}.{{wildcard(3)}}.{{wildcard(4)}}"
	for _, c := range []jetstream.StreamConfig{
		{Name: b.stream("EVT"), Subjects: []string{b.prefix + ".evt.>"}, AllowAtomicPublish: true, AllowDirect: true,
			RePublish: &jetstream.RePublish{Source: b.prefix + ".evt.*.*.*.*", Destination: live}},
		{Name: b.stream("PROG"), Subjects: []string{b.prefix + ".prog.>"}, AllowDirect: true, MaxMsgsPerSubject: 1000,
			RePublish: &jetstream.RePublish{Source: b.prefix + ".prog.*.*.*.*", Destination: live}},
		{Name: b.stream("JOBS_core"), Subjects: []string{b.prefix + ".job.>"}, Retention: jetstream.WorkQueuePolicy,
			RePublish: &jetstream.RePublish{Source: b.prefix + ".job.core.*.*.*.*.*", HeadersOnly: true,
				Destination: b.prefix + ".live.{{wildcard(3)}}.{{wildcard(4)}}.{{wildcard(5)}}.queued"}},
	} {
		c.MaxMsgs, c.MaxBytes, c.MaxAge = -1, -1, 0
		if _, err := b.js.CreateStream(b.t.Context(), c); err != nil {
			b.t.Fatal(err)
		}
	}
}

// serveHistory answers as an API replica does.
func (b *testBus) serveHistory() {
	b.t.Helper()
	read := events.NewHistory(b.scan)
	sub, err := b.nc.Subscribe(b.prefix+"."+events.HistoryFilter(), func(m *nats.Msg) {
		b.mu.Lock()
		b.asked++
		failing := b.failing
		b.mu.Unlock()
		if failing {
			return
		}
		reply, err := events.ServeHistory(b.t.Context(), strings.TrimPrefix(m.Subject, b.prefix+"."), m.Data, read)
		if err != nil && !errors.Is(err, events.ErrBadRequest) && b.t.Context().Err() == nil {
			b.t.Errorf("serve history: %v", err)
		}
		_ = m.Respond(reply)
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = sub.Drain() })
}

func (b *testBus) scan(ctx context.Context, name string, filters []string, from uint64, fn func(events.Stored) error) error {
	kinds := map[string]bool{} // last tokens; the rest of all filters is the same
	var head string
	for _, f := range filters {
		dot := strings.LastIndexByte(f, '.')
		head, kinds[f[dot+1:]] = f[:dot], true
	}
	const batch = 250
	for {
		got := 0
		msgs, err := jetstreamext.GetBatch(ctx, b.js, b.stream(name), batch,
			jetstreamext.GetBatchSeq(from), jetstreamext.GetBatchSubject(b.prefix+"."+head+".*"))
		if err != nil {
			return err
		}
		for m, err := range msgs {
			if errors.Is(err, jetstreamext.ErrNoMessages) {
				break
			}
			if err != nil {
				return err
			}
			got++
			from = m.Sequence + 1
			if !kinds["*"] && !kinds[m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]] {
				continue
			}
			if err := fn(events.Stored{Subject: strings.TrimPrefix(m.Subject, b.prefix+"."), Header: m.Header,
				Data: m.Data, Sequence: m.Sequence, Time: m.Time}); err != nil {
				return err
			}
		}
		if got < batch {
			return nil
		}
	}
}

func (b *testBus) fail(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failing = on
}

func (b *testBus) questions() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked
}

// connect logs in as an outside program does.
func (b *testBus) connect(url string, opts ...nats.Option) *nats.Conn {
	b.t.Helper()
	opts = append([]nats.Option{nats.UserInfo("outside", "o"), nats.CustomInboxPrefix(events.InboxPrefix(caller.Owner())),
		nats.ReconnectWait(10 * time.Millisecond), nats.MaxReconnects(-1),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				b.t.Errorf("outside program: %v", err)
			}
		})}, opts...)
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(nc.Close)
	return nc
}

func (b *testBus) subscriber(nc *nats.Conn) *events.Subscriber {
	b.t.Helper()
	s, err := events.NewSubscriber(nc, events.Options{Prefix: b.prefix, Caller: caller})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func job(n int) jobs.Job {
	j := exampleJob()
	j.ID = fmt.Sprintf("job-%d", n)
	return j
}

func (b *testBus) lifecycle(j jobs.Job, s jobs.State) uint64 {
	b.t.Helper()
	return b.store(b.lifecycleMsg(j, s))
}

func (b *testBus) lifecycleMsg(j jobs.Job, s jobs.State) *nats.Msg {
	b.t.Helper()
	j.State = s
	ev, err := b.src.Lifecycle(j, events.About{})
	if err != nil {
		b.t.Fatal(err)
	}
	subject, err := events.EvtSubject(j.Key(), events.KindLifecycle)
	if err != nil {
		b.t.Fatal(err)
	}
	header, data, err := events.Encode(ev)
	if err != nil {
		b.t.Fatal(err)
	}
	return &nats.Msg{Subject: b.prefix + "." + subject, Header: header, Data: data}
}

func (b *testBus) progress(j jobs.Job, percent int) uint64 {
	b.t.Helper()
	return b.store(b.progressMsg(j, percent))
}

func (b *testBus) progressMsg(j jobs.Job, percent int) *nats.Msg {
	b.t.Helper()
	ev, err := b.src.New(events.JobProgress, events.About{Key: j.Key()}, jobs.Progress{Percent: float64(percent), Message: "step " + strconv.Itoa(percent)})
	if err != nil {
		b.t.Fatal(err)
	}
	subject, err := events.ProgSubject(j.Key(), events.KindProgress)
	if err != nil {
		b.t.Fatal(err)
	}
	header, data, err := events.Encode(ev)
	if err != nil {
		b.t.Fatal(err)
	}
	return &nats.Msg{Subject: b.prefix + "." + subject, Header: header, Data: data}
}

func (b *testBus) store(m *nats.Msg) uint64 {
	b.t.Helper()
	ack, err := b.js.PublishMsg(b.t.Context(), m)
	if err != nil {
		b.t.Fatal(err)
	}
	return ack.Sequence
}

// proxy carries one program's connection, so that the test can cut it.
type proxy struct {
	t        *testing.T
	listener net.Listener
	target   string
	mu       sync.Mutex
	conns    []net.Conn
	closed   bool // refuses new connections
	wg       sync.WaitGroup
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, listener: l, target: strings.TrimPrefix(target, "nats://")}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.cut(true)
		p.wg.Wait()
	})
	return p
}

func (p *proxy) url() string { return "nats://" + p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		out, err := new(net.Dialer).DialContext(p.t.Context(), "tcp", p.target)
		if p.closed || err != nil {
			_ = in.Close()
			if err == nil {
				_ = out.Close()
			}
			p.mu.Unlock()
			continue
		}
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.wg.Go(func() { carry(in, out) })
		p.wg.Go(func() { carry(out, in) })
	}
}

func carry(to, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				err = werr
			}
		}
		if err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}

// cut ends every connection and, when closed, refuses new ones.
func (p *proxy) cut(closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = closed
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *proxy) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
}
