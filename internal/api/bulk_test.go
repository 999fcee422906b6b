package api_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// busy keeps the one worker of the rig at a job, so that others stay queued.
func (r *rig) busy() jobs.Job {
	r.Helper()
	job := r.submit(ann, `{"pack":"test.wait"}`)
	r.until(job.ID, running)
	return job
}

// queue submits n jobs of a token with a label.
func (r *rig) queue(token, label string, n int) []string {
	r.Helper()
	item := `{"pack":"test.fail","input":{"code":"handler_failed"},"labels":{"set":"` + label + `"}}`
	res := decode[client.BatchResult](r.T, r.call("POST", batchPath, token,
		`{"jobs":[`+strings.TrimSuffix(strings.Repeat(item+",", n), ",")+`]}`).want(r.T, 200))
	return ids(r.T, res)
}

func (r *rig) bulk(path, token, body string, header ...string) client.BulkResult {
	r.Helper()
	return decode[client.BulkResult](r.T, r.call("POST", path, token, body, header...).want(r.T, 200))
}

const (
	cancelPath = "/api/v1/jobs/cancel"
	retryPath  = "/api/v1/jobs/retry"
	replayPath = "/api/v1/dead/replay"
	dropPath   = "/api/v1/dead/drop"
	nobody     = "01890000-0000-7000-8000-000000000000"
)

func TestCancelMany(t *testing.T) {
	t.Parallel()
	r := setup(t)
	wait := r.busy()
	own := r.queue(ann, "a", 5)
	others := r.queue(bob, "a", 2)
	if got := r.bulk(cancelPath, ann, `{"label":"set=a","dry_run":true}`); got.Matched != 5 || got.Done != 0 {
		t.Errorf("dry run: got %+v, want 5", got)
	}
	first := r.bulk(cancelPath, ann, `{"label":"set=a","state":"queued","limit":2}`)
	if want := (client.BulkResult{Matched: 2, Done: 2, More: true, NextCursor: own[3]}); !cmp.Equal(first, want) {
		t.Errorf("first: got %+v, want %+v", first, want)
	}
	if got := r.bulk(cancelPath, ann, `{"label":"set=a","cursor":"`+first.NextCursor+`"}`); got.Done != 3 || got.More {
		t.Errorf("the rest: got %+v, want 3 done", got)
	}
	// Named: what has ended is skipped, what is somebody else's is not there.
	got := r.bulk(cancelPath, ann, fmt.Sprintf(`{"ids":[%q,%q,%q,%q,%q]}`, own[0], others[0], wait.ID, nobody, own[0]))
	if got.Matched != 4 || got.Skipped != 1 || got.Failed != 2 || got.Requested != 1 || got.Done != 0 || len(got.Errors) != 2 ||
		got.Errors[0].ID != others[0] || got.Errors[0].Error.Error != packs.NotFound {
		t.Errorf("named: got %+v", got)
	}
	r.until(wait.ID, ended)
	for _, id := range others {
		if got := r.until(id, ended); got.State != jobs.Failed {
			t.Errorf("a job of bob is %s", got.State)
		}
	}
	for _, id := range own {
		if got := r.until(id, ended); got.State != jobs.Cancelled {
			t.Errorf("job %s is %s, want cancelled", id, got.State)
		}
	}
}

// TestAJobThatMovedIsSkipped: the list says queued, the job says otherwise.
func TestAJobThatMovedIsSkipped(t *testing.T) {
	t.Parallel()
	r := setup(t)
	wait := r.busy()
	if got := r.bulk(cancelPath, ann, `{"ids":["`+wait.ID+`"],"state":"queued"}`); got.Skipped != 1 || got.Requested != 0 {
		t.Errorf("got %+v, want the running job skipped", got)
	}
	if got := r.bulk(retryPath, ann, `{"ids":["`+wait.ID+`"]}`); got.Skipped != 1 || got.Failed != 0 {
		t.Errorf("got %+v, want the running job skipped", got)
	}
	r.release <- struct{}{}
	r.until(wait.ID, ended)
}

func TestCancelManyAsAdministrator(t *testing.T) {
	t.Parallel()
	r := setup(t)
	wait := r.busy()
	r.queue(ann, "a", 2)
	r.queue(bob, "b", 2)
	// The running one last: its worker, once free, would run the others meanwhile.
	if got := r.bulk(cancelPath, admin, `{"all":true,"state":"queued"}`); got.Matched != 4 || got.Done != 4 {
		t.Errorf("got %+v, want everybody's queued jobs", got)
	}
	if got := r.bulk(cancelPath, admin, `{"all":true}`); got.Matched != 1 || got.Requested != 1 {
		t.Errorf("got %+v, want the running job", got)
	}
	r.until(wait.ID, ended)
}

func TestRetryMany(t *testing.T) {
	t.Parallel()
	r := setup(t)
	failed := r.queue(ann, "a", 3)
	good := r.submit(ann, `{"pack":"test.echo","input":{"text":"a"},"labels":{"set":"a"}}`)
	for _, id := range append(slices.Clone(failed), good.ID) {
		r.until(id, ended)
	}
	const body = `{"label":"set=a","pack":"test.fail"}`
	if got := r.bulk(retryPath, ann, `{"label":"set=a","dry_run":true}`); got.Matched != 3 {
		t.Errorf("dry run: got %+v, want those that failed", got)
	}
	ids := `{"ids":["` + strings.Join(failed, `","`) + `"]}`
	first := r.bulk(retryPath, ann, ids, "Idempotency-Key", "k")
	again := r.bulk(retryPath, ann, ids, "Idempotency-Key", "k")
	if first.Done != 3 || !cmp.Equal(first, again) {
		t.Errorf("got %+v, then %+v; want the same three jobs", first, again)
	}
	for i, j := range first.Jobs {
		job := r.until(j.JobID, ended)
		if j.ID != failed[i] || job.ReplayOf != failed[i] {
			t.Errorf("got %+v for %s", j, failed[i])
		}
	}
	if got := r.bulk(retryPath, ann, ids); got.Done != 3 || got.Jobs[0].JobID == first.Jobs[0].JobID {
		t.Errorf("without a key: got %+v, want new jobs", got)
	}
	if got := r.bulk(retryPath, ann, `{"label":"set=a","state":"succeeded"}`); got.Done != 1 || got.Jobs[0].ID != good.ID {
		t.Errorf("by state: got %+v", got)
	}
	if got := r.bulk(retryPath, bob, body); got.Matched != 0 {
		t.Errorf("bob's: got %+v, want none", got)
	}
}

func TestBulkRefusals(t *testing.T) {
	t.Parallel()
	r := setup(t)
	many := func(n int) string {
		return `{"ids":["` + strings.Repeat(nobody+`","`, n-1) + nobody + `"]}`
	}
	for _, path := range []string{cancelPath, retryPath, dropPath, replayPath} {
		for _, tt := range []struct{ body, pointer string }{
			{`{}`, "/ids"},
			{`{"ids":[]}`, "/ids"},
			{`{"all":false}`, "/ids"},
			{`{"pack":""}`, "/ids"},
			{`{"dry_run":true}`, "/ids"},
			{`{"ids":["x"],"pack":"test.echo"}`, "/ids"},
			{`{"ids":["x"],"all":true}`, "/ids"},
			{many(jobs.MaxBatch + 1), "/ids"},
			{`{"ids":["x"],"cursor":"y"}`, "/cursor"},
			{`{"all":true,"limit":-1}`, "/limit"},
			{`{"all":true,"limit":1001}`, "/limit"},
			{`{"al":true}`, "/al"},
			{`{"since":"yesterday"}`, "/since"},
			{`{"all":"yes"}`, "/all"},
		} {
			p := decode[client.Problem](t, r.call("POST", path, ann, tt.body).want(t, 400))
			if p.Error != packs.InvalidInput || len(p.Details) == 0 || p.Details[0].Pointer != tt.pointer {
				t.Errorf("%s %.60s: got %+v, want a fault at %s", path, tt.body, p, tt.pointer)
			}
		}
		r.call("POST", path, reader, `{"all":true}`).want(t, 403)
	}
	for _, path := range []string{cancelPath, retryPath, dropPath} {
		if got := r.bulk(path, ann, `{"all":true,"limit":1000}`); got.Matched != 0 || got.More {
			t.Errorf("%s: got %+v, want nothing to do", path, got)
		}
		// The same job a thousand times is one job.
		if got := r.bulk(path, ann, many(jobs.MaxBatch)); got.Matched != 1 || got.Failed != 1 {
			t.Errorf("%s: got %+v, want one that is not there", path, got)
		}
	}
	for path, body := range map[string]string{cancelPath: `{"state":"succeeded"}`, retryPath: `{"state":"running"}`} {
		p := decode[client.Problem](t, r.call("POST", path, ann, body).want(t, 400))
		if len(p.Details) != 1 || p.Details[0].Pointer != "/state" {
			t.Errorf("%s: got %+v, want a fault at /state", path, p)
		}
	}
	for body, pointer := range map[string]string{
		`{"all":true,"rate_per_s":0.009}`:                        "/rate_per_s",
		`{"all":true,"rate_per_s":1000.1}`:                       "/rate_per_s",
		`{"all":true,"rate_per_s":"fast"}`:                       "/rate_per_s",
		`{"all":true,"poison":1}`:                                "/poison",
		`{"all":true,"input":{}}`:                                "/input",
		`{"id":"x","ids":["x"]}`:                                 "/id",
		`{"all":true,"start_at":"` + in(400*24*time.Hour) + `"}`: "/start_at",
	} {
		p := decode[client.Problem](t, r.call("POST", replayPath, ann, body).want(t, 400))
		if len(p.Details) == 0 || p.Details[0].Pointer != pointer {
			t.Errorf("%s: got %+v, want a fault at %s", body, p, pointer)
		}
	}
}

func in(d time.Duration) string { return time.Now().Add(d).Format(time.RFC3339) }

// dead makes dead letters of a token and returns their ids.
func (r *rig) dead(token, label string, n int) []string {
	r.Helper()
	var all []string
	for range n { // one by one, so that they die in this order
		id := r.queue(token, label, 1)[0]
		r.until(id, ended)
		all = append(all, id)
	}
	return all
}

func TestDeadLetterFilters(t *testing.T) {
	t.Parallel()
	r := setup(t)
	a := r.dead(ann, "a", 1)[0]
	b := r.submit(ann, `{"pack":"test.fail","input":{"code":"timeout"},"labels":{"set":"b"}}`).ID
	r.until(b, ended)
	r.call("POST", "/api/v1/dead/replay", ann, `{"id":"`+a+`","start_at":"`+in(time.Hour)+`"}`).want(t, 202)
	for query, want := range map[string][]string{
		"":                                    {b, a},
		"?code=timeout":                       {b},
		"?code=internal":                      nil,
		"?label=set":                          {b, a},
		"?label=set%3Da":                      {a},
		"?poison=false":                       {b, a},
		"?poison":                             nil,
		"?replayed=true":                      {a},
		"?replayed=false":                     {b},
		"?pool=media":                         nil,
		"?since=" + in(-time.Hour)[:19] + "Z": {b, a},
		"?until=2026-01-01T00:00:00Z":         nil,
		"?pack=test.fail&limit=1":             {b},
	} {
		list := decode[client.DeadList](t, r.call("GET", "/api/v1/dead"+query, ann, "").want(t, 200))
		var got []string
		for _, d := range list.Dead {
			got = append(got, d.Submission.Job.ID)
			if d.Submission.Input != nil {
				t.Errorf("%s: an input is listed", query)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("list %s (-want +got):\n%s", query, diff)
		}
	}
	r.call("GET", "/api/v1/dead?poison=perhaps", ann, "").want(t, 400)
	r.call("GET", "/api/v1/dead?colour=red", ann, "").want(t, 400)
}

func TestReplayMany(t *testing.T) {
	t.Parallel()
	r := setup(t)
	letters := r.dead(ann, "a", 3)
	r.dead(bob, "a", 1)
	c, ctx := r.dial(ann)
	no := false
	sel := client.DeadSelection{Label: "set=a", Replayed: &no}
	dry := client.ReplayRequest{DeadSelection: sel}
	dry.DryRun = true
	if got := must[client.ReplayList](t)(c.Replay(ctx, dry, "")); got.Matched != 3 || len(got.Replayed) != 0 {
		t.Errorf("dry run: got %+v", got)
	}
	start := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	req := client.ReplayRequest{DeadSelection: sel, RatePerS: 0.5, StartAt: start}
	req.Limit = 2
	first := must[client.ReplayList](t)(c.Replay(ctx, req, "k"))
	if len(first.Replayed) != 2 || !first.More || !first.NextStartAt.Equal(start.Add(4*time.Second)) {
		t.Fatalf("got %+v, want two and when the third runs", first)
	}
	for i, want := range []string{letters[2], letters[1]} {
		got := first.Replayed[i]
		if got.ID != want || got.Job == nil || got.Job.ReplayOf != want || got.Job.State != jobs.Scheduled ||
			!got.Job.ScheduledFor.Equal(start.Add(time.Duration(2*i)*time.Second)) {
			t.Errorf("replay %d: got %+v %+v, want one of %s two seconds after the one before", i, got, got.Job, want)
		}
	}
	// The call repeated, on what it chose: the same jobs, though the time has gone on.
	repeat := client.ReplayRequest{DeadSelection: client.DeadSelection{IDs: []string{letters[2], letters[1]}}}
	again := must[client.ReplayList](t)(c.Replay(ctx, repeat, "k"))
	for i := range again.Replayed {
		if again.Replayed[i].Job == nil || again.Replayed[i].Job.ID != first.Replayed[i].Job.ID {
			t.Errorf("replay %d again: got %+v, want job %s", i, again.Replayed[i], first.Replayed[i].Job.ID)
		}
	}
	shown := must[jobs.DeadLetter](t)(c.DeadLetter(ctx, letters[2]))
	if len(shown.ReplayedAs) != 1 || shown.ReplayedAs[0].JobID != first.Replayed[0].Job.ID || shown.ReplayedAs[0].At.IsZero() {
		t.Errorf("got replayed_as %+v, want %s once", shown.ReplayedAs, first.Replayed[0].Job.ID)
	}
	req.Cursor, req.StartAt = first.NextCursor, first.NextStartAt
	rest := must[client.ReplayList](t)(c.Replay(ctx, req, "k"))
	if len(rest.Replayed) != 1 || rest.Replayed[0].ID != letters[0] || rest.More {
		t.Errorf("the rest: got %+v", rest)
	}
	// Another input with the same key is another call.
	changed := client.ReplayRequest{ID: letters[0], Input: json.RawMessage(`{"code":"internal"}`)}
	if _, err := c.Replay(ctx, changed, "k"); errorCode(err) != packs.IdempotencyConflict {
		t.Errorf("got %v, want idempotency_conflict", err)
	}
}

func TestDropDeadLetters(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) {})
	letters := r.dead(ann, "a", 3)
	others := r.dead(bob, "a", 1)
	c, ctx := r.dial(ann)
	if err := c.DropDead(ctx, letters[0]); err != nil {
		t.Fatal(err)
	}
	if err := c.DropDead(ctx, letters[0]); errorCode(err) != packs.NotFound {
		t.Errorf("dropped twice: got %v, want not_found", err)
	}
	if err := c.DropDead(ctx, others[0]); errorCode(err) != packs.NotFound {
		t.Errorf("somebody else's: got %v, want not_found", err)
	}
	res := must[client.BulkResult](t)(c.DropManyDead(ctx, client.DeadSelection{IDs: []string{letters[1], others[0]}}))
	if res.Done != 1 || res.Failed != 1 || res.Errors[0].ID != others[0] {
		t.Errorf("named: got %+v", res)
	}
	dry := client.DeadSelection{All: true}
	dry.DryRun = true
	if res := must[client.BulkResult](t)(c.DropManyDead(ctx, dry)); res.Matched != 1 || res.Done != 0 {
		t.Errorf("dry run: got %+v", res)
	}
	if res := must[client.BulkResult](t)(c.DropManyDead(ctx, client.DeadSelection{Code: packs.HandlerFailed})); res.Done != 1 {
		t.Errorf("by filter: got %+v", res)
	}
	if list := must[client.DeadList](t)(c.DeadLetters(ctx, jobs.DeadQuery{})); len(list.Dead) != 0 {
		t.Errorf("got %d letters, want none", len(list.Dead))
	}
	if _, err := c.Job(ctx, letters[0]); err != nil {
		t.Errorf("the record of a dropped letter's job: %v", err)
	}
	r.call("GET", "/api/v1/dead/"+others[0], bob, "").want(t, 200)
	r.call("DELETE", "/api/v1/dead/"+others[0], reader, "").want(t, 403)
}

func errorCode(err error) packs.Code {
	if e, ok := err.(*client.Error); ok { //nolint:errorlint // as the client returns it
		return e.Code
	}
	return ""
}
