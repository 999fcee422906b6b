package bus_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

// others are the roles beside the administrator.
var others = []bus.Role{bus.RoleAPI, bus.RoleWorker, bus.RoleScheduler}

// refused reports whether publishing to subject is a permissions violation.
func refused(t *testing.T, env *bustest.Env, role bus.Role, subject string) bool {
	t.Helper()
	violations := make(chan error, 4)
	nc, err := nats.Connect(env.Server.URL(), nats.UserInfo(string(role), env.Server.Password(role)),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { violations <- err }))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Publish(subject, nil); err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushTimeout(10 * time.Second); err != nil { // the violation comes before the answer
		t.Fatal(err)
	}
	// Errors are handed over on another goroutine than the flush.
	select {
	case err := <-violations:
		if !errors.Is(err, nats.ErrPermissionViolation) {
			t.Fatal(err)
		}
		return true
	default:
		return nc.LastError() != nil
	}
}

func TestRolesMayPublish(t *testing.T) {
	t.Parallel()
	env := bustest.Start(t)
	const all, none = "api worker scheduler", ""
	for subject, allowed := range map[string]string{
		"$JS.API.STREAM.CREATE.MINE":                              none,
		"$JS.API.STREAM.UPDATE.EVT":                               none,
		"$JS.API.STREAM.DELETE.EVT":                               none,
		"$JS.API.STREAM.MSG.DELETE.EVT":                           none,
		"$JS.API.STREAM.RESTORE.EVT":                              none,
		"$JS.API.STREAM.SNAPSHOT.EVT":                             none,
		"$JS.API.STREAM.LIST":                                     none,
		"$JS.API.CONSUMER.CREATE.JOBS_core.x.hd.job.core.high.0.": none,
		"$JS.API.CONSUMER.DELETE.JOBS_core.normal-0":              none,
		"$JS.API.CONSUMER.DELETE.EVT.consequences":                none,
		"$JS.API.CONSUMER.PAUSE.JOBS_core.normal-0":               "api",
		"$JS.API.CONSUMER.PAUSE.EVT.consequences":                 none,
		"$JS.API.STREAM.PURGE.PROG":                               "api",
		"$KV.pools.core":                                          "api",
		"$KV.expiries.j":                                          "api",
		"$JS.API.STREAM.PURGE.AUDIT":                              none,
		"$SYS.REQ.SERVER.PING":                                    none,
		"hd.live.default.alice.j1.lc":                             none,
		"other.job.core.normal.0.t.o.j":                           none,
		"$KV.unknown.k":                                           none,
		"$JS.API.INFO":                                            all,
		"hd.audit.default.request":                                all,
		"hd.trailin.w1":                                           all,
		"hd.trail.default.request.alice.n":                        "api",
		"$JS.API.STREAM.PURGE.TRAIL":                              none,
		"$JS.API.STREAM.MSG.DELETE.TRAIL":                         none,
		"$JS.API.STREAM.PURGE.TRAILIN":                            "api",
		"$JS.API.DIRECT.GET.TRAIL":                                "api",
		"hd.hb.worker.w1":                                         all,
		"$KV.leases.l1":                                           all,
		"hd.job.core.normal.0.default.alice.j1":                   "api worker",
		"hd.evt.default.alice.j1.lc":                              "api worker",
		"hd.sched.at.j1":                                          "api worker",
		"$JS.API.STREAM.PURGE.SCHED":                              "api worker",
		"$O.artifacts.C.x":                                        "api worker",
		"$KV.idem.k":                                              "api worker",
		"hd.prog.default.alice.j1.log":                            "worker",
		"$KV.vault.k":                                             "api",
		"$KV.tokens.k":                                            "api",
		"$JS.API.DIRECT.GET.KV_tokens":                            "api",
		"$JS.API.DIRECT.GET.KV_vault":                             "api worker",
		"$JS.API.DIRECT.GET.EVT":                                  "api worker",
		"$JS.ACK.JOBS_core.normal-0.1.1.1.1.0":                    "api worker",
		"$JS.ACK._.hash.JOBS_core.normal-0.1.1.1.1.0":             "api worker",
		"$JS.ACK.LEASE.image-browser.1.1.1.1.0":                   "scheduler",
		"$JS.API.CONSUMER.CREATE.LEASE.image-browser.hd.lease.x":  "scheduler",
		"_INBOX.hd.worker.x":                                      all,
		"_INBOX.someone.x":                                        "api",
	} {
		for _, role := range others {
			want := !contains(allowed, role)
			if got := refused(t, env, role, subject); got != want {
				t.Errorf("%s publishes to %s: refused %t, want %t", role, subject, got, want)
			}
		}
	}
}

func contains(roles string, role bus.Role) bool {
	for _, r := range strings.Fields(roles) {
		if bus.Role(r) == role {
			return true
		}
	}
	return false
}

func TestRolesMaySubscribe(t *testing.T) {
	t.Parallel()
	env := bustest.Start(t)
	for subject, allowed := range map[string]string{
		">":                 "",
		"$JS.API.>":         "",
		"hd.>":              "",
		"hd.job.>":          "",
		"hd.evt.>":          "",
		"$KV.vault.>":       "",
		"_INBOX.>":          "",
		"hd.live.>":         "api worker scheduler",
		"hd.ctl.w1.cancel":  "api worker scheduler",
		"hd.req.>":          "api worker scheduler",
		"_INBOX.hd.api.>":   "api",
		"_INBOX.hd.admin.>": "",
	} {
		for _, role := range others {
			nc, _ := raw(t, env, role)
			sub, err := nc.SubscribeSync(subject)
			if err != nil {
				t.Fatal(err)
			}
			if err := nc.FlushTimeout(10 * time.Second); err != nil {
				t.Fatal(err)
			}
			// Either the violation or, when there is none, silence; the
			// flush above brought it in.
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, err = sub.NextMsgWithContext(ctx)
			cancel()
			if got, want := errors.Is(err, nats.ErrPermissionViolation), !contains(allowed, role); got != want {
				t.Errorf("%s subscribes to %s: refused %t, want %t (%v)", role, subject, got, want, err)
			}
			nc.Close()
		}
	}
}

func TestDeniedCallSaysSo(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	scheduler := env.Conn(bus.RoleScheduler).JetStream()
	first, cancel := context.WithTimeout(ctx, 2*time.Second) // nothing answers a refused request
	defer cancel()
	if _, err := scheduler.Publish(first, bus.Outgoing{Subject: job("1")}); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("publish: got %v, want ErrDenied", err)
	}
	if _, err := scheduler.Publish(ctx, bus.Outgoing{Subject: job("1")}); !errors.Is(err, bus.ErrDenied) {
		t.Errorf("again: got %v, want ErrDenied", err)
	}
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	env := bustest.Start(t)
	_, err := bus.Connect(bustest.Context(t), bus.Config{URL: env.Server.URL(), User: bus.RoleWorker, Password: "wrong"})
	if !errors.Is(err, bus.ErrDenied) {
		t.Errorf("got %v, want ErrDenied", err)
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(bustest.Context(t), 200*time.Millisecond)
	defer cancel()
	_, err := bus.Connect(ctx, bus.Config{URL: "nats://127.0.0.1:1", User: bus.RoleWorker, Password: "x"})
	if !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
}
