// Package bustest is the test kit of the bus: an embedded server with the
// topology set up (Start) and a wrapper that breaks the narrow JetStream
// interface on purpose (Faults).
//
//	env := bustest.Start(t)
//	js := env.Conn(bus.RoleWorker).JetStream()
package bustest

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
)

// timeout bounds every step of the kit.
const timeout = 60 * time.Second

// Env is a server with its topology.
type Env struct {
	Server *bus.Server
	t      testing.TB
	opts   options
	conns  map[bus.Role]*bus.Conn
}

type options struct {
	server bus.ServerConfig
	init   bool
}

// Option changes what Start starts.
type Option func(*options)

// WithProfile changes the profile, for instance a short AckWait.
func WithProfile(change func(*bus.Profile)) Option {
	return func(o *options) { change(&o.server.Profile) }
}

// WithDir uses a directory of the caller's instead of a fresh one.
func WithDir(dir string) Option { return func(o *options) { o.server.Dir = dir } }

// WithPrefix uses another installation prefix.
func WithPrefix(prefix string) Option { return func(o *options) { o.server.Prefix = prefix } }

// WithLog passes the logs on.
func WithLog(log zerolog.Logger) Option { return func(o *options) { o.server.Log = log } }

// WithoutInit leaves the topology out.
func WithoutInit() Option { return func(o *options) { o.init = false } }

// Start runs a server on a temporary directory until the test ends.
func Start(t testing.TB, opts ...Option) *Env {
	t.Helper()
	o := options{init: true, server: bus.ServerConfig{Profile: bus.Embedded()}}
	for _, f := range opts {
		f(&o)
	}
	if o.server.Dir == "" {
		o.server.Dir = t.TempDir()
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s, err := bus.StartServer(ctx, o.server)
	if err != nil {
		t.Fatalf("start bus server: %v", err)
	}
	t.Cleanup(s.Shutdown)
	e := &Env{Server: s, t: t, opts: o, conns: map[bus.Role]*bus.Conn{}}
	if o.init {
		if _, err := e.Conn(bus.RoleAdmin).Init(ctx); err != nil {
			t.Fatalf("set up bus: %v", err)
		}
	}
	return e
}

// Conn is the connection of a role, made at the first call, in process. It is
// for the test's own goroutine.
func (e *Env) Conn(role bus.Role) *bus.Conn {
	e.t.Helper()
	if c := e.conns[role]; c != nil {
		return c
	}
	c := e.Dial(bus.Config{Server: e.Server, User: role})
	e.conns[role] = c
	return c
}

// TCP is a new connection of a role through a socket.
func (e *Env) TCP(role bus.Role) *bus.Conn {
	e.t.Helper()
	return e.Dial(bus.Config{
		URL: e.Server.URL(), User: role, Password: e.Server.Password(role),
		Prefix: e.opts.server.Prefix, Profile: e.opts.server.Profile,
	})
}

// Dial connects with cfg until the test ends.
func (e *Env) Dial(cfg bus.Config) *bus.Conn {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if cfg.Name == "" {
		cfg.Name = e.t.Name()
	}
	cfg.Log = e.opts.server.Log
	c, err := bus.Connect(ctx, cfg)
	if err != nil {
		e.t.Fatalf("connect to bus: %v", err)
	}
	e.t.Cleanup(c.Close)
	return c
}

// Context is a context with a deadline that lasts as long as the test.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}
