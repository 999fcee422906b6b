package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/cli/console"
)

// busCmd is helmdeck bus.
type busCmd struct {
	Init   busInit   `cmd:"" help:"Make or migrate the streams of a NATS server."`
	Status busStatus `cmd:"" help:"Compare the streams of a NATS server with what this program makes."`

	Backup  busBackup  `cmd:"" help:"Copy all streams and buckets to a folder, while everything runs."`
	Restore busRestore `cmd:"" help:"Make a fresh bus what a backup holds."`
}

// Help shows with --help.
func (busCmd) Help() string {
	return `helmdeck up sets its own server up. An outside one is set up once, before the role programs start, and again after an upgrade.

Examples:

    helmdeck bus init --nats nats://10.0.0.5:4222 --nats-creds nats-admin.json --profile single
    helmdeck bus status --nats nats://10.0.0.5:4222 --nats-creds nats-admin.json --profile single`
}

type busFlags struct {
	Profile       string        `env:"HELMDECK_PROFILE" default:"embedded" enum:"embedded,single,ha" group:"server" help:"Bus profile: embedded, single or ha."`
	AuditMaxAge   time.Duration `env:"HELMDECK_AUDIT_MAX_AGE" default:"2160h" group:"server" help:"How long audit records are kept."`
	AuditMaxBytes int64         `env:"HELMDECK_AUDIT_MAX_BYTES" default:"10737418240" group:"server" help:"Bytes of the audit trail; the oldest records go first."`
	natsLogin
}

// role is the administrator on the named server.
func (b *busFlags) role() (app.Role, error) {
	if _, err := b.find(); err != nil {
		return app.Role{}, err
	}
	return app.Role{
		Settings: app.Settings{
			Profile: b.Profile, Prefix: b.Prefix, Log: zerolog.Nop(),
			Audit: app.AuditSettings{MaxAge: b.AuditMaxAge, MaxBytes: b.AuditMaxBytes},
		},
		NATS: b.NATS, NATSCreds: b.NATSCreds,
	}, nil
}

type busInit struct{ busFlags }

// Help shows with --help.
func (busInit) Help() string {
	return `May run any number of times. What an operator changed is left as it is and listed.

Examples:

    helmdeck bus init --nats nats://10.0.0.5:4222 --nats-creds nats-admin.json --profile ha`
}

// Run sets up.
func (b *busInit) Run(ctx context.Context, con *console.Console) error {
	role, err := b.role()
	if err != nil {
		return err
	}
	st, err := app.InitBus(ctx, role)
	if err != nil {
		return busFailure(err)
	}
	return showBus(con, st)
}

type busStatus struct{ busFlags }

// Help shows with --help.
func (busStatus) Help() string {
	return `Changes nothing. Exit code 5 when there is nothing yet, 1 when something differs.

Examples:

    helmdeck bus status
    helmdeck bus status --data /var/lib/helmdeck -o json`
}

// Run compares.
func (b *busStatus) Run(ctx context.Context, con *console.Console) error {
	role, err := b.role()
	if err != nil {
		return err
	}
	st, err := app.BusStatus(ctx, role)
	if err != nil {
		return busFailure(err)
	}
	if err := showBus(con, st); err != nil {
		return err
	}
	switch {
	case st.Version == 0:
		return &failure{exit: exitNotFound, Code: "not_found", Message: "the bus is not set up", Hints: []string{"set it up: helmdeck bus init"}}
	case len(st.Mismatches) > 0:
		return &failure{exit: exitInternal, Message: fmt.Sprintf("%d things differ from what this program makes", len(st.Mismatches))}
	}
	return nil
}

func busFailure(err error) error {
	var newer *bus.VersionError
	if errors.As(err, &newer) {
		return hinted(err, "use the newer helmdeck with this server")
	}
	return err
}

func showBus(con *console.Console, st bus.Status) error {
	if con.JSON {
		return con.WriteJSON(st)
	}
	err := con.Fields(
		"topology", fmt.Sprintf("version %d; this program makes version %d", st.Version, st.Known),
		"streams", fmt.Sprint(st.Streams), "API level", fmt.Sprint(st.APILevel),
	)
	if err != nil || len(st.Mismatches) == 0 {
		return err
	}
	rows := make([][]string, len(st.Mismatches))
	for i, m := range st.Mismatches {
		rows[i] = []string{m.Stream, m.Consumer, m.What, strings.Join(m.Fields, ", ")}
	}
	return con.Table([]string{"STREAM", "CONSUMER", "STATE", "SETTINGS"}, rows)
}

// version is helmdeck version.
type version struct{ caller }

// Help shows with --help.
func (version) Help() string {
	return `Examples:

    helmdeck version
    helmdeck version -o json`
}

// Run prints; a server that is away is no error.
func (v *version) Run(ctx context.Context, con *console.Console) error {
	c, err := v.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	server := ""
	if _, err := c.Ready(ctx); err == nil { // asks once, unlike the rest
		if server, err = c.Version(ctx); err != nil {
			return err
		}
	}
	if con.JSON {
		return con.WriteJSON(map[string]string{"version": app.Version, "server": server})
	}
	if err := con.Print("helmdeck %s", app.Version); err != nil || server == "" {
		return err
	}
	return con.Print("server %s", console.Clean(server))
}
