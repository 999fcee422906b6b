package kill

import (
	"context"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
	"github.com/helmdeck/helmdeck/test/history"
)

// hooks is what the jobs of a cluster tell their events: every job has a
// webhook of its own, and once subscribed there is one that hears of all.
type hooks struct {
	url      string
	receiver *history.Receiver
	wants    map[string][]string
}

const (
	hookSecret = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	ownPath    = "/own"
	allPath    = "/all"
	// hookRetries is a ladder fit for a test, with room for many a loss.
	hookRetries = "HELMDECK_WEBHOOK_RETRIES=300ms,300ms,300ms,300ms,1s,1s,2s,2s"
	hookBreaker = "HELMDECK_WEBHOOK_BREAKER=500ms"
)

func (c *cluster) receive() {
	r, err := history.NewReceiver(hookSecret)
	if err != nil {
		c.t.Fatal(err)
	}
	c.hooks = hooks{url: serve(c.t, r), receiver: r, wants: map[string][]string{ownPath: webhooks.Terminal}}
}

// own is the webhook of one job, none in a system without a receiver.
func (h *hooks) own() *webhooks.Target {
	if h.url == "" {
		return nil
	}
	return &webhooks.Target{URL: h.url + ownPath, Secret: hookSecret}
}

// subscribe makes a webhook for all events, before any job is submitted.
func (c *cluster) subscribe() {
	c.insist("subscribe", func(ctx context.Context, api *client.Client) error {
		_, err := api.CreateWebhook(ctx, webhooks.Spec{URL: c.hooks.url + allPath, Events: []string{webhooks.EventAny}, Secret: hookSecret})
		return err
	})
	c.hooks.wants[allPath] = []string{webhooks.EventAny}
}

// undelivered is the part of check that looks at webhooks.
func (c *cluster) undelivered(ctx context.Context, js bus.JetStream) ([]history.Violation, error) {
	return c.hooks.receiver.Check(ctx, js, c.log, c.hooks.wants)
}
