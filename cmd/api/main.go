// Command helmdeck-api is one stateless API replica on an outside NATS.
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
	Listen  string           `env:"HELMDECK_ADDR" default:"127.0.0.1:3000" placeholder:"HOST:PORT" help:"Address of the API."`
	Token   string           `name:"token-file" env:"HELMDECK_TOKEN_FILE" placeholder:"FILE" type:"path" help:"Administrator's bearer token; default: the file token beside the keys, made when missing."`
	Version kong.VersionFlag `help:"Print the version."`
}

const description = `One API replica. Example:

  helmdeck-api --nats nats://127.0.0.1:4222 --nats-creds nats-api.json --keys keys.json --listen 127.0.0.1:3000`

func main() {
	kong.Parse(&cli, kong.Name("helmdeck-api"), kong.Description(description),
		kong.Vars{"version": app.Version, "profile": "single"})
	os.Exit(flags.Run("helmdeck-api", func(ctx context.Context) error {
		r, err := cli.App()
		if err != nil {
			return err
		}
		return app.RunAPI(ctx, r, cli.Listen, cli.Token)
	}))
}
