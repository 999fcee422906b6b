// Command helmdeck-worker runs jobs of some pools from an outside NATS.
package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/app/flags"
)

var cli struct {
	flags.Role
	Pools   []string         `env:"HELMDECK_POOLS" placeholder:"a,b" help:"Pools to serve; default all."`
	Slots   int              `env:"HELMDECK_SLOTS" default:"4" help:"Jobs of each pool at once."`
	Version kong.VersionFlag `help:"Print the version."`
}

const description = `One worker. Start more to scale a pool. Example:

  helmdeck-worker --nats nats://127.0.0.1:4222 --nats-creds nats-worker.json --keys keys.json --pools browser,media --slots 2`

func main() {
	kong.Parse(&cli, kong.Name("helmdeck-worker"), kong.Description(description),
		kong.Vars{"version": app.Version, "profile": "single"})
	os.Exit(flags.Run("helmdeck-worker", func(ctx context.Context) error {
		r, err := cli.App()
		if err != nil {
			return err
		}
		slots, err := app.SlotsOf(cli.Pools, cli.Slots)
		if err != nil {
			return err
		}
		return app.RunWorker(ctx, r, slots)
	}))
}
