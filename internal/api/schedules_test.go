package api_test

import (
	"slices"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

const daily = `{"cron":"0 6 * * *","time_zone":"Europe/Berlin","pack":"test.echo","input":{"text":"x"}}`

func (r *rig) schedule(token, body string) schedules.Schedule {
	r.Helper()
	a := r.call("POST", "/api/v1/schedules", token, body).want(r.T, 201)
	s := decode[schedules.Schedule](r.T, a)
	if want := "/api/v1/schedules/" + s.ID; a.header.Get("Location") != want {
		r.Errorf("Location %q, want %q", a.header.Get("Location"), want)
	}
	return s
}

func TestScheduleLife(t *testing.T) {
	t.Parallel()
	r := setup(t)
	s := r.schedule(ann, daily)
	if s.Overlap != schedules.Skip || s.CatchUp != schedules.CatchUpLast || len(s.NextRuns) != 5 || s.State != schedules.Active {
		t.Errorf("created %+v", s)
	}
	path := "/api/v1/schedules/" + s.ID
	if got := decode[schedules.Schedule](t, r.call("POST", path+"/pause", ann, "").want(t, 200)); got.State != schedules.Paused {
		t.Errorf("paused: %s", got.State)
	}
	job := decode[jobs.Job](t, r.call("POST", path+"/run", ann, "").want(t, 202))
	r.until(job.ID, func(j jobs.Job) bool { return j.State == jobs.Succeeded && j.ScheduleID == s.ID })
	if list := decode[client.JobList](t, r.call("GET", "/api/v1/jobs?schedule="+s.ID, ann, "").want(t, 200)); len(list.Jobs) != 1 || list.Jobs[0].ID != job.ID {
		t.Errorf("its jobs: %+v", list.Jobs)
	}
	if got := decode[schedules.Schedule](t, r.call("GET", path, ann, "").want(t, 200)); len(got.LastRuns) != 1 || got.LastRuns[0].JobID != job.ID || string(got.Input) != `{"text":"x"}` {
		t.Errorf("shown: %+v", got)
	}
	list := decode[client.ScheduleList](t, r.call("GET", "/api/v1/schedules?state=paused&pack=test.echo&limit=1", ann, "").want(t, 200))
	if len(list.Schedules) != 1 || list.Schedules[0].ID != s.ID || list.Schedules[0].Input != nil {
		t.Errorf("listed: %+v", list)
	}
	r.call("POST", path+"/resume", ann, "").want(t, 200)
	r.call("DELETE", path, ann, "").want(t, 204)
	r.call("DELETE", path, ann, "").want(t, 404)
}

func TestScheduleRights(t *testing.T) {
	t.Parallel()
	r := setup(t)
	path := "/api/v1/schedules/" + r.schedule(ann, daily).ID
	for _, rt := range [][2]string{{"GET", path}, {"PATCH", path}, {"DELETE", path}, {"POST", path + "/pause"}, {"POST", path + "/resume"}, {"POST", path + "/run"}} {
		if p := decode[client.Problem](t, r.call(rt[0], rt[1], bob, "").want(t, 404)); p.Error != packs.NotFound {
			t.Errorf("%v: %+v", rt, p)
		}
		if rt[0] != "GET" {
			r.call(rt[0], rt[1], reader, "").want(t, 403)
		}
	}
	r.call("POST", "/api/v1/schedules", reader, daily).want(t, 403)
	r.call("GET", path, reader, "").want(t, 200)
	r.call("GET", path, admin, "").want(t, 200)
}

func TestSchedulePatch(t *testing.T) {
	t.Parallel()
	r := setup(t)
	s := r.schedule(ann, `{"cron":"0 6 * * *","time_zone":"Europe/Berlin","name":"n","pack":"test.echo","input":{"text":"x"},"labels":{"a":"1","b":"2"},"priority":"low"}`)
	patch := func(body string) schedules.Schedule {
		t.Helper()
		return decode[schedules.Schedule](t, r.call("PATCH", "/api/v1/schedules/"+s.ID, ann, body).want(t, 200))
	}
	got := patch(`{"every":"10m","labels":{"c":"3"},"priority":null,"name":null}`)
	if got.Cron != "" || got.TimeZone != "" || got.Every != "10m" || got.Name != "" || got.Priority != "" || len(got.Labels) != 1 || got.Labels["c"] != "3" {
		t.Errorf("got %+v", got.Spec)
	}
	if got = patch(`{"cron":"0 7 * * *"}`); got.Every != "" || got.TimeZone != "UTC" || string(got.Input) != `{"text":"x"}` {
		t.Errorf("got %+v", got.Spec)
	}
	p := decode[client.Problem](t, r.call("PATCH", "/api/v1/schedules/"+s.ID, ann, `{"input":{"count":99},"overlap":7,"crom":"x"}`).want(t, 400))
	var at []string
	for _, d := range p.Details {
		at = append(at, d.Pointer)
	}
	slices.Sort(at)
	if want := []string{"/crom", "/input/count", "/input/text", "/overlap"}; !slices.Equal(at, want) {
		t.Errorf("faults %v, want %v", at, want)
	}
}

func TestBadSchedules(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for name, tt := range map[string]struct {
		body string
		at   []string
	}{
		"empty":           {``, []string{"/cron", "/pack"}},
		"types":           {`{"every":5,"start_at":"soon","pack":"test.echo","input":{"text":"x"},"labels":[]}`, []string{"/cron", "/every", "/labels", "/start_at"}},
		"of a single job": {`{"every":"5m","run_at":"2026-01-31T12:00:00Z","delay_s":1,"parent_id":"x","pack":"test.echo","input":{"text":"x"}}`, []string{"/delay_s", "/parent_id", "/run_at"}},
		"input and times": {`{"every":"5ms","pack":"test.echo","input":{"text":""},"priority":"top"}`, []string{"/every", "/input/text", "/priority"}},
		"no such pack":    {`{"every":"5m","pack":"test.ecco"}`, []string{"/pack"}},
		"no such version": {`{"every":"5m","pack":"test.echo","version":"v9"}`, []string{"/pack"}},
	} {
		p := decode[client.Problem](t, r.call("POST", "/api/v1/schedules", ann, tt.body).want(t, 400))
		var at []string
		for _, d := range p.Details {
			at = append(at, d.Pointer)
		}
		if slices.Sort(at); !slices.Equal(at, tt.at) {
			t.Errorf("%s: faults at %v, want %v", name, at, tt.at)
		}
	}
	for _, body := range []string{`[]`, `{`, `"x"`} {
		r.call("POST", "/api/v1/schedules", ann, body).want(t, 400)
	}
	for _, q := range []string{"?state=dreaming", "?limit=0", "?limit=201", "?cursor=!", "?typo=1"} {
		r.call("GET", "/api/v1/schedules"+q, ann, "").want(t, 400)
	}
}
