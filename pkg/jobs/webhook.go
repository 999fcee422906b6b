package jobs

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"

	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// webhook is the webhook a request asks for, in either of its forms; nil:
// none.
func (r *Request) webhook() *webhooks.Target {
	if r.Webhook == nil && r.WebhookURL != "" {
		// Who uses the older names expects the older body.
		return &webhooks.Target{URL: r.WebhookURL, Secret: r.WebhookSecret, Format: webhooks.Plain}
	}
	return r.Webhook
}

func (r *Request) webhookFaults() []packs.Detail {
	switch t := r.webhook(); {
	case r.Webhook != nil && r.WebhookURL != "":
		return []packs.Detail{{Pointer: "/webhook_url", Message: "give webhook or webhook_url, not both"}}
	case r.WebhookURL == "" && r.WebhookSecret != "":
		return []packs.Detail{{Pointer: "/webhook_secret", Message: "goes with webhook_url"}}
	case t == nil:
		return nil
	case r.Webhook == nil:
		faults := t.Faults("")
		for i, f := range faults {
			faults[i].Pointer = map[string]string{"/url": "/webhook_url", "/secret": "/webhook_secret"}[f.Pointer]
		}
		return faults
	default:
		return t.Faults("/webhook")
	}
}

// attach puts a webhook into the record and its sealed secret beside it.
func (s *Service) attach(sub *Submission, t *webhooks.Target) error {
	if t == nil {
		return nil
	}
	sub.Job.Webhook = t.Hook()
	if t.Secret == "" {
		return nil
	}
	secret, err := webhooks.ParseSecret(t.Secret)
	if err != nil {
		return packs.Fail(packs.InvalidInput, err, "the secret of the webhook "+err.Error())
	}
	if s.cfg.Sealer == nil {
		return asError(errors.New("no key to seal the secret of a webhook with"))
	}
	k := sub.Job.Key()
	sub.WebhookSecret = s.cfg.Sealer.Seal(secret, webhooks.JobPlace(k.Tenant, k.Owner))
	return nil
}

// checkWebhook refuses a webhook to where nothing may be sent.
func (s *Service) checkWebhook(ctx context.Context, job Job) error {
	if job.Webhook == nil || s.cfg.CheckWebhook == nil {
		return nil
	}
	err := s.cfg.CheckWebhook(ctx, job.Webhook.URL)
	if err == nil {
		return nil
	}
	e := packs.Fail(packs.InvalidInput, err, "the webhook cannot be delivered to: "+err.Error())
	e.Details = []packs.Detail{{Pointer: "/webhook/url", Message: err.Error()}}
	return e
}

// hashed returns r as far as it makes a call the same call: the secret of a
// webhook counts, but in a form that does not give it away.
func (s *Service) hashed(r Request) Request {
	if r.Webhook != nil && r.Webhook.Secret != "" {
		t := *r.Webhook
		t.Secret = s.mac("webhook secret", t.Secret)
		r.Webhook = &t
	}
	if r.WebhookSecret != "" {
		r.WebhookSecret = s.mac("webhook secret", r.WebhookSecret)
	}
	return r
}

func (s *Service) mac(label, text string) string {
	mac := hmac.New(sha256.New, s.cfg.KeySecret)
	mac.Write([]byte(label + "\n" + text))
	return hex.EncodeToString(mac.Sum(nil))
}
