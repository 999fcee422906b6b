package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// viaAsynq is asynq. It keeps completed tasks for an hour, as a caller needs
// who wants to see a result. It tells nobody that a task is done, so a call
// ends when the handler returns, a little before the completion is stored.
type viaAsynq struct {
	opt    asynq.RedisClientOpt
	best   bool
	client *asynq.Client
	redis  *redis.Client
	next   atomic.Int64

	mu      sync.Mutex // guards waiting
	waiting map[int64]chan struct{}
}

func newAsynq(addr string, best bool) (*viaAsynq, error) {
	opt := asynq.RedisClientOpt{Addr: addr, PoolSize: 100}
	return &viaAsynq{
		opt: opt, best: best, client: asynq.NewClient(opt),
		redis: redis.NewClient(&redis.Options{Addr: addr}), waiting: map[int64]chan struct{}{},
	}, nil
}

func (a *viaAsynq) enqueue(ctx context.Context, id int64) error {
	_, err := a.client.EnqueueContext(ctx, asynq.NewTask("noop", input(id)), asynq.Retention(time.Hour))
	return err
}

func (a *viaAsynq) submit(ctx context.Context) error { return a.enqueue(ctx, a.next.Add(1)) }

func (a *viaAsynq) submitBatch(context.Context, int) error { return errNoBatch }

func (a *viaAsynq) call(ctx context.Context) error {
	id, done := a.next.Add(1), make(chan struct{})
	a.mu.Lock()
	a.waiting[id] = done
	a.mu.Unlock()
	if err := a.enqueue(ctx, id); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *viaAsynq) work(_ context.Context, slots int) (func(), error) {
	cfg := asynq.Config{Concurrency: slots, LogLevel: asynq.FatalLevel}
	if a.best {
		cfg.TaskCheckInterval = time.Millisecond
	}
	server := asynq.NewServer(a.opt, cfg)
	err := server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		var in struct {
			ID int64 `json:"id"`
		}
		if err := json.Unmarshal(t.Payload(), &in); err != nil {
			return err
		}
		a.mu.Lock()
		done := a.waiting[in.ID]
		delete(a.waiting, in.ID)
		a.mu.Unlock()
		if done != nil {
			close(done)
		}
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("start asynq: %w", err)
	}
	return server.Shutdown, nil
}

// completed asks Redis, where asynq keeps the tasks that are done.
func (a *viaAsynq) completed(ctx context.Context) (int, error) {
	n, err := a.redis.ZCard(ctx, "asynq:{default}:completed").Result()
	return int(n), err
}
