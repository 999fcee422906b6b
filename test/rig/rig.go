// Package rig runs a whole job system on a real bus inside a test: server,
// client side, control loops and any number of workers, each with its own
// connection, and any of them behind a fault-injecting wrapper.
package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/artifactstore"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/jobindex"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/bus/limitstore"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/internal/gate"
	"github.com/helmdeck/helmdeck/internal/hold"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/testpacks"
)

// AckWait is short, so that a lost worker is noticed within a test.
const AckWait = 2 * time.Second

// Ann is a caller without special rights.
var Ann = identity.Caller{Subject: "Ann"}

// Rig is a job system on a real bus in this process.
type Rig struct {
	T     *testing.T
	Env   *bustest.Env    // nil on a cluster
	Store *jobstore.Store // of the client side, past its Faults
	Hub   *jobfeed.Hub
	Index *jobindex.Index
	Arts  *artifacts.Store
	Jobs  *jobs.Service
	// Limits is the policy of the client side and of all workers, Slots what
	// is held under it, Keeper releases what waits.
	Limits *limits.Source
	Slots  *limitstore.Slots
	Keeper *hold.Keeper
	Packs  *packs.Catalog
	// Webhooks make deliveries; Sender starts what sends them.
	Webhooks *Webhooks
	// Client breaks the calls of the client side and of the control loops.
	Client *bustest.Faults
	Log    zerolog.Logger

	dial func(bus.Role) *bus.Conn // a new connection through a socket
}

// New starts a job system without workers, which knows extra packs beside the
// test packs.
func New(t *testing.T, extra ...packs.Pack) *Rig {
	t.Helper()
	return NewProfile(t, func(*bus.Profile) {}, extra...)
}

// NewProfile is New on a bus of another profile.
func NewProfile(t *testing.T, change func(*bus.Profile), extra ...packs.Pack) *Rig {
	t.Helper()
	return Over(t, bustest.Start(t, Profile(change)), extra...)
}

// NewLimited is New under a policy in YAML.
func NewLimited(t *testing.T, policy string, extra ...packs.Pack) *Rig {
	t.Helper()
	p, err := limits.Parse([]byte(policy))
	if err != nil {
		t.Fatalf("policy: %v", err)
	}
	return over(t, bustest.Start(t, Profile(func(*bus.Profile) {})), p, extra...)
}

// Profile is the bus profile of a rig, with a change.
func Profile(change func(*bus.Profile)) bustest.Option {
	return bustest.WithProfile(func(p *bus.Profile) {
		p.AckWait = AckWait
		change(p)
	})
}

// Over is New on a bus that is there.
func Over(t *testing.T, env *bustest.Env, extra ...packs.Pack) *Rig {
	t.Helper()
	return over(t, env, &limits.Policy{}, extra...)
}

func over(t *testing.T, env *bustest.Env, policy *limits.Policy, extra ...packs.Pack) *Rig {
	t.Helper()
	log := zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)
	r := &Rig{T: t, Env: env, Log: log, Limits: limits.Fixed(policy), dial: env.TCP}
	r.start(env.Conn(bus.RoleAPI), extra)
	return r
}

// OnCluster is New on three servers. Connections go to any of them.
func OnCluster(t *testing.T, c *bustest.Cluster, log zerolog.Logger, extra ...packs.Pack) *Rig {
	t.Helper()
	r := &Rig{T: t, Log: log, Limits: limits.Fixed(&limits.Policy{}), dial: func(role bus.Role) *bus.Conn { return c.Dial(role, string(role)) }}
	r.start(c.Dial(bus.RoleAPI, "api"), extra)
	return r
}

// start builds the client side and the control loops.
func (r *Rig) start(conn *bus.Conn, extra []packs.Pack) {
	r.T.Helper()
	r.Client = bustest.NewFaults(conn.JetStream())
	js := bus.JetStream(r.Client)
	r.Store = must(jobstore.New(js, "test", 1, r.Log))
	r.Hub = must(jobfeed.New(conn.Core(), js, r.Log))
	r.T.Cleanup(r.Hub.Close)
	r.Arts = r.artifacts(js)
	r.Packs = packs.NewCatalog(append(slices.Clone(testpacks.All), extra...)...)
	r.Index = jobindex.New(js, r.Store, r.Hub, 0, r.Log)
	r.Slots = must(limitstore.Open(r.Ctx(), js))
	r.T.Cleanup(r.Slots.Close)
	r.Keeper = hold.New(hold.Config{
		Store: r.Store, Slots: r.Slots, Limits: r.Limits, Core: conn.Core(), Hub: r.Hub, Every: time.Second, Log: r.Log,
	})
	r.Webhooks = r.webhooks(js)
	r.Jobs = jobs.New(r.Config())
	r.Background("held jobs", r.Keeper.Run)
	r.Background("index", r.Index.Run)
	r.Background("orphans", (&control.Orphans{Jobs: r.Jobs, Index: r.Index, Every: 200 * time.Millisecond, Log: r.Log}).Run)
	r.Background("mover", (&control.Mover{JS: js, Store: r.Store, Log: r.Log}).Run)
	r.Background("consequences", (&control.Consequences{JS: js, Store: r.Store, Artifacts: r.Arts, Hooks: r.Webhooks.Maker, Limits: r.Keeper, Log: r.Log}).Run)
}

// Config is that of the client side, for further replicas of it.
func (r *Rig) Config() jobs.Config {
	return jobs.Config{
		Ledger: r.Store, Queue: r.Store, Keys: r.Store, Index: r.Index, Feed: r.Hub, Dead: r.Store,
		Stash: r.Arts, Packs: r.Packs, KeySecret: []byte("secret"), Sealer: r.Webhooks.sealer,
		Admission: limits.NewAdmission(limits.AdmissionConfig{Source: r.Limits, Counts: r.Index}),
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (r *Rig) artifacts(js bus.JetStream) *artifacts.Store {
	ctx := bustest.Context(r.T)
	return must(artifacts.New(artifacts.Config{
		Blobs: must(artifactstore.NewBlobs(ctx, js)), Index: must(artifactstore.NewIndex(ctx, js)), Judge: r.Store.Judge, Log: r.Log,
	}))
}

// Background runs a service until the test ends.
func (r *Rig) Background(name string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := run(ctx); err != nil {
			r.T.Errorf("%s: %v", name, err)
		}
	})
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); wg.Wait() }) }
	r.T.Cleanup(stop)
	return stop
}

// Worker starts a worker of the core pool with connections of its own.
func (r *Rig) Worker(id string, change ...func(*worker.Config)) (stop func()) {
	r.T.Helper()
	stop, _ = r.FaultyWorker(id, change...)
	return stop
}

// FaultyWorker is Worker with the wrapper that breaks its calls.
func (r *Rig) FaultyWorker(id string, change ...func(*worker.Config)) (stop func(), faults *bustest.Faults) {
	r.T.Helper()
	conn := r.dial(bus.RoleWorker)
	faults = bustest.NewFaults(conn.JetStream())
	js := bus.JetStream(faults)
	store := must(jobstore.New(js, "test", 1, r.Log))
	slots := must(limitstore.Open(r.Ctx(), js))
	r.T.Cleanup(slots.Close)
	cfg := worker.Config{
		ID: id, Host: "here", Slots: map[string]int{"core": 4},
		Source: store, Ledger: store, Queue: store, Gate: &gate.Gate{Limits: r.Limits, Slots: slots, Hold: store},
		StrictLanes: func() bool { return r.Limits.Policy().StrictLanes() },
		Reports:     must(jobfeed.NewReports(conn.Core(), js, "test", r.Log)),
		Jobs:        r.children(conn.Core(), js, store),
		Packs:       r.Packs, Artifacts: r.artifacts(js), HTTP: &http.Client{},
		CheckURL:   func(context.Context, string) error { return nil },
		ScratchDir: r.T.TempDir(), Heartbeat: AckWait / 3, CancelGrace: 2 * time.Second, Drain: 200 * time.Millisecond,
		Backoff: func(int) time.Duration { return 50 * time.Millisecond }, Log: r.Log,
	}
	for _, c := range change {
		c(&cfg)
	}
	return r.Background("worker "+id, worker.New(cfg).Run), faults
}

// children is the client side of a worker whose packs call others.
func (r *Rig) children(core bus.Core, js bus.JetStream, store *jobstore.Store) *jobs.Service {
	watch := jobfeed.NewWatch(core, r.Log)
	cfg := r.Config()
	cfg.Ledger, cfg.Queue, cfg.Keys, cfg.Stash = store, store, store, r.artifacts(js)
	cfg.Index, cfg.Dead, cfg.Feed, cfg.Follow = nil, nil, watch, watch
	return jobs.New(cfg)
}

// Ctx is a context that ends before the test is cut off.
func (r *Rig) Ctx() context.Context { return bustest.Context(r.T) }

// Submit submits a job as Ann.
func (r *Rig) Submit(pack string, input any, change ...func(*jobs.Request)) jobs.Job {
	r.T.Helper()
	req := jobs.Request{Pack: pack, Input: must(json.Marshal(input))}
	for _, c := range change {
		c(&req)
	}
	job, err := r.Jobs.Submit(r.Ctx(), Ann, req)
	if err != nil {
		r.T.Fatalf("submit %s: %v", pack, err)
	}
	return job
}

// Ends waits for the end of a job.
func (r *Rig) Ends(id string) jobs.Job {
	r.T.Helper()
	job, done, err := r.Jobs.Await(r.Ctx(), Ann, id)
	if err != nil || !done {
		r.T.Fatalf("await %s: done %v, %v; state %s", id, done, err, job.State)
	}
	return job
}

// Until polls a condition; the bus tells of no such thing by itself.
func (r *Rig) Until(what string, ok func() bool) {
	r.T.Helper()
	ctx := r.Ctx()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			r.T.Fatalf("%s: not within the time", what)
		case <-tick.C:
		}
	}
}

// State reads the state of a job.
func (r *Rig) State(id string) jobs.State {
	job, err := r.Jobs.Get(r.Ctx(), Ann, id)
	if err != nil {
		r.T.Fatalf("get %s: %v", id, err)
	}
	return job.State
}

// Queued counts the jobs that wait anywhere.
func (r *Rig) Queued() int {
	n := 0
	err := r.Store.Waiting(r.Ctx(), func(jobs.Submission, jobs.Place) error { n++; return nil })
	if err != nil {
		r.T.Fatalf("read queues: %v", err)
	}
	return n
}

// Code is the code of an error.
func Code(err error) packs.Code {
	var pe *packs.Error
	if errors.As(err, &pe) {
		return pe.Code
	}
	return packs.Code(fmt.Sprint(err))
}
