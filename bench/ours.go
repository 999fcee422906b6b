package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/artifactstore"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/jobindex"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/bus/limitstore"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/internal/gate"
	"github.com/helmdeck/helmdeck/internal/hold"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/testpacks"
)

// side is one process's worth of the job system on its own connection.
type side struct {
	conn  *bus.Conn
	store *jobstore.Store
	arts  *artifacts.Store
}

func dial(ctx context.Context, p *process, role bus.Role) (*side, error) {
	cfg := bus.Config{Server: p.inside, User: role, Name: "bench"}
	if p.inside == nil {
		var err error
		if cfg.URL, err = p.file("nats.url"); err != nil {
			return nil, err
		}
		creds, err := app.ReadCreds(filepath.Join(p.dir, "nats-"+string(role)+".json"))
		if err != nil {
			return nil, err
		}
		cfg.Password = creds.Password
		if cfg.Profile, err = bus.ProfileByName(*profile); err != nil {
			return nil, err
		}
	}
	conn, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	js := conn.JetStream()
	store, err := jobstore.New(js, "bench", 1, zerolog.Nop())
	if err != nil {
		return nil, err
	}
	blobs, err := artifactstore.NewBlobs(ctx, js)
	if err != nil {
		return nil, err
	}
	index, err := artifactstore.NewIndex(ctx, js)
	if err != nil {
		return nil, err
	}
	arts, err := artifacts.New(artifacts.Config{Blobs: blobs, Index: index})
	return &side{conn: conn, store: store, arts: arts}, err
}

// ours is the whole job system but for HTTP: a client with the live feed and
// the list's read model, the consequence consumer, and workers on demand.
type ours struct {
	p            *process
	client, host *side
	svc          *jobs.Service
	ended        atomic.Int64
	stop         func()
	source       *limits.Source // nil: nothing of limits is there
}

func newOurs(ctx context.Context, p *process) (*ours, error) { return newBounded(ctx, p, nil) }

func newBounded(ctx context.Context, p *process, source *limits.Source) (*ours, error) {
	o := &ours{p: p, source: source}
	var err error
	if o.client, err = dial(ctx, p, bus.RoleAPI); err != nil {
		return nil, err
	}
	if o.host, err = dial(ctx, p, bus.RoleWorker); err != nil {
		return nil, err
	}
	js := o.client.conn.JetStream()
	hub, err := jobfeed.New(o.client.conn.Core(), js, zerolog.Nop())
	if err != nil {
		return nil, err
	}
	hub.Tap(func(m jobfeed.Message) {
		if m.Kind == events.KindLifecycle && events.Terminal(m.Type) {
			o.ended.Add(1)
		}
	})
	index := jobindex.New(js, o.client.store, hub, 0, zerolog.Nop())
	cfg := jobs.Config{
		Ledger: o.client.store, Queue: o.client.store, Keys: o.client.store, Index: index, Feed: hub,
		Dead: o.client.store, Stash: o.client.arts, Packs: catalog(), KeySecret: []byte("bench"),
	}
	c := control.Consequences{JS: js, Store: o.client.store, Artifacts: o.client.arts, Log: zerolog.Nop()}
	var keeper *hold.Keeper
	if source != nil {
		slots, err := limitstore.Open(ctx, js)
		if err != nil {
			return nil, err
		}
		keeper = hold.New(hold.Config{
			Store: o.client.store, Slots: slots, Limits: source, Core: o.client.conn.Core(), Hub: hub, Log: zerolog.Nop(),
		})
		c.Limits = keeper
		cfg.Admission = limits.NewAdmission(limits.AdmissionConfig{Source: source, Counts: index})
	}
	o.svc = jobs.New(cfg)
	ctx, cancel := context.WithCancel(ctx)
	var services sync.WaitGroup
	services.Go(func() { _ = c.Run(ctx) }) // ends with ctx
	if keeper != nil {
		services.Go(func() { _ = keeper.Run(ctx) }) // ends with ctx
	}
	o.stop = func() {
		cancel()
		services.Wait()
		hub.Close()
		o.host.conn.Close()
		o.client.conn.Close()
	}
	return o, nil
}

func catalog() *packs.Catalog { return packs.NewCatalog(testpacks.All...) }

func (o *ours) work(ctx context.Context, slots int) (func(), error) {
	reports, err := jobfeed.NewReports(o.host.conn.Core(), o.host.conn.JetStream(), "bench", zerolog.Nop())
	if err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp(o.p.dir, "scratch-")
	if err != nil {
		return nil, err
	}
	cfg := worker.Config{
		ID: "bench", Slots: map[string]int{"core": slots}, Source: o.host.store, Ledger: o.host.store, Queue: o.host.store,
		Reports: reports, Packs: catalog(), Artifacts: o.host.arts, ScratchDir: scratch, Drain: time.Second, Log: zerolog.Nop(),
	}
	if o.source != nil {
		slots, err := limitstore.Open(ctx, o.host.conn.JetStream())
		if err != nil {
			return nil, err
		}
		cfg.Gate = &gate.Gate{Limits: o.source, Slots: slots, Hold: o.host.store}
	}
	w := worker.New(cfg)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(ctx) }) // ends with ctx
	return func() { cancel(); running.Wait() }, nil
}

const inputSize = 256

var (
	caller  = identity.Caller{Subject: "bench"}
	request = jobs.Request{
		Pack:  "test.echo",
		Input: []byte(`{"message":"` + strings.Repeat("x", inputSize-len(`{"message":""}`)) + `"}`),
	}
)

func (o *ours) submit(ctx context.Context) error {
	_, err := o.svc.Submit(ctx, caller, request)
	return err
}

func (o *ours) submitBatch(ctx context.Context, n int) error {
	many := make([]jobs.Request, n)
	for i := range many {
		many[i] = request
	}
	for _, r := range o.svc.SubmitBatch(ctx, caller, many) {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

func (o *ours) call(ctx context.Context) error {
	job, done, err := o.svc.Run(ctx, caller, request)
	if err == nil && (!done || job.State != jobs.Succeeded) {
		err = fmt.Errorf("job %s ended %s", job.ID, job.State)
	}
	return err
}

func (o *ours) completed(context.Context) (int, error) { return int(o.ended.Load()), nil }

// ourFigures runs the plan on a server of its own, and the raw bus beside it.
func ourFigures(ctx context.Context, dir string, d durability, p plan, report func(figure)) error {
	before := *profile
	*profile = d.profile
	defer func() { *profile = before }()
	server, err := start(ctx, dir, "127.0.0.1:0", "--roles=none")
	if err != nil {
		return err
	}
	defer server.stop()
	o, err := newOurs(ctx, server)
	if err != nil {
		return err
	}
	defer o.stop()
	return figures(ctx, o, p, report)
}

// rawFigures is what the bus alone does with the writes of a job.
func rawFigures(ctx context.Context, dir string, d durability, p plan, report func(figure)) error {
	before := *profile
	*profile = d.profile
	defer func() { *profile = before }()
	server, err := start(ctx, dir, "127.0.0.1:0", "--roles=none")
	if err != nil {
		return err
	}
	defer server.stop()
	for _, slots := range p.flights {
		rate, err := rawBus(ctx, server, p.jobs, slots)
		if err != nil {
			return err
		}
		report(figure{nameSteady(slots), rate})
	}
	return nil
}
