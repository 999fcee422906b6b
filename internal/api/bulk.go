package api

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// maxSampled bounds the errors that a bulk answer shows: enough to see what is
// wrong, whatever the number of jobs.
const maxSampled = 20

// readSelection reads the body of a bulk call into keys, those of p added, and
// checks what all bulk calls have in common. ids, all and filtered tell, once
// the body is read, how it selects.
func (a *API) readSelection(x *exchange, r *http.Request, p *client.Page, keys map[string]any,
	check func() (ids []string, all, filtered bool, faults []packs.Detail),
) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	body, err := wire.ReadBody(x, r, a.cfg.Limits.Body)
	if err != nil {
		return err
	}
	all := maps.Clone(keys)
	maps.Copy(all, map[string]any{"limit": &p.Limit, "cursor": &p.Cursor, "dry_run": &p.DryRun})
	faults, err := wire.DecodeObject(body, all)
	if err != nil {
		return err
	}
	if len(faults) == 0 {
		ids, every, filtered, more := check()
		faults = append(more, selectionFaults(ids, every, filtered, *p)...)
	}
	if key := r.Header.Get("Idempotency-Key"); len(key) > jobs.MaxIdempotencyKey || !utf8.ValidString(key) {
		faults = append(faults, keyFault())
	}
	return wire.Invalid(faults)
}

func keyFault() packs.Detail {
	return packs.Detail{Message: fmt.Sprintf("Idempotency-Key must be valid UTF-8 of at most %d bytes", jobs.MaxIdempotencyKey)}
}

func selectionFaults(ids []string, all, filtered bool, p client.Page) []packs.Detail {
	var out []packs.Detail
	fault := func(pointer, format string, args ...any) {
		out = append(out, packs.Detail{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case len(ids) > jobs.MaxBatch:
		fault("/ids", "at most %d at once, got %d", jobs.MaxBatch, len(ids))
	case len(ids) > 0 && (all || filtered):
		fault("/ids", "give ids, or filters, not both")
	case len(ids) > 0 && p.Cursor != "":
		fault("/cursor", "goes with filters, not with ids")
	case len(ids) == 0 && !all && !filtered:
		fault("/ids", "say what to act on: ids, at least one filter, or all: true")
	}
	if p.Limit < 0 || p.Limit > jobs.MaxBatch {
		fault("/limit", "must be between 1 and %d", jobs.MaxBatch)
	}
	return out
}

// chosen is what a bulk call on jobs acts on.
type chosen struct {
	client.Page
	ids    []string
	next   string
	states []jobs.State // a job in another one is skipped
}

// chooseJobs reads the selection of a bulk call. allowed are the states it may
// name, usual those it acts on when it selects by filters and names none.
func (a *API) chooseJobs(x *exchange, r *http.Request, allowed, usual []jobs.State) (chosen, error) {
	var sel client.JobSelection
	err := a.readSelection(x, r, &sel.Page, map[string]any{
		"ids": &sel.IDs, "all": &sel.All, "state": &sel.State, "pack": &sel.Pack, "pool": &sel.Pool, "label": &sel.Label,
		"parent": &sel.Parent, "schedule": &sel.Schedule, "since": &sel.Since, "until": &sel.Until,
	}, func() (_ []string, _, _ bool, faults []packs.Detail) {
		if sel.State != "" && !slices.Contains(allowed, sel.State) {
			faults = []packs.Detail{{Pointer: "/state", Message: "must be " + oneOf(allowed)}}
		}
		filtered := sel.Pack+sel.Pool+sel.Label+sel.Parent+sel.Schedule != "" || !sel.Since.IsZero() || !sel.Until.IsZero()
		// A state with ids is a condition, not a filter.
		return sel.IDs, sel.All, filtered || sel.State != "" && len(sel.IDs) == 0, faults
	})
	if err != nil {
		return chosen{}, err
	}
	c := chosen{Page: sel.Page, ids: unique(sel.IDs), states: usual}
	switch {
	case sel.State != "":
		c.states = []jobs.State{sel.State}
	case len(c.ids) > 0:
		c.states = allowed
	}
	if len(c.ids) > 0 {
		return c, nil
	}
	key, value, _ := strings.Cut(sel.Label, "=")
	c.ids, c.next, err = a.cfg.Jobs.Select(r.Context(), callerOf(r.Context()), jobs.Query{
		States: c.states, Pack: sel.Pack, Pool: sel.Pool, Parent: sel.Parent, Schedule: sel.Schedule, LabelKey: key, LabelValue: value,
		Since: sel.Since, Until: sel.Until, Limit: sel.Limit, Cursor: sel.Cursor,
	})
	return c, err
}

func oneOf(states []jobs.State) string {
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return strings.Join(names, ", ")
}

// unique drops ids that are named again: one job is acted on once.
func unique(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	})
}

func (a *API) cancelJobs(x *exchange, r *http.Request) error {
	c, err := a.chooseJobs(x, r, jobs.Unended, jobs.Unended)
	if err != nil {
		return err
	}
	out := c.result()
	if !c.DryRun {
		for _, o := range a.cfg.Jobs.CancelMany(r.Context(), callerOf(r.Context()), c.ids, c.states) {
			stopping := o.Err == nil && !o.Skipped && !o.Job.State.Terminal()
			if stopping {
				out.Requested++
				continue
			}
			count(&out, o)
		}
	}
	return x.writeJSON(http.StatusOK, out)
}

// endStates are the states of jobs that can be retried.
var endStates = []jobs.State{jobs.Succeeded, jobs.Failed, jobs.Cancelled}

func (a *API) retryJobs(x *exchange, r *http.Request) error {
	c, err := a.chooseJobs(x, r, endStates, jobs.Unsuccessful)
	if err != nil {
		return err
	}
	out := c.result()
	if !c.DryRun {
		key := r.Header.Get("Idempotency-Key")
		for _, o := range a.cfg.Jobs.RetryMany(r.Context(), callerOf(r.Context()), c.ids, c.states, key) {
			if o.Err == nil && !o.Skipped {
				out.Jobs = append(out.Jobs, client.Retried{ID: o.ID, JobID: o.Job.ID})
			}
			count(&out, o)
		}
	}
	return x.writeJSON(http.StatusOK, out)
}

func (c chosen) result() client.BulkResult {
	return client.BulkResult{Matched: len(c.ids), More: c.next != "", NextCursor: c.next}
}

// count adds what one job came to.
func count(out *client.BulkResult, o jobs.Outcome) {
	switch {
	case o.Skipped:
		out.Skipped++
	case o.Err == nil:
		out.Done++
	default:
		out.Failed++
		if len(out.Errors) < maxSampled {
			out.Errors = append(out.Errors, client.BulkError{ID: o.ID, Error: wire.ProblemOf(wire.AsError(o.Err))})
		}
	}
}
