// Command peers measures other job systems in the way bench measures helmdeck:
// asynq on Redis and River on PostgreSQL. It is a module of its own, so that
// helmdeck depends on neither, and is started by bench, which starts the two
// servers as well. Each figure is one line of JSON on standard output.
//
//	peers -system asynq -addr 127.0.0.1:6379 -poll best
//	peers -system river -addr postgres://postgres@127.0.0.1:5432/bench
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
)

var (
	name  = flag.String("system", "", "asynq or river")
	addr  = flag.String("addr", "", "HOST:PORT of Redis, URL of PostgreSQL")
	poll  = flag.String("poll", "default", "default settings, or best: the shortest polls")
	jobs  = flag.Int("jobs", 20000, "jobs in each throughput run")
	calls = flag.Int("calls", 500, "idle calls")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var s system
	var err error
	switch *name {
	case "asynq":
		s, err = newAsynq(*addr, *poll == "best")
	case "river":
		s, err = newRiver(ctx, *addr, *poll == "best")
	default:
		err = fmt.Errorf("unknown system %q: use asynq or river", *name)
	}
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	return figures(ctx, s, plan{jobs: *jobs, calls: *calls, flights: []int{256, 8}}, func(f figure) {
		_ = out.Encode(f) // a closed pipe ends the process anyway
	})
}

// input is 256 bytes of JSON with the id of a call.
func input(id int64) []byte {
	const size = 256
	head := fmt.Sprintf(`{"id":%d,"message":"`, id)
	return []byte(head + strings.Repeat("x", size-len(head)-2) + `"}`)
}
