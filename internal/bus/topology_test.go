package bus_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

func TestInitTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	env := bustest.Start(t, bustest.WithoutInit())
	ctx, admin := bustest.Context(t), env.Conn(bus.RoleAdmin)
	first, err := admin.Init(ctx)
	if err != nil {
		t.Fatal(err)
	}
	second, err := admin.Init(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("second Init differs (-first +second):\n%s", diff)
	}
	if len(first.Mismatches) != 0 {
		t.Errorf("mismatches after Init: %v", first.Mismatches)
	}
}

func TestNewerVersionIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ctx := bustest.Context(t)
	env := bustest.Start(t, bustest.WithDir(dir), bustest.WithoutInit())
	_, js := raw(t, env, bus.RoleAdmin)
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: bus.StreamDead, Subjects: []string{"hd.dlq.*.*.*.*"}, Metadata: map[string]string{"dev.helmdeck.topology": "99"},
	}); err != nil {
		t.Fatal(err)
	}
	check := func(step string, err error) {
		t.Helper()
		want := bus.VersionError{Where: bus.StreamDead, Found: 99, Known: bus.TopologyVersion}
		if e, ok := errors.AsType[*bus.VersionError](err); !ok || *e != want {
			t.Errorf("%s: got %v, want %v", step, err, &want)
		}
	}
	_, err := env.Conn(bus.RoleAdmin).Init(ctx)
	check("init", err)
	st, err := env.Conn(bus.RoleAdmin).Status(ctx)
	if err != nil || st.Streams != 1 || st.Version != 99 {
		t.Errorf("status after the refusal: %+v, %v", st, err)
	}
	env.Server.Shutdown()
	_, err = bus.StartServer(ctx, bus.ServerConfig{Dir: dir})
	check("start", err)
}

func TestEditedStreamIsReportedAndKept(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	_, js := raw(t, env, bus.RoleAdmin)
	s, err := js.Stream(ctx, bus.StreamProgress)
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.MaxMsgsPerSubject = 7
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteConsumer(ctx, bus.StreamSchedule, bus.ConsumerMover); err != nil {
		t.Fatal(err)
	}
	admin := env.Conn(bus.RoleAdmin)
	edited := bus.Mismatch{Stream: bus.StreamProgress, What: "edited", Fields: []string{"max_msgs_per_subject"}}
	st, err := admin.Status(ctx)
	want := []bus.Mismatch{edited, {Stream: bus.StreamSchedule, Consumer: bus.ConsumerMover, What: "missing"}}
	if diff := cmp.Diff(want, st.Mismatches); err != nil || diff != "" {
		t.Errorf("status: %v (-want +got):\n%s", err, diff)
	}
	st, err = admin.Init(ctx)
	if diff := cmp.Diff([]bus.Mismatch{edited}, st.Mismatches); err != nil || diff != "" {
		t.Errorf("init: %v (-want +got):\n%s", err, diff)
	}
}

func TestChangedProfileIsApplied(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	p := bus.Embedded()
	p.AckWait, p.QueueMaxMsgs = p.AckWait/2, 10
	admin := env.Dial(bus.Config{URL: env.Server.URL(), User: bus.RoleAdmin, Password: env.Server.Password(bus.RoleAdmin), Profile: p})
	st, err := admin.Status(ctx)
	if err != nil || len(st.Mismatches) == 0 || st.Mismatches[0].What != "older" {
		t.Errorf("status before: %+v, %v", st.Mismatches, err)
	}
	st, err = admin.Init(ctx)
	if err != nil || len(st.Mismatches) != 0 {
		t.Errorf("init: %+v, %v", st.Mismatches, err)
	}
}

func TestOverlappingConsumerIsRefused(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	_, js := raw(t, env, bus.RoleAdmin)
	_, err := js.CreateConsumer(ctx, bus.JobsStream(packs.PoolCore), jetstream.ConsumerConfig{
		Durable: "other", FilterSubject: "hd.job.core.high.>", AckPolicy: jetstream.AckExplicitPolicy,
	})
	if e, ok := errors.AsType[*jetstream.APIError](err); !ok || e.ErrorCode != 10100 {
		t.Errorf("got %v, want 10100", err)
	}
}

// TestLiveCarriesNoInput listens to everything republished while a job goes
// through.
func TestLiveCarriesNoInput(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	type seen struct{ Subject, Stream, Data string }
	got := make(chan seen, 16)
	stop, err := env.Conn(bus.RoleAPI).Core().Subscribe("live.>", func(m bus.CoreMessage) {
		s := seen{Subject: m.Subject, Data: string(m.Data)}
		if v := m.Header["Nats-Stream"]; len(v) == 1 && len(m.Header["Nats-Sequence"]) == 1 {
			s.Stream = v[0]
		}
		got <- s
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := env.Conn(bus.RoleAPI).Ping(ctx); err != nil { // the subscription is known
		t.Fatal(err)
	}
	js := env.Conn(bus.RoleWorker).JetStream()
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: job("j1"), Data: []byte("secret input")}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: "evt.default.alice.j1.in", Data: []byte("secret input")}); err != nil {
		t.Fatal(err)
	}
	const base = "evt.default.alice.j1."
	if _, err := js.PublishBatch(ctx, []bus.Outgoing{
		{Subject: base + "in", Data: []byte("secret input")}, {Subject: base + "lc", Data: []byte("started")},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.PublishBatch(ctx, []bus.Outgoing{
		{Subject: base + "art", Data: []byte("manifest")}, {Subject: base + "lc", Data: []byte("succeeded")},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, bus.Outgoing{Subject: "prog.default.alice.j1.progress", Data: []byte("50")}); err != nil {
		t.Fatal(err)
	}
	want := []seen{
		{"live.default.alice.j1.queued", "JOBS_core", ""},
		{"live.default.alice.j1.lc", "EVT", "started"},
		{"live.default.alice.j1.art", "EVT", "manifest"},
		{"live.default.alice.j1.lc", "EVT", "succeeded"},
		{"live.default.alice.j1.progress", "PROG", "50"},
	}
	var all []seen
	for range want {
		select {
		case s := <-got:
			all = append(all, s)
		case <-ctx.Done():
			t.Fatalf("republished: %v", all)
		}
	}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Errorf("republished (-want +got):\n%s", diff)
	}
	if err := env.Conn(bus.RoleAPI).Ping(ctx); err != nil || len(got) > 0 {
		t.Errorf("more was republished: %v", err)
	}
}

func TestTwoInstallationsShareAServer(t *testing.T) {
	t.Parallel()
	env, ctx := bustest.Start(t), bustest.Context(t)
	dial := func(prefix string) *bus.Conn {
		c := env.Dial(bus.Config{
			URL: env.Server.URL(), User: bus.RoleAdmin, Password: env.Server.Password(bus.RoleAdmin), Prefix: prefix,
		})
		if st, err := c.Init(ctx); err != nil || len(st.Mismatches) > 0 {
			t.Fatalf("init %s: %+v, %v", prefix, st, err)
		}
		return c
	}
	a, b := dial("hd"), dial("other")
	if _, err := b.JetStream().Publish(ctx, bus.Outgoing{Subject: job("1")}); err != nil {
		t.Fatal(err)
	}
	m, err := b.JetStream().Last(ctx, bus.JobsStream(packs.PoolCore), "job.>", false)
	if err != nil || m.Subject != job("1") || m.Stream != "JOBS_core" {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := a.JetStream().Last(ctx, bus.JobsStream(packs.PoolCore), "job.>", false); !errors.Is(err, bus.ErrNoMessage) {
		t.Errorf("the other installation sees the job: %v", err)
	}
	for _, c := range []*bus.Conn{a, b} {
		kv := openKV(t, c, bus.BucketPacks)
		if _, err := kv.Create(ctx, "k", nil, 0); err != nil {
			t.Error(err)
		}
	}
}
