// Package upgrade runs API replicas and workers of two versions side by side on
// one bus, as real processes: the present one, which is the test binary itself,
// and a later one, which is the same built with the tag "future". It adds
// members to every record and a version to a pack.
package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/app"
)

// order is what a role process is told, in the environment.
type order struct {
	Role, Dir, NATS, Listen string
}

const orderName = "HELMDECK_UPGRADE_ORDER"

// futureBinary is the later version.
var futureBinary string

func TestMain(m *testing.M) {
	if text := os.Getenv(orderName); text != "" {
		os.Exit(obey(text))
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "helmdeck-upgrade-")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(dir) }() // leftovers are the system's to sweep
		futureBinary = filepath.Join(dir, "future.test")
		build := exec.Command("go", "test", "-c", "-tags", "faults future", "-o", futureBinary, ".")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the later version: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

func settings() app.Settings {
	return app.Settings{
		Profile: "embedded", Prefix: "hd", TestPacks: true, AckWait: 2 * time.Second, ReconcileEvery: 2 * time.Second,
		Log: zerolog.New(os.Stderr).Level(zerolog.WarnLevel),
	}
}

// obey runs a role until it is told to stop.
func obey(text string) int {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	bus := filepath.Join(o.Dir, "bus")
	role := app.Role{
		Settings: settings(), NATS: o.NATS, NATSCreds: filepath.Join(bus, "nats-"+o.Role+".json"),
		Keys: filepath.Join(bus, "keys.json"), Data: filepath.Join(o.Dir, "scratch"),
	}
	var err error
	if o.Role == "api" {
		err = app.RunAPI(ctx, role, o.Listen, filepath.Join(o.Dir, "token"))
	} else {
		err = app.RunWorker(ctx, role, map[string]int{"core": 4})
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
