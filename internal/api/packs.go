package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/internal/telemetry"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// cancelTimeout bounds the cancel of a job whose caller hung up.
const cancelTimeout = 10 * time.Second

// packOf shows one version of a pack; versions are those it is listed with.
func (a *API) packOf(info packs.Info, versions []string) client.Pack {
	p := client.Pack{
		Name: info.Name, Summary: info.Summary, Description: info.Description,
		Versions: versions, Latest: versions[len(versions)-1],
		Pool: info.Pool, Async: info.Async, Needs: info.Needs,
		InputSchema: info.Input, OutputSchema: info.Output,
		Errors: info.Errors, Effect: info.Effect, Metadata: info.Metadata, Examples: info.Examples,
		TimeoutS: int(info.Timeout / time.Second), MaxAttempts: info.MaxAttempts, MaxInputBytes: info.MaxInputBytes,
		Reason: a.cfg.Unavailable(info),
	}
	p.Available = p.Reason == ""
	if p.Description == "" {
		p.Description = p.Summary
	}
	if p.Metadata == nil {
		p.Metadata = map[string]string{}
	}
	if p.Examples == nil {
		p.Examples = []packs.Example{}
	}
	return p
}

func (a *API) listPacks(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, a.catalogue())
}

// catalogue shows the newest version of every pack, by name.
func (a *API) catalogue() []client.Pack {
	out := []client.Pack{}
	versions := map[string][]string{}
	for _, p := range a.cfg.Packs.List() {
		info := p.Info()
		versions[info.Name] = append(versions[info.Name], info.Version)
		shown := a.packOf(info, versions[info.Name])
		if n := len(out); n > 0 && out[n-1].Name == info.Name {
			out[n-1] = shown
			continue
		}
		out = append(out, shown)
	}
	return out
}

func (a *API) showPack(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	version := r.PathValue("version")
	pack, err := a.cfg.Packs.Get(r.PathValue("name"), version)
	if err != nil {
		return err
	}
	info := pack.Info()
	versions := []string{info.Version}
	if version == "" {
		versions = a.versionsOf(info)
	}
	return x.writeJSON(http.StatusOK, a.packOf(info, versions))
}

func (a *API) versionsOf(latest packs.Info) []string {
	var versions []string
	for _, p := range a.cfg.Packs.List() {
		if info := p.Info(); info.Name == latest.Name {
			versions = append(versions, info.Version)
		}
	}
	if len(versions) == 0 { // a hidden pack
		versions = []string{latest.Version}
	}
	return versions
}

// runPack submits a job and waits for its result.
func (a *API) runPack(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "wait", "cancel_on_disconnect")
	wait := a.waitOf(q, r, a.cfg.Limits.Wait)
	cancel := q.Bool("cancel_on_disconnect")
	if err := q.Err(); err != nil {
		return err
	}
	pack, err := a.cfg.Packs.Get(r.PathValue("name"), r.PathValue("version"))
	if err != nil {
		return err
	}
	info := pack.Info()
	body, err := wire.ReadBody(x, r, max(a.cfg.Limits.Body, info.MaxInputBytes))
	if err != nil {
		return err
	}
	c := callerOf(r.Context())
	req := jobs.Request{
		Pack: info.Name, Version: info.Version, Input: body,
		IdempotencyKey: r.Header.Get("Idempotency-Key"), TraceParent: telemetry.TraceParent(r.Context()),
	}
	if wait == 0 {
		job, err := a.cfg.Jobs.Submit(r.Context(), c, req)
		if err != nil {
			return err
		}
		return a.answerJob(x, r, job)
	}
	ctx, stop := a.waiting(r.Context(), wait)
	defer stop()
	job, _, err := a.cfg.Jobs.Run(ctx, c, req)
	if err != nil {
		return err
	}
	if cancel && r.Context().Err() != nil && !job.State.Terminal() {
		return a.hangUp(r.Context(), c, job)
	}
	return a.answerJob(x, r, job)
}

// hangUp cancels the job of a caller that asked for it and went away.
func (a *API) hangUp(ctx context.Context, c identity.Caller, job jobs.Job) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
	defer stop()
	if _, err := a.cfg.Jobs.Cancel(ctx, c, job.ID); err != nil {
		return fmt.Errorf("cancel job %s of a caller that hung up: %w", job.ID, err)
	}
	return wire.ErrClientGone
}

// waitOf is how long the caller wants to wait for a result: the parameter,
// else the Prefer header, else usual.
func (a *API) waitOf(q *wire.Query, r *http.Request, usual time.Duration) time.Duration {
	most := a.cfg.Limits.MaxWait
	if n := q.Int("wait", 0, int(most/time.Second), -1); n >= 0 {
		return time.Duration(n) * time.Second
	}
	p := wire.Prefer(r.Header)
	switch {
	case p.Wait >= 0: // with respond-async: the time before it applies
		return min(p.Wait, most)
	case p.Async:
		return 0
	}
	return usual
}

// waiting returns a context that ends with ctx, after wait, or when the
// server shuts down.
func (a *API) waiting(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	unhook := context.AfterFunc(a.life, cancel)
	return ctx, func() { unhook(); cancel() }
}

// answerJob answers a caller that waited for job: with the result, with the
// failure, or with 202 and the record when it has not ended.
func (a *API) answerJob(x *exchange, r *http.Request, job jobs.Job) error {
	switch job.State {
	case jobs.Succeeded:
		job = a.view(r, job)
		return x.writeJSON(http.StatusOK, client.Result{
			Pack: job.Pack, Version: job.Version, Output: job.Output, Artifacts: job.Artifacts,
			DurationMS: job.DurationMS, SessionID: job.SessionID, JobID: job.ID, Warnings: job.Warnings,
		})
	case jobs.Failed, jobs.Cancelled:
		x.failedJob = job.ID
		return failureOf(job)
	case jobs.Scheduled, jobs.Queued, jobs.Running, jobs.Retrying:
	}
	return a.accepted(x, r, job)
}

// accepted answers 202 with the record of a job that goes on.
func (a *API) accepted(x *exchange, r *http.Request, job jobs.Job) error {
	x.Header().Set("Location", "/api/v1/jobs/"+job.ID)
	return x.writeJSON(http.StatusAccepted, a.view(r, job))
}

func failureOf(job jobs.Job) error {
	f := job.Error
	if f == nil {
		return packs.Fail(packs.Internal, errors.New("job ended without an error in its record"),
			fmt.Sprintf("the job %s and left no error", job.State))
	}
	return &packs.Error{
		Code: f.Code, Message: f.Message, Details: f.Details,
		RetryAfter: time.Duration(f.RetryAfterS) * time.Second,
	}
}
