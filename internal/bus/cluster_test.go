package bus_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

// outside starts a server that is not ours.
func outside(t *testing.T, opts *server.Options) *server.Server {
	t.Helper()
	opts.Host, opts.NoLog, opts.NoSigs = "127.0.0.1", true, true
	if opts.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("server did not start")
	}
	return s
}

func roles(prefix string) []*server.User {
	var users []*server.User
	for _, r := range bus.Roles {
		g := bus.GrantOf(prefix, r)
		users = append(users, &server.User{Username: string(r), Password: string(r), Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: g.Publish},
			Subscribe: &server.SubjectPermission{Allow: g.Subscribe},
		}})
	}
	return users
}

// await polls until ok or the test's time is over.
func await(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not in time", what)
		}
	}
}

func TestThreeServers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	// Every server must name its peers before any of them listens.
	var ports []int
	var routes []*url.URL
	var held []net.Listener
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		routes = append(routes, &url.URL{Scheme: "nats-route", Host: l.Addr().String()})
		held = append(held, l)
	}
	for _, l := range held {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var servers []*server.Server
	for i := range 3 {
		opts := &server.Options{
			ServerName: fmt.Sprint("n", i), JetStream: true, StoreDir: t.TempDir(), Users: roles("hd"),
			JetStreamMaxStore: 1 << 50, JetStreamMaxMemory: 1 << 28,
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: ports[i]},
			Routes:  routes,
		}
		servers = append(servers, outside(t, opts))
	}
	await(ctx, t, "meta leader", func() bool {
		for _, s := range servers {
			if s.JetStreamIsLeader() {
				return true
			}
		}
		return false
	})
	profile := bus.HA()
	profile.Shards = 1 // the machine is small
	dial := func(role bus.Role, s *server.Server) *bus.Conn {
		c, err := bus.Connect(ctx, bus.Config{URL: s.ClientURL(), User: role, Password: string(role), Profile: profile, Timeout: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	for range 2 {
		st, err := dial(bus.RoleAdmin, servers[0]).Init(ctx)
		if err != nil || len(st.Mismatches) > 0 {
			t.Fatalf("init: %+v, %v", st, err)
		}
	}
	js := dial(bus.RoleWorker, servers[1]).JetStream()
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("1"), Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	ds, err := js.Pull(ctx, "JOBS_core", bus.LaneConsumer("normal", 0), 4, 20*time.Second)
	if err != nil || len(ds) != 1 {
		t.Fatalf("pull: %v, %v", ds, err)
	}
	last, err := js.PublishBatch(ctx, []bus.Outgoing{
		{Subject: "evt.t.o.1.in", Expect: seq(0)}, {Subject: "evt.t.o.1.lc", Expect: seq(0)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.PublishBatch(ctx, []bus.Outgoing{
		{Subject: "evt.t.o.1.art"}, {Subject: "evt.t.o.1.lc", Expect: seq(last - 1)},
	}); !errors.Is(err, bus.ErrWrongSequence) {
		t.Errorf("stale finish: %v", err)
	}
	if m, err := js.Last(ctx, bus.StreamEvents, "evt.*.*.1.lc", true); err != nil || m.Sequence != last {
		t.Errorf("read through the leader: %+v, %v", m, err)
	}
	if err := ds[0].Ack(ctx); err != nil {
		t.Error(err)
	}
	kv := openKV(t, dial(bus.RoleScheduler, servers[2]), bus.BucketLeases)
	rev, err := kv.Create(ctx, "l1", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Update(ctx, "l1", []byte("2"), rev); err != nil {
		t.Error(err)
	}
	if e, err := kv.Get(ctx, "l1"); err != nil || string(e.Value) != "2" {
		t.Errorf("read your write: %q, %v", e.Value, err)
	}
}

func TestOldServerIsRefused(t *testing.T) {
	t.Parallel()
	ctx := bustest.Context(t)
	s := outside(t, &server.Options{Users: []*server.User{{Username: "admin", Password: "admin"}}})
	nc, err := nats.Connect(s.ClientURL(), nats.UserInfo("admin", "admin"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	// An answer of server 2.12 to the question for JetStream.
	if _, err := nc.Subscribe("$JS.API.INFO", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"storage":0,"streams":0,"consumers":0,"limits":{},"api":{"level":2,"total":1,"errors":0}}`))
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c, err := bus.Connect(ctx, bus.Config{URL: s.ClientURL(), User: bus.RoleAdmin, Password: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Init(ctx)
	if e, ok := errors.AsType[*bus.APILevelError](err); !ok || *e != (bus.APILevelError{Found: 2, Needed: 4}) {
		t.Errorf("got %v, want an APILevelError", err)
	}
}
