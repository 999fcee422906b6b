package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/helmdeck/helmdeck/internal/auth"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/backup"
	"github.com/helmdeck/helmdeck/internal/metrics"
)

// Role is what a role binary is told: an outside NATS and the shared keys.
type Role struct {
	Settings
	NATS      string // nats://host:port
	NATSCreds string // file
	Keys      string // file
	// Data is the folder for scratch and sidecars of this process.
	Data string
	// Metrics is HOST:PORT of /metrics and /healthz; empty: none.
	Metrics string
}

func (r Role) validate() error {
	var faults []error
	for _, f := range []struct{ flag, value string }{
		{"--nats", r.NATS}, {"--nats-creds", r.NATSCreds}, {"--keys", r.Keys},
	} {
		if f.value == "" {
			faults = append(faults, fmt.Errorf("%s is missing", f.flag))
		}
	}
	return errors.Join(faults...)
}

// dial connects a role and reads the keys.
func (r Role) dial(ctx context.Context, role bus.Role, reg *prometheus.Registry) (*bus.Conn, Keys, error) {
	if err := r.validate(); err != nil {
		return nil, Keys{}, err
	}
	keys, err := ReadKeys(r.Keys)
	if err != nil {
		return nil, Keys{}, err
	}
	creds, err := ReadCreds(r.NATSCreds)
	if err != nil {
		return nil, Keys{}, err
	}
	profile, err := r.profile()
	if err != nil {
		return nil, Keys{}, err
	}
	conn, err := bus.Connect(ctx, bus.Config{
		URL: r.NATS, User: bus.Role(creds.User), Password: creds.Password,
		Name: newID(string(role)), Prefix: r.Prefix, Profile: profile, Observe: metrics.Publishes(reg), Log: r.Log,
	})
	return conn, keys, err
}

// RunAPI is the process of one API replica.
func RunAPI(ctx context.Context, r Role, addr, token string) error {
	return r.run(ctx, bus.RoleAPI, func(ctx context.Context, conn *bus.Conn, keys Keys, reg *prometheus.Registry, done *closer) ([]service, error) {
		if token == "" {
			token = filepath.Join(filepath.Dir(r.Keys), tokenFile)
		}
		secret, err := auth.LoadOrCreateToken(token)
		if err != nil {
			return nil, err
		}
		ln, err := listen(ctx, addr)
		if err != nil {
			return nil, err
		}
		done.add(func() { _ = ln.Close() }) // closed by the server as a rule
		r.Log.Info().Str("url", "http://"+ln.Addr().String()).Msg("api listens")
		guard, err := r.guard()
		if err != nil {
			return nil, err
		}
		if ap, ok := addrPort(ln.Addr()); ok {
			done.add(guard.RefuseListener(ap))
		}
		return (&apiRole{Settings: r.Settings, keys: keys, conn: conn, guard: guard, dir: r.Data, token: secret, registry: reg}).build(ctx, ln, done)
	})
}

// RunWorker is the process of one worker. One that is
// asked to drain by the API ends like one that is told to stop.
func RunWorker(ctx context.Context, r Role, slots map[string]int) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	return r.run(ctx, bus.RoleWorker, func(ctx context.Context, conn *bus.Conn, keys Keys, reg *prometheus.Registry, done *closer) ([]service, error) {
		guard, err := r.guard()
		if err != nil {
			return nil, err
		}
		return (&workerRole{
			Settings: r.Settings, keys: keys, conn: conn, guard: guard, dir: r.Data, slots: slots, registry: reg, drained: stop,
		}).build(ctx, done)
	})
}

// RunScheduler is the process of the scheduler of one host. Its sidecars are
// left to the next one unless drain is set.
func RunScheduler(ctx context.Context, r Role, slots int, drain bool) error {
	return r.run(ctx, bus.RoleScheduler, func(ctx context.Context, conn *bus.Conn, _ Keys, reg *prometheus.Registry, done *closer) ([]service, error) {
		guard, err := r.guard()
		if err != nil {
			return nil, err
		}
		return (&schedulerRole{
			Settings: r.Settings, conn: conn, guard: guard, dir: r.Data, slots: slots, stopSidecars: drain, registry: reg,
		}).build(ctx, done)
	})
}

type builder func(ctx context.Context, conn *bus.Conn, keys Keys, reg *prometheus.Registry, done *closer) ([]service, error)

func (r Role) run(ctx context.Context, role bus.Role, build builder) error {
	var done closer
	defer done.close()
	tel, err := r.telemetry(ctx, string(role))
	if err != nil {
		return err
	}
	done.add(func() { flush(tel.Shutdown) })
	conn, keys, err := r.dial(ctx, role, tel.Registry)
	if err != nil {
		return err
	}
	done.add(conn.Close)
	metrics.Connection(tel.Registry, conn.Connected, conn.Core().Losses)
	services, err := build(ctx, conn, keys, tel.Registry, &done)
	if err != nil {
		return err
	}
	if r.Metrics != "" {
		ln, err := listen(ctx, r.Metrics)
		if err != nil {
			return err
		}
		services = append([]service{metricsService(ln, tel.Registry, conn)}, services...)
	}
	r.Log.Info().Str("role", string(role)).Str("version", Version).Msg("started")
	return serve(ctx, services)
}

func flush(shutdown func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = shutdown(ctx) // spans that cannot be sent are lost, nothing else
}

// metricsService serves /metrics and /healthz of a process without an API.
func metricsService(ln net.Listener, reg *prometheus.Registry, conn *bus.Conn) service {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, req *http.Request) {
		if err := conn.Ping(req.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n")) // a client that left
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	return service{"metrics", func(ctx context.Context) error { return serveHTTP(ctx, s, ln) }}
}

// InitBus makes or migrates the streams of an outside NATS.
func InitBus(ctx context.Context, r Role) (bus.Status, error) {
	return r.admin(ctx, (*bus.Conn).Init)
}

// BusStatus compares the streams of an outside NATS with what this program
// makes.
func BusStatus(ctx context.Context, r Role) (bus.Status, error) {
	return r.admin(ctx, (*bus.Conn).Status)
}

func (r Role) admin(ctx context.Context, do func(*bus.Conn, context.Context) (bus.Status, error)) (bus.Status, error) {
	conn, err := r.administrator(ctx)
	if err != nil {
		return bus.Status{}, err
	}
	defer conn.Close()
	return do(conn, ctx)
}

// administrator connects to change streams.
func (r Role) administrator(ctx context.Context) (*bus.Conn, error) {
	creds, err := ReadCreds(r.NATSCreds)
	if err != nil {
		return nil, err
	}
	profile, err := r.profile()
	if err != nil {
		return nil, err
	}
	return bus.Connect(ctx, bus.Config{
		URL: r.NATS, User: bus.Role(creds.User), Password: creds.Password, Name: "bus-admin",
		Prefix: r.Prefix, Profile: profile, Log: r.Log,
	})
}

// BackupBus copies the installation to a folder.
func BackupBus(ctx context.Context, r Role, dir string, progress backup.Progress) (backup.Manifest, error) {
	conn, err := r.administrator(ctx)
	if err != nil {
		return backup.Manifest{}, err
	}
	defer conn.Close()
	return backup.Write(ctx, conn, dir, Version, progress)
}

// RestoreBus makes the installation what the backup in dir holds.
func RestoreBus(ctx context.Context, r Role, dir string, replace bool, progress backup.Progress) (backup.Manifest, error) {
	conn, err := r.administrator(ctx)
	if err != nil {
		return backup.Manifest{}, err
	}
	defer conn.Close()
	return backup.Restore(ctx, conn, dir, replace, progress)
}
