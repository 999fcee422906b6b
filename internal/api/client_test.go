package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// dial returns a client of the rig.
func (r *rig) dial(token string) (*client.Client, context.Context) {
	r.Helper()
	c, err := client.New(r.url+"/", token)
	if err != nil {
		r.Fatal(err)
	}
	ctx, stop := context.WithTimeout(r.Context(), patience)
	r.Cleanup(func() { stop(); c.Close() })
	return c, ctx
}

// must fails the test on an error.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestClientRunsPacks(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c, ctx := r.dial(ann)
	list := must[[]client.Pack](t)(c.Packs(ctx))
	if len(list) != 5 || list[1].Name != "test.echo" || list[1].Latest != "v2" {
		t.Errorf("got packs %+v", list)
	}
	one := must[client.Pack](t)(c.Pack(ctx, "test.echo", "v1"))
	if diff := cmp.Diff([]string{"v1"}, one.Versions); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	got := must[client.Result](t)(c.RunPack(ctx, "test.echo", json.RawMessage(`{"text":"hi"}`), client.RunOptions{Version: "v1"}))
	if string(got.Output) != `{"text":"hi"}` || got.Version != "v1" {
		t.Errorf("got %+v", got)
	}
	_, err := c.RunPack(ctx, "test.fail", json.RawMessage(`{"code":"session_unavailable"}`), client.RunOptions{})
	var e *client.Error
	if !errors.As(err, &e) || e.Code != packs.SessionUnavailable || e.Status != 503 || e.JobID == "" || e.RetryAfter != 5*time.Second || !e.Retryable {
		t.Errorf("got %+v, want the failure of the job, not repeated", e)
	}
	_, err = c.RunPack(ctx, "test.echo", json.RawMessage(`{"text":""}`), client.RunOptions{})
	if !errors.As(err, &e) || e.Code != packs.InvalidInput || len(e.Details) != 1 || e.RequestID == "" {
		t.Errorf("got %+v, want invalid_input with details", err)
	}
}

func TestClientFollowsAJob(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c, ctx := r.dial(ann)
	job := must[jobs.Job](t)(c.Submit(ctx, jobs.Request{Pack: "test.wait", Labels: map[string]string{"deck": "q3"}, IdempotencyKey: "k"}))
	again := must[jobs.Job](t)(c.Submit(ctx, jobs.Request{Pack: "test.wait", Labels: map[string]string{"deck": "q3"}, IdempotencyKey: "k"}))
	if again.ID != job.ID {
		t.Errorf("got job %s for the same key, want %s", again.ID, job.ID)
	}
	var seen []string
	for e, err := range c.Events(ctx, job.ID, "") {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, strings.TrimPrefix(e.Type, "dev.helmdeck.job."))
		if p, ok := e.Progress(); ok && p.Percent == 50 {
			r.release <- struct{}{}
		}
		seen = append(seen, e.Lines()...)
		if j, ok := e.Job(); ok {
			seen = append(seen, string(j.State))
		}
	}
	want := []string{"started", "running", "log", "waiting", "for release", "progress", "log", "released", "succeeded", "succeeded"}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	text := must[io.ReadCloser](t)(c.Logs(ctx, job.ID, true))
	lines := must[[]byte](t)(io.ReadAll(text))
	text.Close()
	if diff := cmp.Diff("waiting\nfor release\nreleased\n", string(lines)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	got := must[client.Result](t)(c.Await(ctx, job.ID))
	if got.JobID != job.ID {
		t.Errorf("got %+v", got)
	}
	page := must[client.JobList](t)(c.Jobs(ctx, jobs.Query{State: jobs.Succeeded, LabelKey: "deck", LabelValue: "q3", Limit: 1, Since: time.Unix(0, 0)}))
	if len(page.Jobs) != 1 || page.Jobs[0].ID != job.ID {
		t.Errorf("got %+v", page)
	}
	if got := must[jobs.Job](t)(c.Job(ctx, job.ID)); got.State != jobs.Succeeded {
		t.Errorf("got %+v", got)
	}
}

func TestClientWaitsBeyondARequest(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c, ctx := r.dial(ann)
	job := must[jobs.Job](t)(c.Submit(ctx, jobs.Request{Pack: "test.wait"}))
	_, pending, err := c.Result(ctx, job.ID, 0)
	if err != nil || pending == nil || pending.ID != job.ID {
		t.Fatalf("got %+v, %v; want the record", pending, err)
	}
	r.api.EndStreams() // from now on waits end at once
	accepted := make(chan jobs.Job, 1)
	failed := make(chan error, 1)
	go func() {
		_, err := c.RunPack(ctx, "test.wait", nil, client.RunOptions{Accepted: func(j jobs.Job) { accepted <- j }})
		failed <- err
	}()
	second := <-accepted
	r.release <- struct{}{}
	r.release <- struct{}{}
	if err := <-failed; err != nil {
		t.Errorf("got %v, want the result of job %s", err, second.ID)
	}
}

func TestClientCancelsRetriesReplays(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c, ctx := r.dial(ann)
	wait := must[jobs.Job](t)(c.Submit(ctx, jobs.Request{Pack: "test.wait"}))
	r.until(wait.ID, running)
	if got := must[jobs.Job](t)(c.Cancel(ctx, wait.ID)); !got.CancelRequested {
		t.Errorf("got %+v, want the cancel requested", got)
	}
	r.until(wait.ID, ended)
	fail := must[jobs.Job](t)(c.Submit(ctx, jobs.Request{Pack: "test.fail", Input: json.RawMessage(`{"code":"timeout"}`)}))
	r.until(fail.ID, ended)
	if got := must[jobs.Job](t)(c.Retry(ctx, fail.ID, json.RawMessage(`{"code":"not_found"}`))); got.ReplayOf != fail.ID {
		t.Errorf("got %+v", got)
	}
	if got := must[client.DeadList](t)(c.DeadLetters(ctx, jobs.DeadQuery{Pack: "test.fail"})); len(got.Dead) == 0 {
		t.Error("got no dead letters")
	}
	if got := must[jobs.DeadLetter](t)(c.DeadLetter(ctx, fail.ID)); string(got.Submission.Input) != `{"code":"timeout"}` {
		t.Errorf("got %+v", got)
	}
	got := must[client.ReplayList](t)(c.Replay(ctx, client.ReplayRequest{ID: fail.ID}, "")).Replayed
	if len(got) != 1 || got[0].Job == nil || got[0].Job.ReplayOf != fail.ID {
		t.Errorf("got %+v", got)
	}
}

func TestClientMovesFiles(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c, ctx := r.dial(ann)
	want := bytes.Repeat([]byte("0123456789abcdef"), 64<<10) // 1 MiB
	up := must[client.Upload](t)(c.Upload(ctx, `dir/a "quoted" näme.bin`, "", bytes.NewReader(want)))
	if up.Size != int64(len(want)) || up.Filename != `a "quoted" näme.bin` {
		t.Errorf("got %+v", up)
	}
	var got bytes.Buffer
	d := must[client.Download](t)(c.Download(ctx, up.ArtifactKey, &got))
	if !bytes.Equal(want, got.Bytes()) || d.SHA256 != up.SHA256 || d.Size != up.Size || d.Name != up.Filename {
		t.Errorf("got %d bytes and %+v, want what was uploaded", got.Len(), d)
	}
	list := must[client.ArtifactList](t)(c.Artifacts(ctx, client.ArtifactQuery{Pack: "operator-uploads", Name: "QUOTED", Limit: 5}))
	if list.Count != 1 || list.Artifacts[0].Key != up.ArtifactKey {
		t.Errorf("got %+v", list)
	}
	if err := c.DeleteArtifact(ctx, up.ArtifactKey); err != nil {
		t.Error(err)
	}
	var e *client.Error
	if _, err := c.Download(ctx, up.ArtifactKey, io.Discard); !errors.As(err, &e) || e.Code != packs.NotFound {
		t.Errorf("got %v, want not_found", err)
	}
}

func TestClientOperates(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c, ctx := r.dial(ann)
	if got := must[string](t)(c.Version(ctx)); got != "v1.2.3" {
		t.Errorf("got version %s", got)
	}
	if got := must[[]client.PoolStatus](t)(c.Pools(ctx)); len(got) != 2 {
		t.Errorf("got pools %+v", got)
	}
	if got := must[client.Readiness](t)(c.Ready(ctx, "core")); got.Status != "ready" {
		t.Errorf("got %+v", got)
	}
	if got := must[client.Readiness](t)(c.Ready(ctx, "core", "media")); got.Status != "unavailable" || got.Checks["pool media"] == "ok" {
		t.Errorf("got %+v", got)
	}
	stranger, ctx := r.dial("")
	var e *client.Error
	if _, err := stranger.Packs(ctx); !errors.As(err, &e) || e.Code != packs.MissingBearer {
		t.Errorf("got %v, want missing_bearer", err)
	}
}
