package auditstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/auditstore"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/identity"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*Server).startGoRoutine"))
}

// patience is how long a test waits for what must come.
const patience = 60 * time.Second

var secret = []byte("key of the anchors")

// rig is a bus with a trail.
type rig struct {
	*testing.T
	ctx   context.Context
	env   *bustest.Env
	js    bus.JetStream
	queue auditstore.Queue
	trail *auditstore.Trail
	clock atomic.Int64 // nanoseconds that the clock of sealers is ahead
}

func setup(t *testing.T, opts ...bustest.Option) *rig {
	t.Helper()
	env := bustest.Start(t, opts...)
	js := env.Conn(bus.RoleAPI).JetStream()
	r := &rig{T: t, ctx: bustest.Context(t), env: env, js: js, queue: auditstore.Queue{JS: js}}
	r.trail = &auditstore.Trail{JS: js, Secret: secret, Now: r.now}
	return r
}

func (r *rig) now() time.Time { return time.Now().Add(time.Duration(r.clock.Load())) }

// put stores a batch with an event for each path.
func (r *rig) put(source string, n uint64, paths ...string) {
	r.Helper()
	if err := r.queue.Put(r.ctx, batch(source, n, r.now(), paths...)); err != nil {
		r.Fatal(err)
	}
}

func batch(source string, n uint64, at time.Time, paths ...string) audit.Batch {
	b := audit.Batch{Source: source, N: n}
	for _, p := range paths {
		b.Events = append(b.Events, pending(audit.Event{
			At: at, Kind: audit.Request, Actor: identity.Caller{Subject: "ann"}, Method: "GET", Path: p, Status: 200,
		}))
	}
	return b
}

func pending(e audit.Event) audit.Pending { return audit.Redactor{}.Pending(e) }

// sealer runs a sealer until the returned function is called or the test ends.
func (r *rig) sealer(js bus.JetStream, mods ...func(*auditstore.Sealer)) (stop func()) {
	s := &auditstore.Sealer{JS: js, Secret: secret, Now: r.now, Log: zerolog.Nop()}
	for _, mod := range mods {
		mod(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			r.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	r.Cleanup(stop)
	return stop
}

// records waits until the trail has n records and returns their paths, oldest
// first.
func (r *rig) records(n int) []string {
	r.Helper()
	r.await(fmt.Sprintf("%d records", n), func() bool {
		st, err := r.js.Stream(r.ctx, bus.StreamTrail, "")
		return err == nil && st.Last >= uint64(n)
	})
	return r.paths(audit.Query{})
}

func (r *rig) paths(q audit.Query) []string {
	r.Helper()
	var out []string
	err := r.trail.Export(r.ctx, q, func(stored []byte) error {
		rec, err := audit.Open(stored)
		out = append(out, rec.Path)
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
	return out
}

// await polls for a condition.
func (r *rig) await(what string, ok func() bool) {
	r.Helper()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-deadline:
			r.Fatalf("no %s after %s", what, patience)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// sound checks the whole trail, which must be free of faults.
func (r *rig) sound() {
	r.Helper()
	rep, err := r.trail.Verify(r.ctx, time.Time{}, time.Time{}, 0)
	if err != nil {
		r.Fatal(err)
	}
	if !rep.OK {
		r.Fatalf("the trail has faults: %+v", rep.Faults)
	}
}

// message is a record as it lies on the server.
type message struct {
	subject string
	header  nats.Header
	data    []byte
}

// admin is the administrator's own connection, past all our code.
func (r *rig) admin() jetstream.JetStream {
	r.Helper()
	nc, err := nats.Connect(r.env.Server.URL(), nats.UserInfo(string(bus.RoleAdmin), r.env.Server.Password(bus.RoleAdmin)))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		r.Fatal(err)
	}
	return js
}

// rewrite makes the trail anew of what change returns of its messages.
func (r *rig) rewrite(change func([]message) []message) {
	r.Helper()
	js := r.admin()
	s, err := js.Stream(r.ctx, bus.StreamTrail)
	if err != nil {
		r.Fatal(err)
	}
	var all []message
	for seq := uint64(1); seq <= s.CachedInfo().State.LastSeq; seq++ {
		m, err := s.GetMsg(r.ctx, seq)
		if err != nil {
			r.Fatal(err)
		}
		h := nats.Header{}
		if v := m.Header.Get("Hd-Trail"); v != "" {
			h.Set("Hd-Trail", v)
		}
		all = append(all, message{m.Subject, h, m.Data})
	}
	if err := js.DeleteStream(r.ctx, bus.StreamTrail); err != nil {
		r.Fatal(err)
	}
	if _, err := r.env.Conn(bus.RoleAdmin).Init(r.ctx); err != nil {
		r.Fatal(err)
	}
	for _, m := range change(slices.Clone(all)) {
		if _, err := js.PublishMsg(r.ctx, &nats.Msg{Subject: m.subject, Header: m.header, Data: m.data}); err != nil {
			r.Fatal(err)
		}
	}
}
