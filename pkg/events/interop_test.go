package events_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	sdk "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/helmdeck/helmdeck/pkg/events"
)

// The SDK neither encodes nor decodes percent sequences and writes no content
// type in structured mode, so these tests stay within ASCII without spaces,
// quotes and percent signs.
func plainEvent(t *testing.T) event.Event {
	t.Helper()
	ev := event.New()
	ev.SetID("A234-1234-1234")
	ev.SetSource("/helmdeck/prod")
	ev.SetType(events.JobProgress)
	ev.SetSubject("job-1/part;2")
	ev.SetTime(time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC))
	ev.SetDataSchema("https://example.org/schema?a=b")
	ev.SetExtension(events.ExtTenant, "acme")
	ev.SetExtension(events.ExtAttempt, 3)
	ev.SetExtension("flag", true)
	if err := ev.SetData(event.ApplicationJSON, map[string]any{"percent": 40, "message": "Euro € 😀"}); err != nil {
		t.Fatal(err)
	}
	return ev
}

// overTheWire publishes with the SDK's own sender, or ours, and reads it back
// from a real stream.
func overTheWire(t *testing.T, send func(nc *nats.Conn, stream, subject string) error) *nats.Msg {
	t.Helper()
	b := newBus(t, "hd")
	const subject = "hd.prog.acme.owner.job-1.progress"
	if err := send(b.nc, "PROG", subject); err != nil {
		t.Fatal(err)
	}
	st, err := b.js.Stream(t.Context(), "PROG")
	if err != nil {
		t.Fatal(err)
	}
	m, err := st.GetLastMsgForSubject(t.Context(), subject)
	if err != nil {
		t.Fatal(err)
	}
	return &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}
}

func TestSDKSendsBinaryWeRead(t *testing.T) {
	t.Parallel()
	want := plainEvent(t)
	m := overTheWire(t, func(nc *nats.Conn, stream, subject string) error {
		sender, err := sdk.NewSenderFromConn(nc, stream, subject, nil)
		if err != nil {
			return err
		}
		return sender.Send(t.Context(), binding.ToMessage(&want))
	})
	got, err := events.Decode(m.Header, m.Data)
	if err != nil {
		t.Fatal(err)
	}
	want.SetExtension("flag", "true") // binary mode carries no types
	if diff := diffEvents(want, got); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
}

func TestWeSendBinarySDKReads(t *testing.T) {
	t.Parallel()
	want := plainEvent(t)
	m := overTheWire(t, func(nc *nats.Conn, _, subject string) error {
		header, data, err := events.Encode(want)
		if err != nil {
			return err
		}
		_, err = nc.RequestMsg(&nats.Msg{Subject: subject, Header: header, Data: data}, deadline)
		return err
	})
	got, err := binding.ToEvent(t.Context(), sdk.NewMessage(m))
	if err != nil {
		t.Fatal(err)
	}
	want.SetExtension("flag", "true")
	want.SetExtension(events.ExtAttempt, "3")
	if diff := diffEvents(want, *got); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
}

func TestStructuredWithSDK(t *testing.T) {
	t.Parallel()
	want := plainEvent(t)
	t.Run("it reads ours", func(t *testing.T) {
		t.Parallel()
		m := overTheWire(t, func(nc *nats.Conn, _, subject string) error {
			header, data, err := events.EncodeStructured(want)
			if err != nil {
				return err
			}
			_, err = nc.RequestMsg(&nats.Msg{Subject: subject, Header: header, Data: data}, deadline)
			return err
		})
		got, err := binding.ToEvent(t.Context(), sdk.NewMessage(m))
		if err != nil {
			t.Fatal(err)
		}
		if diff := diffEvents(want, *got); diff != "" {
			t.Errorf("event (-want +got):\n%s", diff)
		}
	})
	t.Run("we read its, once it says what it is", func(t *testing.T) {
		t.Parallel()
		var body bytes.Buffer
		header, err := sdk.WriteMsg(binding.WithForceStructured(t.Context()), binding.ToMessage(&want), &body)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := events.Decode(header, body.Bytes()); !errors.Is(err, events.ErrNotEvent) {
			t.Errorf("without a content type: got %v, want ErrNotEvent", err)
		}
		got, err := events.Decode(nats.Header{"Content-Type": {"application/cloudevents+json; charset=utf-8"}}, body.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if diff := diffEvents(want, got); diff != "" {
			t.Errorf("event (-want +got):\n%s", diff)
		}
	})
}

// The example of the binding's text for binary mode, header by header.
func TestBindingExample(t *testing.T) {
	t.Parallel()
	ev := event.New()
	ev.SetType("com.example.someevent")
	ev.SetTime(time.Date(2018, 4, 5, 3, 56, 24, 0, time.UTC))
	ev.SetID("1234-1234-1234")
	ev.SetSource("/mycontext/subcontext")
	if err := ev.SetData("application/json", []byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"ce-specversion":     {"1.0"},
		"ce-type":            {"com.example.someevent"},
		"ce-time":            {"2018-04-05T03:56:24Z"},
		"ce-id":              {"1234-1234-1234"},
		"ce-source":          {"/mycontext/subcontext"},
		"ce-datacontenttype": {"application/json"},
	}
	header, data, err := events.Encode(ev)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, header); diff != "" {
		t.Errorf("header (-want +got):\n%s", diff)
	}
	if got := string(data); got != `{"a":1}` {
		t.Errorf("data: got %s", got)
	}
	shouting := map[string][]string{}
	for k, v := range want {
		shouting[strings.ToUpper(k)] = v
	}
	got, err := events.Decode(shouting, data)
	if err != nil {
		t.Fatal(err)
	}
	if diff := diffEvents(ev, got); diff != "" {
		t.Errorf("upper-case header names (-want +got):\n%s", diff)
	}
}
