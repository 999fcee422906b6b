package events_test

import (
	"errors"
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

func TestPercentEncoding(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, value, wire string }{
		{"the binding's example", "Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"},
		{"plain", "abc!#$&'()*+,-./:;<=>?@[]^_`{|}~", "abc!#$&'()*+,-./:;<=>?@[]^_`{|}~"},
		{"quote and percent", `100% "sure"`, "100%25%20%22sure%22"},
		{"looks encoded", "%20", "%2520"},
		{"line ends cannot break a header", "a\r\nNats-Msg-Id: x", "a%0D%0ANats-Msg-Id:%20x"},
		{"backslash", `a\b`, `a\b`},
		{"edges", "~\x7f\u0080", "~%7F%C2%80"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ev := minimal()
			ev.SetExtension("note", tt.value)
			header, _, err := events.Encode(ev)
			if err != nil {
				t.Fatal(err)
			}
			if got := header["ce-note"]; !cmp.Equal(got, []string{tt.wire}) {
				t.Errorf("header: got %q, want %q", got, tt.wire)
			}
			back, err := events.Decode(header, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := back.Extensions()["note"]; got != tt.value {
				t.Errorf("value: got %q, want %q", got, tt.value)
			}
		})
	}
}

func minimal() event.Event {
	ev := event.New()
	ev.SetID("1")
	ev.SetSource("/s")
	ev.SetType("t")
	return ev
}

func TestDecodeHeaderValues(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, wire, want string
		refused          bool
	}{
		{name: "lower-case hex", wire: "%e2%82%ac", want: "€"},
		{name: "needlessly encoded", wire: "%41%42C", want: "ABC"},
		{name: "decoded once", wire: "%2541", want: "%41"},
		{name: "quoted as before 1.0.3", wire: `"a \"quoted\" b"`, want: `a "quoted" b`},
		{name: "quoted, then decoded", wire: `"a%20\%41"`, want: "a A"},
		{name: "white space around", wire: "  a ", want: "a"},
		{name: "raw UTF-8", wire: "Euro €", want: "Euro €"},
		{name: "overlong space", wire: "%C0%A0", refused: true},
		{name: "half a rune", wire: "%E2%82", refused: true},
		{name: "surrogate", wire: "%ED%A0%80", refused: true},
		{name: "raw invalid", wire: "a\xff", refused: true},
		{name: "cut short", wire: "a%2", refused: true},
		{name: "not hex", wire: "%zz", refused: true},
		{name: "open quote", wire: `"a`, refused: true},
		{name: "open escape", wire: `"a\`, refused: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ev, err := events.Decode(map[string][]string{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"},
				"ce-type": {"t"}, "ce-note": {tt.wire}}, nil)
			switch {
			case tt.refused && !errors.Is(err, events.ErrNotEvent):
				t.Errorf("got %v, %v; want ErrNotEvent", ev, err)
			case !tt.refused && err != nil:
				t.Error(err)
			case !tt.refused && ev.Extensions()["note"] != tt.want:
				t.Errorf("got %q, want %q", ev.Extensions()["note"], tt.want)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	with := func(pairs ...string) map[string][]string {
		h := map[string][]string{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}}
		for i := 0; i < len(pairs); i += 2 {
			h[pairs[i]] = append(h[pairs[i]], pairs[i+1])
			if pairs[i+1] == "" {
				delete(h, pairs[i])
			}
		}
		return h
	}
	for _, tt := range []struct {
		name   string
		header map[string][]string
		data   string
	}{
		{"no header", nil, `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`},
		{"no specversion", with("ce-specversion", ""), ""},
		{"no id", with("ce-id", ""), ""},
		{"no source", with("ce-source", ""), ""},
		{"no type", with("ce-type", ""), ""},
		{"old version", map[string][]string{"ce-specversion": {"0.3"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}}, ""},
		{"bad time", with("ce-time", "yesterday"), ""},
		{"bad source", with("ce-source", "", "CE-Source", "%25zz:"), ""},
		{"bad attempt", with("ce-attempt", "many"), ""},
		{"bad name", with("ce-a_b", "x"), ""},
		{"two values", with("ce-id", "2"), ""},
		{"two spellings", with("CE-ID", "2"), ""},
		{"two spellings of an extension", with("ce-note", "a", "Ce-Note", "b"), ""},
		{"batch", map[string][]string{"content-type": {"application/cloudevents-batch+json"}}, "[]"},
		{"other format", map[string][]string{"content-type": {"application/cloudevents+avro"}}, ""},
		{"structured, not JSON", map[string][]string{"content-type": {events.StructuredType}}, "nope"},
		{"structured, no id", map[string][]string{"content-type": {events.StructuredType}}, `{"specversion":"1.0","source":"/s","type":"t"}`},
		{"structured, old version", map[string][]string{"content-type": {events.StructuredType}}, `{"specversion":"0.3","id":"1","source":"/s","type":"t"}`},
		{"structured, empty", map[string][]string{"content-type": {events.StructuredType}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if ev, err := events.Decode(tt.header, []byte(tt.data)); !errors.Is(err, events.ErrNotEvent) {
				t.Errorf("got %v, %v; want ErrNotEvent", ev, err)
			}
		})
	}
}

func TestContentModes(t *testing.T) {
	t.Parallel()
	const body = `{"specversion":"1.0","id":"1","source":"/s","type":"t","attempt":2,"data":{"a":1}}`
	for _, tt := range []struct {
		name       string
		header     map[string][]string
		structured bool
	}{
		{"structured", map[string][]string{"content-type": {"application/cloudevents+json"}}, true},
		{"any case, with parameters", map[string][]string{"CONTENT-TYPE": {"Application/CloudEvents+JSON; charset=UTF-8"}}, true},
		{"no format named", map[string][]string{"Content-Type": {"application/cloudevents"}}, true},
		{"attributes beside it do not count", map[string][]string{"content-type": {"application/cloudevents+json"},
			"ce-specversion": {"1.0"}, "ce-id": {"2"}, "ce-source": {"/s"}, "ce-type": {"t"}}, true},
		{"another content type is binary", map[string][]string{"content-type": {"application/json"},
			"ce-specversion": {"1.0"}, "ce-id": {"2"}, "ce-source": {"/s"}, "ce-type": {"t"}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ev, err := events.Decode(tt.header, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			wantID, wantData := "2", body
			if tt.structured {
				wantID, wantData = "1", `{"a":1}`
			}
			if ev.ID() != wantID || string(ev.Data()) != wantData {
				t.Errorf("got id %s, data %s; want %s, %s", ev.ID(), ev.Data(), wantID, wantData)
			}
			if tt.structured && ev.Extensions()["attempt"] != int32(2) {
				t.Errorf("attempt: got %#v, want int32 2", ev.Extensions()["attempt"])
			}
		})
	}
}

func TestBinaryDataSurvivesStructuredMode(t *testing.T) {
	t.Parallel()
	ev := minimal()
	ev.SetDataContentType("application/octet-stream")
	ev.DataEncoded = []byte{0, 1, 0xff, '"'}
	header, data, err := events.Encode(ev)
	if err != nil {
		t.Fatal(err)
	}
	back, err := events.Decode(header, data)
	if err != nil {
		t.Fatal(err)
	}
	header, data, err = events.EncodeStructured(back)
	if err != nil {
		t.Fatal(err)
	}
	again, err := events.Decode(header, data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := diffEvents(ev, again); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
}

func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*event.Event){
		"no id":             func(e *event.Event) { e.Context.(*event.EventContextV1).ID = "" },
		"no type":           func(e *event.Event) { e.Context.(*event.EventContextV1).Type = "" },
		"no source":         func(e *event.Event) { e.Context.(*event.EventContextV1).Source.Path = "" },
		"old version":       func(e *event.Event) { e.SetSpecVersion("0.3") },
		"not UTF-8":         func(e *event.Event) { e.SetExtension("note", "a\xff") },
		"bad extension":     func(e *event.Event) { e.Context.(*event.EventContextV1).Extensions = map[string]any{"a-b": "x"} },
		"unknown type":      func(e *event.Event) { e.Context.(*event.EventContextV1).Extensions = map[string]any{"ab": struct{}{}} },
		"upper-case letter": func(e *event.Event) { e.Context.(*event.EventContextV1).Extensions = map[string]any{"Ab": "x"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ev := minimal()
			edit(&ev)
			if header, _, err := events.Encode(ev); err == nil {
				t.Errorf("got header %v, want an error", header)
			}
		})
	}
}

// Adding a header after Encode must not reach into the others.
func TestHeaderMayBeAddedTo(t *testing.T) {
	t.Parallel()
	header, _, err := events.Encode(minimal())
	if err != nil {
		t.Fatal(err)
	}
	h := nats.Header(header)
	for _, name := range []string{"ce-id", "ce-source", "ce-type", "ce-specversion"} {
		before := map[string][]string{}
		for k, v := range h {
			before[k] = append([]string(nil), v...)
		}
		h.Add(name, "more")
		before[name] = append(before[name], "more")
		if diff := cmp.Diff(before, map[string][]string(h)); diff != "" {
			t.Errorf("after adding to %s (-want +got):\n%s", name, diff)
		}
	}
}

func TestNewSource(t *testing.T) {
	t.Parallel()
	if got := source(t).String(); got != "/helmdeck/prod" {
		t.Errorf("got %s, want /helmdeck/prod", got)
	}
	for _, bad := range []string{"", "a b", "a/b", "a.b", "é"} {
		if src, err := events.NewSource(bad); err == nil {
			t.Errorf("%q: got %s, want an error", bad, src)
		}
	}
	if _, err := (events.Source{}).New(events.JobLog, events.About{}, nil); err == nil {
		t.Error("zero source: got no error")
	}
	j := exampleJob()
	j.State = jobs.Queued
	if _, err := source(t).Lifecycle(j, events.About{}); err == nil {
		t.Error("a queued job has no lifecycle event: got no error")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("ce-id", "1", "ce-note", "Euro%20%E2%82%AC", []byte("{}"))
	f.Add("content-type", "application/cloudevents+json", "x", "", []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"AA=="}`))
	f.Add("CE-Time", "2026-01-02T03:04:05Z", "ce-attempt", "7", []byte(nil))
	f.Add("ce-dataschema", "https://a/%25", "ce-datacontenttype", "text/xml", []byte("<a/>"))
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string, data []byte) {
		header := map[string][]string{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}}
		header[k1], header[k2] = []string{v1}, []string{v2}
		ev, err := events.Decode(header, data)
		if err != nil {
			if !errors.Is(err, events.ErrNotEvent) {
				t.Fatalf("error %v is no ErrNotEvent", err)
			}
			return
		}
		wire, body, err := events.Encode(ev)
		if err != nil {
			t.Fatalf("decoded event cannot be encoded: %v", err)
		}
		for name, values := range wire {
			for i := range len(values[0]) {
				if c := values[0][i]; c <= ' ' || c > '~' {
					t.Fatalf("header %s holds %q", name, values[0])
				}
			}
		}
		back, err := events.Decode(wire, body)
		if err != nil {
			t.Fatalf("encoded event cannot be decoded: %v", err)
		}
		if back.ID() != ev.ID() || back.Source() != ev.Source() || back.Subject() != ev.Subject() || !back.Time().Equal(ev.Time()) ||
			string(back.Data()) != string(ev.Data()) || len(back.Extensions()) != len(ev.Extensions()) {
			t.Fatalf("event changed: %v became %v", ev, back)
		}
	})
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
