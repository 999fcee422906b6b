package bus_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
)

// stub is a server without JetStream, where the test answers what is asked on
// one subject, and the durable side of a connection to it.
func stub(t *testing.T, subject string, answer func(try int, m *nats.Msg)) bus.JetStream {
	t.Helper()
	s := outside(t, &server.Options{Users: []*server.User{{Username: "admin", Password: "admin"}}})
	nc, err := nats.Connect(s.ClientURL(), nats.UserInfo("admin", "admin"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	try := 0
	if _, err := nc.Subscribe(subject, func(m *nats.Msg) { try++; answer(try, m) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	c, err := bus.Connect(bustest.Context(t), bus.Config{URL: s.ClientURL(), User: bus.RoleAdmin, Password: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.JetStream()
}

// respond answers m as a replica does.
func respond(t *testing.T, m *nats.Msg, seq int) {
	t.Helper()
	out := &nats.Msg{Data: fmt.Append(nil, seq), Header: nats.Header{
		"Nats-Stream": {"EVT"}, "Nats-Subject": {fmt.Sprintf("hd.evt.t.o.%d.lc", seq)},
		"Nats-Sequence": {fmt.Sprint(seq)}, "Nats-Time-Stamp": {time.Unix(0, 0).UTC().Format(time.RFC3339Nano)},
	}}
	if err := m.RespondMsg(out); err != nil {
		t.Error(err)
	}
}

func endOfBatch(t *testing.T, m *nats.Msg) {
	t.Helper()
	if err := m.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"204"}, "Nats-Num-Pending": {"0"}}}); err != nil {
		t.Error(err)
	}
}

// TestAReadThatIsNotAnsweredIsAskedAgain: a third of the direct gets go to a
// replica that hangs.
func TestAReadThatIsNotAnsweredIsAskedAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		subject string
		answer  func(t *testing.T, try int, m *nats.Msg)
		read    func(ctx context.Context, js bus.JetStream) ([]uint64, error)
		want    []uint64
	}{
		"any replica": {
			subject: "$JS.API.DIRECT.GET.EVT",
			answer: func(t *testing.T, try int, m *nats.Msg) {
				if try == 2 {
					respond(t, m, 7)
				}
			},
			read: last(false), want: []uint64{7},
		},
		"the leader": {
			subject: "$JS.API.STREAM.MSG.GET.EVT",
			answer: func(t *testing.T, try int, m *nats.Msg) {
				if try != 2 {
					return
				}
				if err := m.Respond([]byte(`{"message":{"subject":"hd.evt.t.o.7.lc","seq":7,"time":"2026-01-01T00:00:00Z"}}`)); err != nil {
					t.Error(err)
				}
			},
			read: last(true), want: []uint64{7},
		},
		"batch": {
			subject: "$JS.API.DIRECT.GET.EVT",
			answer: func(t *testing.T, try int, m *nats.Msg) {
				if try == 2 {
					respond(t, m, 1)
					respond(t, m, 2)
					endOfBatch(t, m)
				}
			},
			read: scan, want: []uint64{1, 2},
		},
		"batch that stops half way": {
			subject: "$JS.API.DIRECT.GET.EVT",
			answer: func(t *testing.T, try int, m *nats.Msg) {
				respond(t, m, 1)
				if try == 2 {
					respond(t, m, 2)
					endOfBatch(t, m)
				}
			},
			read: scan, want: []uint64{1, 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := stub(t, tt.subject, func(try int, m *nats.Msg) { tt.answer(t, try, m) })
			got, err := tt.read(bustest.Context(t), js)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("want -, got +:\n%s", d)
			}
		})
	}
}

func last(leader bool) func(context.Context, bus.JetStream) ([]uint64, error) {
	return func(ctx context.Context, js bus.JetStream) ([]uint64, error) {
		m, err := js.Last(ctx, bus.StreamEvents, "evt.t.o.7.lc", leader)
		return []uint64{m.Sequence}, err
	}
}

func scan(ctx context.Context, js bus.JetStream) (got []uint64, err error) {
	err = js.Scan(ctx, bus.StreamEvents, []string{"evt.>"}, 0, func(m bus.Message) error {
		got = append(got, m.Sequence)
		return nil
	})
	return got, err
}

// TestAWriteIsSentOnce: whether it was stored is for the caller to find out.
func TestAWriteIsSentOnce(t *testing.T) {
	t.Parallel()
	tries := make(chan int, 10)
	js := stub(t, "hd.job.>", func(try int, _ *nats.Msg) { tries <- try })
	ctx, cancel := context.WithTimeout(bustest.Context(t), 1500*time.Millisecond)
	defer cancel()
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("1")}); !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if len(tries) != 1 {
		t.Errorf("sent %d times", len(tries))
	}
}
