package leasestore_test

import (
	"testing"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/leasestore"
	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	sessionstest.RunStore(t, func(t *testing.T) (sessions.Registry, sessions.Queue) {
		s := open(t, bustest.Start(t), bus.RoleScheduler)
		return s, s
	})
}

func open(t *testing.T, env *bustest.Env, role bus.Role) *leasestore.Store {
	t.Helper()
	conn := env.Conn(role)
	cfg := leasestore.Config{JetStream: conn.JetStream(), Log: zerolog.New(zerolog.NewTestWriter(t))}
	if role == bus.RoleScheduler {
		cfg.Ensure = conn.EnsureLeaseConsumer
	}
	s, err := leasestore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("open store: %v", err)
	}
	return s
}
