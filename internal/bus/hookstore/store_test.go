package hookstore_test

import (
	"context"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/hookstore"
	"github.com/helmdeck/helmdeck/pkg/webhooks/webhookstest"
)

// replica opens the ports as one API replica has them.
func replica(t *testing.T, js bus.JetStream) (*hookstore.Endpoints, *hookstore.Store) {
	t.Helper()
	store := hookstore.New(js, zerolog.Nop())
	endpoints, err := hookstore.NewEndpoints(bustest.Context(t), js, store, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := endpoints.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return endpoints, store
}

func TestPorts(t *testing.T) {
	t.Parallel()
	webhookstest.Run(t, func(t *testing.T) webhookstest.Ports {
		env := bustest.Start(t)
		a, store := replica(t, env.Conn(bus.RoleAPI).JetStream())
		b, _ := replica(t, env.TCP(bus.RoleAPI).JetStream())
		return webhookstest.Ports{Registry: a, Other: b, Queue: store, Log: store}
	})
}
