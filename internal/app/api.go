package app

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/internal/auth"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/jobindex"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/bus/limitstore"
	"github.com/helmdeck/helmdeck/internal/bus/poolstore"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/internal/hold"
	"github.com/helmdeck/helmdeck/internal/metrics"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// apiRole is one API replica.
type apiRole struct {
	Settings
	keys  Keys
	conn  *bus.Conn
	guard *egress.Guard
	dir   string // the spool of audit events lies in dir/audit
	// token is the administrator's bearer token.
	token string
	// health checks what only this process knows, for instance the embedded
	// server; may be empty.
	health map[string]api.Health
	// lacking says what a pack needs that this installation lacks, "" for
	// nothing; nil: not known here.
	lacking  func(packs.Info) string
	registry *prometheus.Registry
}

// drainHTTP bounds the end of open requests at a stop.
const drainHTTP = 10 * time.Second

// build wires the replica and returns its services, the one that takes
// requests last.
func (r *apiRole) build(ctx context.Context, ln net.Listener, done *closer) ([]service, error) {
	js, shards := r.conn.JetStream(), r.conn.Profile().Shards
	store, err := jobstore.New(js, r.keys.Installation, shards, r.Log)
	if err != nil {
		return nil, err
	}
	hub, err := jobfeed.New(r.conn.Core(), js, r.Log)
	if err != nil {
		return nil, err
	}
	done.add(hub.Close)
	if err := hub.ServeHistory(); err != nil {
		return nil, err
	}
	workers, err := jobfeed.WatchWorkers(ctx, r.conn.Core())
	if err != nil {
		return nil, err
	}
	done.add(workers.Close)
	load := poolstore.New(js, shards, workers, r.Log)
	arts, bucket, err := newArtifacts(ctx, js, store, r.keys, r.Settings)
	if err != nil {
		return nil, err
	}
	index := jobindex.New(js, store, hub, 0, r.Log)
	load.Queued = index.Queued
	catalog := r.catalog()
	sealer, err := r.keys.Sealer()
	if err != nil {
		return nil, err
	}
	hook, err := r.webhooks(ctx, js, store, sealer)
	if err != nil {
		return nil, err
	}
	source, err := limits.Open(r.Limits, r.Log)
	if err != nil {
		return nil, err
	}
	slots, err := limitstore.Open(ctx, js)
	if err != nil {
		return nil, err
	}
	done.add(slots.Close)
	replicas := jobfeed.NewReplicas(r.conn.Core(), newID("api"), r.Log)
	keeper := hold.New(hold.Config{
		Store: store, Slots: slots, Limits: source, Core: r.conn.Core(), Hub: hub, Every: r.ReconcileEvery / 2, Log: r.Log,
	})
	client := jobs.New(jobs.Config{
		Ledger: store, Queue: store, Keys: store, Index: index, Feed: hub, Dead: store, Stash: arts,
		Packs: catalog, Waiting: load.Waiting, Accepted: metrics.Submitted(r.registry), KeySecret: r.keys.Idempotency, Sealer: sealer, CheckWebhook: r.checkWebhook,
		Admission: limits.NewAdmission(limits.AdmissionConfig{Source: source, Counts: index, Replicas: replicas.Count}),
	})
	repeats, err := r.schedules(ctx, js, client)
	if err != nil {
		return nil, err
	}
	record, err := r.audit(done)
	if err != nil {
		return nil, err
	}
	record.policies(source, r.Limits)
	health := map[string]api.Health{"bus": api.HealthFunc(r.conn.Ping)}
	for name, h := range r.health {
		health[name] = h
	}
	if bucket != nil {
		health["artifacts"] = api.HealthFunc(bucket.Ensure)
	}
	a, err := api.New(api.Config{
		Jobs: client, Schedules: repeats.service, Webhooks: hook.service, Packs: catalog, Artifacts: arts, Events: follower{hub},
		Pools: pools{load, store}, Workers: fleet{workers}, Quotas: quotas{source, index}, Auth: auth.Admin(r.token),
		Trail: record.reader, Audit: record,
		Health: health, Unavailable: either(unserved(workers), r.lacking), Version: Version, PublicURL: r.PublicURL, Log: r.Log, Registry: r.registry,
	})
	if err != nil {
		return nil, err
	}
	metrics.Pools(r.registry, load.Loads)
	metrics.Workers(r.registry, workers)
	metrics.Streams(r.registry, js.Stream)
	metrics.Dead(r.registry, store.CountDead)
	observe := metrics.NewControl(r.registry)
	consequences := &control.Consequences{JS: js, Store: store, Artifacts: arts, Hooks: hook.maker, Limits: keeper, Log: r.Log}
	if ends := record.ends(); ends != nil {
		consequences.Ends = ends
	}
	return append(record.service, []service{
		{"job index", index.Run},
		{"pools", load.Run},
		{"mover", (&control.Mover{JS: js, Store: store, Late: observe.LateJob, Log: r.Log}).Run},
		{"schedule records", repeats.store.Run},
		{"schedules", repeats.loop.Run},
		{"webhook endpoints", hook.endpoints.Run},
		{"webhook mover", hook.mover.Run},
		{"webhook sender", hook.sender.Run},
		{"orphans", (&control.Orphans{Jobs: client, Index: index, Log: r.Log}).Run},
		{"expirer", (&control.Expirer{Store: store, Artifacts: arts, Expired: observe.Expired, Log: r.Log}).Run},
		{"consequences", consequences.Run},
		{"limits", source.Run},
		{"replicas", replicas.Run},
		{"held jobs", keeper.Run},
		{"reconciler", (&control.Reconciler{
			Store: store, Jobs: index, Every: r.ReconcileEvery, Grace: r.ReconcileEvery, Repaired: observe.Repaired, Log: r.Log,
		}).Run},
		{"artifact sweeper", func(ctx context.Context) error { return arts.RunSweeper(ctx, r.ArtifactSweep, store.InUse) }},
		{"http", func(ctx context.Context) error { return serveHTTP(ctx, a.Server(), ln) }},
	}...), nil
}

func serveHTTP(ctx context.Context, s *http.Server, ln net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(ln) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainHTTP)
	defer cancel()
	if err := s.Shutdown(stop); err != nil {
		_ = s.Close() // requests that did not end are cut
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listen takes the address before anything else is started, so that a taken
// port is the first thing the user hears of.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, &ListenError{Addr: addr, Err: err}
	}
	return ln, nil
}

// ListenError says that the API's address cannot be had.
type ListenError struct {
	Addr string
	Err  error
}

// Error names the address and what to do.
func (e *ListenError) Error() string {
	return fmt.Sprintf("cannot listen on %s: %v; stop the program that uses it, or choose another address with --listen HOST:PORT", e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

func addrPort(a net.Addr) (netip.AddrPort, bool) {
	ap, err := netip.ParseAddrPort(a.String())
	return ap, err == nil
}

// follower gives the API the events of the hub.
type follower struct{ hub *jobfeed.Hub }

func (f follower) Follow(ctx context.Context, k jobs.Key, after api.Cursor) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		from, sub, err := f.open(k, after)
		if err != nil {
			yield(api.Event{}, err)
			return
		}
		for e, err := range sub.Follow(ctx, events.Filter{JobID: k.ID}, from) {
			if err != nil {
				if ctx.Err() == nil {
					yield(api.Event{}, err)
				}
				return
			}
			out, err := event(e)
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}

func (f follower) History(ctx context.Context, k jobs.Key, after api.Cursor) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		from, _, err := f.open(k, after)
		for err == nil {
			var page events.HistoryPage
			page, err = f.hub.History(ctx, k.Tenant, k.Owner, events.HistoryRequest{JobID: k.ID, After: from})
			if err != nil {
				break
			}
			for _, e := range page.Events {
				from = advanced(from, e.Stream, e.Sequence)
				subject, err := events.Parse(e.Subject)
				if err != nil {
					yield(api.Event{}, err)
					return
				}
				out, err := event(events.Event{Event: e.Event, Kind: subject.Kind, Cursor: from})
				if !yield(out, err) || err != nil {
					return
				}
			}
			if page.Done {
				return
			}
			from = page.Next
		}
		if ctx.Err() == nil {
			yield(api.Event{}, err)
		}
	}
}

// advanced returns a copy of a cursor that has moved on.
func advanced(c events.Cursor, stream string, n uint64) events.Cursor {
	next := events.Cursor{stream: n}
	for s, m := range c {
		next[s] = max(next[s], m)
	}
	return next
}

func (f follower) open(k jobs.Key, after api.Cursor) (events.Cursor, *events.Subscriber, error) {
	from, err := events.ParseCursor(string(after))
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", api.ErrBadCursor, err)
	}
	sub, err := events.Over(f.hub, events.Options{Tenant: k.Tenant, Owner: k.Owner})
	return from, sub, err
}

func event(e events.Event) (api.Event, error) {
	data, err := e.Event.MarshalJSON()
	if err != nil {
		return api.Event{}, err
	}
	return api.Event{
		Cursor: api.Cursor(e.Cursor.String()), Type: e.Type(), Kind: api.EventKind(e.Kind),
		Terminal: e.Terminal(), Data: data,
	}, nil
}

// either asks one after the other until there is an answer.
func either(questions ...func(packs.Info) string) func(packs.Info) string {
	return func(info packs.Info) string {
		for _, q := range questions {
			if q == nil {
				continue
			}
			if answer := q(info); answer != "" {
				return answer
			}
		}
		return ""
	}
}

// unserved says of a pack that no worker serves its pool now.
func unserved(workers *jobfeed.Workers) func(packs.Info) string {
	return func(info packs.Info) string {
		others := false
		for _, w := range workers.Live() {
			if w.Runs(string(info.Pool), info.Name, info.Version) {
				return ""
			}
			others = others || w.Slots[string(info.Pool)] > 0 && !w.Drain
		}
		if others {
			return fmt.Sprintf("no worker of the pool %s has version %s of this pack; upgrade one", info.Pool, info.Version)
		}
		return fmt.Sprintf("no worker serves the pool %[1]s now; start one with helmdeck-worker --pools %[1]s", info.Pool)
	}
}
