// Package agent is the program inside a sidecar. It runs commands, moves
// files and keeps a Chromium for the one lease it was started for, behind one
// loopback port and one token; it ends everything and itself when nobody
// renews that lease.
//
// It knows nothing of the bus, of jobs or of callers. The protocol is
// docs/sessions.md; its Go form is pkg/sessions/wire.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"

	"github.com/helmdeck/helmdeck/internal/telemetry"
	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

// flushWithin bounds the export of the last spans; the runtime waits 5 s.
const flushWithin = 2 * time.Second

// maxBoot bounds the configuration read at the start, in bytes.
const maxBoot = 1 << 20

// Main is the whole program: it reads a wire.Boot from standard input,
// answers a wire.Ready on file descriptor wire.ReadyFD, serves until a signal,
// a shutdown call or its dead-man timer, and returns the exit code. It logs to
// standard error.
func Main() int {
	log := zerolog.New(os.Stderr).With().Timestamp().Logger()
	ready := os.NewFile(wire.ReadyFD, "ready")
	boot, err := readBoot(os.Stdin)
	if err != nil {
		return refuse(ready, wire.Ready{Error: err.Error()})
	}
	log = log.With().Str("lease", boot.Lease).Logger()
	if err := isolate(boot); err != nil {
		return refuse(ready, wire.Ready{Error: err.Error(), Isolation: true})
	}
	// The signals are caught before the runtime may send one.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	flush, err := traced(ctx, boot, log)
	if err != nil {
		return refuse(ready, wire.Ready{Error: err.Error()})
	}
	defer flush()
	a, err := New(ctx, boot, log)
	if err != nil {
		return refuse(ready, wire.Ready{Error: err.Error()})
	}
	if err := tell(ready, wire.Ready{Endpoint: a.Endpoint()}); err != nil {
		log.Error().Err(err).Msg("runtime is gone before the agent was ready")
		a.Close()
		return 1
	}
	err = a.Run(ctx)
	if err != nil {
		log.Warn().Err(err).Msg("agent ends")
		return 1
	}
	return 0
}

// traced sets the tracer of the process up: spans of a call belong to the
// trace of its job, and are exported when the runtime passed an OTLP endpoint
// on.
func traced(ctx context.Context, boot wire.Boot, log zerolog.Logger) (flush func(), err error) {
	t, err := telemetry.New(ctx, telemetry.Config{Service: "helmdeck-agent", Instance: boot.Lease, Log: log})
	if err != nil {
		return nil, err
	}
	otel.SetTracerProvider(t.Tracer)
	otel.SetTextMapPropagator(propagation.TraceContext{})
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
		defer cancel()
		_ = t.Shutdown(ctx) // spans that cannot be sent are lost, nothing else
	}, nil
}

func readBoot(r io.Reader) (wire.Boot, error) {
	var b wire.Boot
	if err := json.NewDecoder(io.LimitReader(r, maxBoot)).Decode(&b); err != nil {
		return b, fmt.Errorf("read configuration of agent: %w", err)
	}
	if b.Lease == "" || b.Token == "" || b.Scratch == "" || b.DeadManAfter <= 0 || b.ExpireAfter <= 0 {
		return b, errors.New("configuration of agent lacks lease, token, scratch or its timing")
	}
	if b.Listen == "" {
		b.Listen = "127.0.0.1:0"
	}
	return b, nil
}

func refuse(ready *os.File, r wire.Ready) int {
	if err := tell(ready, r); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, r.Error)
	}
	return 1
}

func tell(ready *os.File, r wire.Ready) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = ready.Write(data)
	return errors.Join(err, ready.Close())
}
