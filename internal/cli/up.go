package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/app/flags"
)

// Up is helmdeck up.
type Up struct {
	flags.Settings
	Data       string   `env:"HELMDECK_DATA" default:"helmdeck-data" placeholder:"DIR" type:"path" help:"Data directory: jobs, events, artifacts, keys and the token."`
	Listen     string   `env:"HELMDECK_ADDR" default:"127.0.0.1:3000" placeholder:"HOST:PORT" help:"Address of the API."`
	NATSListen string   `name:"nats-listen" env:"HELMDECK_NATS_LISTEN" default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Address of the embedded NATS server, for other processes."`
	Roles      []string `env:"HELMDECK_ROLES" default:"api,worker,scheduler" placeholder:"a,b" help:"Roles to run here: api, worker, scheduler; none runs the bus alone."`
	Pools      []string `env:"HELMDECK_POOLS" placeholder:"a,b" help:"Pools the worker serves; default all."`
	Slots      int      `env:"HELMDECK_SLOTS" default:"4" help:"Jobs of each pool at once."`
	Sidecars   int      `env:"HELMDECK_SIDECARS" default:"0" help:"Sidecars at once; 0: twice the number of processors."`
}

// Run runs until ctx ends.
func (u *Up) Run(ctx context.Context, stderr io.Writer) error {
	s, err := u.Settings.App()
	if err != nil {
		return err
	}
	slots, err := app.SlotsOf(u.Pools, u.Slots)
	if err != nil {
		return err
	}
	return app.Up{
		Settings: s, Data: u.Data, Listen: u.Listen, NATSListen: u.NATSListen,
		Roles: u.Roles, Slots: slots, SidecarSlots: u.Sidecars,
		Ready: func(r app.Running) {
			fmt.Fprintf(stderr, "helmdeck is up\n  API    %s\n  token  %s\n  NATS   %s\n  data   %s\n", r.URL, r.TokenFile, r.NATSURL, r.DataDir)
		},
	}.Run(ctx)
}
