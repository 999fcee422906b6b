package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/internal/auth"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/internal/metrics"
	"github.com/helmdeck/helmdeck/internal/telemetry"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Up is what helmdeck up is told.
type Up struct {
	Settings
	Data       string
	Listen     string // HOST:PORT of the API
	NATSListen string // HOST:PORT of the bus for other processes
	// Roles are those to run in this process: api, worker, scheduler. The bus
	// always runs.
	Roles []string
	Slots map[string]int
	// SidecarSlots bounds the sidecars at once; 0: the default.
	SidecarSlots int
	// Lacking says what a pack needs that this machine lacks, and how to get
	// it; "" for nothing. Nil: not known.
	Lacking func(packs.Info) string
	// Ready is called once the roles run; may be nil.
	Ready func(Running)
}

// Running tells what helmdeck up started.
type Running struct {
	URL       string // of the API, empty without it
	NATSURL   string
	TokenFile string
	DataDir   string
}

// Run starts the bus and the roles and returns after a clean stop, or with
// the error that prevented the start.
func (u Up) Run(ctx context.Context) error {
	var done closer
	defer done.close()
	if err := os.MkdirAll(u.Data, 0o711); err != nil {
		return fmt.Errorf("data directory: %w; choose another with --data DIR", err)
	}
	guard, err := u.guard()
	if err != nil {
		return err
	}
	profile, err := u.profile()
	if err != nil {
		return err
	}
	tel, err := u.telemetry(ctx, "up")
	if err != nil {
		return err
	}
	done.add(func() { flush(tel.Shutdown) })

	server, keys, err := u.startBus(ctx, profile)
	if err != nil {
		return err
	}
	done.add(server.Shutdown)
	metrics.Space(tel.Registry, server.Space)
	running := Running{NATSURL: server.URL(), DataDir: u.Data}
	services := []service{{"bus health", func(ctx context.Context) error { return u.nurse(ctx, server) }}}
	if ap, err := natsAddr(server.URL()); err == nil {
		done.add(guard.RefuseListener(ap))
	}

	if slices.Contains(u.Roles, "scheduler") {
		conn, err := u.connect(ctx, server, bus.RoleScheduler, metrics.Publishes(tel.Registry), &done)
		if err != nil {
			return err
		}
		s, err := (&schedulerRole{
			Settings: u.Settings, conn: conn, guard: guard, dir: u.Data, slots: u.SidecarSlots, stopSidecars: true, registry: tel.Registry,
		}).build(ctx, &done)
		if err != nil {
			return err
		}
		services = append(services, s...)
	}
	if slices.Contains(u.Roles, "worker") {
		conn, err := u.connect(ctx, server, bus.RoleWorker, metrics.Publishes(tel.Registry), &done)
		if err != nil {
			return err
		}
		s, err := (&workerRole{
			Settings: u.Settings, keys: keys, conn: conn, guard: guard, dir: u.Data, slots: u.Slots, registry: tel.Registry,
		}).build(ctx, &done)
		if err != nil {
			return err
		}
		services = append(services, s...)
	}
	if slices.Contains(u.Roles, "api") {
		s, err := u.api(ctx, server, keys, tel, &running, guard, &done)
		if err != nil {
			return err
		}
		services = append(services, s...)
	}
	if u.Ready != nil {
		u.Ready(running)
	}
	return serve(ctx, services)
}

func (u Up) api(ctx context.Context, server *bus.Server, keys Keys, tel *telemetry.Telemetry, running *Running, guard *egress.Guard, done *closer) ([]service, error) {
	running.TokenFile = filepath.Join(u.Data, tokenFile)
	token, err := auth.LoadOrCreateToken(running.TokenFile)
	if err != nil {
		return nil, err
	}
	ln, err := listen(ctx, u.Listen)
	if err != nil {
		return nil, err
	}
	done.add(func() { _ = ln.Close() }) // closed by the server as a rule
	if ap, ok := addrPort(ln.Addr()); ok {
		done.add(guard.RefuseListener(ap))
	}
	running.URL = "http://" + ln.Addr().String()
	conn, err := u.connect(ctx, server, bus.RoleAPI, metrics.Publishes(tel.Registry), done)
	if err != nil {
		return nil, err
	}
	metrics.Connection(tel.Registry, conn.Connected, conn.Core().Losses)
	return (&apiRole{
		Settings: u.Settings, keys: keys, conn: conn, guard: guard, dir: u.Data, token: token, registry: tel.Registry, lacking: u.Lacking,
		health: map[string]api.Health{"store": api.HealthFunc(server.Healthy)},
	}).build(ctx, ln, done)
}

// startBus starts the embedded server, sets the topology up and writes the
// files with which other processes can join.
func (u Up) startBus(ctx context.Context, profile bus.Profile) (*bus.Server, Keys, error) {
	// A second process finds these files as they are, before the lock of the
	// store refuses it.
	secrets, err := passwords(u.Data)
	if err != nil {
		return nil, Keys{}, dataError(u.Data, err)
	}
	keys, err := loadOrCreate(filepath.Join(u.Data, keysFile), NewKeys)
	if err != nil {
		return nil, Keys{}, dataError(u.Data, err)
	}
	server, err := bus.StartServer(ctx, bus.ServerConfig{
		Dir: filepath.Join(u.Data, "bus"), Listen: u.NATSListen, Profile: profile, Prefix: u.Prefix, Passwords: secrets, Log: u.Log,
	})
	if err != nil {
		return nil, Keys{}, dataError(u.Data, err)
	}
	var done closer
	defer done.close()
	admin, err := u.connect(ctx, server, bus.RoleAdmin, nil, &done)
	if err == nil {
		_, err = admin.Init(ctx)
	}
	if err == nil {
		err = writeFile(filepath.Join(u.Data, urlFile), []byte(server.URL()+"\n"), 0o644, os.Rename)
	}
	if err != nil {
		server.Shutdown()
		return nil, Keys{}, dataError(u.Data, err)
	}
	return server, keys, nil
}

// dataError adds the remedy to what can be wrong with a data directory.
func dataError(dir string, err error) error {
	if locked, ok := errors.AsType[*bus.LockedError](err); ok {
		return fmt.Errorf("%w: stop that process, or start this one with another --data directory", locked)
	}
	if newer, ok := errors.AsType[*bus.VersionError](err); ok {
		return fmt.Errorf("%w: use the newer helmdeck on %s, or another --data directory", newer, dir)
	}
	if port, ok := errors.AsType[*bus.PortError](err); ok {
		return fmt.Errorf("%w: choose another with --nats-listen HOST:PORT", port)
	}
	return fmt.Errorf("data directory %s: %w", dir, err)
}

func (u Up) connect(ctx context.Context, server *bus.Server, role bus.Role, observe bus.Observer, done *closer) (*bus.Conn, error) {
	conn, err := bus.Connect(ctx, bus.Config{Server: server, User: role, Name: newID(string(role)), Observe: observe, Log: u.Log})
	if err != nil {
		return nil, err
	}
	done.add(conn.Close)
	return conn, nil
}

const (
	nurseEvery = 2 * time.Second
	// freeBytes is the room that must be there before a frozen store is
	// started again: a file-store block and what is written meanwhile.
	freeBytes = 16 << 20
)

// nurse restarts the server once there is space again after a storage error:
// the server itself keeps a stream frozen until then.
func (u Up) nurse(ctx context.Context, server *bus.Server) error {
	tick := time.NewTicker(nurseEvery)
	defer tick.Stop()
	frozen := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		err := server.Healthy(ctx)
		if !errors.Is(err, bus.ErrFrozen) {
			frozen = false
			continue
		}
		if !frozen {
			u.Log.Error().Err(err).Str("dir", u.Data).Msg("store refuses writes; free space in the data directory, nothing accepted was lost")
			frozen = true
		}
		if free, _, err := server.Space(); err != nil || free < freeBytes {
			continue
		}
		u.Log.Warn().Msg("space is back, restarting the bus server")
		if err := server.Restart(ctx); err != nil && ctx.Err() == nil {
			u.Log.Error().Err(err).Msg("bus server not restarted, trying again")
		}
	}
}

func natsAddr(raw string) (netip.AddrPort, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.ParseAddrPort(u.Host)
}
