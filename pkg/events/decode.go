package events

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

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

// unescape is one round of decoding: optional white space around the value is
// dropped, double-quoted parts and their backslashes are resolved, then
// percent sequences. Raw UTF-8 is let through, for producers that do not
// encode.
func unescape(s string) (string, error) {
	if !strings.ContainsAny(s, "%\" \t") {
		if !utf8.ValidString(s) {
			return "", errUTF8
		}
		return s, nil
	}
	s = strings.Trim(s, " \t")
	if strings.IndexByte(s, '"') >= 0 {
		var err error
		if s, err = unquote(s); err != nil {
			return "", err
		}
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("percent sequence cut short in %q", s)
		}
		hi, ok1 := unhex(s[i+1])
		lo, ok2 := unhex(s[i+2])
		if !ok1 || !ok2 {
			return "", fmt.Errorf("bad percent sequence %q", s[i:i+3])
		}
		b = append(b, hi<<4|lo)
		i += 2
	}
	if !utf8.Valid(b) {
		return "", errUTF8
	}
	return string(b), nil
}

func unquote(s string) (string, error) {
	b := make([]byte, 0, len(s))
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			if i++; i == len(s) {
				return "", fmt.Errorf("quoted string cut short in %q", s)
			}
			b = append(b, s[i])
		default:
			b = append(b, c)
		}
	}
	if quoted {
		return "", fmt.Errorf("quoted string cut short in %q", s)
	}
	return string(b), nil
}

func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}
