package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// noop is the job.
type noop struct {
	Message string `json:"message"`
}

// Kind implements river.JobArgs.
func (noop) Kind() string { return "noop" }

// viaRiver is River. Its workers store completions in batches of their own, up
// to a quarter of a second later; a call ends when the handler returns, long
// before that, so that the figure is River's best. completed counts what is
// stored.
type viaRiver struct {
	pool   *pgxpool.Pool
	best   bool
	insert *river.Client[pgx.Tx]
	done   atomic.Int64

	mu      sync.Mutex // guards the fields below
	waiting map[int64]chan struct{}
	early   map[int64]bool // handled before its caller knew its id
	calling bool
}

func newRiver(ctx context.Context, url string, best bool) (*viaRiver, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 80
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := awaitServer(ctx, pool); err != nil {
		return nil, err
	}
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("migrate River: %w", err)
	}
	r := &viaRiver{pool: pool, best: best, waiting: map[int64]chan struct{}{}, early: map[int64]bool{}}
	r.insert, err = river.NewClient(driver, &river.Config{Logger: quiet})
	return r, err
}

// awaitServer waits until PostgreSQL, which listens before it is ready, takes
// connections.
func awaitServer(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := pool.Ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("reach PostgreSQL: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func args() noop { return noop{Message: string(input(0)[8:])} }

func (r *viaRiver) submit(ctx context.Context) error {
	_, err := r.insert.Insert(ctx, args(), nil)
	return err
}

func (r *viaRiver) submitBatch(ctx context.Context, n int) error {
	many := make([]river.InsertManyParams, n)
	for i := range many {
		many[i].Args = args()
	}
	_, err := r.insert.InsertManyFast(ctx, many)
	return err
}

func (r *viaRiver) call(ctx context.Context) error {
	r.mu.Lock()
	r.calling = true
	r.mu.Unlock()
	res, err := r.insert.Insert(ctx, args(), nil)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	r.mu.Lock()
	if r.early[res.Job.ID] {
		delete(r.early, res.Job.ID)
		close(done)
	} else {
		r.waiting[res.Job.ID] = done
	}
	r.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// worker is the handler of noop.
type worker struct {
	river.WorkerDefaults[noop]
	r *viaRiver
}

// Work implements river.Worker.
func (w *worker) Work(_ context.Context, j *river.Job[noop]) error {
	r := w.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.calling {
		return nil
	}
	if done := r.waiting[j.ID]; done != nil {
		delete(r.waiting, j.ID)
		close(done)
	} else {
		r.early[j.ID] = true
	}
	return nil
}

func (r *viaRiver) work(ctx context.Context, slots int) (func(), error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{r: r})
	cfg := &river.Config{
		Logger: quiet, Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: slots}},
	}
	if r.best {
		cfg.FetchCooldown, cfg.FetchPollInterval = time.Millisecond, 10*time.Millisecond
	}
	client, err := river.NewClient(riverpgxv5.New(r.pool), cfg)
	if err != nil {
		return nil, err
	}
	events, cancel := client.SubscribeConfig(&river.SubscribeConfig{
		Kinds: []river.EventKind{river.EventKindJobCompleted}, ChanSize: 200_000,
	})
	var counting sync.WaitGroup
	counting.Go(func() {
		for range events {
			r.done.Add(1)
		}
	})
	// Not under ctx: its end would stop the workers without their completions.
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return nil, fmt.Errorf("start River: %w", err)
	}
	return func() {
		_ = client.Stop(context.WithoutCancel(ctx)) // ends with the process otherwise
		cancel()
		counting.Wait()
	}, nil
}

func (r *viaRiver) completed(context.Context) (int, error) { return int(r.done.Load()), nil }
