package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/internal/api/openapi"
	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

func (a *API) webhookRoutes() []*route {
	const all, one = "/api/v1/webhooks", "/api/v1/webhooks/{id}"
	op := func(method, path, id, scope, summary string) openapi.Operation {
		return openapi.Operation{Method: method, Path: path, ID: id, Tag: "webhooks", Scope: scope, Summary: summary}
	}
	shown := []openapi.Answer{{Status: ok, Description: "The webhook.", Body: webhooks.Endpoint{}}}
	queued := []openapi.Answer{{Status: took, Description: "Queued; the log shows what became of it.", Body: client.Queued{}}}
	entries := []openapi.Answer{{Status: ok, Description: "One page.", Body: client.DeliveryList{}}}
	entryParams := []openapi.Param{query("delivery", "", "Attempts of this delivery alone."), limitParam, cursorParam}

	create := op(post, all, "create_webhook", runPacks, "Subscribe a URL to events of your jobs")
	create.Description = "The answer shows the secret this once. Without events it hears of the ends of jobs; packs and labels narrow that down."
	create.Body = webhooks.Spec{}
	create.Answers = []openapi.Answer{{Status: http.StatusCreated, Description: "Made.", Body: webhooks.Created{}}}

	list := op(get, all, "list_webhooks", readPacks, "List webhooks, oldest first")
	list.Params = []openapi.Param{limitParam, cursorParam}
	list.Answers = []openapi.Answer{{Status: ok, Description: "One page.", Body: client.WebhookList{}}}

	show := op(get, one, "show_webhook", readPacks, "Show a webhook")
	show.Answers = shown
	patch := op(http.MethodPatch, one, "change_webhook", runPacks, "Change a webhook, or enable one that was disabled")
	patch.Description, patch.Body, patch.Answers = "Fields that are left out stay as they are.", webhooks.Change{}, shown
	remove := op(http.MethodDelete, one, "delete_webhook", runPacks, "Delete a webhook with what waits for it")
	remove.Answers = []openapi.Answer{{Status: http.StatusNoContent, Description: "It is gone."}}

	rotate := op(post, one+"/rotate", "rotate_webhook", runPacks, "Give a webhook a new secret")
	rotate.Description = "The answer shows it this once. Deliveries are signed by the old ones too for keep_s seconds, 24 hours unless given, at most 7 days."
	rotate.Body, rotate.BodyOptional = client.RotateRequest{}, true
	rotate.Answers = []openapi.Answer{{Status: ok, Description: "Rotated.", Body: webhooks.Created{}}}

	test := op(post, one+"/test", "test_webhook", runPacks, "Send a test event, once")
	test.Answers = queued
	log := op(get, one+"/deliveries", "list_deliveries", readPacks, "List the attempts to deliver, newest first")
	log.Description, log.Params, log.Answers = "The last 1,000 attempts of the last 7 days.", entryParams, entries
	replay := op(post, one+"/deliveries/{delivery}/replay", "replay_delivery", runPacks, "Deliver an event again")
	replay.Description, replay.Answers = "With the id it had; the retries begin anew.", queued

	jobLog := op(get, "/api/v1/jobs/{id}/deliveries", "list_job_deliveries", readPacks, "List the attempts to deliver to a job's own webhook, newest first")
	jobLog.Params, jobLog.Answers = entryParams, entries
	jobReplay := op(post, "/api/v1/jobs/{id}/deliveries/{delivery}/replay", "replay_job_delivery", runPacks, "Deliver an event to a job's own webhook again")
	jobReplay.Answers = queued

	return []*route{
		{create, false, a.createWebhook}, {list, false, a.listWebhooks}, {show, false, a.showWebhook}, {patch, false, a.changeWebhook},
		{remove, false, a.deleteWebhook}, {rotate, false, a.rotateWebhook}, {test, false, a.testWebhook}, {log, false, a.listDeliveries},
		{replay, false, a.replayDelivery}, {jobLog, false, a.listJobDeliveries}, {jobReplay, false, a.replayJobDelivery},
	}
}

// fields decodes the body of a request into targets by key; given holds the
// keys that are there and not null.
func (a *API) fields(x *exchange, r *http.Request, targets map[string]any) (given map[string]bool, err error) {
	if err := wire.NewQuery(r).Err(); err != nil {
		return nil, err
	}
	body, err := wire.ReadBody(x, r, a.cfg.Limits.Body)
	if err != nil {
		return nil, err
	}
	faults, err := wire.DecodeObject(body, targets)
	if err != nil {
		return nil, err
	}
	if err := wire.Invalid(faults); err != nil {
		return nil, err
	}
	given = map[string]bool{}
	if len(bytes.TrimSpace(body)) == 0 {
		return given, nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		return nil, err
	}
	for key, value := range raw {
		given[key] = string(value) != "null"
	}
	return given, nil
}

func (a *API) createWebhook(x *exchange, r *http.Request) error {
	var s webhooks.Spec
	var enabled bool
	given, err := a.fields(x, r, map[string]any{
		"url": &s.URL, "events": &s.Events, "packs": &s.Packs, "labels": &s.Labels, "format": &s.Format,
		"description": &s.Description, "secret": &s.Secret, "enabled": &enabled,
	})
	if err != nil {
		return err
	}
	if given["enabled"] {
		s.Enabled = &enabled
	}
	made, err := a.cfg.Webhooks.Create(r.Context(), callerOf(r.Context()), s)
	if err != nil {
		return err
	}
	x.Header().Set("Location", "/api/v1/webhooks/"+made.ID)
	return x.writeSecret(http.StatusCreated, made)
}

// writeSecret answers with what no cache may keep.
func (x *exchange) writeSecret(status int, v any) error {
	x.Header().Set("Cache-Control", "no-store")
	return x.writeJSON(status, v)
}

func (a *API) listWebhooks(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "limit", "cursor")
	limit, cursor := q.Int("limit", 1, maxPage, 0), q.Text("cursor")
	if err := q.Err(); err != nil {
		return err
	}
	page, next, err := a.cfg.Webhooks.List(r.Context(), callerOf(r.Context()), limit, cursor)
	if err != nil {
		return err
	}
	list := client.WebhookList{Webhooks: append([]webhooks.Endpoint{}, page...), NextCursor: next}
	return x.writeJSON(http.StatusOK, list)
}

func (a *API) showWebhook(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	e, err := a.cfg.Webhooks.Get(r.Context(), callerOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, e)
}

func (a *API) changeWebhook(x *exchange, r *http.Request) error {
	var (
		s       webhooks.Spec
		c       webhooks.Change
		enabled bool
	)
	given, err := a.fields(x, r, map[string]any{
		"url": &s.URL, "events": &s.Events, "packs": &s.Packs, "labels": &s.Labels, "format": &s.Format,
		"description": &s.Description, "enabled": &enabled,
	})
	if err != nil {
		return err
	}
	if len(given) == 0 {
		return wire.Invalid([]packs.Detail{{Message: "nothing to change; give at least one of url, events, packs, labels, format, description, enabled"}})
	}
	change(given["url"], &c.URL, &s.URL)
	change(given["events"], &c.Events, &s.Events)
	change(given["packs"], &c.Packs, &s.Packs)
	change(given["labels"], &c.Labels, &s.Labels)
	change(given["format"], &c.Format, &s.Format)
	change(given["description"], &c.Description, &s.Description)
	change(given["enabled"], &c.Enabled, &enabled)
	e, err := a.cfg.Webhooks.Update(r.Context(), callerOf(r.Context()), r.PathValue("id"), c)
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, e)
}

func (a *API) deleteWebhook(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	if err := a.cfg.Webhooks.Delete(r.Context(), callerOf(r.Context()), r.PathValue("id")); err != nil {
		return err
	}
	return x.noContent()
}

func (a *API) rotateWebhook(x *exchange, r *http.Request) error {
	keep := int(webhooks.DefaultKeep / time.Second)
	if _, err := a.fields(x, r, map[string]any{"keep_s": &keep}); err != nil {
		return err
	}
	// Bounded here, so that it cannot overflow a duration.
	keep = max(-1, min(keep, int(webhooks.MaxKeep/time.Second)+1))
	made, err := a.cfg.Webhooks.Rotate(r.Context(), callerOf(r.Context()), r.PathValue("id"), time.Duration(keep)*time.Second)
	if err != nil {
		return err
	}
	return x.writeSecret(http.StatusOK, made)
}

func (a *API) testWebhook(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	id, err := a.cfg.Webhooks.Test(r.Context(), callerOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusAccepted, client.Queued{Delivery: id})
}

func logQuery(r *http.Request) (webhooks.LogQuery, error) {
	q := wire.NewQuery(r, "delivery", "limit", "cursor")
	return webhooks.LogQuery{Delivery: q.Text("delivery"), Limit: q.Int("limit", 1, maxPage, 0), Cursor: q.Text("cursor")}, q.Err()
}

func deliveryList(page []webhooks.Attempt, next string) client.DeliveryList {
	return client.DeliveryList{Deliveries: append([]webhooks.Attempt{}, page...), NextCursor: next}
}

func (a *API) listDeliveries(x *exchange, r *http.Request) error {
	q, err := logQuery(r)
	if err != nil {
		return err
	}
	page, next, err := a.cfg.Webhooks.Deliveries(r.Context(), callerOf(r.Context()), r.PathValue("id"), q)
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, deliveryList(page, next))
}

func (a *API) replayDelivery(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	id := r.PathValue("delivery")
	if err := a.cfg.Webhooks.Replay(r.Context(), callerOf(r.Context()), r.PathValue("id"), id); err != nil {
		return err
	}
	return x.writeJSON(http.StatusAccepted, client.Queued{Delivery: id})
}

func (a *API) listJobDeliveries(x *exchange, r *http.Request) error {
	q, err := logQuery(r)
	if err != nil {
		return err
	}
	job, err := a.hooked(r)
	if err != nil {
		return err
	}
	page, next, err := a.cfg.Webhooks.JobDeliveries(r.Context(), job.Key().Tenant, job.ID, q)
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, deliveryList(page, next))
}

// hooked reads the job that the path names, which must have a webhook.
func (a *API) hooked(r *http.Request) (jobs.Job, error) {
	job, err := a.cfg.Jobs.Get(r.Context(), callerOf(r.Context()), r.PathValue("id"))
	if err == nil && job.Webhook == nil {
		err = packs.Errorf(packs.NotFound, "the job has no webhook of its own; those of GET /api/v1/webhooks have their own lists")
	}
	return job, err
}

func (a *API) replayJobDelivery(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	job, err := a.hooked(r)
	if err != nil {
		return err
	}
	k, id := job.Key(), r.PathValue("delivery")
	if err := a.cfg.Webhooks.JobReplay(r.Context(), k.Tenant, k.Owner, k.ID, id); err != nil {
		return err
	}
	return x.writeJSON(http.StatusAccepted, client.Queued{Delivery: id})
}

// change sets a field of a change to what was given.
func change[T any](given bool, field **T, value *T) {
	if given {
		*field = value
	}
}

// decodeWebhook decodes the webhook of a submit. Its faults point below
// "/webhook".
func decodeWebhook(raw json.RawMessage, req *jobs.Request) []packs.Detail {
	if len(raw) == 0 {
		return nil
	}
	var t webhooks.Target
	faults, err := wire.DecodeObject(raw, map[string]any{
		"url": &t.URL, "secret": &t.Secret, "events": &t.Events, "format": &t.Format,
	})
	if err != nil {
		return []packs.Detail{{Pointer: "/webhook", Message: `must be an object such as {"url": "https://example.com/hooks"}`}}
	}
	for i := range faults {
		faults[i].Pointer = "/webhook" + faults[i].Pointer
	}
	req.Webhook = &t
	return faults
}
