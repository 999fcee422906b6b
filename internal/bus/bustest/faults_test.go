package bustest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

const prog = "prog.t.o.j.log"

func count(t *testing.T, js bus.JetStream) int {
	t.Helper()
	n := 0
	if err := js.Scan(bustest.Context(t), bus.StreamProgress, []string{"prog.>"}, 0, func(bus.Message) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestRules(t *testing.T) {
	t.Parallel()
	own := errors.New("own")
	for name, tt := range map[string]struct {
		rule   bustest.Rule
		fails  string // which of four publishes fail
		stored int
	}{
		"none":       {bustest.Rule{Op: bustest.OpLast, Kind: bustest.Before}, "....", 4},
		"before":     {bustest.Rule{Op: bustest.OpPublish, Nth: 2, Kind: bustest.Before}, ".x..", 3},
		"after":      {bustest.Rule{Op: bustest.OpPublish, Subject: "prog.", Nth: 2, Kind: bustest.After}, ".x..", 4},
		"subject":    {bustest.Rule{Op: bustest.OpPublish, Subject: "evt.", Kind: bustest.Before}, "....", 4},
		"every":      {bustest.Rule{Kind: bustest.Before, Err: own}, "xxxx", 0},
		"twice":      {bustest.Rule{Op: bustest.OpPublish, Nth: 1, Kind: bustest.Twice}, "....", 5},
		"delayed":    {bustest.Rule{Op: bustest.OpPublish, Nth: 1, Kind: bustest.Delayed, Delay: time.Millisecond}, "....", 4},
		"disconnect": {bustest.Rule{Op: bustest.OpPublish, Nth: 2, Kind: bustest.Disconnect, Calls: 2}, ".xx.", 2},
		"for good":   {bustest.Rule{Op: bustest.OpPublish, Nth: 2, Kind: bustest.Disconnect}, ".xxx", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := bustest.Start(t).Conn(bus.RoleWorker).JetStream()
			f := bustest.NewFaults(js)
			f.Add(tt.rule)
			var fails strings.Builder
			for range 4 {
				_, err := f.Publish(bustest.Context(t), bus.Outgoing{Subject: prog})
				switch want := tt.rule.Err; {
				case err == nil:
					fails.WriteByte('.')
				case want != nil && !errors.Is(err, want), want == nil && !errors.Is(err, bus.ErrUnavailable):
					t.Errorf("got %v", err)
				default:
					fails.WriteByte('x')
				}
			}
			if fails.String() != tt.fails {
				t.Errorf("failures %s, want %s", fails.String(), tt.fails)
			}
			f.Heal()
			if _, err := f.Last(bustest.Context(t), bus.StreamProgress, prog, true); err != nil && tt.stored > 0 {
				t.Errorf("healed: %v", err)
			}
			if got := count(t, js); got != tt.stored {
				t.Errorf("%d stored, want %d", got, tt.stored)
			}
		})
	}
}

func TestDeliveriesAndKeysAreUnderTheRules(t *testing.T) {
	t.Parallel()
	ctx, env := bustest.Context(t), bustest.Start(t)
	f := bustest.NewFaults(env.Conn(bus.RoleWorker).JetStream())
	f.Add(
		bustest.Rule{Op: bustest.OpPull, Nth: 1, Kind: bustest.Twice},
		bustest.Rule{Op: bustest.OpAck, Subject: "job.", Nth: 1, Kind: bustest.Before},
		bustest.Rule{Op: bustest.OpKVCreate, Subject: "leases/a", Kind: bustest.After},
	)
	if _, err := f.Publish(ctx, bus.Outgoing{Subject: "job.core.low.0.t.o.j"}); err != nil {
		t.Fatal(err)
	}
	ds, err := f.Pull(ctx, "JOBS_core", "low-0", 1, 10*time.Second)
	if err != nil || len(ds) != 2 {
		t.Fatalf("pull: %v, %v", ds, err)
	}
	if err := ds[0].Ack(ctx); !errors.Is(err, bustest.ErrInjected) {
		t.Errorf("ack: %v", err)
	}
	if err := ds[1].Ack(ctx); err != nil {
		t.Errorf("second ack: %v", err)
	}
	kv, err := f.KV(ctx, bus.BucketLeases)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Create(ctx, "a", []byte("1"), 0); !errors.Is(err, bustest.ErrInjected) {
		t.Errorf("create: %v", err)
	}
	if e, err := kv.Get(ctx, "a"); err != nil || string(e.Value) != "1" {
		t.Errorf("created all the same: %q, %v", e.Value, err)
	}
	want := []bustest.Injection{
		{Op: bustest.OpPull, Subject: "JOBS_core/low-0", Kind: bustest.Twice},
		{Op: bustest.OpAck, Subject: "job.core.low.0.t.o.j", Kind: bustest.Before},
		{Op: bustest.OpKVCreate, Subject: "leases/a", Kind: bustest.After},
	}
	if diff := cmp.Diff(want, f.Injected()); diff != "" {
		t.Errorf("injected (-want +got):\n%s", diff)
	}
}

func TestRandomFaultsRepeatWithTheirSeed(t *testing.T) {
	t.Parallel()
	js := bustest.Start(t).Conn(bus.RoleWorker).JetStream()
	run := func(seed uint64) []bustest.Injection {
		f := bustest.NewFaults(js)
		f.Random(seed, map[bustest.Kind]float64{bustest.Before: 0.1, bustest.After: 0.1, bustest.Twice: 0.1, bustest.Disconnect: 0.05}, 0)
		for i := range 100 {
			_, err := f.Publish(context.Background(), bus.Outgoing{Subject: fmt.Sprintf("prog.t.o.j%d.log", i)})
			if err != nil && !errors.Is(err, bustest.ErrInjected) {
				t.Fatal(err)
			}
		}
		return f.Injected()
	}
	first := run(1)
	if len(first) < 20 || len(first) > 80 {
		t.Errorf("%d faults in 100 calls", len(first))
	}
	if diff := cmp.Diff(first, run(1)); diff != "" {
		t.Errorf("same seed (-first +second):\n%s", diff)
	}
	if cmp.Equal(first, run(2)) {
		t.Error("another seed made the same faults")
	}
}
