package bus_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// BenchmarkPublish is the submit of a job.
func BenchmarkPublish(b *testing.B) {
	for name, dial := range map[string]func(*bustest.Env) *bus.Conn{
		"in process": func(e *bustest.Env) *bus.Conn { return e.Conn(bus.RoleAPI) },
		"tcp":        func(e *bustest.Env) *bus.Conn { return e.TCP(bus.RoleAPI) },
	} {
		for _, n := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				js := dial(bustest.Start(b)).JetStream()
				data := make([]byte, 512)
				var id atomic.Int64
				b.SetParallelism(n)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						m := bus.Outgoing{Subject: job(fmt.Sprint(id.Add(1))), Data: data}
						if _, err := js.Publish(context.Background(), m); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

// BenchmarkPullAck drains a queue in batches of 16, acknowledging each with
// the server's confirmation.
func BenchmarkPullAck(b *testing.B) {
	env := bustest.Start(b)
	js, ctx := env.Conn(bus.RoleWorker).JetStream(), context.Background()
	for i := range b.N {
		if _, err := js.Publish(ctx, bus.Outgoing{Subject: job(fmt.Sprint(i))}); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	for got := 0; got < b.N; {
		ds, err := js.Pull(ctx, bus.JobsStream(packs.PoolCore), bus.LaneConsumer("normal", 0), 16, time.Second)
		if err != nil {
			b.Fatal(err)
		}
		done := make(chan error, len(ds))
		for _, d := range ds {
			go func() { done <- d.Ack(ctx) }()
		}
		for range ds {
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
		got += len(ds)
	}
}
