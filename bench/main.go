// Command bench measures the job system beside the bus it runs on and prints
// ratios: jobs per second through pkg/jobs over TCP against the raw bus doing
// the same number of durable writes, the latency of one idle call through
// REST, the memory of an idle helmdeck up, and the same jobs through asynq on
// Redis and River on PostgreSQL (scripts/setup --bench installs both servers),
// with a sync for each commit and without.
//
//	go run ./bench            # all, about ten minutes
//	go run ./bench -jobs 5000 -flight 8
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"

	"github.com/helmdeck/helmdeck/internal/app/flags"
	"github.com/helmdeck/helmdeck/internal/cli"
)

var (
	count     = flag.Int("jobs", 40000, "jobs in each throughput run")
	flight    = flag.Int("flight", 256, "jobs in flight")
	rounds    = flag.Int("rounds", 3, "rounds; the two sides take turns and medians are printed")
	calls     = flag.Int("calls", 1000, "idle calls through REST")
	only      = flag.String("only", "", "inside, throughput, latency, memory, limits, audit, peers or scale; all but limits, audit and scale by default")
	binary    = flag.String("helmdeck", "", "helmdeck binary; built when empty")
	queued    = flag.Int("queued", 100_000, "jobs in the queue of the scale run")
	due       = flag.Int("due", 10_000, "jobs due at one moment in the scale run")
	watchers  = flag.Int("watchers", 2000, "event streams of the scale run")
	cpu       = flag.String("cpuprofile", "", "write a CPU profile of the job side of the throughput runs")
	block     = flag.String("blockprofile", "", "write a block profile of the job side of the throughput runs")
	profile   = flag.String("profile", "embedded", "bus profile of helmdeck up: embedded, or single to sync every write")
	serverCPU = flag.String("serverprofile", "", "write a CPU profile of the server")
)

// serveEnv makes this program helmdeck, with a CPU profile into the file it
// names.
const serveEnv = "HELMDECK_BENCH_SERVE"

func main() {
	flags.TuneGC() // as every process of helmdeck
	if file := os.Getenv(serveEnv); file != "" {
		serve(file)
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// serve is helmdeck with a CPU profile.
func serve(file string) {
	f, err := os.Create(file)
	if err == nil {
		err = pprof.StartCPUProfile(f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: profile of the server:", err)
		os.Exit(1)
	}
	code := cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	pprof.StopCPUProfile()
	_ = f.Close() // an empty profile says it
	os.Exit(code)
}

func run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "helmdeck-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // leftovers are the system's to sweep
	if *binary == "" {
		*binary = filepath.Join(dir, "helmdeck")
		build := exec.CommandContext(ctx, "go", "build", "-o", *binary, "github.com/helmdeck/helmdeck/cmd/helmdeck")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build helmdeck: %w", err)
		}
	}
	fmt.Printf("%d processors, %s\n\n", runtime.NumCPU(), runtime.Version())
	for _, part := range []struct {
		name string
		run  func(context.Context, string) error
	}{{"inside", inside}, {"throughput", throughput}, {"latency", latency}, {"memory", memory}, {"limits", bounded}, {"audit", audited}, {"peers", against}, {"scale", scale}} {
		if *only != "" && *only != part.name || *only == "" && (part.name == "scale" || part.name == "limits" || part.name == "audit") {
			continue
		}
		if err := part.run(ctx, filepath.Join(dir, part.name)); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}
