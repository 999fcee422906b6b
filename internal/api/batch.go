package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/internal/telemetry"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// submitBatch submits up to jobs.MaxBatch jobs, each answered on its own. It
// refuses as a whole only what is no batch.
func (a *API) submitBatch(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	body, err := wire.ReadBody(x, r, a.cfg.Limits.Batch)
	if err != nil {
		return err
	}
	var items []json.RawMessage
	faults, err := wire.DecodeObject(body, map[string]any{"jobs": &items})
	if err != nil {
		return err
	}
	key := r.Header.Get("Idempotency-Key")
	if err := wire.Invalid(append(faults, batchFaults(items, key, faults)...)); err != nil {
		return err
	}
	answers := make([]client.BatchAnswer, len(items))
	reqs, at := make([]jobs.Request, 0, len(items)), make([]int, 0, len(items))
	for i, item := range items {
		answers[i].Index = i
		req := jobs.Request{TraceParent: telemetry.TraceParent(r.Context())}
		if key != "" {
			req.IdempotencyKey = jobs.ItemKey(key, i)
		}
		keys := requestKeys(&req)
		keys["idempotency_key"] = &req.IdempotencyKey
		if err := a.decodeJob(item, &req, keys); err != nil {
			answers[i].Error = itemProblem(err, i)
			continue
		}
		reqs, at = append(reqs, req), append(at, i)
	}
	for n, result := range a.cfg.Jobs.SubmitBatch(r.Context(), callerOf(r.Context()), reqs) {
		i := at[n]
		if result.Err != nil {
			answers[i].Error = itemProblem(a.belowInput(result.Err, reqs[n]), i)
			continue
		}
		job := a.view(r, result.Job)
		answers[i].Job = &job
	}
	out := client.BatchResult{Jobs: answers}
	for i := range answers {
		if answers[i].Error != nil {
			out.Refused++
		}
	}
	out.Accepted = len(answers) - out.Refused
	return x.writeJSON(http.StatusOK, out)
}

// batchFaults are the faults of a batch as a whole.
func batchFaults(items []json.RawMessage, key string, known []packs.Detail) []packs.Detail {
	fault := func(pointer, format string, args ...any) []packs.Detail {
		return []packs.Detail{{Pointer: pointer, Message: fmt.Sprintf(format, args...)}}
	}
	switch {
	case slices.ContainsFunc(known, func(d packs.Detail) bool { return d.Pointer == "/jobs" }):
	case len(items) == 0:
		return fault("/jobs", "is required: the jobs to submit, 1 to %d", jobs.MaxBatch)
	case len(items) > jobs.MaxBatch:
		return fault("/jobs", "at most %d jobs at once, got %d; send the rest in further batches", jobs.MaxBatch, len(items))
	case len(key) > jobs.MaxIdempotencyKey || !utf8.ValidString(key):
		return []packs.Detail{keyFault()}
	}
	return nil
}

// itemProblem is the error body of item i of a batch. Its pointers, which are
// relative to the item, become those into the whole body.
func itemProblem(err error, i int) *client.Problem {
	p := wire.ProblemOf(wire.AsError(err))
	p.Details = slices.Clone(p.Details)
	for n, d := range p.Details {
		if d.Pointer == "" || strings.HasPrefix(d.Pointer, "/") {
			p.Details[n].Pointer = fmt.Sprintf("/jobs/%d%s", i, d.Pointer)
		}
	}
	return &p
}
