package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"reflect"
	"slices"

	"github.com/helmdeck/helmdeck/internal/api/openapi"
	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

func (a *API) scheduleRoutes() []*route {
	const one = "/api/v1/schedules/{id}"
	op := func(method, path, id, scope, summary string) openapi.Operation {
		return openapi.Operation{Method: method, Path: path, ID: id, Tag: "schedules", Scope: scope, Summary: summary}
	}
	record := []openapi.Answer{{Status: ok, Description: "The schedule.", Body: schedules.Schedule{}}}

	create := op(post, "/api/v1/schedules", "create_schedule", runPacks, "Create a schedule")
	create.Description = "cron or every, and the job of each run. Every fault of the body and of the pack's input is told at once. " +
		"parent_id, run_at and delay_s are of single jobs and refused here."
	create.Params, create.Body = []openapi.Param{keyParam}, schedules.Spec{}
	create.Answers = []openapi.Answer{{Status: http.StatusCreated, Description: "Stored; Location is where it is.", Body: schedules.Schedule{}}}

	list := op(get, "/api/v1/schedules", "list_schedules", readPacks, "List schedules, newest first")
	list.Params = []openapi.Param{
		query("state", "", "active, paused or ended."), query("pack", "", "Name of the pack."), query("name", "", "Name of the schedule."),
		limitParam, cursorParam,
	}
	list.Answers = []openapi.Answer{{Status: ok, Description: "One page, without inputs and with the newest run only.", Body: client.ScheduleList{}}}

	show := op(get, one, "show_schedule", readPacks, "Show a schedule with its next and last runs")
	show.Answers = record

	change := op(http.MethodPatch, one, "update_schedule", runPacks, "Change a schedule")
	change.Description = "Keys that are absent stay as they are, null takes the default (RFC 7396, without merging inside input and labels). " +
		"Other times apply from now on; cron takes the place of every and the other way round."
	change.Body, change.Answers = schedules.Spec{}, record

	remove := op(http.MethodDelete, one, "delete_schedule", runPacks, "Delete a schedule")
	remove.Description = "The job of a run that has begun goes on."
	remove.Answers = []openapi.Answer{{Status: http.StatusNoContent, Description: "It is gone."}}

	pause := op(post, one+"/pause", "pause_schedule", runPacks, "Let no run of a schedule begin")
	pause.Answers = record
	resume := op(post, one+"/resume", "resume_schedule", runPacks, "Let a paused schedule go on")
	resume.Description = "catch_up says what becomes of the runs that were missed."
	resume.Answers = record
	run := op(post, one+"/run", "run_schedule", runPacks, "Run the job of a schedule now")
	run.Description = "Whether it is paused or not, and whatever else runs."
	run.Params, run.Answers = []openapi.Param{keyParam}, []openapi.Answer{jobAnswer}

	return []*route{
		{create, false, a.createSchedule}, {list, false, a.listSchedules}, {show, false, a.showSchedule}, {change, false, a.changeSchedule},
		{remove, false, a.deleteSchedule}, {pause, false, a.pauseSchedule}, {resume, false, a.resumeSchedule}, {run, false, a.runSchedule},
	}
}

// scheduleKeys are the keys of the body of a schedule and where they go.
func scheduleKeys(s *schedules.Spec) map[string]any {
	keys := requestKeys(&s.Request)
	for _, k := range []string{"parent_id", "run_at", "delay_s"} { // of a single job
		delete(keys, k)
	}
	keys["webhook"] = &s.Webhook // to be told that there is none
	keys["name"], keys["cron"], keys["every"], keys["time_zone"] = &s.Name, &s.Cron, &s.Every, &s.TimeZone
	keys["start_at"], keys["end_at"], keys["jitter_s"] = &s.StartAt, &s.EndAt, &s.JitterS
	keys["overlap"], keys["catch_up"] = &s.Overlap, &s.CatchUp
	return keys
}

// invalidSpec is the error for faults of a body, with those of the rest of it.
func (a *API) invalidSpec(faults []packs.Detail, spec schedules.Spec) error {
	if len(faults) == 0 {
		return nil
	}
	rest, err := a.cfg.Schedules.Faults(spec)
	if err != nil {
		return err
	}
	for _, d := range rest {
		if !slices.ContainsFunc(faults, func(f packs.Detail) bool { return f.Pointer == d.Pointer }) {
			faults = append(faults, d)
		}
	}
	return wire.Invalid(faults)
}

func (a *API) createSchedule(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	body, err := wire.ReadBody(x, r, a.cfg.Limits.Body)
	if err != nil {
		return err
	}
	var spec schedules.Spec
	faults, err := wire.DecodeObject(body, scheduleKeys(&spec))
	if err != nil {
		return err
	}
	if err := a.invalidSpec(faults, spec); err != nil {
		return err
	}
	s, err := a.cfg.Schedules.Create(r.Context(), callerOf(r.Context()), spec, r.Header.Get("Idempotency-Key"))
	if err != nil {
		return err
	}
	x.Header().Set("Location", "/api/v1/schedules/"+url.PathEscape(s.ID))
	return x.writeJSON(http.StatusCreated, s)
}

func (a *API) listSchedules(x *exchange, r *http.Request) error {
	q := wire.NewQuery(r, "state", "pack", "name", "limit", "cursor")
	query := schedules.Query{
		State: schedules.State(q.OneOf("state", "active", "paused", "ended")), Pack: q.Text("pack"), Name: q.Text("name"),
		Limit: q.Int("limit", 1, maxPage, 0), Cursor: q.Text("cursor"),
	}
	if err := q.Err(); err != nil {
		return err
	}
	page, next, err := a.cfg.Schedules.List(r.Context(), callerOf(r.Context()), query)
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, client.ScheduleList{Schedules: page, NextCursor: next})
}

func (a *API) showSchedule(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	s, err := a.cfg.Schedules.Get(r.Context(), callerOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, s)
}

func (a *API) changeSchedule(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	body, err := wire.ReadBody(x, r, a.cfg.Limits.Body)
	if err != nil {
		return err
	}
	s, err := a.cfg.Schedules.Update(r.Context(), callerOf(r.Context()), r.PathValue("id"),
		func(s schedules.Spec) (schedules.Spec, error) { return a.merge(s, body) })
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, s)
}

// merge changes s as the body of a PATCH says.
func (a *API) merge(s schedules.Spec, body []byte) (schedules.Spec, error) {
	given := map[string]json.RawMessage{}
	_ = json.Unmarshal(body, &given) // what is wrong with it, DecodeObject says
	isNew := func(key string) bool { return len(given[key]) > 0 && !bytes.Equal(given[key], []byte("null")) }
	switch {
	case isNew("every") && !isNew("cron"):
		s.Cron = ""
		if !isNew("time_zone") {
			s.TimeZone = ""
		}
	case isNew("cron") && !isNew("every"):
		s.Every = ""
	}
	if isNew("labels") {
		s.Labels = nil // else the old ones would stay
	}
	keys := scheduleKeys(&s)
	for key := range given {
		if target, ok := keys[key]; ok && !isNew(key) {
			reflect.ValueOf(target).Elem().SetZero()
		}
	}
	faults, err := wire.DecodeObject(body, keys)
	if err != nil {
		return s, err
	}
	return s, a.invalidSpec(faults, s)
}

func (a *API) deleteSchedule(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	if err := a.cfg.Schedules.Delete(r.Context(), callerOf(r.Context()), r.PathValue("id")); err != nil {
		return err
	}
	return x.noContent()
}

func (a *API) pauseSchedule(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	s, err := a.cfg.Schedules.Pause(r.Context(), callerOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, s)
}

func (a *API) resumeSchedule(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	s, err := a.cfg.Schedules.Resume(r.Context(), callerOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, s)
}

func (a *API) runSchedule(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	job, err := a.cfg.Schedules.RunNow(r.Context(), callerOf(r.Context()), r.PathValue("id"), r.Header.Get("Idempotency-Key"))
	if err != nil {
		return err
	}
	return a.accepted(x, r, job)
}
