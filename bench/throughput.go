package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/helmdeck/helmdeck/internal/app"
	"github.com/helmdeck/helmdeck/internal/bus"
)

// throughput runs the same number of jobs through pkg/jobs and, as bare
// messages, through the bus, 256-byte inputs, four stored messages and one
// acknowledgement a job on both sides: one server process, clients over TCP.
func throughput(ctx context.Context, dir string) error {
	p, err := start(ctx, dir, "127.0.0.1:0", "--roles=none")
	if err != nil {
		return err
	}
	defer p.stop()
	return compare(ctx, p, "over TCP")
}

// inside is throughput with all in one process, as helmdeck up is.
func inside(ctx context.Context, dir string) error {
	p, err := startInside(ctx, dir)
	if err != nil {
		return err
	}
	defer p.stop()
	return compare(ctx, p, "in one process")
}

func compare(ctx context.Context, p *process, how string) error {
	var raw, ours sides
	for range *rounds {
		if err := raw.measure(p, func() (float64, error) { return rawBus(ctx, p, *count, *flight) }); err != nil {
			return fmt.Errorf("raw bus: %w", err)
		}
		if err := ours.measure(p, func() (float64, error) { return throughJobs(ctx, p) }); err != nil {
			return fmt.Errorf("pkg/jobs: %w", err)
		}
	}
	r, o := median(raw.rate), median(ours.rate)
	fmt.Printf("%d jobs, %d in flight, no-op pack, 256-byte input, %s, medians of %d\n", *count, *flight, how, *rounds)
	fmt.Printf("  raw bus, 4 stored messages and 1 ack a job: %8.0f jobs/s; CPU a job: %s\n", r, raw.cpu())
	fmt.Printf("  through pkg/jobs and a worker:              %8.0f jobs/s; CPU a job: %s; ratio %.2f, of CPU %.2f (aim: at least 0.50)\n\n", o, ours.cpu(), o/r, raw.each()/ours.each())
	return nil
}

// sides collects the rounds of one side: rates, and CPU time a job of this
// process and of the server.
type sides struct{ rate, own, server []float64 }

func (s *sides) measure(p *process, run func() (float64, error)) error {
	own, server := cpuOf(os.Getpid()), p.cpu()
	rate, err := run()
	if err != nil {
		return err
	}
	s.rate = append(s.rate, rate)
	s.own = append(s.own, (cpuOf(os.Getpid())-own)/float64(*count))
	s.server = append(s.server, (p.cpu()-server)/float64(*count))
	return nil
}

// each is the CPU time of a job on both sides, in seconds.
func (s *sides) each() float64 { return median(s.own) + median(s.server) }

func (s *sides) cpu() string {
	if median(s.server) == 0 {
		return fmt.Sprintf("%.0f us", median(s.own)*1e6)
	}
	return fmt.Sprintf("%.0f us client, %.0f us server", median(s.own)*1e6, median(s.server)*1e6)
}

// cpu is the CPU time of another process, in seconds; 0 inside this one.
func (p *process) cpu() float64 {
	if p.inside != nil {
		return 0
	}
	return cpuOf(p.cmd.Process.Pid)
}

// cpuOf is the CPU time of a process in seconds, see proc(5).
func cpuOf(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100 // ticks of 10 ms
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// rawConn is a connection of the library alone, as the administrator.
func rawConn(p *process) (*nats.Conn, error) {
	if p.inside != nil {
		return nats.Connect("", nats.InProcessServer(p.inside), nats.UserInfo(string(bus.RoleAdmin), p.inside.Password(bus.RoleAdmin)))
	}
	url, err := p.file("nats.url")
	if err != nil {
		return nil, err
	}
	creds, err := app.ReadCreds(filepath.Join(p.dir, "nats-admin.json"))
	if err != nil {
		return nil, err
	}
	return nats.Connect(url, nats.UserInfo(creds.User, creds.Password))
}

// rawBus does what a job does to the bus and nothing else.
func rawBus(ctx context.Context, p *process, jobs, flight int) (float64, error) {
	nc, err := rawConn(p)
	if err != nil {
		return 0, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4*flight))
	if err != nil {
		return 0, err
	}
	cons, err := js.Consumer(ctx, "JOBS_core", "normal-0")
	if err != nil {
		return 0, err
	}
	payload := make([]byte, 700) // a submission with a 256-byte input
	record := make([]byte, 450)  // a job record
	slots := make(chan struct{}, flight)
	var done sync.WaitGroup
	var failed atomic.Pointer[error]
	work := func(m jetstream.Msg, id string) {
		defer done.Done()
		defer func() { <-slots }()
		subject := "hd.evt.bench.raw." + id
		var futures []jetstream.PubAckFuture
		for _, s := range []struct {
			tail string
			data []byte
		}{{".in.body", payload}, {".lc", record}, {".lc", record}} {
			f, err := js.PublishMsgAsync(&nats.Msg{Subject: subject + s.tail, Data: s.data})
			if err != nil {
				failed.Store(&err)
				return
			}
			futures = append(futures, f)
		}
		for _, f := range futures {
			select {
			case <-f.Ok():
			case err := <-f.Err():
				failed.Store(&err)
			}
		}
		if err := m.DoubleAck(ctx); err != nil {
			failed.Store(&err)
		}
	}
	began := time.Now()
	done.Add(jobs)
	go func() {
		for i := range jobs {
			slots <- struct{}{}
			subject := fmt.Sprintf("hd.job.core.normal.0.bench.raw.r%d-%d", began.UnixNano(), i)
			if _, err := js.PublishMsgAsync(&nats.Msg{Subject: subject, Data: payload}); err != nil {
				failed.Store(&err)
			}
		}
	}()
	go func() {
		for n := 0; n < jobs && ctx.Err() == nil; {
			batch, err := cons.FetchNoWait(flight)
			if err != nil {
				failed.Store(&err)
				return
			}
			for m := range batch.Messages() {
				n++
				go work(m, fmt.Sprintf("r%d-%d", began.UnixNano(), n))
			}
		}
	}()
	done.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(jobs) / time.Since(began).Seconds(), nil
}

// throughJobs keeps so many calls in flight through the whole job system.
func throughJobs(ctx context.Context, p *process) (float64, error) {
	o, err := newOurs(ctx, p)
	if err != nil {
		return 0, err
	}
	defer o.stop()
	stop, err := o.work(ctx, *flight)
	if err != nil {
		return 0, err
	}
	defer stop()
	if *cpu != "" {
		f, err := os.Create(*cpu)
		if err != nil {
			return 0, err
		}
		defer func() { _ = f.Close() }() // written by StopCPUProfile
		if err := pprof.StartCPUProfile(f); err != nil {
			return 0, err
		}
		defer pprof.StopCPUProfile()
	}
	if *block != "" {
		runtime.SetBlockProfileRate(int(10 * time.Microsecond))
		defer func() {
			runtime.SetBlockProfileRate(0)
			if err := writeBlocks(); err != nil {
				fmt.Fprintln(os.Stderr, "bench: block profile:", err)
			}
		}()
	}
	began := time.Now()
	err = each(ctx, *count, *flight, o.call)
	return float64(*count) / time.Since(began).Seconds(), err
}

func writeBlocks() error {
	f, err := os.Create(*block)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("block").WriteTo(f, 0), f.Close())
}
