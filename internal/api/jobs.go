package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/internal/telemetry"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// maxPage bounds one page of a listing.
const maxPage = 200

// view is a record as this caller sees it: artifacts have download links.
func (a *API) view(r *http.Request, job jobs.Job) jobs.Job {
	if len(job.Artifacts) > 0 {
		job.Artifacts = slices.Clone(job.Artifacts)
		for i := range job.Artifacts {
			job.Artifacts[i].URL = a.linkTo(r, job.Artifacts[i])
		}
	}
	return job
}

func (a *API) submitJob(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	// The pack, and so the limit, is known only when the body is read.
	most := a.cfg.Limits.Body
	for _, p := range a.cfg.Packs.List() {
		most = max(most, p.Info().MaxInputBytes)
	}
	body, err := wire.ReadBody(x, r, most)
	if err != nil {
		return err
	}
	req := jobs.Request{
		IdempotencyKey: r.Header.Get("Idempotency-Key"), TraceParent: telemetry.TraceParent(r.Context()),
	}
	if err := a.decodeJob(body, &req, requestKeys(&req)); err != nil {
		return err
	}
	if int64(len(body)-len(req.Input)) > a.cfg.Limits.Body {
		return wire.TooLarge(a.cfg.Limits.Body)
	}
	job, err := a.cfg.Jobs.Submit(r.Context(), callerOf(r.Context()), req)
	if err != nil {
		return a.belowInput(err, req)
	}
	return a.accepted(x, r, job)
}

// requestKeys are the keys of a submit and where they go.
func requestKeys(req *jobs.Request) map[string]any {
	return map[string]any{
		"pack": &req.Pack, "version": &req.Version, "input": &req.Input, "priority": &req.Priority,
		"timeout_s": &req.TimeoutS, "max_attempts": &req.MaxAttempts, "labels": &req.Labels, "parent_id": &req.ParentID,
		"concurrency_key": &req.ConcurrencyKey, "concurrency_limit": &req.ConcurrencyLimit,
		"run_at": &req.RunAt, "delay_s": &req.DelayS, "result_ttl_s": &req.ResultTTLS,
		"webhook_url": &req.WebhookURL, "webhook_secret": &req.WebhookSecret,
	}
}

// decodeJob decodes the body of a submit into the fields of req by keys, and
// tells all faults at once, those of the pack's input too.
func (a *API) decodeJob(body []byte, req *jobs.Request, keys map[string]any) error {
	var webhook json.RawMessage
	keys["webhook"] = &webhook
	faults, err := wire.DecodeObject(body, keys)
	if err != nil {
		return err
	}
	faults = append(faults, decodeWebhook(webhook, req)...)
	if req.Pack == "" && !slices.ContainsFunc(faults, func(d packs.Detail) bool { return d.Pointer == "/pack" }) {
		faults = append(faults, packs.Detail{Pointer: "/pack", Message: "is required: the name of the pack to run"})
	}
	if len(faults) > 0 {
		return wire.Invalid(append(faults, a.inputFaults(*req)...))
	}
	return nil
}

// inputFaults are the faults of the pack's input, located in the body of a
// submit, so that they are told together with those of the body.
func (a *API) inputFaults(req jobs.Request) []packs.Detail {
	if req.Pack == "" {
		return nil
	}
	pack, err := a.cfg.Packs.Get(req.Pack, req.Version)
	if err != nil {
		return []packs.Detail{{Pointer: "/pack", Message: wire.AsError(err).Message}}
	}
	_, _, err = pack.Validate(req.Input)
	var pe *packs.Error
	if !errors.As(err, &pe) {
		return nil
	}
	if len(pe.Details) == 0 {
		return []packs.Detail{{Pointer: "/input", Message: pe.Message}}
	}
	below := slices.Clone(pe.Details)
	for i := range below {
		below[i].Pointer = "/input" + below[i].Pointer
	}
	return below
}

// belowInput moves the pointers of a refused submit that are relative to the
// pack's input, which come first, below "/input" where the body has it.
func (a *API) belowInput(err error, req jobs.Request) error {
	e := wire.AsError(err)
	if e.Code != packs.InvalidInput || len(e.Details) == 0 {
		return err
	}
	moved := *e
	moved.Details = slices.Clone(e.Details)
	for i, d := range a.inputFaults(req) {
		if i < len(moved.Details) && "/input"+moved.Details[i].Pointer == d.Pointer {
			moved.Details[i].Pointer = d.Pointer
		}
	}
	return &moved
}

func (a *API) listJobs(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "state", "pack", "pool", "label", "since", "until", "parent", "schedule", "limit", "cursor")
	key, value, _ := strings.Cut(q.Text("label"), "=")
	query := jobs.Query{
		State: jobs.State(q.OneOf("state", "scheduled", "queued", "running", "retrying", "succeeded", "failed", "cancelled")),
		Pack:  q.Text("pack"), Pool: q.Text("pool"), Parent: q.Text("parent"), Schedule: q.Text("schedule"),
		LabelKey: key, LabelValue: value,
		Since: q.Time("since"), Until: q.Time("until"),
		Limit: q.Int("limit", 1, maxPage, 0), Cursor: q.Text("cursor"),
	}
	if err := q.Err(); err != nil {
		return err
	}
	page, next, err := a.cfg.Jobs.List(r.Context(), callerOf(r.Context()), query)
	if err != nil {
		return err
	}
	list := client.JobList{Jobs: make([]jobs.Job, len(page)), NextCursor: next}
	for i, job := range page {
		list.Jobs[i] = a.view(r, job)
	}
	return x.writeJSON(http.StatusOK, list)
}

func (a *API) showJob(x *exchange, r *http.Request) error {
	job, err := a.job(r)
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, a.view(r, job))
}

// job reads the job that the path names.
func (a *API) job(r *http.Request) (jobs.Job, error) {
	if err := wire.NewQuery(r).Err(); err != nil {
		return jobs.Job{}, err
	}
	return a.cfg.Jobs.Get(r.Context(), callerOf(r.Context()), r.PathValue("id"))
}

func (a *API) jobResult(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "wait")
	wait := a.waitOf(q, r, 0)
	if err := q.Err(); err != nil {
		return err
	}
	c, id := callerOf(r.Context()), r.PathValue("id")
	var job jobs.Job
	var err error
	if wait == 0 {
		job, err = a.cfg.Jobs.Get(r.Context(), c, id)
	} else {
		ctx, stop := a.waiting(r.Context(), wait)
		defer stop()
		job, _, err = a.cfg.Jobs.Await(ctx, c, id)
	}
	if err != nil {
		return err
	}
	return a.answerJob(x, r, job)
}

func (a *API) cancelJob(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	job, err := a.cfg.Jobs.Cancel(r.Context(), callerOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	if !job.State.Terminal() { // its worker ends it
		return a.accepted(x, r, job)
	}
	return x.writeJSON(http.StatusOK, a.view(r, job))
}

func (a *API) retryJob(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	body, err := wire.ReadBody(x, r, a.cfg.Limits.Body)
	if err != nil {
		return err
	}
	var req client.RetryRequest
	faults, err := wire.DecodeObject(body, map[string]any{"input": &req.Input})
	if err = errors.Join(err, wire.Invalid(faults)); err != nil {
		return err
	}
	job, err := a.cfg.Jobs.Retry(r.Context(), callerOf(r.Context()), r.PathValue("id"), req.Input)
	if err != nil {
		return err
	}
	return a.accepted(x, r, job)
}
