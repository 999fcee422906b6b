package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

func TestRunPackAnswersWithTheEnvelope(t *testing.T) {
	t.Parallel()
	r := setup(t)
	got := decode[client.Result](t, r.call("POST", "/api/v1/packs/test.echo", ann, `{"text":"hi","cout":3}`).want(t, 200))
	if got.JobID == "" || got.DurationMS < 0 || got.DurationMS > patience.Milliseconds() {
		t.Errorf("got job %q and %d ms", got.JobID, got.DurationMS)
	}
	got.JobID, got.DurationMS = "", 0
	want := client.Result{
		Pack: "test.echo", Version: "v2", Output: json.RawMessage(`{"text":"hi"}`),
		Warnings: []string{"unknown key /cout ignored; did you mean count?"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("envelope (-want +got):\n%s", diff)
	}
	v1 := decode[client.Result](t, r.call("POST", "/api/v1/packs/test.echo/v1", ann, `{"text":"hi"}`).want(t, 200))
	if v1.Version != "v1" {
		t.Errorf("got version %s, want v1", v1.Version)
	}
	// An empty body counts as {}.
	r.call("POST", "/api/v1/packs/test.big", ann, "").want(t, 200)
	r.call("POST", "/api/v1/packs/test.secret", ann, "").want(t, 200)
}

func TestArtifactsOfAResultHaveLinks(t *testing.T) {
	t.Parallel()
	r := setup(t)
	got := decode[client.Result](t, r.call("POST", "/api/v1/packs/test.file", ann, `{}`).want(t, 200))
	if len(got.Artifacts) != 1 || got.SessionID != "s-1" {
		t.Fatalf("got %+v, want one artifact and the session", got)
	}
	path, ok := strings.CutPrefix(got.Artifacts[0].URL, r.url)
	if !ok {
		t.Fatalf("got url %q, want one below %s", got.Artifacts[0].URL, r.url)
	}
	if body := r.call("GET", path, "", "").want(t, 200).body; body != "0123456789" {
		t.Errorf("got %q from the link", body)
	}
	job := decode[jobs.Job](t, r.call("GET", "/api/v1/jobs/"+got.JobID, ann, "").want(t, 200))
	if len(job.Artifacts) != 1 || !strings.HasPrefix(job.Artifacts[0].URL, r.url) {
		t.Errorf("got artifacts %+v in the record, want a link", job.Artifacts)
	}
}

func TestAFailedJobAnswersWithItsCode(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for code, status := range map[packs.Code]int{
		packs.InvalidInput: 400, packs.CredentialInvalid: 424, packs.SchemaMismatch: 409, packs.SessionUnavailable: 503,
		packs.ResourceExhausted: 503, packs.RateLimited: 429, packs.Timeout: 504, packs.ArtifactFailed: 502,
		packs.HandlerFailed: 502, packs.InvalidOutput: 502, packs.OutcomeUnknown: 502, packs.NotFound: 404, packs.Internal: 500,
	} {
		t.Run(string(code), func(t *testing.T) {
			a := r.call("POST", "/api/v1/packs/test.fail", ann, `{"code":"`+string(code)+`"}`).want(t, status)
			got := decode[client.Problem](t, a)
			if got.JobID == "" {
				t.Error("the body names no job")
			}
			after := a.header.Get("Retry-After")
			if needs := code == packs.SessionUnavailable || code == packs.RateLimited; needs != (after != "") || needs != (got.RetryAfterS > 0) {
				t.Errorf("got Retry-After %q and retry_after_s %d", after, got.RetryAfterS)
			}
			result := decode[client.Problem](t, r.call("GET", "/api/v1/jobs/"+got.JobID+"/result", ann, "").want(t, status))
			if diff := cmp.Diff(got, result); diff != "" {
				t.Errorf("the result route differs (-run +result):\n%s", diff)
			}
			if got.Error != code || got.Message != "it failed as asked" || got.Retryable != code.Retryable() {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestTheWaitEndsWith202(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for name, tt := range map[string]struct{ query, header string }{
		"respond-async":  {"", "respond-async"},
		"wait parameter": {"?wait=0", "wait=900"},
		"prefer wait":    {"", "respond-async, wait=0"},
		"one second":     {"?wait=1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := r.call("POST", "/api/v1/packs/test.wait"+tt.query, ann, `{}`, "Prefer", tt.header).want(t, 202)
			job := decode[jobs.Job](t, a)
			if got, want := a.header.Get("Location"), "/api/v1/jobs/"+job.ID; got != want {
				t.Errorf("got Location %q, want %q", got, want)
			}
			r.until(job.ID, running)
			r.call("GET", "/api/v1/jobs/"+job.ID+"/result", ann, "").want(t, 202)
			r.release <- struct{}{}
			got := decode[client.Result](t, r.call("GET", "/api/v1/jobs/"+job.ID+"/result?wait=20", ann, "").want(t, 200))
			if string(got.Output) != `{"text":"released"}` {
				t.Errorf("got output %s", got.Output)
			}
		})
	}
}

func TestHangingUp(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		query string
		want  jobs.State
	}{
		"goes on":          {"", jobs.Succeeded},
		"cancels if asked": {"?cancel_on_disconnect=true", jobs.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			req, err := http.NewRequestWithContext(t.Context(), "POST", r.url+"/api/v1/packs/test.wait"+tt.query, strings.NewReader(`{}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+ann)
			req.Header.Set("Idempotency-Key", "one") // finds the job again
			var job jobs.Job
			err = r.hangUpAfter(req, func() {
				job = r.submitted("one")
				r.until(job.ID, running)
			})
			if err == nil {
				t.Error("the call was answered before the client hung up")
			}
			if tt.want == jobs.Succeeded {
				r.release <- struct{}{}
			}
			if got := r.until(job.ID, ended); got.State != tt.want {
				t.Errorf("got state %s, want %s", got.State, tt.want)
			}
		})
	}
}

func TestSubmitReadListCancel(t *testing.T) {
	t.Parallel()
	r := setup(t)
	wait := r.submit(ann, `{"pack":"test.wait","labels":{"deck":"q3"},"priority":"high","parent_id":null,"input":null}`)
	r.until(wait.ID, func(j jobs.Job) bool { return r.world.Progress(t.Context(), j.Key()) != nil })
	queued := r.submit(ann, `{"pack":"test.echo","version":"v1","input":{"text":"later"},"timeout_s":30,"max_attempts":2}`)
	got := decode[jobs.Job](t, r.call("GET", "/api/v1/jobs/"+wait.ID, ann, "").want(t, 200))
	if got.State != jobs.Running || got.Progress == nil || got.Progress.Percent != 50 || got.Priority != jobs.High {
		t.Errorf("got %+v, want it half done", got)
	}
	got = decode[jobs.Job](t, r.call("GET", "/api/v1/jobs/"+queued.ID, ann, "").want(t, 200))
	if got.State != jobs.Queued || got.QueuePosition == nil || got.TimeoutS != 30 || got.MaxAttempts != 2 || got.Version != "v1" {
		t.Errorf("got %+v, want it queued", got)
	}
	ids := func(query string, token string) (out []string) {
		t.Helper()
		list := decode[client.JobList](t, r.call("GET", "/api/v1/jobs"+query, token, "").want(t, 200))
		for _, j := range list.Jobs {
			out = append(out, j.ID)
		}
		return out
	}
	for query, want := range map[string][]string{
		"":                                      {queued.ID, wait.ID},
		"?state=running":                        {wait.ID},
		"?pack=test.echo":                       {queued.ID},
		"?pool=media":                           nil,
		"?label=deck%3Dq3":                      {wait.ID},
		"?label=deck":                           {wait.ID},
		"?label=deck%3Dq4":                      nil,
		"?since=2026-01-01T00:00:00Z":           {queued.ID, wait.ID},
		"?until=2026-01-01T00:00:00%2B01:00":    nil,
		"?limit=1":                              {queued.ID},
		"?limit=1&cursor=" + queued.ID:          {wait.ID},
		"?parent=01890000-0000-7000-8000-00000": nil,
	} {
		if diff := cmp.Diff(want, ids(query, ann)); diff != "" {
			t.Errorf("list %s (-want +got):\n%s", query, diff)
		}
	}
	if diff := cmp.Diff([]string(nil), ids("", bob)); diff != "" {
		t.Errorf("bob sees jobs of ann (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{queued.ID, wait.ID}, ids("", admin)); diff != "" {
		t.Errorf("the administrator's list (-want +got):\n%s", diff)
	}
	if got := decode[jobs.Job](t, r.call("POST", "/api/v1/jobs/"+queued.ID+"/cancel", ann, "").want(t, 200)); got.State != jobs.Cancelled {
		t.Errorf("got state %s of a queued job, want cancelled", got.State)
	}
	a := r.call("POST", "/api/v1/jobs/"+wait.ID+"/cancel", ann, "").want(t, 202)
	if got := decode[jobs.Job](t, a); !got.CancelRequested || a.header.Get("Location") == "" {
		t.Errorf("got %+v, want the cancel requested", got)
	}
	r.until(wait.ID, ended)
	p := decode[client.Problem](t, r.call("GET", "/api/v1/jobs/"+wait.ID+"/result?wait=5", ann, "").want(t, 409))
	if p.Error != packs.Cancelled || p.JobID != wait.ID {
		t.Errorf("got %+v, want cancelled", p)
	}
}

func TestRetryAndReplay(t *testing.T) {
	t.Parallel()
	r := setup(t)
	first := r.submit(ann, `{"pack":"test.fail","input":{"code":"handler_failed"}}`)
	second := r.submit(ann, `{"pack":"test.fail","input":{"code":"timeout"}}`)
	r.until(first.ID, ended)
	r.until(second.ID, ended)

	again := decode[jobs.Job](t, r.call("POST", "/api/v1/jobs/"+first.ID+"/retry", ann, "").want(t, 202))
	if again.ReplayOf != first.ID || r.until(again.ID, ended).Error.Code != packs.HandlerFailed {
		t.Errorf("got %+v, want a replay of %s with its input", again, first.ID)
	}
	edited := decode[jobs.Job](t, r.call("POST", "/api/v1/jobs/"+first.ID+"/retry", ann, `{"input":{"code":"not_found"}}`).want(t, 202))
	if got := r.until(edited.ID, ended).Error.Code; got != packs.NotFound {
		t.Errorf("got code %s, want that of the edited input", got)
	}

	list := decode[client.DeadList](t, r.call("GET", "/api/v1/dead?limit=200", ann, "").want(t, 200))
	if n := len(list.Dead); n != 4 || list.Dead[n-1].Submission.Job.ID != first.ID || list.Dead[0].Submission.Input != nil {
		t.Errorf("got %d dead letters %+v, want four without inputs, newest first", n, list.Dead)
	}
	one := decode[jobs.DeadLetter](t, r.call("GET", "/api/v1/dead/"+first.ID, ann, "").want(t, 200))
	if string(one.Submission.Input) != `{"code":"handler_failed"}` || len(one.Submission.Job.History) != 1 {
		t.Errorf("got %+v, want the input and the attempt", one)
	}
	r.call("GET", "/api/v1/dead/"+first.ID, bob, "").want(t, 404)

	body := `{"ids":["` + first.ID + `","` + second.ID + `","01890000-0000-7000-8000-000000000000"]}`
	replayed := decode[client.ReplayList](t, r.call("POST", "/api/v1/dead/replay", ann, body).want(t, 202)).Replayed
	if len(replayed) != 3 || replayed[0].Job.ReplayOf != first.ID || replayed[1].Job.ReplayOf != second.ID ||
		replayed[2].Error == nil || replayed[2].Error.Error != packs.NotFound {
		t.Errorf("got %+v, want two jobs and a not_found", replayed)
	}
	edit := `{"id":"` + first.ID + `","input":{"code":"internal"}}`
	replayed = decode[client.ReplayList](t, r.call("POST", "/api/v1/dead/replay", ann, edit).want(t, 202)).Replayed
	if got := r.until(replayed[0].Job.ID, ended).Error.Code; got != packs.Internal {
		t.Errorf("got code %s, want that of the edited input", got)
	}
	r.call("POST", "/api/v1/dead/replay", bob, edit).want(t, 404)
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	r := setup(t)
	send := func(path, token, body string) answer {
		return r.call("POST", path, token, body, "Idempotency-Key", "k ☃")
	}
	first := decode[jobs.Job](t, send("/api/v1/jobs", ann, `{"pack":"test.echo","input":{"text":"a"}}`).want(t, 202))
	again := decode[jobs.Job](t, send("/api/v1/jobs", ann, `{ "pack": "test.echo", "input": {"text": "a"} }`).want(t, 202))
	if again.ID != first.ID {
		t.Errorf("got job %s, want %s again", again.ID, first.ID)
	}
	p := decode[client.Problem](t, send("/api/v1/jobs", ann, `{"pack":"test.echo","input":{"text":"b"}}`).want(t, 409))
	if p.Error != packs.IdempotencyConflict {
		t.Errorf("got %s, want idempotency_conflict", p.Error)
	}
	other := decode[jobs.Job](t, send("/api/v1/jobs", bob, `{"pack":"test.echo","input":{"text":"b"}}`).want(t, 202))
	if other.ID == first.ID {
		t.Error("two callers share a key")
	}
	run := decode[client.Result](t, r.call("POST", "/api/v1/packs/test.echo", ann, `{"text":"x"}`, "Idempotency-Key", "run").want(t, 200))
	rerun := decode[client.Result](t, r.call("POST", "/api/v1/packs/test.echo", ann, `{"text":"x"}`, "Idempotency-Key", "run").want(t, 200))
	if run.JobID != rerun.JobID {
		t.Errorf("got jobs %s and %s, want one", run.JobID, rerun.JobID)
	}
}

func TestQueueFullAndBusAway(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for err, want := range map[error]int{jobs.ErrQueueFull: 429, jobs.ErrUnavailable: 503} {
		r.world.Refuse(err)
		a := r.call("POST", "/api/v1/jobs", ann, `{"pack":"test.echo","input":{"text":"a"}}`).want(t, want)
		p := decode[client.Problem](t, a)
		if !p.Retryable || p.RetryAfterS != 5 || a.header.Get("Retry-After") != "5" {
			t.Errorf("got %+v, want it worth another try in 5 s", p)
		}
	}
}

func TestShutdownEndsWaitingCalls(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) { c.Limits.Wait = time.Hour })
	got := make(chan answer, 1)
	go func() { got <- r.call("POST", "/api/v1/packs/test.wait", ann, `{}`, "Idempotency-Key", "one") }()
	job := r.submitted("one")
	r.until(job.ID, running)
	if err := r.server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-got; a.status != 202 {
		t.Errorf("got status %d at shutdown, want 202", a.status)
	}
	r.release <- struct{}{}
	if got := r.until(job.ID, ended); got.State != jobs.Succeeded {
		t.Errorf("got state %s, want the job to go on", got.State)
	}
}
