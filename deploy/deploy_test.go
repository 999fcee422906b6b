// Package deploy_test checks that the files an operator starts from agree with the
// programs: NATS itself reads its configurations, and every role can do its work,
// and no more, under the users they define.
package deploy_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

var update = flag.Bool("update", false, "write nats/roles.conf anew")

const rolesFile = "nats/roles.conf"

// testTimeout bounds each test's use of its server.
const testTimeout = 60 * time.Second

// refusalTimeout bounds a call that must be refused.
const refusalTimeout = 2 * time.Second

func password(role bus.Role) string { return "pw-of-" + string(role) }

func passwordVar(role bus.Role) string {
	return "HELMDECK_NATS_" + strings.ToUpper(string(role)) + "_PASSWORD"
}

func TestMain(m *testing.M) {
	flag.Parse()
	env := map[string]string{
		"HELMDECK_NATS_NAME":             "nats-1",
		"HELMDECK_NATS_CLUSTER_PASSWORD": "pw-of-cluster",
	}
	for i := range 3 {
		env[fmt.Sprintf("HELMDECK_NATS_ROUTE_%d", i+1)] = fmt.Sprintf("nats://cluster:pw-of-cluster@nats-%d:6222", i+1)
	}
	for _, role := range bus.Roles {
		env[passwordVar(role)] = password(role)
	}
	for name, value := range env {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if builtPrograms != "" {
		if err := os.RemoveAll(builtPrograms); err != nil {
			panic(err)
		}
	}
	os.Exit(code)
}

// rolesConf is roles.conf as the programs' own table of rights makes it.
func rolesConf() string {
	var b strings.Builder
	b.WriteString(`# The users of the roles, each with the subjects it needs and no others. Generated from
# the programs' own table; after a change there:
#
#   go test ./deploy -run TestRolesFile -update
#
# Passwords come from the environment of the server. Use letters and digits and begin
# with a letter: a value of digits alone would be read as a number.
#
`)
	for _, role := range bus.Roles {
		fmt.Fprintf(&b, "#   %s\n", passwordVar(role))
	}
	b.WriteString(`#
# The user "admin" makes and changes streams: for "helmdeck bus init" and for you.
# Subjects begin with the prefix of the installation, "hd".

authorization {
  users: [
`)
	list := func(name string, subjects []string) {
		fmt.Fprintf(&b, "        %s: [\n", name)
		for _, s := range subjects {
			fmt.Fprintf(&b, "          %q\n", s)
		}
		b.WriteString("        ]\n")
	}
	for _, role := range bus.Roles {
		grant := bus.GrantOf(bus.DefaultPrefix, role)
		fmt.Fprintf(&b, "    {\n      user: %s\n      password: $%s\n      permissions: {\n", role, passwordVar(role))
		list("publish", grant.Publish)
		list("subscribe", grant.Subscribe)
		b.WriteString("      }\n    }\n")
	}
	b.WriteString("  ]\n}\n")
	return b.String()
}

func TestRolesFile(t *testing.T) {
	t.Parallel()
	want := rolesConf()
	if *update {
		if err := os.WriteFile(rolesFile, []byte(want), 0o644); err != nil { //nolint:gosec // a public file
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(rolesFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s does not say what the programs need (-want +got); renew it as its head says:\n%s", rolesFile, diff)
	}
}

func TestProfiles(t *testing.T) {
	t.Parallel()
	type facts struct {
		SyncAlways       bool
		SyncInterval     time.Duration
		Strict           bool
		BufferedMsgs     int
		BufferedSize     int64
		MaxPayload       int32
		Cluster          string
		Routes           int
		Users            int
		MonitorIsPrivate bool
	}
	base := facts{
		SyncInterval: 2 * time.Minute, Strict: true, BufferedMsgs: 20_000, BufferedSize: 64 << 20,
		MaxPayload: 1 << 20, Users: len(bus.Roles), MonitorIsPrivate: true,
	}
	embedded, single, ha := base, base, base
	embedded.SyncInterval = bus.Embedded().SyncInterval
	single.SyncAlways, ha.SyncAlways = bus.Single().SyncAlways, bus.HA().SyncAlways
	ha.Cluster, ha.Routes = "helmdeck", bus.HA().Replicas
	for name, want := range map[string]facts{"embedded": embedded, "single": single, "ha": ha} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := options(t, name)
			got := facts{
				SyncAlways: opts.SyncAlways, SyncInterval: opts.SyncInterval, Strict: !opts.NoJetStreamStrict,
				BufferedMsgs: opts.StreamMaxBufferedMsgs, BufferedSize: opts.StreamMaxBufferedSize,
				MaxPayload: opts.MaxPayload, Cluster: opts.Cluster.Name, Routes: len(opts.Routes),
				Users: len(opts.Users), MonitorIsPrivate: opts.HTTPHost == "127.0.0.1",
			}
			// With "always" the interval does not matter.
			if got.SyncAlways {
				got.SyncInterval = want.SyncInterval
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
			for _, u := range opts.Users {
				if u.Password != password(bus.Role(u.Username)) {
					t.Errorf("user %s: the password is not that of the environment", u.Username)
				}
				grant := bus.GrantOf(bus.DefaultPrefix, bus.Role(u.Username))
				if diff := cmp.Diff(grant.Publish, u.Permissions.Publish.Allow, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("user %s may publish (-want +got):\n%s", u.Username, diff)
				}
			}
		})
	}
}

// TestMistakes shows that the reading of TestProfiles would notice a slip of the pen.
func TestMistakes(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"unknown field":    "jetstream { stritc: true }",
		"missing variable": "authorization { users: [ { user: a, password: $HELMDECK_NATS_NO_SUCH_PASSWORD } ] }",
		"open bracket":     "authorization { users: [",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := t.TempDir() + "/nats.conf"
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := server.ProcessConfigFile(file); err == nil {
				t.Error("got no error")
			}
		})
	}
}

// options reads a profile's file as nats-server does.
func options(t *testing.T, profile string) *server.Options {
	t.Helper()
	opts, err := server.ProcessConfigFile("nats/" + profile + ".conf")
	if err != nil {
		t.Fatalf("read %s.conf: %v", profile, err)
	}
	return opts
}

// bounded is a context that ends with the test, its subtests included.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// run starts a server with a profile's options, on ports and folders of the test.
func run(t *testing.T, opts *server.Options) *server.Server {
	t.Helper()
	opts.Host, opts.Port, opts.HTTPPort = "127.0.0.1", server.RANDOM_PORT, 0
	opts.StoreDir, opts.NoSigs = t.TempDir(), true
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	if !ns.ReadyForConnections(testTimeout) {
		t.Fatal("the server takes no connections")
	}
	return ns
}

func connect(ctx context.Context, t *testing.T, ns *server.Server, role bus.Role, profile bus.Profile) *bus.Conn {
	t.Helper()
	c, err := bus.Connect(ctx, bus.Config{URL: ns.ClientURL(), User: role, Password: password(role), Profile: profile})
	if err != nil {
		t.Fatalf("connect as %s: %v", role, err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestSingleServer takes a job's message through the roles on a server with
// single.conf, and shows what the roles may not do.
func TestSingleServer(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	ns := run(t, options(t, "single"))
	conn := func(role bus.Role) *bus.Conn { return connect(ctx, t, ns, role, bus.Single()) }

	admin, api, worker, scheduler := conn(bus.RoleAdmin), conn(bus.RoleAPI), conn(bus.RoleWorker), conn(bus.RoleScheduler)
	if _, err := admin.Init(ctx); err != nil {
		t.Fatalf("set up as admin: %v", err)
	}

	pool := packs.Pools[0]
	queued := bus.Outgoing{Subject: "job." + string(pool) + ".normal.0.acme.owner.1", Data: []byte("{}")}
	if _, err := api.JetStream().Publish(ctx, queued); err != nil {
		t.Fatalf("submit as api: %v", err)
	}
	got, err := worker.JetStream().Pull(ctx, bus.JobsStream(pool), bus.LaneConsumer(jobs.Normal, 0), 1, 10*time.Second)
	if err != nil || len(got) != 1 || got[0].Message().Subject != queued.Subject {
		t.Fatalf("pull as worker: got %d deliveries, %v; want the job", len(got), err)
	}
	started := bus.Outgoing{Subject: "evt.acme.owner.1.lc", Data: []byte("{}")}
	if _, err := worker.JetStream().Publish(ctx, started); err != nil {
		t.Fatalf("claim as worker: %v", err)
	}
	if err := got[0].Ack(ctx); err != nil {
		t.Fatalf("acknowledge as worker: %v", err)
	}

	for name, try := range map[string]func(ctx context.Context) error{
		"scheduler writes a lifecycle event": func(ctx context.Context) error {
			_, err := scheduler.JetStream().Publish(ctx, bus.Outgoing{Subject: "evt.acme.owner.2.lc", Data: []byte("{}")})
			return err
		},
		"scheduler submits a job": func(ctx context.Context) error {
			_, err := scheduler.JetStream().Publish(ctx, bus.Outgoing{Subject: "job." + string(pool) + ".normal.0.acme.owner.2", Data: []byte("{}")})
			return err
		},
		"worker forges a live event": func(ctx context.Context) error {
			for {
				if err := worker.Core().Publish(ctx, "live.acme.owner.1.lc", nil, []byte("{}")); err != nil {
					return err
				}
				if err := worker.Ping(ctx); err != nil {
					return err
				}
			}
		},
		"worker empties the audit trail": func(ctx context.Context) error {
			return worker.JetStream().Purge(ctx, bus.StreamAudit, "audit.>", 0)
		},
		"worker makes a token": func(ctx context.Context) error {
			kv, err := worker.JetStream().KV(ctx, bus.BucketTokens)
			if err != nil {
				return err
			}
			_, err = kv.Put(ctx, "mine", []byte("{}"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The server refuses apart from the message: a first use waits out its bound.
			ctx, cancel := context.WithTimeout(t.Context(), refusalTimeout)
			defer cancel()
			if err := try(ctx); !errors.Is(err, bus.ErrDenied) {
				t.Errorf("got %v, want ErrDenied", err)
			}
		})
	}

	if _, err := bus.Connect(ctx, bus.Config{URL: ns.ClientURL(), User: bus.RoleAPI, Password: "wrong"}); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("wrong password: got %v, want ErrDenied", err)
	}
}

// TestCluster starts three servers with ha.conf, which find each other with the
// password of the routes, and stores a message on all of them.
func TestCluster(t *testing.T) {
	t.Parallel()
	ctx := bounded(t)
	var nodes []*server.Server
	for i := range bus.HA().Replicas {
		opts := options(t, "ha")
		opts.ServerName = fmt.Sprintf("nats-%d", i+1)
		opts.Cluster.Host, opts.Cluster.Port = "127.0.0.1", server.RANDOM_PORT
		// The names of the routes lead to other machines. Here those of the servers
		// that run already lead to them and the others nowhere; who connects later
		// makes itself known. Number, user and password stay.
		for j, route := range opts.Routes {
			if j < i {
				route.Host = nodes[j].ClusterAddr().String()
			} else {
				route.Host = fmt.Sprintf("127.0.0.1:%d", j+1)
			}
		}
		nodes = append(nodes, run(t, opts))
	}
	admin, err := nats.Connect(nodes[2].ClientURL(), nats.UserInfo(string(bus.RoleAdmin), password(bus.RoleAdmin)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	js, err := jetstream.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	config := jetstream.StreamConfig{Name: "T", Subjects: []string{"t"}, Replicas: len(nodes)}
	for {
		// Not answered until the three have found each other and chosen a leader.
		tryCtx, cancel := context.WithTimeout(ctx, refusalTimeout)
		_, err := js.CreateStream(tryCtx, config)
		cancel()
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("make a stream with %d replicas: %v", len(nodes), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	if _, err := js.Publish(ctx, "t", []byte("x")); err != nil {
		t.Errorf("publish to %d replicas: %v", len(nodes), err)
	}
}
