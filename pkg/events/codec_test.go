package events_test

import (
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

var caller = identity.Caller{Subject: "ada@example.org", Tenant: "acme"}

func source(t testing.TB) events.Source {
	t.Helper()
	src, err := events.NewSource("prod")
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func exampleJob() jobs.Job {
	at := time.Date(2026, 3, 4, 5, 6, 7, 890_000_000, time.UTC)
	return jobs.Job{
		ID: "0195a1b2-0000-7000-8000-0000000000a1", Pack: "slides.render", Version: "v1", Pool: "browser",
		State: jobs.Running, Attempt: 1, Runs: 1, Priority: jobs.Normal, Caller: caller, Worker: "w1",
		CreatedAt: at, StartedAt: at.Add(time.Second), TimeoutS: 300, MaxAttempts: 3,
	}
}

func TestBinaryRoundTrip(t *testing.T) {
	t.Parallel()
	src := source(t)
	ev, err := src.Lifecycle(exampleJob(), events.About{Sequence: 7, TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
	if err != nil {
		t.Fatal(err)
	}
	ev.SetSubject("Euro € 😀")
	header, data, err := events.Encode(ev)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := nats.Header(header)["ce-subject"], []string{"Euro%20%E2%82%AC%20%F0%9F%98%80"}; !cmp.Equal(got, want) {
		t.Errorf("ce-subject: got %q, want %q", got, want)
	}
	back, err := events.Decode(nats.Header(header), data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := diffEvents(ev, back); diff != "" {
		t.Errorf("event changed on the way (-want +got):\n%s", diff)
	}
	if got := events.Sequence(back); got != 7 {
		t.Errorf("sequence: got %d, want 7", got)
	}
}

// diffEvents compares what two events mean.
func diffEvents(want, got event.Event) string {
	type flat struct {
		Attr map[string]any
		Ext  map[string]any
		Data string
	}
	flatten := func(ev event.Event) flat {
		return flat{
			Attr: map[string]any{"id": ev.ID(), "source": ev.Source(), "type": ev.Type(), "subject": ev.Subject(),
				"time": ev.Time().UTC(), "datacontenttype": ev.DataContentType(), "dataschema": ev.DataSchema(), "spec": ev.SpecVersion()},
			Ext: ev.Extensions(), Data: string(ev.Data()),
		}
	}
	return cmp.Diff(flatten(want), flatten(got))
}

func BenchmarkEncode(b *testing.B) {
	src := source(b)
	ev, err := src.Lifecycle(exampleJob(), events.About{Sequence: 7, TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := events.Encode(ev); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	src := source(b)
	ev, err := src.Lifecycle(exampleJob(), events.About{Sequence: 7, TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
	if err != nil {
		b.Fatal(err)
	}
	header, data, err := events.Encode(ev)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := events.Decode(header, data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLifecycle(b *testing.B) {
	src, job := source(b), exampleJob()
	b.ReportAllocs()
	for b.Loop() {
		ev, err := src.Lifecycle(job, events.About{Sequence: 7})
		if err != nil {
			b.Fatal(err)
		}
		if _, _, err := events.Encode(ev); err != nil {
			b.Fatal(err)
		}
	}
}
