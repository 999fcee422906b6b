package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// Submitted counts the jobs that a process has accepted, for
// jobs.Config.Accepted.
func Submitted(reg prometheus.Registerer) func(jobs.Job) {
	c := counter(reg, "jobs_submitted_total", "Jobs accepted into a queue or a schedule, those called by packs and made by schedules too.", "pack", "pool")
	return func(j jobs.Job) { c.WithLabelValues(j.Pack, j.Pool).Inc() }
}

// Worker measures what a worker does with jobs. It implements
// worker.Observer.
type Worker struct {
	started, attempts, lost, poison *prometheus.CounterVec
	took, waited, leased            *prometheus.HistogramVec
}

var _ worker.Observer = (*Worker)(nil)

// NewWorker registers the instruments of a worker that knows some packs.
func NewWorker(reg prometheus.Registerer, known []packs.Pack) *Worker {
	w := &Worker{
		started:  counter(reg, "jobs_started_total", "Runs of jobs begun, the first and later ones.", "pack", "pool"),
		attempts: counter(reg, "attempts_total", "Runs of jobs that ended, by the state they left the job in and the code of its error. State retrying counts the retries.", "pack", "pool", "state", "code"),
		lost:     counter(reg, "jobs_lost_workers_total", "Jobs taken over from a worker that was lost while it ran them.", "pack", "pool"),
		poison:   counter(reg, "jobs_poisoned_total", "Jobs quarantined because workers died on them. More than zero needs a look.", "pack", "pool"),
		took:     histogram(reg, "attempt_duration_seconds", "Length of runs.", runBuckets, "pack", "pool"),
		waited:   histogram(reg, "jobs_wait_seconds", "Time from when a job could run to its first run.", waitBuckets, "pool", "priority"),
		leased:   histogram(reg, "leases_wait_seconds", "Time a run waited for a sidecar, by how it ended: leased or refused.", waitBuckets, "image", "outcome"),
	}
	// A counter that begins at one would alarm nobody: what must be noticed is
	// there from the start.
	for _, p := range known {
		info := p.Info()
		w.lost.WithLabelValues(info.Name, string(info.Pool))
		w.poison.WithLabelValues(info.Name, string(info.Pool))
	}
	return w
}

// Claimed implements worker.Observer.
func (w *Worker) Claimed(job, before jobs.Job) {
	w.started.WithLabelValues(job.Pack, job.Pool).Inc()
	w.lose(job, before)
	if job.Runs > 1 {
		return
	}
	could := job.CreatedAt
	if job.ScheduledFor.After(could) {
		could = job.ScheduledFor
	}
	w.waited.WithLabelValues(job.Pool, string(job.Priority)).Observe(max(job.StartedAt.Sub(could), 0).Seconds())
}

// Ended implements worker.Observer.
func (w *Worker) Ended(job, before jobs.Job, took time.Duration) {
	code := ""
	if job.Error != nil {
		code = string(job.Error.Code)
	}
	w.attempts.WithLabelValues(job.Pack, job.Pool, string(job.State), code).Inc()
	w.lose(job, before)
	if took > 0 {
		w.took.WithLabelValues(job.Pack, job.Pool).Observe(took.Seconds())
	}
	if job.Poison {
		w.poison.WithLabelValues(job.Pack, job.Pool).Inc()
	}
}

func (w *Worker) lose(job, before jobs.Job) {
	if n := job.Lost - before.Lost; n > 0 {
		w.lost.WithLabelValues(job.Pack, job.Pool).Add(float64(n))
	}
}

// Leaser measures how long leases are waited for.
func (w *Worker) Leaser(l sessions.Leaser) sessions.Leaser {
	return &leaser{Leaser: l, waited: w.leased}
}

type leaser struct {
	sessions.Leaser
	waited *prometheus.HistogramVec
}

func (l *leaser) Lease(ctx context.Context, r sessions.Request) (sessions.Session, error) {
	began := time.Now()
	s, err := l.Leaser.Lease(ctx, r)
	outcome := "leased"
	if err != nil {
		outcome = "refused"
	}
	l.waited.WithLabelValues(r.Spec.Image, outcome).Observe(time.Since(began).Seconds())
	return s, err
}

// Control measures the loops that keep the job system true.
type Control struct {
	repaired, expired prometheus.Counter
	late              *prometheus.HistogramVec
}

// NewControl registers the instruments of the loops of an API replica.
func NewControl(reg prometheus.Registerer) *Control {
	return &Control{
		repaired: counter(reg, "reconciler_repaired_jobs_total", "Jobs that were in no queue and were put back. More than zero needs a look.").WithLabelValues(),
		expired:  counter(reg, "jobs_expired_total", "Ended jobs removed because their result_ttl_s was over.").WithLabelValues(),
		late: histogram(reg, "schedule_lateness_seconds", "How late what was put off comes to its queue: delayed jobs and retries (job), runs of schedules (schedule).",
			[]float64{.25, .5, 1, 2.5, 5, 15, 60, 300, 1800}, "kind"),
	}
}

// ScheduleRepairs counts what passes over the schedules put right.
func ScheduleRepairs(reg prometheus.Registerer) func(schedules.Repairs) {
	c := counter(reg, "schedule_repairs_total", "Schedules found overdue without their timer having fired, and timers that were missing or wrong.", "kind")
	overdue, timers := c.WithLabelValues("overdue"), c.WithLabelValues("timer")
	return func(r schedules.Repairs) {
		overdue.Add(float64(r.Overdue))
		timers.Add(float64(r.Timers))
	}
}

// Repaired counts a job that the reconciler put back.
func (c *Control) Repaired(jobs.Key) { c.repaired.Inc() }

// Expired counts a job whose time was over.
func (c *Control) Expired() { c.expired.Inc() }

// LateJob measures a delayed job or retry.
func (c *Control) LateJob(late time.Duration) { c.late.WithLabelValues("job").Observe(late.Seconds()) }

// LateSchedule measures the timer of a schedule.
func (c *Control) LateSchedule(late time.Duration) {
	c.late.WithLabelValues("schedule").Observe(late.Seconds())
}
