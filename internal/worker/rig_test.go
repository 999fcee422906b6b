package worker_test

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
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/testpacks"
)

// ackWait is short, so that a lost worker is noticed within a test.
const ackWait = 2 * time.Second

var ann = identity.Caller{Subject: "ann"}

// rig is a job system on a real bus in this process.
type rig struct {
	t     *testing.T
	env   *bustest.Env
	store *jobstore.Store
	hub   *jobfeed.Hub
	index *jobindex.Index
	arts  *artifacts.Store
	jobs  *jobs.Service
	packs *packs.Catalog
	log   zerolog.Logger
}

func newRig(t *testing.T, extra ...packs.Pack) *rig {
	t.Helper()
	r := &rig{t: t, log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel)}
	r.env = bustest.Start(t, bustest.WithProfile(func(p *bus.Profile) { p.AckWait = ackWait }))
	js := r.env.Conn(bus.RoleAPI).JetStream()
	r.store = must(jobstore.New(js, "test", 1, r.log))
	r.hub = must(jobfeed.New(r.env.Conn(bus.RoleAPI).Core(), js, r.log))
	t.Cleanup(r.hub.Close)
	r.arts = r.artifacts(bus.RoleAPI)
	r.packs = packs.NewCatalog(append(slices.Clone(testpacks.All), extra...)...)
	r.index = jobindex.New(js, r.store, r.hub, 0, r.log)
	r.jobs = jobs.New(jobs.Config{
		Ledger: r.store, Queue: r.store, Keys: r.store, Index: r.index, Feed: r.hub, Dead: r.store,
		Stash: r.arts, Packs: r.packs, KeySecret: []byte("secret"),
	})
	r.background("index", r.index.Run)
	r.background("mover", (&control.Mover{JS: js, Store: r.store, Log: r.log}).Run)
	r.background("consequences", (&control.Consequences{JS: js, Store: r.store, Artifacts: r.arts, Log: r.log}).Run)
	return r
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (r *rig) artifacts(role bus.Role) *artifacts.Store {
	ctx := bustest.Context(r.t)
	js := r.env.Conn(role).JetStream()
	return must(artifacts.New(artifacts.Config{
		Blobs: must(artifactstore.NewBlobs(ctx, js)), Index: must(artifactstore.NewIndex(ctx, js)), Log: r.log,
	}))
}

// background runs a service until the test ends.
func (r *rig) background(name string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := run(ctx); err != nil {
			r.t.Errorf("%s: %v", name, err)
		}
	})
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); wg.Wait() }) }
	r.t.Cleanup(stop)
	return stop
}

// worker starts a worker of the core pool with connections of its own.
func (r *rig) worker(id string, change ...func(*worker.Config)) (stop func()) {
	r.t.Helper()
	conn := r.env.TCP(bus.RoleWorker)
	js := conn.JetStream()
	store := must(jobstore.New(js, "test", 1, r.log))
	cfg := worker.Config{
		ID: id, Host: "here", Slots: map[string]int{"core": 4},
		Source: store, Ledger: store, Queue: store,
		Reports: must(jobfeed.NewReports(conn.Core(), js, "test", r.log)),
		Packs:   r.packs, Artifacts: r.artifacts(bus.RoleWorker), HTTP: http.DefaultClient,
		ScratchDir: r.t.TempDir(), Heartbeat: ackWait / 3, CancelGrace: 2 * time.Second, Drain: 200 * time.Millisecond,
		Backoff: func(int) time.Duration { return 50 * time.Millisecond }, Log: r.log,
	}
	for _, c := range change {
		c(&cfg)
	}
	return r.background("worker "+id, worker.New(cfg).Run)
}

func (r *rig) ctx() context.Context { return bustest.Context(r.t) }

func (r *rig) submit(pack string, input any, change ...func(*jobs.Request)) jobs.Job {
	r.t.Helper()
	req := jobs.Request{Pack: pack, Input: must(json.Marshal(input))}
	for _, c := range change {
		c(&req)
	}
	job, err := r.jobs.Submit(r.ctx(), ann, req)
	if err != nil {
		r.t.Fatalf("submit %s: %v", pack, err)
	}
	return job
}

// ends waits for the end of a job.
func (r *rig) ends(id string) jobs.Job {
	r.t.Helper()
	job, done, err := r.jobs.Await(r.ctx(), ann, id)
	if err != nil || !done {
		r.t.Fatalf("await %s: done %v, %v; state %s", id, done, err, job.State)
	}
	return job
}

// until polls a condition; the bus tells of no such thing by itself.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	ctx := r.ctx()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			r.t.Fatalf("%s: not within the time", what)
		case <-tick.C:
		}
	}
}

func (r *rig) state(id string) jobs.State {
	job, err := r.jobs.Get(r.ctx(), ann, id)
	if err != nil {
		r.t.Fatalf("get %s: %v", id, err)
	}
	return job.State
}

// queued counts the messages left in the core queue.
func (r *rig) queued() int {
	n := 0
	err := r.store.Waiting(r.ctx(), func(jobs.Submission, jobs.Place) error { n++; return nil })
	if err != nil {
		r.t.Fatalf("read queues: %v", err)
	}
	return n
}

func code(err error) packs.Code {
	var pe *packs.Error
	if errors.As(err, &pe) {
		return pe.Code
	}
	return packs.Code(fmt.Sprint(err))
}
