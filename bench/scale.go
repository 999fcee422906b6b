package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// scale fills one machine: many queued jobs, many jobs due in one minute, many
// watchers, and reports memory, the latency of lists and how late jobs are.
func scale(ctx context.Context, dir string) error {
	p, err := start(ctx, dir, "127.0.0.1:38473", "--slots", "64", "--pools", "llm")
	if err != nil {
		return err
	}
	defer p.stop()
	token, err := p.file("token")
	if err != nil {
		return err
	}
	api, err := client.New(p.url, token)
	if err != nil {
		return err
	}
	s := &crowd{p: p, token: token, api: api}
	fmt.Printf("%d queued jobs, %d due in one minute, %d watchers\n", *queued, *due, *watchers)
	fmt.Printf("  idle: %d MB resident\n", p.resident())
	for _, step := range []func(context.Context) error{s.fill, s.lists, s.watch, s.delay, s.drain, s.lists} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return s.followed(ctx)
}

// crowd is what loads one helmdeck up.
type crowd struct {
	p     *process
	token string
	api   *client.Client

	ids     []string
	ended   atomic.Int64
	cut     atomic.Int64
	readers sync.WaitGroup
	delayed []string
}

// fill queues jobs that no worker takes yet.
func (s *crowd) fill(ctx context.Context) error {
	began := time.Now()
	for len(s.ids) < *queued {
		ids, err := s.batch(ctx, min(1000, *queued-len(s.ids)), time.Time{})
		if err != nil {
			return err
		}
		s.ids = append(s.ids, ids...)
	}
	took := time.Since(began)
	fmt.Printf("  filled in %.1f s, %.0f jobs/s in batches of 1,000: %d MB resident\n",
		took.Seconds(), float64(*queued)/took.Seconds(), s.p.resident())
	return nil
}

func (s *crowd) batch(ctx context.Context, n int, at time.Time) ([]string, error) {
	batch := make([]client.BatchJob, n)
	for i := range batch {
		batch[i].Request = jobs.Request{
			Pack: "test.echo", Input: json.RawMessage(`{"message":"0123456789012345678901234567890123456789"}`),
			Labels: map[string]string{"n": fmt.Sprint(i % 10)}, RunAt: at,
		}
	}
	res, err := s.api.SubmitBatch(ctx, batch, "")
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, r := range res.Jobs {
		if r.Job == nil {
			return nil, fmt.Errorf("job of a batch refused: %+v", r.Error)
		}
		ids = append(ids, r.Job.ID)
	}
	return ids, nil
}

// lists measures pages of the list, by filter.
func (s *crowd) lists(ctx context.Context) error {
	for _, q := range []string{"?limit=50", "?limit=50&state=queued", "?limit=50&label=n%3D7", "?limit=50&state=failed"} {
		var took []time.Duration
		for range 50 {
			began := time.Now()
			resp, err := s.get(ctx, "/api/v1/jobs"+q)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close() // read to the end
			if err != nil {
				return err
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		fmt.Printf("  list %-26s p50 %.1f ms, p99 %.1f ms\n", q, ms(took[len(took)/2]), ms(took[len(took)*99/100]))
	}
	return nil
}

func (s *crowd) get(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.p.url+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: status %d", path, resp.StatusCode)
	}
	return resp, nil
}

// watch opens event streams, each on a job of its own, spread over the queue.
func (s *crowd) watch(ctx context.Context) error {
	before := s.p.resident()
	open := make(chan error, *watchers)
	step := max(1, len(s.ids) / *watchers)
	for i := range *watchers {
		id := s.ids[(i*step)%len(s.ids)]
		s.readers.Go(func() {
			resp, err := s.get(ctx, "/api/v1/jobs/"+id+"/events")
			open <- err
			if err != nil {
				return
			}
			defer func() { _ = resp.Body.Close() }() // read only
			s.read(resp.Body)
		})
		if i%50 == 49 { // people come one after the other
			for range 50 {
				if err := <-open; err != nil {
					return err
				}
			}
		}
	}
	after := s.p.resident()
	fmt.Printf("  %d watchers: %d MB resident, %.0f kB each\n", *watchers, after, float64(after-before)*1024/float64(*watchers))
	return nil
}

func (s *crowd) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if bytes.HasPrefix(lines.Bytes(), []byte("event: dev.helmdeck.job.succeeded")) {
			s.ended.Add(1)
			return
		}
	}
	s.cut.Add(1)
}

// delay submits jobs that are all due at one moment.
func (s *crowd) delay(ctx context.Context) error {
	at := time.Now().Add(time.Minute).Truncate(time.Minute).Add(time.Minute)
	for len(s.delayed) < *due {
		ids, err := s.batch(ctx, min(1000, *due-len(s.delayed)), at)
		if err != nil {
			return err
		}
		s.delayed = append(s.delayed, ids...)
	}
	fmt.Printf("  %d jobs due at %s: %d MB resident\n", *due, at.Format(time.TimeOnly), s.p.resident())
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(at)):
	}
	// With no worker for the pool they are queued, not run: what is measured
	// is when the bus hands the last one on.
	for {
		page, err := s.api.Jobs(ctx, jobs.Query{State: jobs.Scheduled, Limit: 1})
		if err != nil {
			return err
		}
		if len(page.Jobs) == 0 {
			break
		}
		if time.Since(at) > 5*time.Minute {
			return errors.New("scheduled jobs are not queued five minutes after they were due")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	fmt.Printf("  all %d queued %.1f s after they were due\n", *due, time.Since(at).Seconds())
	return nil
}

// drain starts a worker and waits until every job has ended.
func (s *crowd) drain(ctx context.Context) error {
	w, err := s.p.worker(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	began := time.Now()
	total := *queued + *due
	for {
		page, err := s.api.Jobs(ctx, jobs.Query{State: jobs.Queued, Limit: 1})
		if err != nil {
			return err
		}
		if len(page.Jobs) == 0 {
			break
		}
		if time.Since(began) > 20*time.Minute {
			return errors.New("the queue is not empty after twenty minutes")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	took := time.Since(began)
	fmt.Printf("  %d jobs run in %.0f s, %.0f jobs/s: %d MB resident\n", total, took.Seconds(), float64(total)/took.Seconds(), s.p.resident())
	return nil
}

// followed says what the watchers saw.
func (s *crowd) followed(ctx context.Context) error {
	done := make(chan struct{})
	go func() { s.readers.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("%d of %d watchers still wait for the end of their job", int64(*watchers)-s.ended.Load()-s.cut.Load(), *watchers)
	}
	fmt.Printf("  %d of %d watchers saw their job succeed, %d were cut\n\n", s.ended.Load(), *watchers, s.cut.Load())
	if s.cut.Load() > 0 {
		return errors.New("watchers were cut")
	}
	return nil
}

// resident is the memory of the process in MB.
func (p *process) resident() int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		var kb int
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kb); n == 1 {
			return kb / 1024
		}
	}
	return 0
}
