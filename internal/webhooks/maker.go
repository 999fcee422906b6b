// Package webhooks sends events of jobs to the endpoints that want them. Maker
// makes a delivery of an event for each of them, before the event is
// acknowledged, so that none is lost with the process; Sender takes
// deliveries from the queue, posts them, and puts those that fail on the
// retry ladder. Both run in every API replica and share the work through the
// bus.
//
// A delivery reaches its endpoint at least once: it leaves queue and ladder
// only after an answer that ends it. Its id, the event's, is the same each
// time.
package webhooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// Maker makes deliveries of lifecycle events. It implements webhooks.Courier.
type Maker struct {
	JS       bus.JetStream
	Registry webhooks.Registry
	Queue    webhooks.Queue
	// History is told of a delivery that could not be made.
	History webhooks.Log
	// Input reads what a job ran on, with which the sealed secret of its own
	// webhook is kept; jobs.ErrNotFound when it is not stored.
	Input func(context.Context, jobs.Key) (jobs.Submission, error)
	// Source makes the events of tests.
	Source events.Source
	// PublicURL is where receivers reach the API, for links; empty: links are
	// paths.
	PublicURL string
	Log       zerolog.Logger
}

// webhookKey is in every record of a job that has a webhook of its own.
var webhookKey = []byte(`"webhook":{`)

// Follow makes the deliveries of a lifecycle event. The same event twice makes
// them once, within the bus's window of duplicates.
func (m *Maker) Follow(ctx context.Context, msg bus.Message) error {
	subject, err := events.Parse(msg.Subject)
	if err != nil {
		return nil //nolint:nilerr // not of a job: no endpoint can want it
	}
	endpoints, err := m.Registry.Of(ctx, subject.Tenant, subject.Owner)
	if err != nil {
		return fmt.Errorf("endpoints of job %s: %w", subject.JobID, err)
	}
	own := bytes.Contains(msg.Data, webhookKey)
	if len(endpoints) == 0 && !own {
		return nil // the common case, worth not decoding
	}
	e, err := decode(msg)
	if err != nil {
		m.Log.Error().Err(err).Uint64("sequence", msg.Sequence).Msg("lifecycle event not understood, no webhook hears of it")
		return nil // it would come for ever
	}
	var errs []error
	for i := range endpoints {
		if endpoints[i].Wants(e.subject()) {
			errs = append(errs, m.queue(ctx, e, &endpoints[i], true))
		}
	}
	if h := e.job.Webhook; h != nil && webhooks.Wants(h.Events, e.name()) {
		errs = append(errs, m.queue(ctx, e, nil, true))
	}
	return errors.Join(errs...)
}

// queue queues the delivery of e to an endpoint, or to the job's own webhook.
func (m *Maker) queue(ctx context.Context, e lifecycle, r *webhooks.Record, once bool) error {
	k := e.job.Key()
	d := webhooks.Delivery{
		ID: e.event.ID(), Tenant: k.Tenant, Owner: k.Owner, JobID: k.ID, Event: e.name(), CreatedAt: time.Now().UTC(),
	}
	if r != nil {
		d.Endpoint, d.Format = r.ID, r.Format
	} else {
		d.Endpoint, d.URL, d.Format = k.ID, e.job.Webhook.URL, e.job.Webhook.Format
		if e.job.Webhook.Signed {
			// Not there yet: stored beside the first event, or by a later
			// claim. The event comes again.
			sub, err := m.Input(ctx, k)
			if errors.Is(err, jobs.ErrNotFound) && once && time.Since(e.event.Time()) > secretWait {
				return m.unsigned(ctx, d)
			}
			if err != nil {
				return fmt.Errorf("secret of the webhook of job %s: %w", k.ID, err)
			}
			d.Secret = sub.WebhookSecret
		}
	}
	var err error
	if d.Body, d.Kind, err = render(e.event, e.job, m.PublicURL, d.Format); err != nil {
		return err
	}
	if !once {
		// A replay starts the ladder anew, wherever the delivery stands.
		if err := m.Queue.Recall(ctx, d); err != nil {
			return err
		}
	}
	err = m.Queue.Enqueue(ctx, d, once)
	if err != nil && !errors.Is(err, webhooks.ErrPending) {
		return fmt.Errorf("queue delivery %s to %s: %w", d.ID, d.Endpoint, err)
	}
	failpoint.Hit(failpoint.HookAfterPublish)
	return nil
}

// secretWait is how long an event waits for the secret of its job's webhook,
// which is stored within seconds, if ever.
const secretWait = time.Hour

// unsigned notes a delivery that is not made, because its receiver could not
// know it for genuine.
func (m *Maker) unsigned(ctx context.Context, d webhooks.Delivery) error {
	m.Log.Error().Str("job", d.JobID).Str("event", d.Event).Msg("secret of a webhook is not kept, delivery not made")
	return m.History.Append(ctx, d.Tenant, d.Endpoint, webhooks.Attempt{
		Delivery: d.ID, Event: d.Event, JobID: d.JobID, Outcome: webhooks.Dropped, At: time.Now().UTC(),
		Error: "the secret went with the job's input, which is no longer kept",
	})
}

// Test implements webhooks.Courier.
func (m *Maker) Test(ctx context.Context, r webhooks.Record) (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	tenant := r.Caller.TenantToken()
	about := events.About{ID: id.String(), Time: time.Now()}
	about.Key.Tenant = tenant
	ev, err := m.Source.New(webhooks.TypeOf(webhooks.EventTest), about, nil)
	if err != nil {
		return "", err
	}
	d := webhooks.Delivery{
		ID: ev.ID(), Endpoint: r.ID, Tenant: tenant, Owner: r.Caller.Owner(), Event: webhooks.EventTest,
		Kind: webhooks.EventTest, Format: r.Format, CreatedAt: ev.Time(),
	}
	d.Body, err = encode(ev, map[string]any{"event_type": webhooks.EventTest, "webhook_id": r.ID, "sent_at": ev.Time()}, r.Format)
	if err != nil {
		return "", err
	}
	return d.ID, m.Queue.Enqueue(ctx, d, false)
}

// errFound ends a scan.
var errFound = errors.New("found")

// Again implements webhooks.Courier.
func (m *Maker) Again(ctx context.Context, o webhooks.Origin, r *webhooks.Record) error {
	filter, err := events.EvtSubject(jobs.Key{Tenant: o.Tenant, Owner: o.Owner, ID: o.JobID}, events.KindLifecycle)
	if err != nil {
		return fmt.Errorf("%w: %w", webhooks.ErrNotFound, err)
	}
	var e lifecycle
	err = m.JS.Scan(ctx, bus.StreamEvents, []string{filter}, 0, func(msg bus.Message) error {
		found, err := decode(msg)
		if err != nil || found.event.ID() != o.Event {
			return nil //nolint:nilerr // another event, perhaps a damaged one
		}
		e = found
		return errFound
	})
	switch {
	case errors.Is(err, errFound):
	case err == nil:
		return webhooks.ErrNotFound
	default:
		return fmt.Errorf("%w: %w", webhooks.ErrUnavailable, err)
	}
	if r == nil && e.job.Webhook == nil {
		return webhooks.ErrNotFound
	}
	err = m.queue(ctx, e, r, false)
	if errors.Is(err, jobs.ErrNotFound) {
		return webhooks.ErrNotFound // its secret went with its input
	}
	return err
}
