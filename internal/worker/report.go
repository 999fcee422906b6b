package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Bounds of what a run may report.
const (
	reportEvery = 250 * time.Millisecond // at most four events a second and kind
	maxLine     = 4 << 10                // bytes of a log line
	maxPending  = 256                    // log lines between two reports; older ones are dropped
)

// reporter coalesces progress and log lines of one run. Its goroutine starts
// with the first of them.
type reporter struct {
	ctx     context.Context //nolint:containedctx // the reporter lives as long as the run it reports on
	reports Reports
	job     jobs.Job
	sign    func()

	// Made with the first report, as most runs have none.
	wake    chan struct{}
	closing chan struct{}
	done    chan struct{}

	mu      sync.Mutex // guards the fields below
	started bool
	closed  bool
	latest  *jobs.Progress
	lines   []string
	dropped int
	sent    int // lines handed over so far, whatever became of them
}

func newReporter(ctx context.Context, r Reports, job jobs.Job, sign func()) *reporter {
	return &reporter{ctx: ctx, reports: r, job: job, sign: sign}
}

func (r *reporter) teller() Teller { return Teller{r.job.Key(), r.job.Attempt, r.job.ParentID} }

func (r *reporter) progress(percent float64, message string) {
	r.sign()
	r.mu.Lock()
	r.latest = &jobs.Progress{Percent: min(max(percent, 0), 100), Message: clip(message), At: time.Now().UTC()}
	r.mu.Unlock()
	r.kick()
}

func (r *reporter) line(line string) {
	r.sign()
	r.mu.Lock()
	if len(r.lines) == maxPending {
		r.lines = r.lines[1:]
		r.dropped++
	}
	r.lines = append(r.lines, clip(line))
	r.mu.Unlock()
	r.kick()
}

func clip(s string) string {
	if len(s) > maxLine {
		return s[:maxLine] + "…"
	}
	return s
}

func (r *reporter) kick() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if !r.started {
		r.started = true
		r.wake, r.closing, r.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
		go r.loop()
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reporter) loop() {
	defer close(r.done)
	pace := time.NewTimer(0)
	defer pace.Stop()
	for {
		select {
		case <-r.closing:
			r.flush()
			return
		case <-r.wake:
		}
		r.flush()
		pace.Reset(reportEvery)
		select {
		case <-r.closing:
		case <-pace.C:
		}
	}
}

func (r *reporter) flush() {
	r.mu.Lock()
	latest, lines, dropped := r.latest, r.lines, r.dropped
	r.latest, r.lines, r.dropped = nil, nil, 0
	if dropped > 0 {
		lines = append([]string{fmt.Sprintf("… %d lines dropped, too many at once …", dropped)}, lines...)
	}
	from := r.sent
	r.sent += len(lines)
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), 2*time.Second)
	defer cancel()
	// Progress and logs may be lost; the lifecycle may not.
	if latest != nil {
		_ = r.reports.Progress(ctx, r.teller(), *latest)
	}
	if len(lines) > 0 {
		_ = r.reports.Log(ctx, r.teller(), from, lines)
	}
}

// close sends what is pending and ends the goroutine. Later reports, of a
// handler that was given up on, go nowhere.
func (r *reporter) close() {
	r.mu.Lock()
	r.closed = true
	started := r.started
	r.mu.Unlock()
	if started {
		close(r.closing)
		<-r.done
	}
}
