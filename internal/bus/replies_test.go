package bus_test

import (
	"context"
	"errors"
	"testing"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

// A call without a deadline must not wait for ever for a server that is gone.
func TestCallWithoutDeadlineEndsWhenTheServerIsGone(t *testing.T) {
	t.Parallel()
	env := bustest.Start(t)
	conn := env.Conn(bus.RoleAPI)
	env.Server.Shutdown()
	_, err := conn.JetStream().Last(context.Background(), bus.StreamEvents, "evt.*.*.*.lc", false)
	if !errors.Is(err, bus.ErrUnavailable) {
		t.Fatalf("got %v, want ErrUnavailable", err)
	}
}
