package app

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/audit/otlp"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/auditstore"
	"github.com/helmdeck/helmdeck/internal/metrics"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// AuditSettings say how the audit trail is kept. The zero value of a field is
// its default.
type AuditSettings struct {
	// Off records nothing; what was recorded stays.
	Off bool
	// MaxAge and MaxBytes bound the trail, the oldest records go first; 90 days
	// and 10 GiB.
	MaxAge   time.Duration
	MaxBytes int64
	// SpoolBytes bounds the file of events that wait for the bus; 256 MiB.
	SpoolBytes int64
	// OTLP is the URL that records are sent to as OTLP logs; empty: nowhere.
	// OTLPHeaders go along.
	OTLP        string
	OTLPHeaders map[string]string
}

// TrailKey is the key of the codes on the trail's anchors. It is derived from
// the idempotency key, so that keys files of older versions do as well.
func (k Keys) TrailKey() ([]byte, error) {
	key, err := hkdf.Key(sha256.New, k.Idempotency, nil, "helmdeck audit anchors v1", 32)
	if err != nil {
		return nil, fmt.Errorf("derive the key of the audit anchors: %w", err)
	}
	return key, nil
}

// recorder is how a role records: through a writer of its own, or not at all.
type recorder struct {
	writer  *audit.Writer // nil: audit is off
	service []service
}

// Record implements audit.Recorder.
func (r recorder) Record(e audit.Event) {
	if r.writer != nil {
		r.writer.Record(e)
	}
}

// audit makes the writer of a role, whose spool lies in dir. Its service is to
// be the first of the role, so that it ends last. stored is called after each
// batch; may be nil.
func (s Settings) audit(conn *bus.Conn, dir string, role bus.Role, secrets *audit.Secrets, reg prometheus.Registerer, stored func(), done *closer) (recorder, error) {
	if s.Audit.Off {
		return recorder{}, nil
	}
	w, err := audit.NewWriter(audit.Config{
		Queue: auditstore.Queue{JS: conn.JetStream(), Stored: stored}, Dir: filepath.Join(dir, "audit"), Name: string(role),
		SpoolBytes: s.Audit.SpoolBytes, Secrets: secrets, Log: s.Log,
	})
	if err != nil {
		return recorder{}, err
	}
	done.add(func() {
		if err := w.Close(); err != nil {
			s.Log.Error().Err(err).Msg("audit spool not closed")
		}
	})
	metrics.Audit(reg, string(role), w.Stats)
	return recorder{w, []service{{"audit writer", w.Run}}}, nil
}

// trail is what an API replica has of the audit trail.
type trail struct {
	recorder
	reader *auditstore.Trail
}

// audit wires the writer, the sealer and the reader of the trail.
func (r *apiRole) audit(done *closer) (trail, error) {
	key, err := r.keys.TrailKey()
	if err != nil {
		return trail{}, err
	}
	wake := make(chan struct{}, 1)
	stored := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	secrets := &audit.Secrets{}
	for _, secret := range []string{r.token, string(r.keys.Link), string(r.keys.Idempotency)} {
		secrets.Add(secret)
	}
	for _, value := range r.Audit.OTLPHeaders {
		secrets.Add(value)
	}
	rec, err := r.Settings.audit(r.conn, r.dir, bus.RoleAPI, secrets, r.registry, stored, done)
	if err != nil {
		return trail{}, err
	}
	js := r.conn.JetStream()
	// Also with audit off: other processes may send.
	sealer := &auditstore.Sealer{JS: js, Secret: key, Wake: wake, Sealed: metrics.AuditSealed(r.registry), Log: r.Log}
	rec.service = append([]service{{"audit sealer", sealer.Run}}, rec.service...)
	exporter, err := r.exporter(done)
	if err != nil {
		return trail{}, err
	}
	rec.service = append(rec.service, exporter...)
	return trail{rec, &auditstore.Trail{JS: js, Secret: key}}, nil
}

// exporter sends the trail to an OTLP collector.
func (r *apiRole) exporter(done *closer) ([]service, error) {
	if r.Audit.OTLP == "" {
		return nil, nil
	}
	client, err := otlp.New(otlp.Config{
		Endpoint: r.Audit.OTLP, Headers: r.Audit.OTLPHeaders, Installation: r.keys.Installation, Version: Version,
	})
	if err != nil {
		return nil, err
	}
	done.add(client.Close)
	sent := metrics.AuditExported(r.registry)
	e := &auditstore.Exporter{JS: r.conn.JetStream(), Name: "otlp", Log: r.Log,
		Send: func(ctx context.Context, records []audit.Record, stored [][]byte) (time.Duration, error) {
			err := client.Send(ctx, records, stored)
			if errors.Is(err, otlp.ErrPartial) {
				// Sent again they would be rejected again.
				r.Log.Error().Err(err).Uint64("from", records[0].ID).Msg("audit records not taken by the collector, passed over")
				err = nil
			}
			sent(len(records), err)
			if refused, ok := errors.AsType[*otlp.Refused](err); ok {
				return refused.After, err
			}
			return 0, err
		},
	}
	return []service{{"audit exporter", e.Run}}, nil
}

// policies records changes of the file of limits.
func (r recorder) policies(source *limits.Source, path string) {
	source.OnChange(func() {
		r.Record(audit.PolicyChanged(identity.Caller{}, "limits", map[string]any{"file": path}))
	})
}

// ends is what consequences tell of jobs that ended; nil when nobody records.
func (r recorder) ends() *audit.JobEnds {
	if r.writer == nil {
		return nil
	}
	return &audit.JobEnds{Store: r.writer.Store}
}
