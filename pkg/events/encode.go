package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

// ErrNotEvent is wrapped by Decode when a message is no CloudEvent 1.0 as the
// NATS binding describes it.
var ErrNotEvent = errors.New("not a CloudEvent")

// StructuredType is the content type of structured mode in JSON.
const StructuredType = "application/cloudevents+json"

const (
	attrPrefix   = "ce-"
	contentType  = "content-type"
	structuredCT = "application/cloudevents"
)

// Encode makes a NATS message in binary mode: the header can be used as a
// nats.Header and may be added to; data is the event's own slice. Extension
// values are written in the canonical form of their CloudEvents type.
func Encode(ev event.Event) (header map[string][]string, data []byte, err error) {
	c, ok := ev.Context.(*event.EventContextV1)
	if !ok {
		return nil, nil, fmt.Errorf("encode event: specversion %q is not 1.0", ev.SpecVersion())
	}
	// One backing array for all values keeps the hot path at few allocations.
	w := headerWriter{header: make(map[string][]string, 8+len(c.Extensions)+4),
		values: make([]string, 0, 8+len(c.Extensions))}
	w.put("ce-specversion", event.CloudEventsVersionV1)
	w.required("ce-id", c.ID)
	w.required("ce-source", c.Source.String())
	w.required("ce-type", c.Type)
	w.optional("ce-subject", c.Subject)
	w.optional("ce-datacontenttype", c.DataContentType)
	if c.Time != nil && !c.Time.IsZero() {
		w.put("ce-time", c.Time.UTC().Format(time.RFC3339Nano))
	}
	if c.DataSchema != nil {
		w.put("ce-dataschema", c.DataSchema.String())
	}
	for name, v := range c.Extensions {
		w.extension(name, v)
	}
	if w.err != nil {
		return nil, nil, fmt.Errorf("encode event: %w", w.err)
	}
	return w.header, ev.DataEncoded, nil
}

type headerWriter struct {
	header map[string][]string
	values []string
	err    error // the first
}

func (w *headerWriter) put(name, value string) {
	enc, err := escape(value)
	if err != nil {
		w.fail(fmt.Errorf("attribute %s: %w", name, err))
		return
	}
	w.values = append(w.values, enc)
	n := len(w.values)
	w.header[name] = w.values[n-1 : n : n]
}

func (w *headerWriter) required(name, value string) {
	if value == "" {
		w.fail(fmt.Errorf("attribute %s is empty", name))
		return
	}
	w.put(name, value)
}

func (w *headerWriter) optional(name string, value *string) {
	if value != nil && *value != "" {
		w.put(name, *value)
	}
}

func (w *headerWriter) extension(name string, v any) {
	if !validName(name) {
		w.fail(fmt.Errorf("extension name %q", name))
		return
	}
	switch v := v.(type) {
	case string:
		w.put(headerName(name), v)
	case int32:
		w.put(headerName(name), strconv.FormatInt(int64(v), 10))
	default:
		s, err := types.Format(v)
		if err != nil {
			w.fail(fmt.Errorf("extension %s: %w", name, err))
			return
		}
		w.put(headerName(name), s)
	}
}

func (w *headerWriter) fail(err error) {
	if w.err == nil {
		w.err = err
	}
}

// headerName spares the concatenation for the extensions of this product.
func headerName(attr string) string {
	switch attr {
	case ExtTenant:
		return "ce-tenant"
	case ExtJobID:
		return "ce-jobid"
	case ExtAttempt:
		return "ce-attempt"
	case ExtSequence:
		return "ce-sequence"
	case ExtTraceParent:
		return "ce-traceparent"
	case ExtReplayOf:
		return "ce-replayof"
	case ExtParentID:
		return "ce-parentid"
	}
	return attrPrefix + attr
}

// validName reports whether name may be a CloudEvents attribute on the wire:
// lower-case letters and digits.
func validName(name string) bool {
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// EncodeStructured makes a NATS message, or the body of a webhook, in
// structured mode with the JSON format.
func EncodeStructured(ev event.Event) (header map[string][]string, data []byte, err error) {
	if data, err = json.Marshal(ev); err != nil {
		return nil, nil, fmt.Errorf("encode event: %w", err)
	}
	return map[string][]string{"Content-Type": {StructuredType}}, data, nil
}

var errUTF8 = errors.New("not valid UTF-8")

const upperHex = "0123456789ABCDEF"

// literal reports whether the binding leaves c as it is.
func literal(c byte) bool { return c > ' ' && c <= '~' && c != '"' && c != '%' }

// escape makes a header value of an attribute: space, double quote, percent
// and all outside printable ASCII become %XY, one per byte of UTF-8.
func escape(s string) (string, error) {
	n := 0
	for i := range len(s) {
		if !literal(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s, nil
	}
	if !utf8.ValidString(s) {
		return "", errUTF8
	}
	var b strings.Builder
	b.Grow(len(s) + 2*n)
	for i := range len(s) {
		if c := s[i]; literal(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
	}
	return b.String(), nil
}
