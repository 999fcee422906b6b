package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/leasestore"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/internal/metrics"
	"github.com/helmdeck/helmdeck/internal/scheduler"
	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/process"
)

// schedulerRole is the scheduler of one host, with its egress proxy.
type schedulerRole struct {
	Settings
	conn  *bus.Conn
	guard *egress.Guard
	dir   string
	slots int // sidecars at once; 0: the scheduler's default
	// stopSidecars ends process sidecars with this process instead of leaving
	// them to the next one.
	stopSidecars bool
	registry     *prometheus.Registry
}

func (r *schedulerRole) build(ctx context.Context, done *closer) ([]service, error) {
	runtime, err := process.New(process.Config{Dir: r.dir, Log: r.Log})
	if err != nil {
		return nil, err
	}
	leases, err := leasestore.Open(ctx, leasestore.Config{
		JetStream: r.conn.JetStream(), Ensure: r.conn.EnsureLeaseConsumer, Log: r.Log,
	})
	if err != nil {
		return nil, err
	}
	host, err := hostID(r.dir)
	if err != nil {
		return nil, err
	}
	record, err := r.audit(r.conn, r.dir, bus.RoleScheduler, nil, r.registry, nil, done)
	if err != nil {
		return nil, err
	}
	proxy := egress.NewProxy(egress.ProxyConfig{Guard: r.guard, Observe: func(c egress.Connection) {
		r.observe(c)
		record.Record(audit.Connected(c))
	}, Log: r.Log})
	done.add(proxy.Close)
	s, err := scheduler.New(scheduler.Config{
		Registry: leases, Queue: leases, Runtime: runtime, Slots: r.slots, Host: host,
		Proxy:        func(l sessions.Lease) (string, func(), error) { return openProxy(ctx, proxy, l) },
		StopSidecars: r.stopSidecars, Log: r.Log,
		Observe: func(l sessions.Lease, e scheduler.LeaseEvent) { record.Record(audit.LeaseChanged(l, string(e))) },
	})
	if err != nil {
		return nil, err
	}
	metrics.Sidecars(r.registry, s.Load)
	return append(record.service, service{"scheduler", s.Run}), nil
}

// openProxy opens the way out of one sidecar, in its caller's name.
func openProxy(ctx context.Context, p *egress.Proxy, l sessions.Lease) (string, func(), error) {
	ln, err := p.Listen(ctx, egress.Identity{
		Tenant: l.Caller.TenantToken(), Caller: l.Caller.Subject, Lease: l.ID, Job: l.JobID,
	})
	if err != nil {
		return "", nil, err
	}
	return "http://" + ln.Addr(), ln.Close, nil
}

func (r *schedulerRole) observe(c egress.Connection) {
	e := r.Log.Debug()
	if c.Verdict == egress.Denied {
		e = r.Log.Info()
	}
	e.Str("lease", c.Lease).Str("job", c.Job).Str("caller", c.Caller).Str("host", c.Host).
		Str("verdict", string(c.Verdict)).Int64("up", c.Up).Int64("down", c.Down).Msg("sidecar connection")
}

// hostID names the scheduler of a data directory, the same after a restart.
func hostID(dir string) (string, error) {
	path := filepath.Join(dir, "host")
	b, err := os.ReadFile(path)
	if err == nil && len(strings.TrimSpace(string(b))) > 0 {
		return strings.TrimSpace(string(b)), nil
	}
	id := newID("host")
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return "", fmt.Errorf("name host: %w", err)
	}
	if err := writeFile(path, []byte(id+"\n"), 0o600, os.Rename); err != nil {
		return "", fmt.Errorf("name host: %w", err)
	}
	return id, nil
}
