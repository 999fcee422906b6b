package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

// ErrDeadMan is why Run ended when nobody renewed the lease.
var ErrDeadMan = errors.New("nobody renewed the lease")

// Agent serves one lease.
type Agent struct {
	boot     wire.Boot
	log      zerolog.Logger
	tracer   trace.Tracer
	scratch  *os.Root
	family   *family
	browser  *browser
	relay    *relay
	listener net.Listener
	env      []string
	shutdown func() // ends Run; safe to call more than once
	asked    chan struct{}

	mu        sync.Mutex // guards renewedAt
	renewedAt time.Time  // with its monotonic reading
}

// New opens the scratch folder and the listeners; Run serves them. ctx bounds
// New alone.
func New(ctx context.Context, boot wire.Boot, log zerolog.Logger) (*Agent, error) {
	root, err := os.OpenRoot(boot.Scratch)
	if err != nil {
		return nil, fmt.Errorf("open scratch folder: %w", err)
	}
	asked := make(chan struct{})
	a := &Agent{
		boot: boot, log: log, tracer: otel.Tracer("helmdeck/agent"), scratch: root,
		family: newFamily(), renewedAt: time.Now(), asked: asked,
		shutdown: sync.OnceFunc(func() { close(asked) }),
	}
	if err := root.MkdirAll(tempDir, 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("make temporary folder: %w", err), root.Close())
	}
	if a.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", boot.Listen); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for the worker: %w", err), root.Close())
	}
	proxy := ""
	if boot.ProxyURL != "" {
		if a.relay, err = newRelay(ctx, boot.ProxyURL); err != nil {
			return nil, errors.Join(err, a.listener.Close(), root.Close())
		}
		proxy = a.relay.URL()
	}
	a.env = environment(boot, proxy)
	a.browser = newBrowser(boot, proxy, a.env, a.family, log)
	return a, nil
}

// Endpoint is the base URL the agent serves.
func (a *Agent) Endpoint() string { return "http://" + a.listener.Addr().String() }

// Run serves until ctx ends, a shutdown is asked for (both nil) or the
// dead-man timer fires (ErrDeadMan). No program of the sidecar is left when it
// returns.
func (a *Agent) Run(ctx context.Context) error {
	defer a.Close()
	srv := &http.Server{
		Handler: a.routes(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(a.listener) }()
	defer func() { _ = srv.Close() }()
	timer := time.NewTimer(a.boot.DeadManAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.asked:
			return nil
		case err := <-served:
			return fmt.Errorf("serve: %w", err)
		case <-timer.C:
			left := a.boot.DeadManAfter - a.sinceRenewal()
			if left <= 0 {
				return ErrDeadMan
			}
			timer.Reset(left)
		}
	}
}

// Close ends every program and the listeners.
func (a *Agent) Close() {
	_ = a.listener.Close()
	if a.relay != nil {
		a.relay.Close()
	}
	a.family.killAll()
	_ = a.scratch.Close()
}

func (a *Agent) renew() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.renewedAt = time.Now()
}

func (a *Agent) sinceRenewal() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Since(a.renewedAt)
}

func (a *Agent) expired() bool { return a.sinceRenewal() >= a.boot.ExpireAfter }

// tempDir is where programs put their temporary files, below scratch.
const tempDir = ".tmp"

// environment is what every program of the sidecar starts with. Nothing of
// the agent's own environment is handed on.
func environment(boot wire.Boot, proxy string) []string {
	path := strings.Join(boot.Path, string(os.PathListSeparator))
	env := []string{
		"PATH=" + path, "HOME=" + boot.Scratch, "TMPDIR=" + filepath.Join(boot.Scratch, tempDir),
		"LANG=C.UTF-8", "HELMDECK_LEASE=" + boot.Lease,
	}
	if proxy != "" {
		for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy"} {
			env = append(env, name+"="+proxy)
		}
		// Loopback goes through the proxy as well: it is the guard's to judge.
		env = append(env, "NO_PROXY=", "no_proxy=", "NODE_USE_ENV_PROXY=1")
	}
	for k, v := range boot.Env {
		env = append(env, k+"="+v)
	}
	return env
}
