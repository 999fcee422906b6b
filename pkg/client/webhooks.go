package client

import (
	"context"
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// WebhookList is one page of webhooks, oldest first.
type WebhookList struct {
	Webhooks   []webhooks.Endpoint `json:"webhooks"`
	NextCursor string              `json:"next_cursor,omitempty"`
}

// DeliveryList is one page of attempts to deliver, newest first.
type DeliveryList struct {
	Deliveries []webhooks.Attempt `json:"deliveries"`
	NextCursor string             `json:"next_cursor,omitempty"`
}

// Queued names a delivery that was queued.
type Queued struct {
	Delivery string `json:"delivery"`
}

// RotateRequest is the optional body of POST /api/v1/webhooks/{id}/rotate.
type RotateRequest struct {
	// KeepS is how long the old secrets stay in use, in seconds; nil: a day.
	KeepS *int `json:"keep_s,omitempty"`
}

// CreateWebhook subscribes a URL to events. Only this answer shows the secret.
func (c *Client) CreateWebhook(ctx context.Context, s webhooks.Spec) (made webhooks.Created, err error) {
	body, err := encode(s)
	if err != nil {
		return made, err
	}
	err = c.exchange(ctx, call{method: http.MethodPost, path: pathOf("webhooks"), body: body}, &made)
	return made, err
}

// Webhooks lists webhooks, oldest first; limit 0 means 50.
func (c *Client) Webhooks(ctx context.Context, limit int, cursor string) (list WebhookList, err error) {
	err = c.get(ctx, pathOf("webhooks"), values("limit", number(limit), "cursor", cursor), &list)
	return list, err
}

// Webhook reads a webhook.
func (c *Client) Webhook(ctx context.Context, id string) (e webhooks.Endpoint, err error) {
	err = c.get(ctx, pathOf("webhooks", id), nil, &e)
	return e, err
}

// ChangeWebhook changes the fields of a webhook that are not nil.
func (c *Client) ChangeWebhook(ctx context.Context, id string, change webhooks.Change) (e webhooks.Endpoint, err error) {
	body, err := encode(change)
	if err != nil {
		return e, err
	}
	err = c.exchange(ctx, call{method: http.MethodPatch, path: pathOf("webhooks", id), body: body, repeat: true}, &e)
	return e, err
}

// DeleteWebhook deletes a webhook with what waits for it.
func (c *Client) DeleteWebhook(ctx context.Context, id string) error {
	return c.exchange(ctx, call{method: http.MethodDelete, path: pathOf("webhooks", id)}, nil)
}

// RotateWebhook gives a webhook a new secret, which only this answer shows.
// The old ones stay in use for keep.
func (c *Client) RotateWebhook(ctx context.Context, id string, keep time.Duration) (made webhooks.Created, err error) {
	seconds := int(keep / time.Second)
	body, err := encode(RotateRequest{KeepS: &seconds})
	if err != nil {
		return made, err
	}
	err = c.exchange(ctx, call{method: http.MethodPost, path: pathOf("webhooks", id, "rotate"), body: body}, &made)
	return made, err
}

// TestWebhook sends a test event and returns the id of its delivery.
func (c *Client) TestWebhook(ctx context.Context, id string) (string, error) {
	var q Queued
	err := c.exchange(ctx, call{method: http.MethodPost, path: pathOf("webhooks", id, "test")}, &q)
	return q.Delivery, err
}

// Deliveries lists the attempts to deliver to a webhook, newest first.
func (c *Client) Deliveries(ctx context.Context, id string, q webhooks.LogQuery) (list DeliveryList, err error) {
	return c.deliveries(ctx, "webhooks", id, q)
}

// JobDeliveries is Deliveries of the own webhook of a job.
func (c *Client) JobDeliveries(ctx context.Context, jobID string, q webhooks.LogQuery) (list DeliveryList, err error) {
	return c.deliveries(ctx, "jobs", jobID, q)
}

func (c *Client) deliveries(ctx context.Context, noun, id string, q webhooks.LogQuery) (list DeliveryList, err error) {
	err = c.get(ctx, pathOf(noun, id, "deliveries"),
		values("delivery", q.Delivery, "limit", number(q.Limit), "cursor", q.Cursor), &list)
	return list, err
}

// ReplayDelivery delivers an event to a webhook again. Sending it twice is
// safe: a delivery waits once.
func (c *Client) ReplayDelivery(ctx context.Context, id, delivery string) error {
	return c.replayDelivery(ctx, "webhooks", id, delivery)
}

// ReplayJobDelivery is ReplayDelivery to the own webhook of a job.
func (c *Client) ReplayJobDelivery(ctx context.Context, jobID, delivery string) error {
	return c.replayDelivery(ctx, "jobs", jobID, delivery)
}

func (c *Client) replayDelivery(ctx context.Context, noun, id, delivery string) error {
	return c.exchange(ctx, call{
		method: http.MethodPost, path: pathOf(noun, id, "deliveries", delivery, "replay"), repeat: true,
	}, nil)
}
