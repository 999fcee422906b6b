package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// TestWebhooks walks the life of a webhook, as its owner, somebody else and an
// administrator.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const all = "/api/v1/webhooks"
	made := decode[webhooks.Created](t, r.call("POST", all, ann,
		`{"url":"https://example.com/h","events":["dev.helmdeck.job.failed"],"packs":["test.*"],"labels":{"a":"b"},"description":"for us"}`).want(t, 201))
	if !strings.HasPrefix(made.Secret, "whsec_") || !made.Enabled || made.Events[0] != "job.failed" || made.Format != webhooks.CloudEvent {
		t.Errorf("made %+v", made)
	}
	one := all + "/" + made.ID
	for _, path := range []string{all, one} {
		if body := r.call("GET", path, ann, "").want(t, 200).body; strings.Contains(body, made.Secret[6:]) || strings.Contains(body, "sealed") {
			t.Errorf("%s shows the secret: %s", path, body)
		}
	}
	for _, c := range []struct{ method, path, body string }{
		{"GET", one, ""}, {"PATCH", one, `{"enabled":false}`}, {"DELETE", one, ""}, {"POST", one + "/rotate", ""}, {"POST", one + "/test", ""},
		{"GET", one + "/deliveries", ""}, {"POST", one + "/deliveries/x/replay", ""}, {"GET", all + "/wh_aaaaaaaaaaaaaaaa", ""}, {"GET", all + "/x", ""},
	} {
		r.call(c.method, c.path, bob, c.body).want(t, 404)
	}
	if list := decode[client.WebhookList](t, r.call("GET", all, bob, "").want(t, 200)); len(list.Webhooks) != 0 {
		t.Errorf("somebody else is shown %v", list)
	}
	if list := decode[client.WebhookList](t, r.call("GET", all, admin, "").want(t, 200)); len(list.Webhooks) != 1 {
		t.Errorf("the administrator is shown %v", list)
	}
	r.call("POST", all, reader, `{"url":"https://example.com/h"}`).want(t, 403)

	off := decode[webhooks.Endpoint](t, r.call("PATCH", one, ann, `{"enabled":false,"packs":[]}`).want(t, 200))
	if off.Enabled || off.DisabledReason == "" || len(off.Packs) != 0 || off.URL != made.URL {
		t.Errorf("changed to %+v", off)
	}
	r.call("POST", one+"/test", ann, "").want(t, 409)
	if on := decode[webhooks.Endpoint](t, r.call("PATCH", one, ann, `{"enabled":true}`).want(t, 200)); !on.Enabled || on.DisabledReason != "" {
		t.Errorf("enabled: %+v", on)
	}
	r.call("PATCH", one, ann, `{}`).want(t, 400)
	rotated := decode[webhooks.Created](t, r.call("POST", one+"/rotate", ann, `{"keep_s":60}`).want(t, 200))
	if rotated.Secret == made.Secret || rotated.OldSecretUntil.IsZero() || time.Until(rotated.OldSecretUntil) > time.Minute {
		t.Errorf("rotated: %+v", rotated.Endpoint)
	}
	r.call("POST", one+"/rotate", ann, `{"keep_s":604801}`).want(t, 400)
	r.call("POST", one+"/rotate", ann, `{"keep_s":604800}`).want(t, 200)
	queued := decode[client.Queued](t, r.call("POST", one+"/test", ann, "").want(t, 202))
	if waiting := r.hooks.Queued(); len(waiting) != 1 || waiting[0].ID != queued.Delivery {
		t.Errorf("queued %v", waiting)
	}
	r.call("POST", one+"/deliveries/nothing/replay", ann, "").want(t, 404)
	r.call("DELETE", one, ann, "").want(t, 204)
	r.call("GET", one, ann, "").want(t, 404)
}

// TestWebhookLimit is at its edge.
func TestWebhookLimit(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for i := range webhooks.MaxPerOwner {
		r.call("POST", "/api/v1/webhooks", ann, fmt.Sprintf(`{"url":"https://example.com/%d"}`, i)).want(t, 201)
	}
	r.call("POST", "/api/v1/webhooks", ann, `{"url":"https://example.com/h"}`).want(t, 429)
	r.call("POST", "/api/v1/webhooks", bob, `{"url":"https://example.com/h"}`).want(t, 201)
}

// TestWebhookFaults are all told at once, and name the choices.
func TestWebhookFaults(t *testing.T) {
	t.Parallel()
	r := setup(t)
	body := r.call("POST", "/api/v1/webhooks", ann,
		`{"url":"ftp://u:p@example.com","events":["job.done"],"format":"xml","secret":"short","packs":["a*b"],"labels":{"":"x"}}`).want(t, 400).body
	for _, want := range []string{`"/url"`, `"/events/0"`, "job.succeeded, job.failed, job.cancelled", `"/format"`, `"/secret"`, `"/packs/0"`, `"/labels"`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing in %s", want, body)
		}
	}
	r.call("POST", "/api/v1/webhooks", ann, `{"url":"https://example.com","evnts":[]}`).want(t, 400)
	for name, hook := range map[string]string{
		"no url": `"webhook":{"secret":"x"}`, "misspelt": `"webhook":{"url":"https://example.com","evnt":[]}`, "no object": `"webhook":7`,
		"short key": `"webhook":{"url":"https://example.com","secret":"whsec_AAAA"}`, "event": `"webhook":{"url":"https://example.com","events":["x"]}`,
		"user": `"webhook_url":"https://u:p@example.com"`, "both": `"webhook":{"url":"https://example.com"},"webhook_url":"https://example.com"`,
		"secret alone": `"webhook_secret":"x"`,
	} {
		if body := r.call("POST", "/api/v1/jobs", ann, `{"pack":"test.echo","input":{"text":"x"},`+hook+`}`).want(t, 400).body; !strings.Contains(body, `"/webhook`) {
			t.Errorf("%s: %s", name, body)
		}
	}
}

// TestJobShowsItsWebhook, without the secret, under both names of the request.
func TestJobShowsItsWebhook(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for hook, want := range map[string]webhooks.Format{
		`"webhook":{"url":"https://example.com/h","secret":"text-of-a-secret"}`:     webhooks.CloudEvent,
		`"webhook_url":"https://example.com/h","webhook_secret":"text-of-a-secret"`: webhooks.Plain,
	} {
		a := r.call("POST", "/api/v1/jobs", ann, `{"pack":"test.echo","input":{"text":"x"},`+hook+`}`).want(t, 202)
		job := decode[jobs.Job](t, a)
		if job.Webhook == nil || job.Webhook.URL != "https://example.com/h" || !job.Webhook.Signed || job.Webhook.Format != want || strings.Contains(a.body, "text-of-a") {
			t.Errorf("got %s", a.body)
		}
		r.call("GET", "/api/v1/jobs/"+job.ID+"/deliveries", ann, "").want(t, 200)
		r.call("GET", "/api/v1/jobs/"+job.ID+"/deliveries", bob, "").want(t, 404)
	}
	plain := r.submit(ann, `{"pack":"test.echo","input":{"text":"x"}}`)
	r.call("GET", "/api/v1/jobs/"+plain.ID+"/deliveries", ann, "").want(t, 404)
}
