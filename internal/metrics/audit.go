package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/audit"
)

// Audit tells what the writer of a role does. Every writer of a process has a
// role of its own.
func Audit(reg prometheus.Registerer, role string, stats func() audit.Stats) {
	labels := prometheus.Labels{"role": role}
	gauge := func(name, help string, of func(audit.Stats) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return of(stats()) }))
	}
	counter := func(name, help string, of func(audit.Stats) float64) {
		reg.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return of(stats()) }))
	}
	gauge("helmdeck_audit_queued_events", "Audit events in memory on their way to the bus, by role.",
		func(s audit.Stats) float64 { return float64(s.Queued) })
	gauge("helmdeck_audit_spooled_events", "Audit events in the spool file: the bus does not take them. By role.",
		func(s audit.Stats) float64 { return float64(s.Spooled) })
	gauge("helmdeck_audit_spool_bytes", "Bytes of the spool file that are not yet replayed, by role.",
		func(s audit.Stats) float64 { return float64(s.SpoolBytes) })
	counter("helmdeck_audit_written_events_total", "Audit events handed to the bus, by role.",
		func(s audit.Stats) float64 { return float64(s.Written) })
	counter("helmdeck_audit_lost_events_total", "Audit events that neither bus nor spool took, by role. Must stay 0.",
		func(s audit.Stats) float64 { return float64(s.Lost) })
}

// AuditSealed returns what counts the records that this process appended to
// the trail.
func AuditSealed(reg prometheus.Registerer) func(n int) {
	c := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "helmdeck_audit_sealed_records_total", Help: "Records that this process appended to the audit trail.",
	})
	reg.MustRegister(c)
	return func(n int) { c.Add(float64(n)) }
}

// AuditExported returns what counts the records that this process sent to the
// collector, and the attempts that failed.
func AuditExported(reg prometheus.Registerer) func(n int, err error) {
	sent := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "helmdeck_audit_exported_records_total", Help: "Audit records that this process sent to the OTLP collector.",
	})
	failed := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "helmdeck_audit_export_failures_total", Help: "Attempts to send audit records that failed; they come again.",
	})
	reg.MustRegister(sent, failed)
	return func(n int, err error) {
		if err != nil {
			failed.Inc()
			return
		}
		sent.Add(float64(n))
	}
}
