package api_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
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

// open begins a stream and returns a reader of its lines; closing hangs up.
func (r *rig) open(path, token, lastEventID string) (*http.Response, *bufio.Reader) {
	r.Helper()
	ctx, hangUp := context.WithTimeout(r.Context(), patience)
	req, err := http.NewRequestWithContext(ctx, "GET", r.url+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if lastEventID != "" {
		req.Header.Set("Last-Event-ID", lastEventID)
	}
	res, err := r.http.Do(req)
	if err != nil {
		hangUp()
		r.Fatal(err)
	}
	r.Cleanup(func() { hangUp(); res.Body.Close() })
	return res, bufio.NewReader(res.Body)
}

// fields reads one block of a stream, up to an empty line, without the data;
// nil at the end.
func fields(t *testing.T, b *bufio.Reader) []string {
	t.Helper()
	var out []string
	for {
		line, err := b.ReadString('\n')
		if errors.Is(err, io.EOF) && line == "" && out == nil {
			return nil
		}
		if err != nil {
			t.Fatalf("read stream: %v", err)
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			return out
		}
		if !strings.HasPrefix(line, "data: ") {
			out = append(out, line)
		}
	}
}

func TestEventsFollowAJob(t *testing.T) {
	t.Parallel()
	r := setup(t)
	job := r.submit(ann, `{"pack":"test.wait"}`)
	res, stream := r.open("/api/v1/jobs/"+job.ID+"/events", ann, "")
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("got type %q", got)
	}
	for i, name := range []string{"started", "log", "progress"} {
		want := []string{"id: EVT:" + string(rune('1'+i)), "event: dev.helmdeck.job." + name}
		if diff := cmp.Diff(want, fields(t, stream)); diff != "" {
			t.Fatalf("event %d (-want +got):\n%s", i, diff)
		}
	}
	r.release <- struct{}{}
	rest := func(b *bufio.Reader) (out [][]string) {
		for f := fields(t, b); f != nil; f = fields(t, b) {
			out = append(out, f)
		}
		return out
	}
	want := [][]string{{"id: EVT:4", "event: dev.helmdeck.job.log"}, {"id: EVT:5", "event: dev.helmdeck.job.succeeded"}}
	if diff := cmp.Diff(want, rest(stream)); diff != "" {
		t.Errorf("end of the stream (-want +got):\n%s", diff)
	}
	_, resumed := r.open("/api/v1/jobs/"+job.ID+"/events", ann, "EVT:3")
	if diff := cmp.Diff(want, rest(resumed)); diff != "" {
		t.Errorf("resumed by header (-want +got):\n%s", diff)
	}
	_, resumed = r.open("/api/v1/jobs/"+job.ID+"/events?after=EVT:3", ann, "")
	if diff := cmp.Diff(want, rest(resumed)); diff != "" {
		t.Errorf("resumed by parameter (-want +got):\n%s", diff)
	}
	_, all := r.open("/api/v1/jobs/"+job.ID+"/events", ann, "")
	if got := rest(all); len(got) != 5 {
		t.Errorf("got %d events of an ended job, want 5", len(got))
	}
	r.call("GET", "/api/v1/jobs/"+job.ID+"/events", ann, "", "Last-Event-ID", "EVT:5").want(t, 204)
	r.call("GET", "/api/v1/jobs/"+job.ID+"/events", bob, "").want(t, 404)
}

func TestASilentStreamSaysItIsAlive(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) { c.Limits.KeepAlive = 10 * time.Millisecond })
	job := r.submit(ann, `{"pack":"test.wait"}`)
	_, stream := r.open("/api/v1/jobs/"+job.ID+"/events", ann, "")
	for alive := 0; alive < 3; {
		if f := fields(t, stream); len(f) == 1 && f[0] == ": keep-alive" {
			alive++
		}
	}
}

func TestShutdownEndsStreams(t *testing.T) {
	t.Parallel()
	r := setup(t)
	job := r.submit(ann, `{"pack":"test.wait"}`)
	_, events := r.open("/api/v1/jobs/"+job.ID+"/events", ann, "")
	_, logs := r.open("/api/v1/jobs/"+job.ID+"/logs?follow=true", ann, "")
	fields(t, events)
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	if err := r.server.Shutdown(ctx); err != nil {
		t.Fatalf("shutdown waits for streams: %v", err)
	}
	for _, stream := range []*bufio.Reader{events, logs} {
		if _, err := io.Copy(io.Discard, stream); err != nil {
			t.Errorf("the stream was cut: %v", err)
		}
	}
}

func TestLogs(t *testing.T) {
	t.Parallel()
	r := setup(t)
	job := r.submit(ann, `{"pack":"test.wait"}`)
	r.until(job.ID, func(j jobs.Job) bool { return r.world.Progress(t.Context(), j.Key()) != nil })
	if diff := cmp.Diff("waiting\nfor release\n", r.call("GET", "/api/v1/jobs/"+job.ID+"/logs", ann, "").want(t, 200).body); diff != "" {
		t.Errorf("log so far (-want +got):\n%s", diff)
	}
	res, live := r.open("/api/v1/jobs/"+job.ID+"/logs?follow=true", ann, "")
	if got := res.Header.Get("Content-Type"); got != "text/plain; charset=utf-8" {
		t.Errorf("got type %q", got)
	}
	if line, err := live.ReadString('\n'); line != "waiting\n" || err != nil {
		t.Errorf("got %q, %v", line, err)
	}
	r.release <- struct{}{}
	if rest, err := io.ReadAll(live); string(rest) != "for release\nreleased\n" || err != nil {
		t.Errorf("got %q, %v", rest, err)
	}
	r.call("GET", "/api/v1/jobs/"+job.ID+"/logs", bob, "").want(t, 404)
}

// failing breaks off after one event, as when the bus goes away.
type failing struct{ first *api.Event }

func (f failing) Follow(context.Context, jobs.Key, api.Cursor) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		if f.first == nil || yield(*f.first, nil) {
			yield(api.Event{}, packs.Fail(packs.SessionUnavailable, errors.New("a secret cause"), "the bus is away"))
		}
	}
}

func (f failing) History(ctx context.Context, k jobs.Key, c api.Cursor) iter.Seq2[api.Event, error] {
	return f.Follow(ctx, k, c)
}

func TestTheBusGoesAwayUnderAStream(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) { c.Events = failing{} })
	job := r.submit(ann, `{"pack":"test.echo","input":{"text":"a"}}`)
	if p := decode[client.Problem](t, r.call("GET", "/api/v1/jobs/"+job.ID+"/events", ann, "").want(t, 503)); p.Error != packs.SessionUnavailable {
		t.Errorf("got %+v", p)
	}
	r.call("GET", "/api/v1/jobs/"+job.ID+"/logs", ann, "").want(t, 503)

	// After the header the stream just ends: the client comes back.
	evil := &api.Event{Cursor: "EVT:1\nid: forged", Type: "x\rtype", Data: []byte("{\n\"a\":1}\r\n")}
	r = setup(t, func(c *api.Config) { c.Events = failing{evil} })
	job = r.submit(ann, `{"pack":"test.echo","input":{"text":"a"}}`)
	want := "id: EVT:1id: forged\nevent: xtype\ndata: {\ndata: \"a\":1}\ndata: \n\n"
	if diff := cmp.Diff(want, r.call("GET", "/api/v1/jobs/"+job.ID+"/events", ann, "").want(t, 200).body); diff != "" {
		t.Errorf("stream (-want +got):\n%s", diff)
	}
}
