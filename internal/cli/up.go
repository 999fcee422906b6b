package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/app/flags"
	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/internal/cli/engines"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// up is helmdeck up.
type up struct {
	Data       string   `env:"HELMDECK_DATA" default:"helmdeck-data" placeholder:"DIR" type:"path" help:"Data directory: jobs, events, artifacts, keys and the token."`
	Listen     string   `env:"HELMDECK_ADDR" default:"127.0.0.1:3000" placeholder:"HOST:PORT" help:"Address of the API."`
	NATSListen string   `name:"nats-listen" env:"HELMDECK_NATS_LISTEN" default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Address of the embedded NATS server, for other processes."`
	Roles      []string `env:"HELMDECK_ROLES" default:"api,worker,scheduler" placeholder:"a,b" help:"Roles to run here: api, worker, scheduler; none runs the bus alone."`
	Pools      []string `env:"HELMDECK_POOLS" placeholder:"a,b" help:"Pools the worker serves; all by default."`
	Slots      int      `env:"HELMDECK_SLOTS" default:"4" help:"Jobs of each pool at once."`
	Sidecars   int      `env:"HELMDECK_SIDECARS" default:"0" help:"Sidecars at once; 0: twice the number of processors."`
	flags.Settings

	// told is the address that clients find in the data directory.
	told address `kong:"-"`
}

// address is a string that two goroutines share.
type address struct{ v atomic.Value }

// Store sets it.
func (a *address) Store(s string) { a.v.Store(s) }

// Load returns it, empty when nothing was stored.
func (a *address) Load() string {
	s, _ := a.v.Load().(string)
	return s
}

// Help shows with --help.
func (up) Help() string {
	return `The data directory is made when it is missing and keeps everything: a later start goes on with the jobs that waited or ran. It holds the administrator's token (token), the addresses (api.url, nats.url) and the NATS logins of the roles (nats-ROLE.json).

Examples:

    helmdeck up
    helmdeck up --data /var/lib/helmdeck --listen 127.0.0.1:3000 --nats-listen 127.0.0.1:4222
    HELMDECK_EGRESS_ALLOWLIST=127.0.0.1/32 helmdeck up`
}

// readyWithin bounds the wait for the roles; a large store is read first.
const readyWithin = 2 * time.Minute

// Run runs until ctx ends.
func (u *up) Run(ctx context.Context, con *console.Console) error {
	slots, err := u.check()
	if err != nil {
		return err
	}
	settings, err := u.App()
	if err != nil {
		return misused("%w", err)
	}
	started := time.Now()
	found := engines.Find(ctx, false)
	failed := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = app.Up{
		Settings: settings, Data: u.Data, Listen: u.Listen, NATSListen: u.NATSListen,
		Roles: u.Roles, Slots: slots, SidecarSlots: u.Sidecars, Lacking: u.lacking(found),
		Ready: func(r app.Running) {
			go func() {
				if err := u.announce(ctx, con, r, found, started); err != nil && ctx.Err() == nil {
					failed <- err
					cancel()
				}
			}()
		},
	}.Run(ctx)
	if urlFile := filepath.Join(u.Data, apiURLName); u.told.Load() != "" && readLine(urlFile) == u.told.Load() {
		_ = os.Remove(urlFile) // clients see that it is stale otherwise
	}
	select {
	case f := <-failed:
		return errors.Join(f, err)
	default:
		return err
	}
}

// check finds every fault of the flags before anything starts.
func (u *up) check() (map[string]int, error) {
	slots, err := app.SlotsOf(u.Pools, u.Slots)
	faults := []error{err, hostPort("--listen", u.Listen), hostPort("--nats-listen", u.NATSListen)}
	for _, r := range u.Roles {
		if !slices.Contains([]string{"api", "worker", "scheduler", "none"}, r) {
			faults = append(faults, fmt.Errorf("--roles: unknown role %q; the roles are api, worker, scheduler, and none for the bus alone", r))
		}
	}
	if _, err := egress.ParseAllowlist(u.Allowlist); err != nil {
		faults = append(faults, err)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, &failure{exit: exitUsage, Code: "usage", Message: err.Error(), err: err}
	}
	return slots, nil
}

// announce waits until the API answers that all is ready and says what runs,
// and what is missing.
func (u *up) announce(ctx context.Context, con *console.Console, r app.Running, found engines.Report, started time.Time) error {
	address := reachable(r.URL)
	if address != "" {
		if err := awaitReady(ctx, address); err != nil {
			return err
		}
		// For clients that are pointed at the data directory.
		if err := os.WriteFile(filepath.Join(r.DataDir, apiURLName), []byte(address+"\n"), 0o644); err != nil {
			return fmt.Errorf("tell clients the address: %w", fileError(err))
		}
		u.told.Store(address)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s is up after %.1f s\n", con.Green("helmdeck"), app.Version, time.Since(started).Seconds())
	if address != "" {
		fmt.Fprintf(&b, "  API    %s   (docs: %s/docs)\n  token  %s\n", address, address, r.TokenFile)
	}
	fmt.Fprintf(&b, "  NATS   %s   (logins: %s)\n  data   %s", r.NATSURL, filepath.Join(r.DataDir, "nats-ROLE.json"), r.DataDir)
	if slices.Contains(u.Roles, "scheduler") {
		for _, e := range found.Missing() {
			fmt.Fprintf(&b, "\n  %s %s, so no %s; install: %s", con.Yellow("missing:"), e.Name, e.Enables, e.Install)
		}
	}
	if address != "" {
		b.WriteString("\n  " + con.Dim("try: helmdeck pack list "+u.hint(address)+"(Ctrl-C stops; jobs go on after the next start)"))
	}
	con.Say("%s", b.String())
	return nil
}

// lacking tells callers which packs cannot run here. Another scheduler may be
// better equipped when this process runs none.
func (u *up) lacking(found engines.Report) func(packs.Info) string {
	if !slices.Contains(u.Roles, "scheduler") {
		return nil
	}
	return func(info packs.Info) string { return found.Reason(info.Name) }
}

// hint is the flag with which clients find this data directory; none when they
// look there anyway.
func (u *up) hint(address string) string {
	if usual, err := filepath.Abs("helmdeck-data"); err == nil && usual == u.Data {
		return ""
	}
	if loopback(address) {
		return "--data " + u.Data + " "
	}
	return "--url " + address + " "
}

// reachable is the address for clients of this machine: one that listens on
// every address is reached over loopback.
func reachable(raw string) string {
	p, err := url.Parse(raw)
	if err != nil || raw == "" {
		return raw
	}
	if ip, err := netip.ParseAddr(p.Hostname()); err == nil && ip.IsUnspecified() {
		p.Host = net.JoinHostPort("127.0.0.1", p.Port())
	}
	return p.String()
}

// awaitReady waits until /readyz answers 200.
func awaitReady(ctx context.Context, address string) error {
	c, err := client.New(address, "")
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := c.Ready(ctx)
		if err == nil && r.Status == "ready" {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not ready after %s: %v", readyWithin, r.Checks), err)
		case <-tick.C:
		}
	}
}
