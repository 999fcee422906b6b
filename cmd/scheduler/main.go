// Command helmdeck-scheduler leases the sidecars of one host.
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
	Slots   int              `env:"HELMDECK_SIDECARS" default:"0" help:"Sidecars at once; 0: twice the number of processors."`
	Drain   bool             `name:"stop-sidecars" env:"HELMDECK_STOP_SIDECARS" help:"End leased sidecars at a stop instead of leaving them to the next scheduler."`
	Version kong.VersionFlag `help:"Print the version."`
}

const description = `The scheduler of one host: it leases sidecars to workers. Example:

  helmdeck-scheduler --nats nats://127.0.0.1:4222 --nats-creds nats-scheduler.json --keys keys.json --data /var/lib/helmdeck`

func main() {
	kong.Parse(&cli, kong.Name("helmdeck-scheduler"), kong.Description(description),
		kong.Vars{"version": app.Version, "profile": "single"})
	os.Exit(flags.Run("helmdeck-scheduler", func(ctx context.Context) error {
		r, err := cli.App()
		if err != nil {
			return err
		}
		return app.RunScheduler(ctx, r, cli.Slots, cli.Drain)
	}))
}
