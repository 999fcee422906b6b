package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/identity"
)

// marker takes the place of what is not recorded.
const marker = "[redacted]"

// What a record may hold at most.
const (
	maxText    = 1 << 10  // bytes of a string
	maxField   = 256      // bytes of a field beside path and payload
	maxItems   = 64       // of an object or array
	maxDepth   = 8        // objects and arrays within each other
	maxPayload = 16 << 10 // bytes of a payload
	// maxLooked is how much of a string is searched for secrets. It exceeds
	// what is kept by a secret's length, so that none is cut in two.
	maxLooked = maxText + 2*maxSecret
)

// secretKeys are keys whose values are never recorded, in lower case with _
// for -.
var secretKeys = map[string]bool{
	"authorization": true, "proxy_authorization": true, "cookie": true, "set_cookie": true, "x_api_key": true, "api_key": true, "apikey": true,
	"password": true, "passwd": true, "secret": true, "token": true, "access_token": true, "refresh_token": true, "id_token": true,
	"private_key": true, "plaintext_b64": true, "webhook_secret": true, "key": true, "client_secret": true,
	"credential": true, "credentials": true, "signature": true,
}

// secretEnds are ends of such keys.
var secretEnds = []string{"_password", "_secret", "_token", "_api_key", "_private_key", "_credential", "_credentials"}

// secretKey reports whether the value of a key is a secret by the key's name.
func secretKey(key string) bool {
	k := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(key)), "-", "_")
	if secretKeys[k] {
		return true
	}
	for _, end := range secretEnds {
		if strings.HasSuffix(k, end) {
			return true
		}
	}
	return false
}

// Redactor makes values fit for the trail.
type Redactor struct {
	Secrets *Secrets // may be nil
}

// Payload returns v as the JSON object of a record: without the values of
// secret keys, without known secrets, and cut to size; nil for an empty one.
func (r Redactor) Payload(v map[string]any) json.RawMessage {
	if len(v) == 0 {
		return nil
	}
	b := r.encode(r.clean(v, 0))
	if len(b) > maxPayload {
		// Valid JSON cannot be cut; what is short and plain is kept.
		b = r.encode(r.outline(v, len(b)))
	}
	return b
}

// outline keeps the short plain fields of a payload that is too large.
func (r Redactor) outline(v map[string]any, size int) map[string]any {
	out := map[string]any{"truncated_bytes": size}
	for _, k := range slices.Sorted(maps.Keys(v)) {
		switch c := r.value(k, v[k], maxDepth-1).(type) {
		case string:
			if len(c) <= maxField {
				out[r.key(k)] = c
			}
		case bool, json.Number, int, int64, uint64, float64:
			out[r.key(k)] = c
		}
		if len(out) >= maxItems/2 {
			break
		}
	}
	return out
}

func (r Redactor) encode(v any) json.RawMessage {
	b, err := encodePlain(v)
	if err != nil {
		return json.RawMessage(`{"unrecordable":true}`)
	}
	return b
}

// encodePlain is the compact JSON of v, with <, > and & as they are.
func encodePlain(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// Text returns a string without secrets and of at most limit bytes.
func (r Redactor) Text(s string, limit int) string {
	whole := len(s)
	if len(s) > maxLooked {
		s = s[:maxLooked]
	}
	s = strings.ToValidUTF8(r.Secrets.Clean(s), "\uFFFD")
	// A form of a secret may come about by the replacement.
	s = r.Secrets.Clean(s)
	if len(s) <= limit {
		return s
	}
	more := fmt.Sprintf("…[%d bytes]", whole)
	cut := strings.ToValidUTF8(s[:limit-len(more)], "") + more
	return r.Secrets.Clean(cut)
}

func (r Redactor) key(k string) string { return r.Text(k, maxField) }

func (r Redactor) clean(v map[string]any, depth int) map[string]any {
	out := make(map[string]any, min(len(v), maxItems))
	for i, k := range slices.Sorted(maps.Keys(v)) {
		if i == maxItems {
			out["truncated_keys"] = len(v) - maxItems
			break
		}
		out[r.key(k)] = r.value(k, v[k], depth+1)
	}
	return out
}

// value is what is recorded of the value of a key.
func (r Redactor) value(key string, v any, depth int) any {
	if v != nil && secretKey(key) {
		return marker
	}
	if depth >= maxDepth {
		if s, ok := v.(string); ok {
			return r.Text(s, maxText)
		}
		if _, ok := plain(v); !ok {
			return "[too deep]"
		}
	}
	switch v := v.(type) {
	case nil, bool:
		return v
	case string:
		return r.Text(v, maxText)
	case map[string]any:
		return r.clean(v, depth)
	case map[string]string:
		m := make(map[string]any, len(v))
		for k, s := range v {
			m[k] = s
		}
		return r.clean(m, depth)
	case []any:
		return r.items(key, v, depth)
	case []string:
		items := make([]any, len(v))
		for i, s := range v {
			items[i] = s
		}
		return r.items(key, items, depth)
	}
	if n, ok := plain(v); ok {
		if text := fmt.Sprint(n); r.Secrets.Clean(text) != text {
			return marker
		}
		return n
	}
	// Whatever it is, its JSON has only the types above.
	b, err := json.Marshal(v)
	if err != nil {
		return "[unrecordable]"
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var generic any
	if dec.Decode(&generic) != nil {
		return "[unrecordable]"
	}
	return r.value(key, generic, depth)
}

func (r Redactor) items(key string, v []any, depth int) []any {
	out := make([]any, 0, min(len(v), maxItems)+1)
	for i, item := range v {
		if i == maxItems {
			return append(out, fmt.Sprintf("…[%d more]", len(v)-maxItems))
		}
		out = append(out, r.value(key, item, depth+1))
	}
	return out
}

// plain returns numbers as they are encoded.
func plain(v any) (any, bool) {
	switch v := v.(type) {
	case nil, bool, int, int32, int64, uint16, uint32, uint64:
		return v, true
	case json.Number:
		return v, true
	}
	return nil, false
}

// Pending makes e ready for the queue.
func (r Redactor) Pending(e Event) Pending {
	short := func(s string) string { return r.Text(s, maxField) }
	p := Pending{Once: e.Once, Repeated: e.Repeated, TenantToken: e.Actor.TenantToken(), Owner: OwnerOf(e.Actor.Subject), Record: Record{
		Timestamp: e.At.UTC(), Severity: e.Severity, EventType: string(e.Kind),
		ActorSubject: short(e.Actor.Subject), ActorClient: short(e.Actor.Client), Tenant: short(e.Actor.Tenant),
		SessionID: short(e.SessionID), JobID: short(e.JobID), Method: short(e.Method), Path: r.Text(e.Path, maxText),
		StatusCode: e.Status, Payload: r.Payload(e.Payload),
	}}
	if e.TenantToken != "" {
		p.TenantToken = e.TenantToken
		if p.Tenant == "" && e.TenantToken != identity.DefaultTenant {
			p.Tenant = short(e.TenantToken)
		}
	}
	if p.Severity == "" {
		p.Severity = severityOf(e.Status)
	}
	return p
}
