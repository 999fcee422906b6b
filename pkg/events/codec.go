package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

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
	w.header["ce-specversion"] = specVersion
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

// specVersion is shared by all headers; its capacity is full, so that adding
// a value to it copies.
var specVersion = []string{"1.0"}[:1:1]

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

// Decode reads a NATS message in either mode; it is structured if, and only
// if, its content type begins with application/cloudevents. Header names
// match in any case, headers that are no attributes are ignored. The event
// shares data. In binary mode extensions are strings, except attempt, an
// int32. Errors wrap ErrNotEvent.
func Decode(header map[string][]string, data []byte) (event.Event, error) {
	ev, err := decode(header, data)
	if err != nil {
		return event.Event{}, fmt.Errorf("decode event: %w: %w", ErrNotEvent, err)
	}
	return ev, nil
}

func decode(header map[string][]string, data []byte) (event.Event, error) {
	var r headerReader
	for name, values := range header {
		if len(values) == 0 {
			continue
		}
		if len(name) > len(attrPrefix) && strings.EqualFold(name[:len(attrPrefix)], attrPrefix) {
			if err := r.attribute(name, values); err != nil {
				return event.Event{}, err
			}
			continue
		}
		if strings.EqualFold(name, contentType) && isStructured(values[0]) {
			return decodeStructured(values[0], data)
		}
	}
	switch {
	case r.spec != "1.0":
		return event.Event{}, fmt.Errorf("specversion %q", r.spec)
	case r.ctx.ID == "" || r.ctx.Type == "" || r.ctx.Source.URL.String() == "":
		return event.Event{}, errors.New("id, source or type is missing")
	}
	ev := event.Event{Context: &r.ctx}
	if len(data) > 0 {
		ev.DataEncoded = data
		ev.DataBase64 = r.ctx.DataContentType != nil && !textual(*r.ctx.DataContentType)
	}
	return ev, nil
}

func isStructured(ct string) bool {
	ct = strings.TrimLeft(ct, " \t\"")
	return len(ct) >= len(structuredCT) && strings.EqualFold(ct[:len(structuredCT)], structuredCT)
}

func decodeStructured(ct string, data []byte) (event.Event, error) {
	media, _, _ := strings.Cut(ct, ";")
	switch strings.ToLower(strings.Trim(media, " \t\"")) {
	case structuredCT, StructuredType:
	default:
		return event.Event{}, fmt.Errorf("content type %q is not supported", ct)
	}
	var ev event.Event
	if err := json.Unmarshal(data, &ev); err != nil {
		return event.Event{}, err
	}
	if _, ok := ev.Context.(*event.EventContextV1); !ok {
		return event.Event{}, fmt.Errorf("specversion %q", ev.SpecVersion())
	}
	if err := ev.Validate(); err != nil {
		return event.Event{}, err
	}
	return ev, nil
}

type headerReader struct {
	ctx  event.EventContextV1
	spec string
	seen [8]bool
}

func (r *headerReader) attribute(name string, values []string) error {
	attr := name[len(attrPrefix):]
	if !validName(attr) {
		if attr = strings.ToLower(attr); !validName(attr) {
			return fmt.Errorf("attribute name %q", name)
		}
	}
	value, err := unescape(values[0])
	if err != nil {
		return fmt.Errorf("attribute %s: %w", attr, err)
	}
	if value == "" {
		return nil // as good as absent: no attribute may be empty
	}
	if len(values) > 1 {
		return fmt.Errorf("attribute %s is given twice", attr)
	}
	return r.set(attr, value)
}

func (r *headerReader) set(attr, value string) error {
	c := &r.ctx
	switch attr {
	case "specversion":
		r.spec = value
		return r.once(0, attr)
	case "id":
		c.ID = value
		return r.once(1, attr)
	case "type":
		c.Type = value
		return r.once(2, attr)
	case "source":
		u := types.ParseURIRef(value)
		if u == nil {
			return fmt.Errorf("attribute source: %q is no URI reference", value)
		}
		c.Source = *u
		return r.once(3, attr)
	case "subject":
		c.Subject = &value
		return r.once(4, attr)
	case "datacontenttype":
		c.DataContentType = &value
		return r.once(5, attr)
	case "time":
		t, err := types.ParseTimestamp(value)
		if err != nil {
			return fmt.Errorf("attribute time: %w", err)
		}
		c.Time = t
		return r.once(6, attr)
	case "dataschema":
		u := types.ParseURI(value)
		if u == nil {
			return fmt.Errorf("attribute dataschema: %q is no URI", value)
		}
		c.DataSchema = u
		return r.once(7, attr)
	}
	return r.extension(attr, value)
}

// once refuses an attribute that two spellings of its header give.
func (r *headerReader) once(i int, attr string) error {
	if r.seen[i] {
		return fmt.Errorf("attribute %s is given twice", attr)
	}
	r.seen[i] = true
	return nil
}

func (r *headerReader) extension(attr, value string) error {
	if r.ctx.Extensions == nil {
		r.ctx.Extensions = make(map[string]any, 6)
	}
	if _, ok := r.ctx.Extensions[attr]; ok {
		return fmt.Errorf("attribute %s is given twice", attr)
	}
	if attr == ExtAttempt {
		n, err := strconv.ParseInt(value, 10, 32)
		if err != nil {
			return fmt.Errorf("attribute attempt: %w", err)
		}
		r.ctx.Extensions[attr] = int32(n)
		return nil
	}
	r.ctx.Extensions[attr] = value
	return nil
}

// textual reports whether the JSON format can carry data of this media type
// without base64.
func textual(ct string) bool {
	media, _, _ := strings.Cut(ct, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == event.ApplicationJSON || strings.HasPrefix(media, "text/") ||
		strings.HasSuffix(media, "+json") || media == event.ApplicationXML || strings.HasSuffix(media, "+xml")
}
