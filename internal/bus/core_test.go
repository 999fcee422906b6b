package bus_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

func TestCoreMessages(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	worker, api := env.Conn(bus.RoleWorker), env.TCP(bus.RoleAPI)
	got := make(chan bus.CoreMessage, 1)
	stop, err := worker.Core().Subscribe("hb.w1.*", func(m bus.CoreMessage) {
		if m.Reply != nil {
			if err := m.Reply([]byte("pong " + string(m.Data))); err != nil {
				t.Error(err)
			}
			return
		}
		got <- m
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	header := map[string][]string{"ce-id": {"1"}}
	if err := api.Core().Publish(ctx, "hb.w1.cancel", header, []byte("j1")); err != nil {
		t.Fatal(err)
	}
	select {
	case m := <-got:
		if diff := cmp.Diff(bus.CoreMessage{Subject: "hb.w1.cancel", Header: header, Data: []byte("j1")}, m); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	case <-ctx.Done():
		t.Fatal("no message")
	}
	reply, err := api.Core().Request(ctx, "hb.w1.ping", []byte("1"))
	if err != nil || string(reply.Data) != "pong 1" {
		t.Errorf("reply %q, %v", reply.Data, err)
	}
	stop()
	if err := worker.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Core().Request(ctx, "hb.w1.ping", nil); !errors.Is(err, bus.ErrUnavailable) || !errors.Is(err, bus.ErrNoListener) {
		t.Errorf("request without anybody there: got %v, want ErrUnavailable", err)
	}
}

func TestClosedConnection(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	c := env.TCP(bus.RoleWorker)
	kv := openKV(t, c, bus.BucketLeases)
	changes, err := kv.Watch(ctx, ">")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for range changes { // the watch ends with the connection
	}
	if _, err := c.JetStream().Publish(ctx, bus.Outgoing{Subject: job("1")}); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	c.Close() // harmless
}

func TestLeaseRequests(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	worker, scheduler := env.Conn(bus.RoleWorker).JetStream(), env.Conn(bus.RoleScheduler)
	for _, image := range []string{"browser", "Odd/Image:1.0"} {
		for range 2 { // any number of schedulers may ask
			stream, consumer, err := scheduler.EnsureLeaseConsumer(ctx, image)
			if err != nil || stream != bus.StreamLeases || consumer != bus.LeaseConsumer(image) {
				t.Fatalf("%s: %s/%s, %v", image, stream, consumer, err)
			}
		}
		m := bus.Outgoing{Subject: bus.LeaseSubject(image, "l1")}
		if _, err := worker.Publish(ctx, m); err != nil {
			t.Fatal(err)
		}
		if _, err := worker.Publish(ctx, m); !errors.Is(err, bus.ErrSubjectTaken) {
			t.Errorf("second request for a lease: got %v, want ErrSubjectTaken", err)
		}
		ds, err := scheduler.JetStream().Pull(ctx, bus.StreamLeases, bus.LeaseConsumer(image), 1, 10*time.Second)
		if err != nil || len(ds) != 1 {
			t.Fatalf("%s: %v, %v", image, ds, err)
		}
		if err := ds[0].Ack(ctx); err != nil {
			t.Error(err)
		}
	}
	admin := env.Conn(bus.RoleAdmin)
	if st, err := admin.Init(ctx); err != nil || len(st.Mismatches) > 0 {
		t.Errorf("init after leases: %+v, %v", st, err)
	}
}

func TestUnacknowledgedComesAgain(t *testing.T) {
	t.Parallel()
	env := bustest.Start(t, bustest.WithProfile(func(p *bus.Profile) { p.AckWait = 300 * time.Millisecond }))
	ctx, js := bustest.Context(t), env.Conn(bus.RoleWorker).JetStream()
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("1")}); err != nil {
		t.Fatal(err)
	}
	for want := uint64(1); want <= 3; want++ {
		ds, err := js.Pull(ctx, "JOBS_core", bus.LaneConsumer("normal", 0), 4, 10*time.Second)
		if err != nil || len(ds) != 1 || ds[0].Delivered() != want {
			t.Fatalf("delivery %d: %v, %v", want, ds, err)
		}
	}
}

// TestManyPullersOneQueue has more pullers than messages at all times; every
// message must reach one of them without waiting for AckWait.
func TestManyPullersOneQueue(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	const pullers, messages = 8, 400
	got, done := make(chan string, messages), make(chan struct{})
	ended := make(chan error, pullers)
	for range pullers {
		js := env.TCP(bus.RoleWorker).JetStream()
		go func() {
			ended <- func() error {
				for {
					select {
					case <-done:
						return nil
					default:
					}
					ds, err := js.Pull(ctx, "JOBS_core", bus.LaneConsumer("normal", 0), 5, time.Second)
					if err != nil {
						return err
					}
					for _, d := range ds {
						if d.Delivered() != 1 {
							return fmt.Errorf("%s was delivered %d times", d.Message().Subject, d.Delivered())
						}
						if err := d.Ack(ctx); err != nil {
							return err
						}
						got <- d.Message().Subject
					}
				}
			}()
		}()
	}
	api := env.Conn(bus.RoleAPI).JetStream()
	for i := range messages {
		if _, err := api.Publish(ctx, bus.Outgoing{Subject: job(fmt.Sprint(i))}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for len(seen) < messages {
		select {
		case s := <-got:
			if seen[s] {
				t.Errorf("%s came twice", s)
			}
			seen[s] = true
		case err := <-ended:
			t.Fatal(err)
		case <-ctx.Done():
			t.Fatalf("%d of %d messages came", len(seen), messages)
		}
	}
	close(done)
	for range pullers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
