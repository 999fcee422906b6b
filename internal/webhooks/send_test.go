package webhooks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/helmdeck/helmdeck/internal/bus"
	hooks "github.com/helmdeck/helmdeck/internal/webhooks"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
	"github.com/helmdeck/helmdeck/test/rig"
)

const secret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="

func verify(t *testing.T, g got, secrets ...string) {
	t.Helper()
	v, err := webhooks.NewVerifier(secrets...)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Verify(g.Header, g.Body); err != nil {
		t.Errorf("verify %v: %v", g.Header, err)
	}
}

func withHook(h webhooks.Target) func(*jobs.Request) {
	return func(r *jobs.Request) { r.Webhook = &h }
}

// TestJobTellsItsWebhook: from the submit to the signed body, in the order of
// the specification's headers and of the older ones.
func TestJobTellsItsWebhook(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Sender()
	r.Worker("a")
	to := receive(t, nil)
	j := r.Submit("test.echo", map[string]any{"message": "hello <world>"}, withHook(webhooks.Target{URL: to.URL, Secret: secret}),
		func(q *jobs.Request) { q.Labels = map[string]string{"team": "docs"} })
	r.Until("delivery", func() bool { return to.count() > 0 })
	g := to.got()[0]
	verify(t, g, secret)
	var ev event.Event
	if err := json.Unmarshal(g.Body, &ev); err != nil {
		t.Fatal(err)
	}
	if ev.ID() != g.id() || strings.Contains(g.id(), ".") || ev.Type() != "dev.helmdeck.job.succeeded" || ev.Subject() != j.ID || ev.Source() != "/helmdeck/test" {
		t.Errorf("got event %v", ev)
	}
	checkObject(t, ev.Data(), j.ID)
	for name, want := range map[string]string{
		"Content-Type": "application/cloudevents+json", "User-Agent": "helmdeck-webhook/1.0", "X-Helmdeck-Event": "pack.complete",
		"X-Helmdeck-Job-Id": j.ID, "X-Helmdeck-Task-Id": "pack_" + j.ID, "X-Helmdeck-Delivery-Attempt": "1",
	} {
		if got := g.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if got := g.Header.Get("X-Helmdeck-Signature"); !strings.HasPrefix(got, "sha256=") || len(got) != 7+64 {
		t.Errorf("older signature %q", got)
	}
	var page []webhooks.Attempt
	r.Until("log entry", func() bool {
		k := j.Key()
		var err error
		page, _, err = r.Webhooks.JobDeliveries(r.Ctx(), k.Tenant, j.ID, webhooks.LogQuery{})
		return err == nil && len(page) > 0
	})
	if a := page[0]; len(page) != 1 || a.Outcome != webhooks.Delivered || a.Status != 200 || a.Delivery != g.id() || a.JobID != j.ID || a.Attempt != 1 {
		t.Errorf("log: %+v", page)
	}
}

func checkObject(t *testing.T, data []byte, job string) {
	t.Helper()
	var o struct {
		EventType string `json:"event_type"`
		JobID     string `json:"job_id"`
		TaskID    string `json:"task_id"`
		Pack      string `json:"pack"`
		State     string `json:"state"`
		StartedAt string `json:"started_at"`
		EndedAt   string `json:"ended_at"`
		Result    struct {
			Content []struct{ Type, Text string } `json:"content"`
			IsError bool                          `json:"isError"`
		} `json:"result"`
		Snapshot struct {
			JobID    string  `json:"job_id"`
			State    string  `json:"state"`
			Progress float64 `json:"progress"`
		} `json:"snapshot"`
		Meta struct {
			Event  string            `json:"event"`
			Labels map[string]string `json:"labels"`
		} `json:"meta"`
	}
	if err := json.Unmarshal(data, &o); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	if o.EventType != "pack.complete" || o.JobID != job || o.TaskID != "pack_"+job || o.Pack != "test.echo" || o.State != "completed" ||
		o.StartedAt == "" || o.EndedAt == "" || o.Snapshot.JobID != job || o.Snapshot.State != "completed" || o.Snapshot.Progress != 100 ||
		o.Meta.Event != "job.succeeded" || o.Meta.Labels["team"] != "docs" {
		t.Errorf("got %s", data)
	}
	var result struct {
		JobID  string          `json:"job_id"`
		Output json.RawMessage `json:"output"`
	}
	if len(o.Result.Content) != 1 || o.Result.IsError || json.Unmarshal([]byte(o.Result.Content[0].Text), &result) != nil ||
		result.JobID != job || !bytes.Contains(result.Output, []byte("hello")) {
		t.Errorf("result: %+v", o.Result)
	}
}

// TestNoSecretAnywhere searches every stream and bucket for the secret of a
// job's webhook and of an endpoint.
func TestNoSecretAnywhere(t *testing.T) {
	t.Parallel()
	const text = "a-secret-of-the-older-kind"
	r := rig.New(t)
	r.Sender(func(c *hooks.Config) { c.Ladder = []time.Duration{time.Hour} })
	r.Worker("a")
	to := receive(t, status(http.StatusInternalServerError, 0))
	made, err := r.Webhooks.Create(r.Ctx(), rig.Ann, webhooks.Spec{URL: to.URL})
	if err != nil {
		t.Fatal(err)
	}
	j := r.Ends(r.Submit("test.fail", map[string]any{"code": "handler_failed"}, withHook(webhooks.Target{URL: to.URL, Secret: text, Format: webhooks.Plain})).ID)
	r.Until("attempts", func() bool { return to.count() == 2 })
	var stored map[string][]byte
	r.Until("the search to find the job wherever it left something", func() bool { // the log follows the attempt
		stored = everything(r)
		for _, stream := range []string{bus.StreamEvents, bus.StreamSchedule, bus.StreamHookLog, bus.StreamDead} {
			if !bytes.Contains(stored[stream], []byte(j.ID)) {
				return false
			}
		}
		return true
	})
	for _, s := range []string{text, made.Secret, strings.TrimPrefix(made.Secret, "whsec_")} {
		for where, messages := range stored {
			if bytes.Contains(messages, []byte(s)) {
				t.Errorf("%s holds %s", where, s)
			}
		}
	}
	if !bytes.Contains(stored[bus.BucketWebhooks], []byte(made.ID)) {
		t.Error("the search finds no endpoint")
	}
}

// everything reads what the bus holds of jobs and webhooks. A stream holds its
// messages compressed, so that a search of its files would be blind.
func everything(r *rig.Rig) map[string][]byte {
	admin, out := r.Env.Conn(bus.RoleAdmin).JetStream(), map[string][]byte{}
	for _, stream := range []string{
		bus.StreamEvents, bus.StreamSchedule, bus.StreamHooks, bus.StreamHookLog, bus.StreamDead, bus.JobsStream("core"),
	} {
		err := admin.Scan(r.Ctx(), stream, []string{">"}, 0, func(m bus.Message) error {
			out[stream] = append(out[stream], m.Subject+fmt.Sprint(m.Header)+string(m.Data)...)
			return nil
		})
		if err != nil {
			r.T.Fatal(err)
		}
	}
	kv, err := admin.KV(r.Ctx(), bus.BucketWebhooks)
	if err != nil {
		r.T.Fatal(err)
	}
	entries, err := kv.Watch(r.Ctx(), ">")
	if err != nil {
		r.T.Fatal(err)
	}
	for e := range entries {
		if e.Key == "" {
			break
		}
		out[bus.BucketWebhooks] = append(out[bus.BucketWebhooks], e.Value...)
	}
	return out
}
