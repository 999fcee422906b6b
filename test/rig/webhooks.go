package rig

import (
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/hookstore"
	"github.com/helmdeck/helmdeck/internal/control"
	hooks "github.com/helmdeck/helmdeck/internal/webhooks"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// Webhooks is the client side of webhooks in a Rig.
type Webhooks struct {
	*webhooks.Service
	Maker  *hooks.Maker
	Store  *hookstore.Store
	sealer *webhooks.Sealer
}

// webhooks builds the parts that make deliveries and move fired retries; a
// Sender is started by the test.
func (r *Rig) webhooks(js bus.JetStream) *Webhooks {
	ctx := bustest.Context(r.T)
	w := &Webhooks{Store: hookstore.New(js, r.Log), sealer: must(webhooks.NewSealer(make([]byte, 32)))}
	endpoints := must(hookstore.NewEndpoints(ctx, js, w.Store, r.Log))
	w.Maker = &hooks.Maker{
		JS: js, Registry: endpoints, Queue: w.Store, History: w.Store, Input: r.Store.Input,
		Source: must(events.NewSource("test")), PublicURL: "http://deck.example", Log: r.Log,
	}
	w.Service = webhooks.New(webhooks.Config{Registry: endpoints, Queue: w.Store, Log: w.Store, Courier: w.Maker, Sealer: w.sealer})
	r.Background("endpoints", endpoints.Run)
	r.Background("webhook mover", (&control.HookMover{JS: js, Store: w.Store, Log: r.Log}).Run)
	return w
}

// Sender starts a sender of webhooks as a replica of its own would run it. Its
// ladder has three steps of a fraction of a second.
func (r *Rig) Sender(change ...func(*hooks.Config)) (stop func(), faults *bustest.Faults) {
	r.T.Helper()
	faults = bustest.NewFaults(r.dial(bus.RoleAPI).JetStream())
	store := hookstore.New(faults, r.Log)
	endpoints := must(hookstore.NewEndpoints(bustest.Context(r.T), faults, store, r.Log))
	transport := &http.Transport{}
	r.T.Cleanup(transport.CloseIdleConnections)
	cfg := hooks.Config{
		JS: faults, Store: store, Registry: endpoints, Sealer: r.Webhooks.sealer, Client: &http.Client{Transport: transport},
		Ladder: []time.Duration{50 * time.Millisecond, 50 * time.Millisecond, 50 * time.Millisecond},
		// Most tests are not about the breaker.
		Pace: hooks.Pace{Failures: 1000}, Heartbeat: AckWait / 3, Drain: 200 * time.Millisecond, Log: r.Log,
	}
	for _, c := range change {
		c(&cfg)
	}
	r.Background("endpoints of a sender", endpoints.Run)
	return r.Background("sender", hooks.NewSender(cfg).Run), faults
}
