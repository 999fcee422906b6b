package auditstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/auditstore"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

// BenchmarkSeal measures events from the queue to the trail, 250 a batch.
func BenchmarkSeal(b *testing.B) {
	env := bustest.Start(b)
	js := env.Conn(bus.RoleAPI).JetStream()
	ctx := context.Background()
	queue := auditstore.Queue{JS: js}
	paths := make([]string, 250)
	for i := range paths {
		paths[i] = fmt.Sprint("/api/v1/jobs/", i)
	}
	n := 0
	for ; n < b.N; n += len(paths) {
		if err := queue.Put(ctx, batch("bench", uint64(n/len(paths)+1), time.Now(), paths...)); err != nil {
			b.Fatal(err)
		}
	}
	sealed, all := 0, make(chan struct{})
	s := &auditstore.Sealer{JS: js, Secret: secret, Log: zerolog.Nop(), Sealed: func(k int) {
		if sealed += k; sealed == n {
			close(all)
		}
	}}
	b.ResetTimer()
	run, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(run) }()
	<-all
	b.StopTimer()
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "records/s")
}
