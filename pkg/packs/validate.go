package packs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Bounds on what one bad input can make us say or compute.
const (
	maxDetails  = 100 // faults listed
	maxWarnings = 50
	// Numbers are compared as exact fractions, so 1e999999999 would fill the
	// memory. No float64 has more digits in its exponent or a use for longer
	// text.
	maxNumberLen = 400
	maxExponent  = 400
)

// parseObject reads input as one JSON object; empty input counts as {}.
func parseObject(input json.RawMessage) (map[string]any, error) {
	if len(bytes.TrimSpace(input)) == 0 {
		return map[string]any{}, nil
	}
	value, err := parseJSON(input)
	if err != nil {
		return nil, Errorf(InvalidInput, "the input is not valid JSON: %w", err)
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, Errorf(InvalidInput, "the input must be a JSON object such as {\"key\": \"value\"}, got %s", kindOf(value))
	}
	return object, nil
}

func parseJSON(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		var syntax *json.SyntaxError
		switch {
		case errors.As(err, &syntax):
			return nil, fmt.Errorf("%s at byte %d", syntax.Error(), syntax.Offset)
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
			return nil, fmt.Errorf("it ends too early at byte %d", len(text))
		}
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("more data follows the value at byte %d", d.InputOffset())
	}
	return value, nil
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case []any:
		return "array"
	case map[string]any:
		return "object"
	default:
		return "number"
	}
}

// normalise returns value without nulls on declared keys, without unknown
// keys, and with integers written as such. encoding/json matches keys in any
// case: what the schema did not see must not reach the handler.
func (s *schema) normalise(value map[string]any) (clean any, warnings []string, faults []Detail) {
	w := &walker{}
	clean = w.walk(value, s.root, nil)
	if n := w.unknowns - maxWarnings; n > 0 {
		w.warnings = append(w.warnings, fmt.Sprintf("%d more unknown keys ignored", n))
	}
	return clean, w.warnings, w.faults
}

type walker struct {
	warnings []string
	unknowns int // keys that deserve a warning
	faults   []Detail
	faulty   int // numbers that deserve a fault
}

// place is where the walk is. Its pointer is written only when somebody must
// be told: doing so at every step of a deep value would take quadratic time.
type place struct {
	parent *place // nil: the whole value
	key    string
}

func (p *place) pointer() string {
	var steps []string
	for ; p != nil; p = p.parent {
		steps = append(steps, "/"+escapePointer(p.key))
	}
	slices.Reverse(steps)
	return strings.Join(steps, "")
}

func (w *walker) walk(value any, n *node, at *place) any {
	if n == nil {
		n = &node{}
	}
	switch v := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			child, declared := n.props[key]
			here := &place{at, key}
			switch {
			case !declared && n.closed:
				w.unknown(here, n.props)
			case declared && v[key] == nil: // absent
			case declared:
				out[key] = w.walk(v[key], child, here)
			default:
				out[key] = w.walk(v[key], n.extra, here)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = w.walk(v[i], n.items, &place{at, strconv.Itoa(i)})
		}
		return out
	case json.Number:
		return w.number(v, n, at)
	}
	return value
}

func (w *walker) number(v json.Number, n *node, at *place) any {
	text := string(v)
	fault := func(message string) any {
		if w.faulty++; w.faulty <= maxDetails {
			w.faults = append(w.faults, Detail{Pointer: at.pointer(), Message: message})
		}
		return json.Number("0") // in place of the value, so that validation is cheap
	}
	if len(text) > maxNumberLen {
		return fault("the number is too long")
	}
	if _, exponent, ok := strings.Cut(strings.ToLower(text), "e"); ok {
		if e, err := strconv.Atoi(exponent); err != nil || e > maxExponent || e < -maxExponent {
			return fault("the number is out of range")
		}
	}
	if n.kind != "integer" {
		if _, err := v.Float64(); err != nil {
			return fault("the number is out of range")
		}
		return v
	}
	r, ok := new(big.Rat).SetString(text)
	switch {
	case !ok:
		return fault("is no number")
	case !r.IsInt():
		return v // the schema says what is wrong
	case !r.Num().IsInt64():
		return fault("the number is out of range")
	}
	return json.Number(r.Num().String())
}

// unknown warns of a key the pack does not know.
func (w *walker) unknown(at *place, known map[string]*node) {
	if w.unknowns++; w.unknowns > maxWarnings {
		return
	}
	text := fmt.Sprintf("unknown key %s ignored", shorten(at.pointer(), 100))
	if near := Nearest(at.key, slices.Sorted(maps.Keys(known))); len(near) > 0 {
		text += fmt.Sprintf("; did you mean %s?", near[0])
	}
	w.warnings = append(w.warnings, text)
}

// fillNulls writes empty lists and objects in place of the nulls Go encodes
// for nil ones, and leaves out other nulls on declared keys.
func (s *schema) fillNulls(text json.RawMessage) json.RawMessage {
	if !bytes.Contains(text, []byte("null")) {
		return text
	}
	value, err := parseJSON(text)
	if err != nil {
		return text
	}
	fill(value, s.root)
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return text
	}
	return bytes.TrimSpace(out.Bytes())
}

func fill(value any, n *node) {
	if n == nil {
		return
	}
	switch v := value.(type) {
	case map[string]any:
		for key, child := range n.props {
			got, present := v[key]
			switch {
			case !present:
			case got != nil:
				fill(got, child)
			case child == nil: // any value, null as well
			case child.kind == "array":
				v[key] = []any{}
			case child.kind == "object":
				v[key] = map[string]any{}
			default:
				delete(v, key)
			}
		}
		if n.extra != nil {
			for key, got := range v {
				if _, declared := n.props[key]; !declared {
					fill(got, n.extra)
				}
			}
		}
	case []any:
		for _, item := range v {
			fill(item, n.items)
		}
	}
}

func escapePointer(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

// shorten cuts s to about n bytes at a rune boundary.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
