package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/helmdeck/helmdeck/internal/api/openapi"
	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

const (
	// maxPauseS is a year: a longer pause is no pause, and a slip of the keys.
	maxPauseS = 366 * 24 * 3600
	// maxReason is in bytes; a reason is shown in every waiting job.
	maxReason = 256
	// maxDrainS lets the longest attempt there may be come to its end.
	maxDrainS = jobs.MaxTimeoutS
)

func (a *API) poolRoutes() []*route {
	op := func(method, path, id, scope, summary string, body any) openapi.Operation {
		return openapi.Operation{Method: method, Path: path, ID: id, Tag: "operating", Scope: scope, Summary: summary,
			Answers: []openapi.Answer{{Status: ok, Description: "The answer.", Body: body}}}
	}
	const pool = "/api/v1/pools/{pool}"
	pause := op(post, pool+"/pause", "pause_pool", adminOnly, "Hold the jobs of a pool back", client.PoolStatus{})
	pause.Description = "Jobs are still accepted and those that run go on; nothing new starts until the pause ends or is ended. " +
		"It outlives restarts. Pausing a paused pool changes its end and its reason."
	pause.Body, pause.BodyOptional = client.PauseRequest{}, true
	resume := op(post, pool+"/resume", "resume_pool", adminOnly, "End the pause of a pool", client.PoolStatus{})
	drain := op(post, "/api/v1/workers/{id}/drain", "drain_worker", adminOnly, "Make a worker take no more jobs and end", client.WorkerStatus{})
	drain.Description = "It pulls nothing more from now on, lets running jobs finish for within_s, hands the rest back uncharged, and ends. " +
		"GET /api/v1/workers shows how far it is, until it is gone. May be repeated, with another within_s too."
	drain.Body, drain.BodyOptional = client.DrainRequest{}, true
	drain.Answers = []openapi.Answer{{Status: took, Description: "What it does now.", Body: client.WorkerStatus{}}}
	return []*route{
		{op(get, "/api/v1/pools", "list_pools", readPacks, "Show the load of every pool", client.PoolList{}), false, a.listPools},
		{op(get, pool, "show_pool", readPacks, "Show the load of a pool", client.PoolStatus{}), false, a.showPool},
		{pause, false, a.pausePool},
		{resume, false, a.resumePool},
		{op(get, "/api/v1/workers", "list_workers", adminOnly, "List the live workers", client.WorkerList{}), false, a.listWorkers},
		{drain, false, a.drainWorker},
	}
}

func (a *API) listPools(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	pools, err := a.pools(r.Context())
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, client.PoolList{Pools: pools})
}

// pools is every pool as the caller may see it.
func (a *API) pools(ctx context.Context) ([]PoolStatus, error) {
	pools, err := a.cfg.Pools.Pools(ctx)
	if err != nil {
		return nil, fmt.Errorf("list pools: %w", err)
	}
	out := make([]PoolStatus, len(pools))
	admin := callerOf(ctx).Admin()
	for i, p := range pools {
		if p.Paused != nil && !admin {
			pause := *p.Paused
			pause.By = ""
			p.Paused = &pause
		}
		out[i] = p
	}
	return out, nil
}

func (a *API) showPool(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	if err := knownPool(r.PathValue("pool")); err != nil {
		return err
	}
	return a.answerPool(x, r)
}

func knownPool(name string) error {
	if slices.Contains(packs.Pools, packs.Pool(name)) {
		return nil
	}
	return packs.Errorf(packs.NotFound, "there is no pool %.40q; the pools are %v", name, packs.Pools)
}

func (a *API) answerPool(x *exchange, r *http.Request) error {
	pools, err := a.pools(r.Context())
	if err != nil {
		return err
	}
	name := r.PathValue("pool")
	i := slices.IndexFunc(pools, func(p PoolStatus) bool { return p.Pool == name })
	if i < 0 {
		return packs.Errorf(packs.NotFound, "the pool %s is not known here", name)
	}
	return x.writeJSON(http.StatusOK, pools[i])
}

func (a *API) pausePool(x *exchange, r *http.Request) error {
	name := r.PathValue("pool")
	if err := knownPool(name); err != nil {
		return err
	}
	var req client.PauseRequest
	var until string
	faults, err := a.optional(x, r, map[string]any{"until": &until, "for_s": &req.ForS, "reason": &req.Reason})
	if err != nil {
		return err
	}
	now := time.Now()
	if until != "" {
		if req.Until, err = time.Parse(time.RFC3339, until); err != nil {
			faults = append(faults, packs.Detail{Pointer: "/until", Message: "must be a time such as 2026-01-31T12:00:00Z"})
		}
	}
	if err := wire.Invalid(append(faults, pauseFaults(req, now)...)); err != nil {
		return err
	}
	if req.ForS > 0 {
		req.Until = now.Add(time.Duration(req.ForS) * time.Second)
	}
	by := callerOf(r.Context()).Subject
	pause := client.PoolPause{Until: req.Until.UTC(), Reason: req.Reason, By: by, Since: now.UTC()}
	if req.Until.IsZero() {
		pause.Until = time.Time{}
	}
	if err := a.cfg.Pools.Pause(r.Context(), name, pause); err != nil {
		return fmt.Errorf("pause pool %s: %w", name, err)
	}
	a.cfg.Log.Info().Str("pool", name).Str("caller", by).Time("until", pause.Until).Str("reason", pause.Reason).Msg("pool paused")
	return a.answerPool(x, r)
}

func pauseFaults(r client.PauseRequest, now time.Time) []packs.Detail {
	var faults []packs.Detail
	add := func(pointer, format string, args ...any) {
		faults = append(faults, packs.Detail{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
	}
	if r.ForS < 0 || r.ForS > maxPauseS {
		add("/for_s", "must be between 1 and %d seconds; leave it out to pause until resume", maxPauseS)
	}
	if !r.Until.IsZero() && (!r.Until.After(now) || r.Until.Sub(now) > maxPauseS*time.Second) {
		add("/until", "must lie ahead, by %d days at most; leave it out to pause until resume", maxPauseS/(24*3600))
	}
	if !r.Until.IsZero() && r.ForS != 0 {
		add("/for_s", "give either until or for_s, not both")
	}
	if len(r.Reason) > maxReason || !utf8.ValidString(r.Reason) {
		add("/reason", "must be valid UTF-8 of at most %d bytes", maxReason)
	}
	return faults
}

// optional decodes a body that may be left out.
func (a *API) optional(x *exchange, r *http.Request, targets map[string]any) ([]packs.Detail, error) {
	if err := wire.NewQuery(r).Err(); err != nil {
		return nil, err
	}
	body, err := wire.ReadBody(x, r, a.cfg.Limits.Body)
	if err != nil {
		return nil, err
	}
	return wire.DecodeObject(body, targets)
}

func (a *API) resumePool(x *exchange, r *http.Request) error {
	name := r.PathValue("pool")
	if err := knownPool(name); err != nil {
		return err
	}
	faults, err := a.optional(x, r, nil)
	if err != nil {
		return err
	}
	if err := wire.Invalid(faults); err != nil {
		return err
	}
	by := callerOf(r.Context()).Subject
	if err := a.cfg.Pools.Resume(r.Context(), name, by); err != nil {
		return fmt.Errorf("resume pool %s: %w", name, err)
	}
	a.cfg.Log.Info().Str("pool", name).Str("caller", by).Msg("pool resumed")
	return a.answerPool(x, r)
}

func (a *API) listWorkers(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	list := a.cfg.Workers.Workers()
	if list == nil {
		list = []client.WorkerStatus{}
	}
	return x.writeJSON(http.StatusOK, client.WorkerList{Workers: list})
}

func (a *API) drainWorker(x *exchange, r *http.Request) error {
	within := 0
	faults, err := a.optional(x, r, map[string]any{"within_s": &within})
	if err != nil {
		return err
	}
	if within < 0 || within > maxDrainS {
		faults = append(faults, packs.Detail{Pointer: "/within_s",
			Message: fmt.Sprintf("must be between 1 and %d seconds; leave it out for the worker's own time", maxDrainS)})
	}
	if err := wire.Invalid(faults); err != nil {
		return err
	}
	id := r.PathValue("id")
	status, err := a.cfg.Workers.Drain(r.Context(), id, time.Duration(within)*time.Second)
	if err != nil {
		return err
	}
	a.cfg.Log.Info().Str("worker", id).Str("caller", callerOf(r.Context()).Subject).Int("within_s", within).Msg("worker asked to drain")
	return x.writeJSON(http.StatusAccepted, status)
}
