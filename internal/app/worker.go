package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/bus/leasestore"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/internal/metrics"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// DefaultSlots is how many jobs of each pool a worker runs at once.
const DefaultSlots = 4

// workerRole is one worker process, or the worker of helmdeck up.
type workerRole struct {
	Settings
	keys     Keys
	conn     *bus.Conn
	guard    *egress.Guard
	dir      string // scratch folders of runs live in dir/scratch
	slots    map[string]int
	registry *prometheus.Registry
	// drained ends the process of a worker that drained on request; nil: the
	// process has other roles, and stays.
	drained func()
}

// SlotsOf turns --pools and --slots into slots by pool; no pool means all.
func SlotsOf(pools []string, slots int) (map[string]int, error) {
	if slots < 1 || slots > 1024 {
		return nil, fmt.Errorf("--slots must be between 1 and 1024, got %d", slots)
	}
	known := map[string]bool{}
	for _, p := range packs.Pools {
		known[string(p)] = true
	}
	out := map[string]int{}
	for _, p := range pools {
		if !known[p] {
			return nil, fmt.Errorf("--pools: unknown pool %q; the pools are %v", p, packs.Pools)
		}
		out[p] = slots
	}
	if len(out) == 0 {
		for p := range known {
			out[p] = slots
		}
	}
	return out, nil
}

func (r *workerRole) build(ctx context.Context, done *closer) ([]service, error) {
	js := r.conn.JetStream()
	store, err := jobstore.New(js, r.keys.Installation, r.conn.Profile().Shards, r.Log)
	if err != nil {
		return nil, err
	}
	reports, err := jobfeed.NewReports(r.conn.Core(), js, r.keys.Installation, r.Log)
	if err != nil {
		return nil, err
	}
	arts, _, err := newArtifacts(ctx, js, store, r.keys, r.Settings)
	if err != nil {
		return nil, err
	}
	watch := jobfeed.NewWatch(r.conn.Core(), r.Log)
	id := newID("worker")
	leases, err := leasestore.Open(ctx, leasestore.Config{JetStream: r.conn.JetStream(), Log: r.Log})
	if err != nil {
		return nil, err
	}
	leaser, err := sessions.NewLeaser(sessions.LeaserConfig{Registry: leases, Queue: leases, Worker: id, Log: r.Log})
	if err != nil {
		return nil, err
	}
	scratch, err := freshScratch(r.dir)
	if err != nil {
		return nil, err
	}
	done.add(func() { _ = os.RemoveAll(scratch) }) // swept at the next start otherwise
	catalog := r.catalog()
	children := jobs.New(jobs.Config{
		Ledger: store, Queue: store, Keys: store, Feed: watch, Follow: watch, Stash: arts,
		Packs: catalog, Accepted: metrics.Submitted(r.registry), KeySecret: r.keys.Idempotency,
	})
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	observe := metrics.NewWorker(r.registry, catalog.List())
	source, err := limits.Open(r.Limits, r.Log)
	if err != nil {
		return nil, err
	}
	gate, err := r.gate(ctx, js, store, source, done)
	if err != nil {
		return nil, err
	}
	w := worker.New(worker.Config{
		ID: id, Host: host, Version: Version, Slots: r.slots, Serves: servedBy(catalog, r.slots),
		Source: store, Ledger: store, Queue: store, Gate: gate, StrictLanes: func() bool { return source.Policy().StrictLanes() }, Reports: reports, Jobs: children, Packs: catalog, Artifacts: arts,
		Leaser: observe.Leaser(leaser), HTTP: r.guard.Client(egress.Timeouts{}), CheckURL: r.guard.CheckURL,
		ScratchDir: scratch, UserAgent: "helmdeck/" + Version, PublicURL: r.PublicURL,
		Heartbeat: r.heartbeat(), RetryInQueue: r.RetryInQueue, Observer: observe, Log: r.Log,
	})
	return []service{
		{"leaser", leaser.Run},
		{"limits", source.Run},
		{"worker", func(ctx context.Context) error { return r.runWorker(ctx, w) }},
	}, nil
}

// servedBy names the packs that a worker with these slots runs.
func servedBy(catalog *packs.Catalog, slots map[string]int) []string {
	var out []string
	for _, p := range catalog.ListAll() {
		if info := p.Info(); slots[string(info.Pool)] > 0 {
			out = append(out, worker.PackName(info.Name, info.Version))
		}
	}
	return out
}

// freshScratch makes a folder of this process and removes those of processes
// that are gone: a killed worker leaves its folders behind.
func freshScratch(dir string) (string, error) {
	root := filepath.Join(dir, "scratch")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return "", fmt.Errorf("scratch folder: %w", err)
	}
	old, err := os.ReadDir(root)
	if err != nil {
		return "", fmt.Errorf("scratch folder: %w", err)
	}
	for _, e := range old {
		path := filepath.Join(root, e.Name())
		lock, err := lockScratch(path)
		if err != nil {
			continue // its process lives
		}
		err = os.RemoveAll(path)
		_ = lock.Close() // dropped with the folder
		if err != nil {
			return "", fmt.Errorf("sweep scratch folder: %w", err)
		}
	}
	own, err := os.MkdirTemp(root, "worker-")
	if err != nil {
		return "", fmt.Errorf("scratch folder: %w", err)
	}
	// Held until the process ends, however it ends.
	if _, err := lockScratch(own); err != nil {
		return "", fmt.Errorf("scratch folder: %w", err)
	}
	return own, nil
}

// runWorker runs w until ctx ends. A worker that was asked to drain ends
// before: then the process ends with it, or goes on without when it has other
// roles.
func (r *workerRole) runWorker(ctx context.Context, w *worker.Worker) error {
	if err := w.Run(ctx); err != nil {
		return err
	}
	if ctx.Err() == nil {
		r.Log.Info().Msg("worker drained")
		if r.drained != nil {
			r.drained()
		}
		<-ctx.Done()
	}
	return nil
}
