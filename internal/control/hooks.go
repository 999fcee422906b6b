package control

import (
	"context"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/hookstore"
)

// Hooks makes the webhook deliveries of a lifecycle event; it may see an event
// more than once.
type Hooks interface {
	Follow(ctx context.Context, event bus.Message) error
}

// HookMover takes webhook deliveries whose retry is due back into their queue.
type HookMover struct {
	JS    bus.JetStream
	Store *hookstore.Store
	Log   zerolog.Logger
}

// Run moves until ctx ends.
func (m *HookMover) Run(ctx context.Context) error {
	return consume(ctx, m.JS, bus.StreamSchedule, bus.ConsumerHookMover, m.Log, m.Store.Move)
}
