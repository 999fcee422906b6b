package api

import (
	"errors"
	"net/http"
	"slices"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// maxReplay bounds the dead letters of one replay: each is a durable write,
// and a bulk replay must not fill a queue in one go.
const maxReplay = 1000

func (a *API) listDead(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "pool", "pack", "limit", "cursor")
	query := jobs.DeadQuery{
		Pool: q.Text("pool"), Pack: q.Text("pack"),
		Limit: q.Int("limit", 1, maxPage, 0), Cursor: q.Text("cursor"),
	}
	if err := q.Err(); err != nil {
		return err
	}
	page, next, err := a.cfg.Jobs.DeadLetters(r.Context(), callerOf(r.Context()), query)
	if err != nil {
		return err
	}
	list := client.DeadList{Dead: make([]jobs.DeadLetter, len(page)), NextCursor: next}
	for i, d := range page {
		list.Dead[i] = a.dead(r, d)
		list.Dead[i].Submission.Input = nil // up to 8 MiB each; the letter itself shows it
	}
	return x.writeJSON(http.StatusOK, list)
}

// dead is a dead letter without what is no concern of callers.
func (a *API) dead(r *http.Request, d jobs.DeadLetter) jobs.DeadLetter {
	d.Submission.Job = a.view(r, d.Submission.Job)
	d.Submission.InputKey, d.Submission.WebhookSecret = "", ""
	return d
}

func (a *API) showDead(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	d, err := a.cfg.Jobs.DeadLetter(r.Context(), callerOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return noDeadLetter(err)
	}
	return x.writeJSON(http.StatusOK, a.dead(r, d))
}

func noDeadLetter(err error) error {
	if e := wire.AsError(err); e.Code == packs.NotFound && errors.Is(err, jobs.ErrNotFound) {
		return packs.Fail(packs.NotFound, err, "no such dead letter; list them with GET /api/v1/dead")
	}
	return err
}

// replayDead submits new jobs from dead letters, each answered on its own.
// When none could be, the answer is the first one's error.
func (a *API) replayDead(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	body, err := wire.ReadBody(x, r, a.cfg.Limits.Body)
	if err != nil {
		return err
	}
	var req client.ReplayRequest
	faults, err := wire.DecodeObject(body, map[string]any{"id": &req.ID, "ids": &req.IDs, "input": &req.Input})
	if err != nil {
		return err
	}
	if err := wire.Invalid(append(faults, replayFaults(req, faults)...)); err != nil {
		return err
	}
	ids := req.IDs
	if req.ID != "" {
		ids = []string{req.ID}
	}
	list := client.ReplayList{Replayed: make([]client.Replayed, len(ids))}
	var first error
	failed := 0
	for i, id := range ids {
		list.Replayed[i].ID = id
		job, err := a.cfg.Jobs.Replay(r.Context(), callerOf(r.Context()), id, req.Input)
		if err != nil {
			err = noDeadLetter(err)
			p := wire.ProblemOf(wire.AsError(err))
			list.Replayed[i].Error = &p
			failed++
			if first == nil {
				first = err
			}
			continue
		}
		shown := a.view(r, job)
		list.Replayed[i].Job = &shown
	}
	if failed == len(ids) {
		return first
	}
	return x.writeJSON(http.StatusAccepted, list)
}

func replayFaults(req client.ReplayRequest, known []packs.Detail) []packs.Detail {
	of := func(pointer string) bool {
		return slices.ContainsFunc(known, func(d packs.Detail) bool { return d.Pointer == pointer })
	}
	switch {
	case of("/id") || of("/ids"):
	case req.ID == "" && len(req.IDs) == 0:
		return []packs.Detail{{Pointer: "/ids", Message: "is required: the ids of the dead letters to replay, or id for one"}}
	case req.ID != "" && len(req.IDs) > 0:
		return []packs.Detail{{Pointer: "/id", Message: "give id or ids, not both"}}
	case len(req.IDs) > maxReplay:
		return []packs.Detail{{Pointer: "/ids", Message: "at most 1000 at once"}}
	case len(req.IDs) > 1 && len(req.Input) > 0:
		return []packs.Detail{{Pointer: "/input", Message: "another input goes with one id only"}}
	}
	return nil
}
