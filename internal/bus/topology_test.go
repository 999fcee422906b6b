package bus_test

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

func TestInitTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	log := zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr}).Level(zerolog.WarnLevel)
	env := bustest.Start(t, bustest.WithoutInit(), bustest.WithLog(log))
	ctx, admin := bustest.Context(t), env.Conn(bus.RoleAdmin)
	first, err := admin.Init(ctx)
	if err != nil {
		t.Fatal(err)
	}
	second, err := admin.Init(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("second Init differs (-first +second):\n%s", diff)
	}
	if len(first.Mismatches) != 0 {
		t.Errorf("mismatches after Init: %v", first.Mismatches)
	}
}
