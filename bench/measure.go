package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// This file is the same in bench and in bench/peers (a test compares them), so
// that every system is measured in the same way.

// system is a job system under measurement. Its jobs do nothing with an input
// of 256 bytes. Safe for concurrent use.
type system interface {
	// submit returns when the system has a job safe.
	submit(ctx context.Context) error
	// submitBatch submits n jobs at once, or returns errNoBatch.
	submitBatch(ctx context.Context, n int) error
	// call submits a job and waits until its completion can be observed.
	call(ctx context.Context) error
	// work runs jobs in so many slots until stop.
	work(ctx context.Context, slots int) (stop func(), err error)
	// completed counts the jobs whose completion is stored.
	completed(ctx context.Context) (int, error)
}

var errNoBatch = errors.New("the system has no submit of many jobs")

// Sizes of the measurements.
const (
	batchSize      = 100
	maxOutstanding = 10_000 // jobs submitted and not completed in a steady run
	pollEvery      = time.Millisecond
)

// submitRate is how many jobs a second so many submitters get in.
func submitRate(ctx context.Context, s system, jobs, submitters int) (float64, error) {
	began := time.Now()
	err := each(ctx, jobs, submitters, s.submit)
	return float64(jobs) / time.Since(began).Seconds(), err
}

// batchRate is how many jobs a second one submitter gets in by batches.
func batchRate(ctx context.Context, s system, jobs int) (float64, error) {
	began := time.Now()
	err := each(ctx, jobs/batchSize, 1, func(ctx context.Context) error { return s.submitBatch(ctx, batchSize) })
	return float64(jobs/batchSize*batchSize) / time.Since(began).Seconds(), err
}

// drainRate is how many jobs a second so many slots work off that wait
// already.
func drainRate(ctx context.Context, s system, jobs, slots int) (float64, error) {
	before, err := s.completed(ctx)
	if err == nil {
		err = each(ctx, jobs, 64, s.submit)
	}
	if err != nil {
		return 0, err
	}
	began := time.Now()
	stop, err := s.work(ctx, slots)
	if err != nil {
		return 0, err
	}
	defer stop()
	err = await(ctx, s, before+jobs, nil)
	return float64(jobs) / time.Since(began).Seconds(), err
}

// steadyRate is how many jobs a second go through from submit to completion,
// with 64 submitters and so many slots.
func steadyRate(ctx context.Context, s system, jobs, slots int) (float64, error) {
	before, err := s.completed(ctx)
	if err != nil {
		return 0, err
	}
	stop, err := s.work(ctx, slots)
	if err != nil {
		return 0, err
	}
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	room := make(chan struct{}, maxOutstanding)
	began := time.Now()
	var submitting sync.WaitGroup
	submitting.Go(func() {
		err := each(ctx, jobs, 64, func(ctx context.Context) error {
			select {
			case room <- struct{}{}:
				return s.submit(ctx)
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err != nil {
			cancel(err)
		}
	})
	err = await(ctx, s, before+jobs, room)
	took := time.Since(began)
	if err != nil {
		cancel(err)
	}
	submitting.Wait()
	return float64(jobs) / took.Seconds(), err
}

// await waits until so many jobs are completed, and takes a token out of room
// for each.
func await(ctx context.Context, s system, total int, room <-chan struct{}) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	last := -1
	for {
		n, err := s.completed(ctx)
		if err != nil {
			return err
		}
		if last >= 0 && room != nil {
			for range n - last {
				<-room
			}
		}
		if last = n; n >= total {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// delays are the times from submit to completion.
type delays struct{ rate, p50, p99 float64 } // jobs a second, milliseconds

// latencies has so many callers call one job after the other.
func latencies(ctx context.Context, s system, jobs, callers int) (delays, error) {
	stop, err := s.work(ctx, max(callers, 8))
	if err != nil {
		return delays{}, err
	}
	defer stop()
	for range 20 { // the first ones warm up
		if err := s.call(ctx); err != nil {
			return delays{}, err
		}
	}
	var mu sync.Mutex
	var all []time.Duration
	began := time.Now()
	err = each(ctx, jobs, callers, func(ctx context.Context) error {
		at := time.Now()
		err := s.call(ctx)
		took := time.Since(at)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, took)
		return err
	})
	if err != nil {
		return delays{}, err
	}
	rate := float64(jobs) / time.Since(began).Seconds()
	slices.Sort(all)
	of := func(part int) float64 { return float64(all[len(all)*part/100]) / float64(time.Millisecond) }
	return delays{rate: rate, p50: of(50), p99: of(99)}, nil
}

// each calls fn n times from so many goroutines and returns the first error.
func each(ctx context.Context, n, goroutines int, fn func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var left atomic.Int64
	left.Store(int64(n))
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				if err := fn(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// figure is one measured number.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// plan says how much is measured; what takes a sync each is measured shorter.
type plan struct {
	jobs, calls int
	flights     []int // slots of the runs, the widest first
}

// figures runs the whole plan and hands each figure on as it is known. The
// jobs of each step are completed before the next begins.
func figures(ctx context.Context, s system, p plan, report func(figure)) error {
	for _, slots := range p.flights {
		v, err := steadyRate(ctx, s, p.jobs, slots)
		if err != nil {
			return err
		}
		report(figure{nameSteady(slots), v})
	}
	for _, slots := range p.flights {
		v, err := drainRate(ctx, s, p.jobs, slots)
		if err != nil {
			return err
		}
		report(figure{nameDrain(slots), v})
	}
	submits := []struct {
		name string
		run  func() (float64, error)
		jobs int
	}{
		{"submits/s, 1 submitter", func() (float64, error) { return submitRate(ctx, s, p.jobs/8, 1) }, p.jobs / 8},
		{"submits/s, 64 submitters", func() (float64, error) { return submitRate(ctx, s, p.jobs, 64) }, p.jobs},
		{"submits/s, batches of 100", func() (float64, error) { return batchRate(ctx, s, p.jobs) }, p.jobs / batchSize * batchSize},
	}
	for _, m := range submits {
		before, err := s.completed(ctx)
		if err != nil {
			return err
		}
		v, err := m.run()
		if errors.Is(err, errNoBatch) {
			continue
		}
		if err != nil {
			return err
		}
		report(figure{m.name, v})
		stop, err := s.work(ctx, p.flights[0])
		if err != nil {
			return err
		}
		err = await(ctx, s, before+m.jobs, nil)
		stop()
		if err != nil {
			return err
		}
	}
	for _, m := range []struct{ callers, calls int }{{1, p.calls}, {64, 8 * p.calls}} {
		d, err := latencies(ctx, s, m.calls, m.callers)
		if err != nil {
			return err
		}
		callers := "idle"
		if m.callers > 1 {
			callers = "64 callers"
		}
		report(figure{"call ms p50, " + callers, d.p50})
		report(figure{"call ms p99, " + callers, d.p99})
		if m.callers > 1 {
			report(figure{"calls/s, " + callers, d.rate})
		}
	}
	return nil
}

func nameSteady(slots int) string {
	return "jobs/s submit to completion, " + strconv.Itoa(slots) + " slots"
}

func nameDrain(slots int) string { return "jobs/s from a backlog, " + strconv.Itoa(slots) + " slots" }
