package app

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/hookstore"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/internal/egress"
	hooks "github.com/helmdeck/helmdeck/internal/webhooks"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// Sealer returns what seals the secrets of webhooks. Its key is derived from
// the idempotency key, so that keys files of older versions do as well.
func (k Keys) Sealer() (*webhooks.Sealer, error) {
	key, err := hkdf.Key(sha256.New, k.Idempotency, nil, "helmdeck webhook secrets v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the sealing key: %w", err)
	}
	return webhooks.NewSealer(key)
}

// webhookParts is what an API replica has of webhooks.
type webhookParts struct {
	service   *webhooks.Service
	endpoints *hookstore.Endpoints
	maker     *hooks.Maker
	sender    *hooks.Sender
	mover     *control.HookMover
}

func (r *apiRole) webhooks(ctx context.Context, js bus.JetStream, store *jobstore.Store, sealer *webhooks.Sealer) (webhookParts, error) {
	var p webhookParts
	source, err := events.NewSource(r.keys.Installation)
	if err != nil {
		return p, err
	}
	queue := hookstore.New(js, r.Log)
	if p.endpoints, err = hookstore.NewEndpoints(ctx, js, queue, r.Log); err != nil {
		return p, err
	}
	p.maker = &hooks.Maker{
		JS: js, Registry: p.endpoints, Queue: queue, History: queue, Input: store.Input, Source: source, PublicURL: r.PublicURL, Log: r.Log,
	}
	p.mover = &control.HookMover{JS: js, Store: queue, Log: r.Log}
	p.sender = hooks.NewSender(hooks.Config{
		JS: js, Store: queue, Registry: p.endpoints, Sealer: sealer, Client: r.guard.Client(egress.Timeouts{}),
		Ladder: r.WebhookRetries, Timeout: r.WebhookTimeout, Pace: hooks.Pace{Open: r.WebhookBreaker}, Heartbeat: r.heartbeat(),
		Observe: newAttempts(r.registry), Log: r.Log,
	})
	p.service = webhooks.New(webhooks.Config{
		Registry: p.endpoints, Queue: queue, Log: queue, Courier: p.maker, Sealer: sealer, CheckURL: r.checkWebhook,
	})
	r.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "helmdeck_webhook_open_breakers", Help: "Endpoints this replica sends nothing to at the moment, because they failed.",
		}, func() float64 { return float64(p.sender.Open()) }),
		&hookGauges{conn: r.conn,
			waiting: prometheus.NewDesc("helmdeck_webhook_waiting_deliveries", "Deliveries in the queue or under way.", nil, nil),
			ladder:  prometheus.NewDesc("helmdeck_webhook_ladder_deliveries", "Deliveries that wait for another attempt.", nil, nil),
		})
	return p, nil
}

// checkWebhook refuses an address that the guard refuses. A name that cannot
// be looked up now may be there when the delivery is made.
func (r *apiRole) checkWebhook(ctx context.Context, url string) error {
	err := r.guard.CheckURL(ctx, url)
	if _, refused := errors.AsType[*egress.Refusal](err); refused {
		return err
	}
	return nil
}

func newAttempts(reg prometheus.Registerer) func(webhooks.Outcome, int) {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "helmdeck_webhook_attempts_total", Help: "Attempts to deliver, by outcome and by step of the retry ladder, 1 for the first.",
	}, []string{"outcome", "attempt"})
	reg.MustRegister(c)
	return func(o webhooks.Outcome, attempt int) { c.WithLabelValues(string(o), strconv.Itoa(attempt)).Inc() }
}

// hookGauges reads what waits when somebody scrapes.
type hookGauges struct {
	conn            *bus.Conn
	waiting, ladder *prometheus.Desc
}

func (g *hookGauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.waiting
	ch <- g.ladder
}

func (g *hookGauges) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	state, err := g.conn.JetStream().Consumer(ctx, bus.StreamHooks, bus.ConsumerSenders)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(g.waiting, err)
	} else {
		ch <- prometheus.MustNewConstMetric(g.waiting, prometheus.GaugeValue, float64(state.Pending+state.Unacked))
	}
	n, err := g.conn.CountSubjects(ctx, bus.StreamSchedule, "sched.hook.>")
	if err != nil {
		ch <- prometheus.NewInvalidMetric(g.ladder, err)
		return
	}
	ch <- prometheus.MustNewConstMetric(g.ladder, prometheus.GaugeValue, float64(n))
}
