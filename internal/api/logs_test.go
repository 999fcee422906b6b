package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// told is a fixed history of log events. breaks is how many connections of a
// follower break off after one event.
type told struct {
	events []api.Event
	breaks int
}

func (h *told) Follow(ctx context.Context, k jobs.Key, after api.Cursor) iter.Seq2[api.Event, error] {
	if h.breaks == 0 {
		return h.History(ctx, k, after)
	}
	h.breaks--
	return func(yield func(api.Event, error) bool) {
		for e := range h.History(ctx, k, after) {
			yield(e, nil)
			return
		}
	}
}

func (h *told) History(_ context.Context, _ jobs.Key, after api.Cursor) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		for _, e := range h.events {
			if after != "" && e.Cursor <= after {
				continue
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// logged is the n-th event: lines of an attempt, after from others.
func logged(n, attempt, from int, lines ...string) api.Event {
	text, err := json.Marshal(map[string]any{"attempt": attempt, "data": map[string]any{"from": from, "lines": lines}})
	if err != nil {
		panic(err)
	}
	return api.Event{Cursor: api.Cursor(fmt.Sprintf("PROG:%d", n)), Kind: api.EventLog, Data: text}
}

func over(n int) api.Event {
	return api.Event{Cursor: api.Cursor(fmt.Sprintf("PROG:%d", n)), Kind: api.EventLifecycle, Terminal: true, Data: []byte("{}")}
}

func tell(t *testing.T, h *told, mods ...func(*api.Config)) (*rig, string) {
	t.Helper()
	r := setup(t, append(mods, func(c *api.Config) { c.Events = h })...)
	return r, r.submit(ann, `{"pack":"test.echo","input":{"text":"a"}}`).ID
}

// gaps is a log of which lines are no longer kept, of two attempts and of a
// run that began anew without being charged.
var gaps = []api.Event{
	logged(1, 1, 3, "d", "e"), logged(2, 1, 5, "f"), logged(3, 1, 9, "j"),
	logged(4, 2, 0, "A"), {Cursor: "PROG:5", Kind: api.EventProgress, Data: []byte("{}")},
	{Cursor: "PROG:6", Kind: api.EventLog, Data: []byte("no event")}, logged(7, 2, 0, "again"), over(8),
}

func TestALogSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	r, id := tell(t, &told{events: gaps})
	const missing = "[helmdeck: 3 lines are no longer kept]\n"
	for path, want := range map[string]string{
		"/logs":                          missing + "d\ne\nf\n" + missing + "j\nA\nagain\n",
		"/logs?follow=true":              missing + "d\ne\nf\n" + missing + "j\nA\nagain\n",
		"/logs?after=PROG:1":             "f\n" + missing + "j\nA\nagain\n",
		"/logs?after=PROG:2&follow=true": "j\nA\nagain\n",
		"/logs?after=PROG:8":             "",
	} {
		if diff := cmp.Diff(want, r.call("GET", "/api/v1/jobs/"+id+path, ann, "").want(t, 200).body); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

func TestALongLogIsCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 99)
	var all []api.Event
	for n := range 5 {
		all = append(all, logged(n+1, 1, n, long))
	}
	r, id := tell(t, &told{events: append(all, over(6))}, func(c *api.Config) { c.Limits.Logs = 200 })
	body := r.call("GET", "/api/v1/jobs/"+id+"/logs", ann, "").want(t, 200).body
	want := long + "\n" + long + "\n[helmdeck: cut after 200 bytes; the rest: the same with after=PROG:2]\n"
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	// Who follows gets all of it, and so does the client, by asking again.
	if got := r.call("GET", "/api/v1/jobs/"+id+"/logs?follow=true", ann, "").want(t, 200).body; strings.Count(got, long) != 5 {
		t.Errorf("a follower got %d bytes", len(got))
	}
	if got := linesOf(t, r, id, "", false); len(got) != 5 {
		t.Errorf("the client got %d lines, want 5", len(got))
	}
}

func TestLogEvents(t *testing.T) {
	t.Parallel()
	r, id := tell(t, &told{events: []api.Event{logged(1, 1, 0, "a", "b"), logged(2, 1, 2, "c"), over(3)}})
	path := "/api/v1/jobs/" + id + "/logs?follow=true"
	want := "id: PROG:1\nevent: log\ndata: {\"lines\":[\"a\",\"b\"],\"attempt\":1}\n\n" +
		"id: PROG:2\nevent: log\ndata: {\"lines\":[\"c\"],\"attempt\":1}\n\n" +
		"id: PROG:3\nevent: end\ndata: {}\n\n"
	if diff := cmp.Diff(want, r.call("GET", path, ann, "", "Accept", "text/event-stream").want(t, 200).body); diff != "" {
		t.Errorf("stream (-want +got):\n%s", diff)
	}
	_, rest, _ := strings.Cut(want, "\n\n")
	if diff := cmp.Diff(rest, r.call("GET", path, ann, "", "Accept", "text/event-stream", "Last-Event-ID", "PROG:1").want(t, 200).body); diff != "" {
		t.Errorf("resumed (-want +got):\n%s", diff)
	}
	r.call("GET", path, ann, "", "Accept", "text/event-stream", "Last-Event-ID", "PROG:3").want(t, 204)
	r.call("GET", path, bob, "", "Accept", "text/event-stream").want(t, 404)
	r.call("HEAD", path, ann, "", "Accept", "text/event-stream").want(t, 200)
}

// linesOf reads a log with the client.
func linesOf(t *testing.T, r *rig, id, after string, follow bool) (out []string) {
	t.Helper()
	c, err := client.New(r.url, ann)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for chunk, err := range c.LogLines(t.Context(), id, after, follow) {
		if err != nil {
			t.Fatal(err)
		}
		if chunk.Missed > 0 {
			out = append(out, fmt.Sprintf("missed %d", chunk.Missed))
		}
		out = append(out, chunk.Lines...)
	}
	return out
}

func TestTheClientFollowsALogOverLostConnections(t *testing.T) {
	t.Parallel()
	r, id := tell(t, &told{events: gaps, breaks: 3})
	want := []string{"missed 3", "d", "e", "f", "j", "A", "again"}
	// The line numbers before a place to resume at are not known, so the gap
	// between the second and the third connection shows no more.
	if diff := cmp.Diff(want, linesOf(t, r, id, "", true)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"A", "again"}, linesOf(t, r, id, "PROG:3", true)); diff != "" {
		t.Errorf("log after a cursor (-want +got):\n%s", diff)
	}
}
