// Package app wires the parts of helmdeck into processes: the role binaries,
// each with a connection of its own to an outside NATS, and helmdeck up, which
// runs all roles around an embedded server. It holds no logic of any role.
package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/egress"
	"github.com/helmdeck/helmdeck/internal/telemetry"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/catalog"
)

// Version of the build, set by the linker.
var Version = "dev"

// Settings are what every process of an installation is told.
type Settings struct {
	// Allowlist is HELMDECK_EGRESS_ALLOWLIST: CIDRs exempt from the egress
	// block list, comma-separated.
	Allowlist string
	// TestPacks is HELMDECK_TEST_PACKS: offer the test.* packs.
	TestPacks bool
	// AckWait is the time after which a job of a silent worker runs again.
	AckWait time.Duration
	// RetryInQueue is the longest pause of a retry spent in the queue rather
	// than as a schedule; 0: one minute.
	RetryInQueue time.Duration
	// ReconcileEvery is the time between two passes of the reconciler; 0: one
	// minute.
	ReconcileEvery time.Duration
	// Limits is the file of limits; empty: nobody is limited.
	Limits string
	// WebhookRetries are the pauses between the attempts of a webhook delivery;
	// none: the ladder of Standard Webhooks. WebhookTimeout bounds one attempt;
	// 0: 15 s. WebhookBreaker is how long a receiver that keeps failing gets
	// nothing at first; 0: 30 s.
	WebhookRetries []time.Duration
	WebhookTimeout time.Duration
	WebhookBreaker time.Duration
	// Profile is the bus profile: embedded, single or ha.
	Profile string
	Prefix  string
	// PublicURL is where callers reach the API.
	PublicURL string
	// S3 is where the bytes of artifacts go; nil: into the bus.
	S3 *s3.Config
	// ArtifactTTL is how long artifacts are kept when nobody says otherwise; 0:
	// seven days, negative: for ever.
	ArtifactTTL time.Duration
	// ArtifactSweep is the time between two sweeps; 0: one hour.
	ArtifactSweep time.Duration
	// Audit says how the audit trail is kept.
	Audit AuditSettings
	Log   zerolog.Logger
}

func (s Settings) profile() (bus.Profile, error) {
	p, err := bus.ProfileByName(s.Profile)
	if s.AckWait > 0 {
		p.AckWait = s.AckWait
	}
	if s.Audit.MaxAge > 0 {
		p.AuditMaxAge = s.Audit.MaxAge
	}
	if s.Audit.MaxBytes > 0 {
		p.AuditMaxBytes = s.Audit.MaxBytes
	}
	return p, err
}

func (s Settings) heartbeat() time.Duration {
	if s.AckWait == 0 {
		return 0
	}
	return s.AckWait / 3
}

func (s Settings) guard() (*egress.Guard, error) {
	allow, err := egress.ParseAllowlist(s.Allowlist)
	if err != nil {
		return nil, err
	}
	return egress.New(egress.Config{Policy: egress.Policy{Allow: allow}}), nil
}

func (s Settings) catalog() *packs.Catalog {
	return packs.NewCatalog(catalog.All(catalog.Options{TestPacks: s.TestPacks})...)
}

func (s Settings) telemetry(ctx context.Context, role string) (*telemetry.Telemetry, error) {
	t, err := telemetry.New(ctx, telemetry.Config{
		Service: "helmdeck-" + role, Version: Version, Instance: newID(role), Log: s.Log,
	})
	if err == nil {
		// The tracers of worker and agent take the process's provider.
		otel.SetTracerProvider(t.Tracer)
		otel.SetTextMapPropagator(propagation.TraceContext{})
	}
	return t, err
}

// newID names a process in records, heartbeats and logs.
func newID(role string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "host"
	}
	id := strings.ReplaceAll(uuid.NewString(), "-", "")[:8]
	return role + "-" + id + "-" + token(host)
}

// token makes a host name fit for a subject.
func token(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, s)
}

// service is a part of a process that runs until its context ends.
type service struct {
	name string
	run  func(context.Context) error
}

// serve runs services until ctx ends or one fails, then stops them one by one
// in the reverse of their order, so that what others depend on goes last.
func serve(ctx context.Context, services []service) error {
	type running struct {
		service
		stop func()
		done chan struct{}
	}
	failed := make(chan error, len(services))
	var all []running
	for _, s := range services {
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := running{service: s, stop: stop, done: make(chan struct{})}
		all = append(all, r)
		go func() {
			defer close(r.done)
			if err := s.run(own); err != nil {
				failed <- fmt.Errorf("%s: %w", s.name, err)
			} else if own.Err() == nil {
				failed <- fmt.Errorf("%s ended by itself", s.name)
			}
		}()
	}
	var errs []error
	select {
	case <-ctx.Done():
	case err := <-failed:
		errs = append(errs, err)
	}
	for i := len(all) - 1; i >= 0; i-- {
		all[i].stop()
		<-all[i].done
	}
	close(failed)
	for err := range failed {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// closer runs functions in the reverse of the order they were added.
type closer struct {
	mu  sync.Mutex // guards fns
	fns []func()
}

func (c *closer) add(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fns = append(c.fns, fn)
}

func (c *closer) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(c.fns) - 1; i >= 0; i-- {
		c.fns[i]()
	}
	c.fns = nil
}
