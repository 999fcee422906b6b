package bus

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// compare lists what differs in one stream and its consumers.
func (c *Conn) compare(f found) []Mismatch {
	if f.stream == nil {
		return []Mismatch{{Stream: f.spec.config.Name, What: "missing"}}
	}
	var out []Mismatch
	if fields := streamDiff(f.spec.config, *f.stream); len(fields) > 0 {
		out = append(out, Mismatch{Stream: f.stream.Name, What: streamFault(f), Fields: fields})
	}
	for _, want := range f.spec.consumers {
		have, ok := f.consumers[want.Name]
		if !ok {
			out = append(out, Mismatch{Stream: f.stream.Name, Consumer: want.Name, What: "missing"})
			continue
		}
		if fields := consumerDiff(want, have); len(fields) > 0 {
			out = append(out, Mismatch{Stream: f.stream.Name, Consumer: want.Name, What: consumerFault(have), Fields: fields})
		}
	}
	return out
}

// streamFault tells a configuration as Init once wrote it ("older") from one
// somebody changed since ("edited").
func streamFault(f found) string {
	var last jetstream.StreamConfig
	if json.Unmarshal([]byte(f.stream.Metadata[metaConfig]), &last) != nil || len(streamDiff(last, *f.stream)) > 0 {
		return "edited"
	}
	return "older"
}

func consumerFault(have jetstream.ConsumerConfig) string {
	var last jetstream.ConsumerConfig
	if json.Unmarshal([]byte(have.Metadata[metaConfig]), &last) != nil || len(consumerDiff(last, have)) > 0 {
		return "edited"
	}
	return "older"
}

// streamDiff names the JSON fields in which two configurations differ,
// metadata aside.
func streamDiff(a, b jetstream.StreamConfig) []string {
	a.Metadata, b.Metadata = nil, nil
	return diff(a, b)
}

func consumerDiff(a, b jetstream.ConsumerConfig) []string {
	a.Metadata, b.Metadata = nil, nil
	// Pausing a pool is the operator's daily business, not a mismatch.
	a.PauseUntil, b.PauseUntil = nil, nil
	return diff(a, b)
}

func diff(a, b any) []string {
	x, y := fields(a), fields(b)
	var out []string
	for _, k := range sortedKeys(x, y) {
		if !reflect.DeepEqual(x[k], y[k]) {
			out = append(out, k)
		}
	}
	return out
}

// fields flattens a configuration the way it travels, so that what the
// server leaves out counts as its zero.
func fields(v any) map[string]any {
	b, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	m := map[string]any{}
	if json.Unmarshal(b, &m) != nil {
		return nil
	}
	maps.DeleteFunc(m, func(_ string, v any) bool {
		switch v := v.(type) {
		case nil:
			return true
		case bool:
			return !v
		case float64:
			return v == 0
		case string:
			return v == ""
		case map[string]any:
			return len(v) == 0
		case []any:
			return len(v) == 0
		}
		return false
	})
	return m
}

func sortedKeys(ms ...map[string]any) []string {
	all := map[string]struct{}{}
	for _, m := range ms {
		for k := range m {
			all[k] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(all))
}
