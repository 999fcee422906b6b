package api

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

func (a *API) listDead(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "pool", "pack", "code", "poison", "replayed", "label", "since", "until", "limit", "cursor")
	key, value, _ := strings.Cut(q.Text("label"), "=")
	query := jobs.DeadQuery{
		Pool: q.Text("pool"), Pack: q.Text("pack"), Code: packs.Code(q.Text("code")),
		Poison: q.Choice("poison"), Replayed: q.Choice("replayed"), LabelKey: key, LabelValue: value,
		Since: q.Time("since"), Until: q.Time("until"),
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

func (a *API) dropDead(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	if err := a.cfg.Jobs.DropDead(r.Context(), callerOf(r.Context()), r.PathValue("id")); err != nil {
		return noDeadLetter(err)
	}
	return x.noContent()
}

func (a *API) dropManyDead(x *exchange, r *http.Request) error {
	var sel client.DeadSelection
	if err := a.readSelection(x, r, &sel.Page, deadKeys(&sel), func() (_ []string, _, _ bool, _ []packs.Detail) {
		return sel.IDs, sel.All, filtersDead(sel), nil
	}); err != nil {
		return err
	}
	c, err := a.chooseDead(r, sel)
	if err != nil {
		return err
	}
	out := c.result()
	if !c.DryRun {
		for i, err := range a.cfg.Jobs.DropManyDead(r.Context(), callerOf(r.Context()), c.ids) {
			if err != nil {
				err = noDeadLetter(err)
			}
			count(&out, jobs.Outcome{ID: c.ids[i], Err: err})
		}
	}
	return x.writeJSON(http.StatusOK, out)
}

func deadKeys(sel *client.DeadSelection) map[string]any {
	return map[string]any{
		"ids": &sel.IDs, "all": &sel.All, "pack": &sel.Pack, "pool": &sel.Pool, "code": &sel.Code, "poison": &sel.Poison,
		"replayed": &sel.Replayed, "label": &sel.Label, "since": &sel.Since, "until": &sel.Until,
	}
}

func filtersDead(sel client.DeadSelection) bool {
	return sel.Pack+sel.Pool+string(sel.Code)+sel.Label != "" || sel.Poison != nil || sel.Replayed != nil ||
		!sel.Since.IsZero() || !sel.Until.IsZero()
}

// chooseDead finds the letters that a selection means.
func (a *API) chooseDead(r *http.Request, sel client.DeadSelection) (chosen, error) {
	c := chosen{Page: sel.Page, ids: unique(sel.IDs)}
	if len(c.ids) > 0 {
		return c, nil
	}
	if sel.Limit == 0 {
		sel.Limit = jobs.MaxBatch
	}
	key, value, _ := strings.Cut(sel.Label, "=")
	page, next, err := a.cfg.Jobs.DeadLetters(r.Context(), callerOf(r.Context()), jobs.DeadQuery{
		Pack: sel.Pack, Pool: sel.Pool, Code: sel.Code, Poison: sel.Poison, Replayed: sel.Replayed,
		LabelKey: key, LabelValue: value, Since: sel.Since, Until: sel.Until, Limit: sel.Limit, Cursor: sel.Cursor,
	})
	for _, d := range page {
		c.ids = append(c.ids, d.Submission.Job.ID)
	}
	c.next = next
	return c, err
}

// replayDead submits new jobs from dead letters, each answered on its own.
// When none of those that were named could be, the answer is the first one's
// error.
func (a *API) replayDead(x *exchange, r *http.Request) error {
	var req client.ReplayRequest
	keys := deadKeys(&req.DeadSelection)
	keys["id"], keys["input"], keys["rate_per_s"], keys["start_at"] = &req.ID, &req.Input, &req.RatePerS, &req.StartAt
	if err := a.readSelection(x, r, &req.Page, keys, func() ([]string, bool, bool, []packs.Detail) {
		faults := replayFaults(req)
		if req.ID != "" && len(req.IDs) == 0 {
			req.IDs = []string{req.ID}
		}
		return req.IDs, req.All, filtersDead(req.DeadSelection), faults
	}); err != nil {
		return err
	}
	c, err := a.chooseDead(r, req.DeadSelection)
	if err != nil {
		return err
	}
	list := client.ReplayList{Replayed: []client.Replayed{}, Matched: len(c.ids), More: c.next != "", NextCursor: c.next}
	if c.DryRun {
		return x.writeJSON(http.StatusOK, list)
	}
	plan := jobs.Replays{
		IDs: c.ids, Input: req.Input, Rate: req.RatePerS, StartAt: req.StartAt, Key: r.Header.Get("Idempotency-Key"),
	}
	if req.RatePerS > 0 {
		list.NextStartAt = plan.RunAt(time.Now(), len(c.ids))
	}
	first, failed := error(nil), 0
	for i, res := range a.cfg.Jobs.ReplayMany(r.Context(), callerOf(r.Context()), plan) {
		one := client.Replayed{ID: c.ids[i]}
		if res.Err != nil {
			err := noDeadLetter(res.Err)
			p := wire.ProblemOf(wire.AsError(err))
			one.Error = &p
			if failed++; first == nil {
				first = err
			}
		} else {
			shown := a.view(r, res.Job)
			one.Job = &shown
		}
		list.Replayed = append(list.Replayed, one)
	}
	if len(req.IDs) > 0 && failed == len(c.ids) {
		return first
	}
	return x.writeJSON(http.StatusAccepted, list)
}

func replayFaults(req client.ReplayRequest) (out []packs.Detail) {
	fault := func(pointer, message string) { out = append(out, packs.Detail{Pointer: pointer, Message: message}) }
	if req.ID != "" && len(req.IDs) > 0 {
		fault("/id", "give id or ids, not both")
	}
	if len(req.Input) > 0 && req.ID == "" && len(req.IDs) != 1 {
		fault("/input", "another input goes with one id only")
	}
	if rate := req.RatePerS; rate != 0 && (rate < jobs.MinRate || rate > jobs.MaxRate) {
		fault("/rate_per_s", "must be between 0.01 and 1000 jobs a second; leave it out to run them at once")
	}
	if req.StartAt.After(time.Now().Add(jobs.MaxDelay)) {
		fault("/start_at", "must be at most 366 days ahead")
	}
	return out
}
