package auditstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/auditstore"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

// TestReplicasLeaveNoGap: two replicas, each with a writer and a sealer, record
// as many events as come in three seconds at a thousand a second each, while
// the bus is away for one of them and now and then fails for both. Every event
// is in the trail once, those of a replica in order, and the chain is sound.
func TestReplicasLeaveNoGap(t *testing.T) {
	t.Parallel()
	r := setup(t)
	const each = 3000
	var recorded sync.WaitGroup
	for i := range 2 {
		faults := bustest.NewFaults(r.env.Dial(bus.Config{Server: r.env.Server, User: bus.RoleAPI, Name: fmt.Sprint("api", i)}).JetStream())
		faults.Random(uint64(i), map[bustest.Kind]float64{bustest.Before: 0.02, bustest.After: 0.02}, 0)
		w, err := audit.NewWriter(audit.Config{
			Queue: auditstore.Queue{JS: faults}, Dir: t.TempDir(), Name: "api", Flush: 5 * time.Millisecond, Memory: each + 1, Log: zerolog.Nop(),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := w.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		t.Cleanup(func() {
			cancel()
			<-done
			if s := w.Stats(); s.Lost != 0 {
				t.Errorf("replica %d lost %d events", i, s.Lost)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
		r.sealer(faults)
		recorded.Go(func() {
			for n := range each {
				if n == each/3 && i == 0 {
					faults.Add(bustest.Rule{Op: bustest.OpPublish, Kind: bustest.Disconnect})
				}
				w.Record(audit.Event{Kind: audit.Request, Path: fmt.Sprintf("/%d/%d", i, n), Status: 200})
			}
			if i == 0 { // the first had events spooled before the bus came back
				r.await("spool", func() bool { s := w.Stats(); return s.Queued == 0 && s.Spooled > 0 })
				faults.Heal()
			}
		})
	}
	recorded.Wait()
	next := map[int]int{}
	for _, p := range r.records(2 * each) {
		var replica, n int
		if _, err := fmt.Sscanf(p, "/%d/%d", &replica, &n); err != nil {
			t.Fatal(err)
		}
		if n != next[replica] {
			t.Fatalf("replica %d: event %d where %d comes", replica, n, next[replica])
		}
		next[replica]++
	}
	if next[0] != each || next[1] != each {
		t.Errorf("got %v events, want %d of each", next, each)
	}
	r.sound()
}
