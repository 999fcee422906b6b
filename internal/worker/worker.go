// Package worker runs jobs: it pulls deliveries of its pools, claims each job
// by compare-and-set, runs the pack under a deadline while it keeps the
// delivery alive, and records how it ended.
//
// The rules it keeps, whoever dies wherever: only the holder of the newest
// claim may write the lifecycle; a loser leaves the message alone; a message
// is acknowledged only after the terminal event is stored. What to do with a
// delivery is decided in decide.go, without touching the bus.
package worker

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// Source hands out the deliveries of the queues.
type Source interface {
	// Lanes returns the consumers of a pool, in the order of preference.
	Lanes(pool string) []Lane
	// Pull returns up to n deliveries of a lane. wait 0 asks for what is
	// there now; otherwise it blocks until one comes or wait has passed.
	Pull(ctx context.Context, lane Lane, n int, wait time.Duration) ([]Delivery, error)
}

// Lane is one consumer of a pool's queue.
type Lane struct {
	Pool     string
	Priority jobs.Priority
	Shard    int
	// Depth is that of the jobs in the lane: how many calls of packs lie above
	// them, 0 for jobs that no pack called.
	Depth int
}

// Delivery is a job handed to this worker.
type Delivery interface {
	// Submission decodes the job; an error means it can never be run.
	Submission() (jobs.Submission, error)
	// Delivered counts deliveries of the message, 1 for the first.
	Delivered() uint64
	Ack(ctx context.Context) error
	Nak(ctx context.Context, delay time.Duration) error
	Working(ctx context.Context) error
	Term(ctx context.Context, reason string) error
}

// Reports carries what a run says while it runs.
type Reports interface {
	Progress(ctx context.Context, k jobs.Key, p jobs.Progress, attempt int) error
	Log(ctx context.Context, k jobs.Key, lines []string, attempt int) error
	// OnCancel calls fn for cancels pushed to this worker until stop.
	OnCancel(worker string, fn func(jobs.Key)) (stop func(), err error)
	// Beat tells every replica that this worker lives and what it does.
	Beat(ctx context.Context, s Status) error
	// OnPing calls fn when a replica asks for a beat.
	OnPing(fn func()) (stop func(), err error)
}

// Status is the heartbeat of a worker.
type Status struct {
	ID      string         `json:"id"`
	Host    string         `json:"host"`
	Version string         `json:"version"`
	Slots   map[string]int `json:"slots"`   // by pool
	Running map[string]int `json:"running"` // by pool
	Leaked  int            `json:"leaked,omitempty"`
	Drain   bool           `json:"drain,omitempty"`
	At      time.Time      `json:"at"`
}

// Config is what a Worker is built from. Durations of zero take the default.
type Config struct {
	ID, Host, Version string
	Slots             map[string]int // by pool; the pools this worker serves

	Source    Source
	Ledger    jobs.Ledger
	Queue     jobs.Queue
	Reports   Reports
	Packs     jobs.Catalog
	Artifacts *artifacts.Store
	Leaser    sessions.Leaser
	HTTP      *http.Client
	CheckURL  func(ctx context.Context, url string) error
	// ScratchDir holds one folder a run, removed after it.
	ScratchDir string
	// UserAgent and PublicURL go to the packs; see packs.Services.
	UserAgent, PublicURL string

	Heartbeat time.Duration // default 10 s, a third of the acknowledgement wait
	BeatEvery time.Duration // default 5 s
	// CancelGrace is the time a stopped handler has until its session is
	// closed under it; after as long again it is given up on. Default 10 s.
	CancelGrace time.Duration
	StallAfter  time.Duration // default 5 min without a sign of progress
	Drain       time.Duration // default 20 s: from stop to handing jobs back
	MaxLost     int           // default 3 lost workers; quarantine at the next
	// RecordFor is how long the outcome of a run is tried to be recorded while
	// the bus is away (default 2 min); after that the job runs again.
	RecordFor time.Duration
	// RetryInQueue is the longest pause before a retry for which the message
	// stays in the queue (default 1 min): a longer one would fill the
	// consumer's allowance of unacknowledged messages, and rides on a
	// schedule instead. Negative: never stays.
	RetryInQueue time.Duration
	Backoff      func(attempt int) time.Duration
	// Ended observes every attempt, for metrics; may be nil.
	Ended func(pack, pool string, state jobs.State, code packs.Code, took time.Duration)
	Log   zerolog.Logger
}

func (c *Config) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Heartbeat, 10*time.Second)
	def(&c.BeatEvery, 5*time.Second)
	def(&c.CancelGrace, 10*time.Second)
	def(&c.StallAfter, 5*time.Minute)
	def(&c.Drain, 20*time.Second)
	def(&c.RetryInQueue, time.Minute)
	def(&c.RecordFor, 2*time.Minute)
	if c.MaxLost == 0 {
		c.MaxLost = 3
	}
	if c.Backoff == nil {
		c.Backoff = Backoff
	}
	if c.Ended == nil {
		c.Ended = func(string, string, jobs.State, packs.Code, time.Duration) {}
	}
}

// Backoff is the default pause after the n-th failed attempt: exponential
// from one second to five minutes, with a jitter of half its length so that
// jobs that failed together do not come back together.
func Backoff(n int) time.Duration {
	d := min(time.Second<<min(max(n-1, 0), 9), 5*time.Minute)
	return d/2 + rand.N(d)
}

// Worker pulls and runs jobs.
type Worker struct {
	cfg    Config
	engine packs.Engine

	mu     sync.Mutex // guards active and leaked
	active map[string]*attempt
	leaked int
}

// New returns a Worker. It does nothing until Run.
func New(cfg Config) *Worker {
	cfg.setDefaults()
	return &Worker{cfg: cfg, engine: packs.Engine{Grace: cfg.CancelGrace}, active: map[string]*attempt{}}
}

var (
	errCancelled = errors.New("cancel requested")
	errFenced    = errors.New("another worker holds the job")
	errStopping  = errors.New("worker stops")
	errStalled   = errors.New("no progress")
)

// Run serves the pools until ctx ends, then drains: it stops pulling, lets
// running jobs finish for the drain time and hands the rest back. It returns
// nil after a clean stop.
func (w *Worker) Run(ctx context.Context) error {
	// Attempts outlive ctx by the drain time.
	runCtx, stopRuns := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopRuns(nil)

	stopCancel, err := w.cfg.Reports.OnCancel(w.cfg.ID, w.cancelPushed)
	if err != nil {
		return err
	}
	defer stopCancel()
	stopPing, err := w.cfg.Reports.OnPing(func() { w.beat(runCtx, ctx.Err() != nil) })
	if err != nil {
		return err
	}
	defer stopPing()

	var pools, running sync.WaitGroup
	for pool, slots := range w.cfg.Slots {
		pools.Go(func() { newPuller(w, pool, slots, &running).run(ctx, runCtx) })
	}
	var upkeep sync.WaitGroup
	upkeep.Go(func() { w.upkeep(runCtx, ctx) })

	<-ctx.Done()
	pools.Wait()
	w.drain(&running, stopRuns)
	stopRuns(errStopping)
	upkeep.Wait()
	return nil
}

// drain waits for running jobs, then asks what is left to hand back.
func (w *Worker) drain(running *sync.WaitGroup, stopRuns context.CancelCauseFunc) {
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	select {
	case <-done:
		return
	case <-time.After(w.cfg.Drain):
	}
	w.cfg.Log.Info().Int("jobs", w.count()).Msg("drain time over, handing jobs back")
	stopRuns(errStopping)
	select {
	case <-done:
	case <-time.After(2*w.cfg.CancelGrace + 5*time.Second):
		w.cfg.Log.Warn().Int("jobs", w.count()).Msg("jobs did not stop; their messages come back by themselves")
	}
}

func (w *Worker) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.active)
}

// upkeep keeps deliveries alive and tells the replicas that the worker lives.
func (w *Worker) upkeep(ctx, serving context.Context) {
	heart := time.NewTicker(w.cfg.Heartbeat)
	defer heart.Stop()
	beat := time.NewTicker(w.cfg.BeatEvery)
	defer beat.Stop()
	w.beat(ctx, false)
	for {
		select {
		case <-ctx.Done():
			return
		case <-heart.C:
			w.keepAlive(ctx)
		case <-beat.C:
			w.beat(ctx, serving.Err() != nil)
		}
	}
}

// keepAlive extends every delivery and re-reads its lifecycle, so that a
// missed push of a cancel, or a lost claim, costs one heartbeat at most.
func (w *Worker) keepAlive(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Heartbeat)
	defer cancel()
	w.mu.Lock()
	all := make([]*attempt, 0, len(w.active))
	for _, a := range w.active {
		all = append(all, a)
	}
	w.mu.Unlock()
	sem := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for _, a := range all {
		sem <- struct{}{}
		wg.Go(func() {
			defer func() { <-sem }()
			a.keepAlive(ctx)
		})
	}
	wg.Wait()
}

func (w *Worker) beat(ctx context.Context, draining bool) {
	s := Status{
		ID: w.cfg.ID, Host: w.cfg.Host, Version: w.cfg.Version, Slots: w.cfg.Slots,
		Running: map[string]int{}, Drain: draining, At: time.Now().UTC(),
	}
	w.mu.Lock()
	s.Leaked = w.leaked
	for _, a := range w.active {
		s.Running[a.claimed.Pool]++
	}
	w.mu.Unlock()
	if err := w.cfg.Reports.Beat(ctx, s); err != nil && ctx.Err() == nil {
		w.cfg.Log.Warn().Err(err).Msg("heartbeat not sent")
	}
}

func (w *Worker) cancelPushed(k jobs.Key) {
	w.mu.Lock()
	a := w.active[k.ID]
	w.mu.Unlock()
	if a != nil {
		a.halt(errCancelled)
	}
}
