package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/internal/bus/jobfeed"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/bus/poolstore"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// pools gives the API the pools.
type pools struct {
	store *poolstore.Store
	dead  *jobstore.Store
}

func (p pools) Pools(ctx context.Context) ([]api.PoolStatus, error) {
	loads, err := p.store.Loads(ctx)
	if err != nil {
		return nil, packs.Fail(packs.SessionUnavailable, err, "the load of the pools cannot be read now; try again")
	}
	dead, err := p.dead.CountDead(ctx)
	if err != nil {
		return nil, packs.Fail(packs.SessionUnavailable, err, "the dead letters of the pools cannot be counted now; try again")
	}
	out := make([]api.PoolStatus, len(loads))
	for i, l := range loads {
		out[i] = api.PoolStatus{
			Pool: l.Pool, Waiting: l.Waiting, Running: l.Running, Unacknowledged: l.Unacked,
			Workers: l.Workers, Slots: l.Slots, Draining: l.Draining,
			OldestAgeS: l.OldestAge.Seconds(), Autoscale: l.Autoscale(), Unserved: l.Unserved(),
			DeadLetters: dead[l.Pool].All, Poison: dead[l.Pool].Poison,
		}
		if l.Paused != nil {
			out[i].Paused = &client.PoolPause{Until: l.Paused.Until, Reason: l.Paused.Reason, By: l.Paused.By, Since: l.Paused.At}
		}
	}
	return out, nil
}

func (p pools) Pause(ctx context.Context, pool string, pause client.PoolPause) error {
	return later(p.store.Set(ctx, pool, poolstore.Pause{
		Paused: true, Until: pause.Until, Reason: pause.Reason, By: pause.By, At: pause.Since,
	}))
}

func (p pools) Resume(ctx context.Context, pool, by string) error {
	return later(p.store.Set(ctx, pool, poolstore.Pause{By: by, At: time.Now().UTC()}))
}

// later says of a change that broke off what becomes of it.
func later(err error) error {
	if err == nil {
		return nil
	}
	return packs.Fail(packs.SessionUnavailable, err, "the bus did not take all of the change; it is completed within a minute if it took any; look at the pool, and try again")
}

// fleet gives the API the workers.
type fleet struct{ workers *jobfeed.Workers }

func (f fleet) Workers() []client.WorkerStatus {
	live := f.workers.Live()
	out := make([]client.WorkerStatus, len(live))
	for i, w := range live {
		out[i] = workerStatus(w)
	}
	return out
}

func (f fleet) Drain(ctx context.Context, id string, within time.Duration) (client.WorkerStatus, error) {
	s, err := f.workers.Drain(ctx, id, within)
	switch {
	case errors.Is(err, jobfeed.ErrNoWorker):
		return client.WorkerStatus{}, packs.Fail(packs.NotFound, err,
			fmt.Sprintf("there is no worker %.80q; it may have ended already: list them with GET /api/v1/workers", id))
	case err != nil:
		return client.WorkerStatus{}, packs.Fail(packs.SessionUnavailable, err, "the worker did not answer; it may have taken the request: list the workers, and try again")
	}
	return workerStatus(s), nil
}

func workerStatus(s worker.Status) client.WorkerStatus {
	return client.WorkerStatus{
		ID: s.ID, Host: s.Host, Version: s.Version, Slots: s.Slots, Running: s.Running, Leaked: s.Leaked,
		Packs: s.Packs, Draining: s.Drain, DrainBy: s.DrainBy, LastBeat: s.At,
	}
}
