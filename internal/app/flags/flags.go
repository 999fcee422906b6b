// Package flags is the command-line form of the settings that all programs
// of helmdeck share. Precedence is flag, environment, default.
package flags

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/pkg/artifacts/s3"
)

// Settings are the flags of every process.
type Settings struct {
	Allowlist      string          `name:"egress-allowlist" env:"HELMDECK_EGRESS_ALLOWLIST" placeholder:"CIDRS" help:"CIDRs that packs and sidecars may reach although the egress guard refuses them, comma-separated (127.0.0.1/32 for pages of this machine)."`
	TestPacks      bool            `name:"test-packs" env:"HELMDECK_TEST_PACKS" help:"Offer the test.* packs."`
	AckWait        time.Duration   `env:"HELMDECK_ACK_WAIT" default:"30s" help:"Time after which a job whose worker is silent runs again. The same for all processes."`
	RetryInQueue   time.Duration   `env:"HELMDECK_RETRY_IN_QUEUE" default:"1m" help:"Longest pause before a retry for which a job stays in the queue; a longer one rides on a schedule."`
	ReconcileEvery time.Duration   `env:"HELMDECK_RECONCILE_EVERY" default:"1m" help:"Time between two looks for jobs that are in no queue."`
	Limits         string          `env:"HELMDECK_LIMITS" placeholder:"FILE" type:"path" help:"YAML or JSON file of quotas, caps and shares, for API and workers; a change of it takes effect by itself. See docs/limits.md."`
	WebhookRetries []time.Duration `env:"HELMDECK_WEBHOOK_RETRIES" placeholder:"PAUSE,…" help:"Pauses between the attempts of a webhook delivery; 5s,5m,30m,2h,5h,10h,14h,20h,24h unless given. The same for all processes."`
	WebhookTimeout time.Duration   `env:"HELMDECK_WEBHOOK_TIMEOUT" default:"15s" help:"Time a webhook's receiver has to answer."`
	WebhookBreaker time.Duration   `env:"HELMDECK_WEBHOOK_BREAKER" default:"30s" help:"Time for which a webhook's receiver gets nothing after five failures in a row; it doubles up to ten minutes."`
	Profile        string          `env:"HELMDECK_PROFILE" default:"${profile}" enum:"embedded,single,ha" help:"Bus profile: embedded, single or ha."`
	Prefix         string          `env:"HELMDECK_PREFIX" default:"hd" help:"First token of every subject, one per installation."`
	PublicURL      string          `name:"public-url" env:"HELMDECK_PUBLIC_URL" placeholder:"URL" help:"Where callers reach the API, for links."`
	ArtifactTTL    time.Duration   `name:"artifact-ttl" env:"HELMDECK_ARTIFACT_TTL" default:"168h" help:"How long artifacts are kept when their job does not say otherwise; negative: for ever."`
	ArtifactSweep  time.Duration   `name:"artifact-janitor-interval" env:"HELMDECK_ARTIFACT_JANITOR_INTERVAL" default:"1h" help:"Time between two looks for artifacts whose time is over."`
	Audit          string          `env:"HELMDECK_AUDIT" default:"on" enum:"on,off" help:"Record calls, ends of jobs, leases and connections in the audit trail."`
	AuditMaxAge    time.Duration   `env:"HELMDECK_AUDIT_MAX_AGE" default:"2160h" help:"How long audit records are kept. Of the process that sets up the bus."`
	AuditMaxBytes  int64           `env:"HELMDECK_AUDIT_MAX_BYTES" default:"10737418240" help:"Bytes of the audit trail; the oldest records go first. Of the process that sets up the bus."`
	AuditSpool     int64           `name:"audit-spool-bytes" env:"HELMDECK_AUDIT_SPOOL_BYTES" default:"268435456" help:"Bytes of audit events that wait in the data directory while the bus is away."`
	AuditOTLP      string          `name:"audit-otlp-endpoint" env:"HELMDECK_AUDIT_OTLP_ENDPOINT" placeholder:"URL" help:"Collector that audit records are sent to as OTLP logs, such as http://127.0.0.1:4318; HELMDECK_AUDIT_OTLP_HEADERS (name=value,…) go along."`
	LogLevel       string          `env:"HELMDECK_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" help:"Lowest level that is logged."`
	LogFormat      string          `env:"HELMDECK_LOG_FORMAT" default:"auto" enum:"auto,json,text" help:"Log lines as json or text; auto: text on a terminal."`
}

// App returns the settings with a logger to standard error.
func (s Settings) App() (app.Settings, error) {
	log, err := s.logger()
	if err != nil {
		return app.Settings{}, err
	}
	// Keys are no flags, which others on the machine could read; so the bucket is
	// configured by variables alone.
	bucket, err := s3.FromEnv(os.Getenv)
	if s.ArtifactSweep < time.Second {
		err = errors.Join(err, fmt.Errorf("--artifact-janitor-interval is %s; give at least 1s", s.ArtifactSweep))
	}
	if s.AuditMaxAge < time.Hour || s.AuditMaxBytes < 1<<20 || s.AuditSpool < 1<<20 {
		err = errors.Join(err, fmt.Errorf("--audit-max-age must be at least 1h, --audit-max-bytes and --audit-spool-bytes at least 1048576; got %s, %d and %d",
			s.AuditMaxAge, s.AuditMaxBytes, s.AuditSpool))
	}
	headers, faults := headersOf(os.Getenv("HELMDECK_AUDIT_OTLP_HEADERS"))
	err = errors.Join(err, faults)
	return app.Settings{
		Audit: app.AuditSettings{Off: s.Audit == "off", MaxAge: s.AuditMaxAge, MaxBytes: s.AuditMaxBytes, SpoolBytes: s.AuditSpool, OTLP: s.AuditOTLP, OTLPHeaders: headers},
		S3:    bucket, ArtifactTTL: s.ArtifactTTL, ArtifactSweep: s.ArtifactSweep,
		Allowlist: s.Allowlist, TestPacks: s.TestPacks, AckWait: s.AckWait,
		RetryInQueue: s.RetryInQueue, ReconcileEvery: s.ReconcileEvery, Limits: s.Limits, WebhookRetries: s.WebhookRetries, WebhookTimeout: s.WebhookTimeout,
		WebhookBreaker: s.WebhookBreaker, Profile: s.Profile,
		Prefix: s.Prefix, PublicURL: s.PublicURL, Log: log,
	}, err
}

// headersOf reads name=value,name=value as OpenTelemetry writes it.
func headersOf(text string) (map[string]string, error) {
	headers := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		plain, err := url.PathUnescape(strings.TrimSpace(value))
		switch {
		case strings.TrimSpace(pair) == "":
			continue
		case !ok || strings.TrimSpace(name) == "" || err != nil:
			return nil, errors.New("HELMDECK_AUDIT_OTLP_HEADERS must be name=value pairs with commas between, values percent-encoded")
		}
		headers[strings.TrimSpace(name)] = plain
	}
	return headers, nil
}

func (s Settings) logger() (zerolog.Logger, error) {
	level, err := zerolog.ParseLevel(s.LogLevel)
	if err != nil {
		return zerolog.Nop(), err
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano
	l := zerolog.New(os.Stderr)
	if s.LogFormat == "text" || s.LogFormat == "auto" && isTerminal(os.Stderr) {
		l = zerolog.New(zerolog.ConsoleWriter{
			Out: os.Stderr, TimeFormat: time.TimeOnly, NoColor: os.Getenv("NO_COLOR") != "" || !isTerminal(os.Stderr),
		})
	}
	return l.Level(level).With().Timestamp().Logger(), nil
}

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

// Role are the flags of the role binaries.
type Role struct {
	Settings
	NATS      string `name:"nats" env:"HELMDECK_NATS_URL" required:"" placeholder:"URL" help:"NATS servers, nats://HOST:PORT, several separated by commas."`
	NATSCreds string `name:"nats-creds" env:"HELMDECK_NATS_CREDS" required:"" placeholder:"FILE" type:"path" help:"JSON file with user and password of this role, mode 0600."`
	Keys      string `name:"keys" env:"HELMDECK_KEYS" required:"" placeholder:"FILE" type:"path" help:"keys.json shared by all processes of the installation, mode 0600."`
	Data      string `name:"data" env:"HELMDECK_DATA" default:"helmdeck-data" placeholder:"DIR" type:"path" help:"Folder for scratch files and sidecars of this process."`
	Metrics   string `name:"metrics-listen" env:"HELMDECK_METRICS_LISTEN" placeholder:"HOST:PORT" help:"Serve /metrics and /healthz of this process."`
}

// App returns the role's configuration.
func (r Role) App() (app.Role, error) {
	s, err := r.Settings.App()
	return app.Role{
		Settings: s, NATS: r.NATS, NATSCreds: r.NATSCreds, Keys: r.Keys, Data: r.Data, Metrics: r.Metrics,
	}, err
}

// TuneGC lets the heap grow to four times what is live between collections,
// unless GOGC says otherwise: a process of helmdeck holds little and allocates
// much.
func TuneGC() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(300)
	}
}

// Run runs fn until it returns or the process is told to stop: SIGTERM and
// SIGINT ask for a clean stop, a second one ends the process at once. It
// returns the exit code.
func Run(program string, fn func(context.Context) error) int {
	TuneGC()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	go func() {
		<-ctx.Done()
		stop() // from here on signals have their default effect
	}()
	err := fn(ctx)
	if err == nil || errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
	return 1
}
