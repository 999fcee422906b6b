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
	// Ack ends the message and waits for the confirmation.
	Ack(ctx context.Context) error
	// AckLater ends the message without a confirmation: if it is lost, the
	// message comes again.
	AckLater(ctx context.Context) error
	Nak(ctx context.Context, delay time.Duration) error
	Working(ctx context.Context) error
	Term(ctx context.Context, reason string) error
}

// Reports carries what a run says while it runs.
type Reports interface {
	Progress(ctx context.Context, t Teller, p jobs.Progress) error
	// Log carries lines that come after from others of the same run.
	Log(ctx context.Context, t Teller, from int, lines []string) error
	// Beat tells every replica that this worker lives and what it does.
	Beat(ctx context.Context, s Status) error
	// Listen passes on what is asked of this worker until stop.
	Listen(worker string, c Control) (stop func(), err error)
}

// Teller is the attempt that reports.
type Teller struct {
	Key      jobs.Key
	Attempt  int
	ParentID string // empty for none
}

// Control is what others ask of a worker. None of it may block for long.
type Control struct {
	// Cancel was requested of a job that may run here.
	Cancel func(jobs.Key)
	// Ping asks for a beat.
	Ping func()
	// Drain asks the worker to end; see Worker.Drain.
	Drain func(within time.Duration) Status
}

// Gate says whether a job may run now under the limits of the installation.
type Gate interface {
	// Enter takes what next, the record of a claim of sub, needs to run, and
	// returns the keys under which it did. pass false: the job was put aside,
	// safely, and its delivery is to be acknowledged.
	Enter(ctx context.Context, sub jobs.Submission, next jobs.Job) (keys []string, pass bool, err error)
	// Leave gives back what Enter took for a run that does not begin, because
	// the job has ended or is not due.
	Leave(ctx context.Context, next jobs.Job) error
}

// Status is the heartbeat of a worker.
type Status struct {
	ID      string         `json:"id"`
	Host    string         `json:"host"`
	Version string         `json:"version"`
	Slots   map[string]int `json:"slots"`   // by pool
	Running map[string]int `json:"running"` // by pool
	// Packs are those it runs, "name@v1"; empty: not told, as older ones did.
	Packs  []string `json:"packs,omitempty"`
	Leaked int      `json:"leaked,omitempty"`
	// Drain is set once the worker takes no more jobs; at DrainBy it hands
	// back those that still run.
	Drain   bool      `json:"drain,omitempty"`
	DrainBy time.Time `json:"drain_by,omitzero"`
	// Gone is set in the last beat of all.
	Gone bool      `json:"gone,omitempty"`
	At   time.Time `json:"at"`
}

// Config is what a Worker is built from. Durations of zero take the default.
type Config struct {
	ID, Host, Version string
	Slots             map[string]int // by pool; the pools this worker serves
	Serves            []string       // the packs to tell of in heartbeats; see Status

	Source Source
	Ledger jobs.Ledger
	Queue  jobs.Queue
	Gate   Gate // nil: every job may run
	// StrictLanes says whether a lane is served only while none before it has
	// a job; nil: never.
	StrictLanes func() bool
	Reports     Reports
	// Jobs submits the child jobs of packs that call others; nil: none can.
	Jobs      *jobs.Service
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
	// HeldWait is how long a child waits for a session while a parent of it
	// keeps one, for the parent may have the last. Default 30 s.
	HeldWait   time.Duration
	StallAfter time.Duration // default 5 min without a sign of progress
	Drain      time.Duration // default 20 s: from stop to handing jobs back
	MaxLost    int           // default 3 lost workers; quarantine at the next
	// RecordFor is how long the outcome of a run is tried to be recorded while
	// the bus is away (default 2 min); after that the job runs again.
	RecordFor time.Duration
	// RetryInQueue is the longest pause before a retry for which the message
	// stays in the queue (default 1 min): a longer one would fill the
	// consumer's allowance of unacknowledged messages, and rides on a
	// schedule instead. Negative: never stays.
	RetryInQueue time.Duration
	Backoff      func(attempt int) time.Duration
	// Observer hears of every run, for metrics; may be nil.
	Observer Observer
	Log      zerolog.Logger
}

// Observer hears of runs. It is quick, and safe for concurrent use.
type Observer interface {
	// Claimed: a run begins, as job says; before is the record it goes on
	// from, the zero Job for a job without one.
	Claimed(job, before jobs.Job)
	// Ended: a run left the job as it is now, after the record before. took is
	// 0 for a job that was ended without a run.
	Ended(job, before jobs.Job, took time.Duration)
}

type nobody struct{}

func (nobody) Claimed(_, _ jobs.Job)                {}
func (nobody) Ended(_, _ jobs.Job, _ time.Duration) {}

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
	def(&c.HeldWait, 30*time.Second)
	def(&c.Drain, 20*time.Second)
	def(&c.RetryInQueue, time.Minute)
	def(&c.RecordFor, 2*time.Minute)
	if c.MaxLost == 0 {
		c.MaxLost = 3
	}
	if c.Backoff == nil {
		c.Backoff = Backoff
	}
	if c.Observer == nil {
		c.Observer = nobody{}
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

	stopServing context.CancelFunc // ends the pulling; set by Run before anybody listens
	rethink     chan struct{}      // told when drainBy moves

	mu      sync.Mutex // guards the fields below
	active  map[string]*attempt
	leaked  int
	drainBy time.Time // zero: not draining
}

// New returns a Worker. It does nothing until Run.
func New(cfg Config) *Worker {
	cfg.setDefaults()
	return &Worker{cfg: cfg, engine: packs.Engine{Grace: cfg.CancelGrace}, active: map[string]*attempt{}, rethink: make(chan struct{}, 1)}
}

var (
	errCancelled = errors.New("cancel requested")
	errFenced    = errors.New("another worker holds the job")
	errStopping  = errors.New("worker stops")
	errStalled   = errors.New("no progress")
)

// Run serves the pools until ctx ends or Drain is asked for, then drains: it
// stops pulling, lets running jobs finish for the drain time and hands the
// rest back. It returns nil after a clean stop.
func (w *Worker) Run(ctx context.Context) error {
	// Attempts outlive ctx by the drain time.
	runCtx, stopRuns := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopRuns(nil)
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	w.stopServing = stopServing

	stopListening, err := w.cfg.Reports.Listen(w.cfg.ID, Control{
		Cancel: w.cancelPushed, Ping: func() { w.beat(runCtx) }, Drain: w.Drain,
	})
	if err != nil {
		return err
	}
	defer stopListening()

	var pools, running sync.WaitGroup
	for pool, slots := range w.cfg.Slots {
		pools.Go(func() { newPuller(w, pool, slots, &running).run(serving, runCtx) })
	}
	var upkeep sync.WaitGroup
	upkeep.Go(func() { w.upkeep(runCtx) })

	<-serving.Done()
	if ctx.Err() != nil {
		w.drainWithin(w.cfg.Drain)
	}
	w.beat(runCtx)
	pools.Wait()
	w.drain(ctx, &running, stopRuns)
	stopRuns(errStopping)
	upkeep.Wait()
	w.farewell(context.WithoutCancel(ctx))
	return nil
}

func (w *Worker) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.active)
}

// upkeep keeps deliveries alive and tells the replicas that the worker lives.
func (w *Worker) upkeep(ctx context.Context) {
	heart := time.NewTicker(w.cfg.Heartbeat)
	defer heart.Stop()
	beat := time.NewTicker(w.cfg.BeatEvery)
	defer beat.Stop()
	w.beat(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-heart.C:
			w.keepAlive(ctx)
		case <-beat.C:
			w.beat(ctx)
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

func (w *Worker) beat(ctx context.Context) {
	if ctx.Err() != nil {
		return // nothing may come after the farewell
	}
	if err := w.cfg.Reports.Beat(ctx, w.status()); err != nil && ctx.Err() == nil {
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
