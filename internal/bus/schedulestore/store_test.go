package schedulestore_test

import (
	"context"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/schedulestore"
	"github.com/helmdeck/helmdeck/pkg/schedules/schedulestest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	schedulestest.Run(t, func(t *testing.T) schedulestest.Backend {
		js := bustest.Start(t).Conn(bus.RoleAPI).JetStream()
		s, err := schedulestore.New(bustest.Context(t), js, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(func() { cancel(); wg.Wait() })
		return s
	})
}
