// Package reference writes down what packs take and give, for people: the
// fields of a schema, and the page docs/packs.md.
package reference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	ordered "github.com/pb33f/ordered-map/v2"
)

// Field is one key of a pack's input or output, for people to read.
type Field struct {
	Name string
	// Type is a JSON type; "list of string" for arrays, "any" for anything.
	Type     string
	Required bool
	// Default is JSON, empty for none.
	Default     string
	Description string
	// Limits says what the type does not: "1 to 9", "one of a, b".
	Limits string
}

// schemaProperty is what Fields reads of a schema.
type schemaProperty struct {
	Type        any             `json:"type"`
	Description string          `json:"description"`
	Default     json.RawMessage `json:"default"`
	Enum        []any           `json:"enum"`
	Format      string          `json:"format"`
	Pattern     string          `json:"pattern"`
	Minimum     json.Number     `json:"minimum"`
	Maximum     json.Number     `json:"maximum"`
	MinLength   json.Number     `json:"minLength"`
	MaxLength   json.Number     `json:"maxLength"`
	MinItems    json.Number     `json:"minItems"`
	MaxItems    json.Number     `json:"maxItems"`
	Items       *schemaProperty `json:"items"`

	Properties *ordered.OrderedMap[string, *schemaProperty] `json:"properties"`
	Required   []string                                     `json:"required"`
}

// Fields lists the keys of a schema that packs.Info holds, in its order. Keys
// of an object within are named "outer.inner", of a list of objects
// "outer[].inner".
func Fields(schema json.RawMessage) ([]Field, error) {
	var s schemaProperty
	if err := json.Unmarshal(schema, &s); err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	return s.fields(""), nil
}

func (p *schemaProperty) fields(prefix string) []Field {
	var out []Field
	if p.Properties == nil {
		return out
	}
	for e := p.Properties.Oldest(); e != nil; e = e.Next() {
		f, name := e.Value, prefix+e.Key
		out = append(out, Field{
			Name: name, Type: f.kind(), Required: slices.Contains(p.Required, e.Key),
			Default: string(bytes.TrimSpace(f.Default)), Description: f.Description, Limits: f.limits(),
		})
		out = append(out, f.fields(name+".")...)
		if f.Items != nil {
			out = append(out, f.Items.fields(name+"[].")...)
		}
	}
	return out
}

func (p *schemaProperty) kind() string {
	kind, _ := p.Type.(string)
	switch {
	case kind == "array" && p.Items != nil:
		return "list of " + p.Items.kind()
	case kind == "":
		return "any"
	}
	return kind
}

func (p *schemaProperty) limits() string {
	var out []string
	if len(p.Enum) > 0 {
		values := make([]string, len(p.Enum))
		for i, v := range p.Enum {
			values[i] = fmt.Sprint(v)
		}
		out = append(out, "one of "+strings.Join(values, ", "))
	}
	out = append(out, between(p.Minimum, p.Maximum, ""), between(p.MinLength, p.MaxLength, "characters"), between(p.MinItems, p.MaxItems, "items"))
	if p.Format != "" {
		out = append(out, "a "+p.Format)
	}
	if p.Pattern != "" {
		out = append(out, "like "+p.Pattern)
	}
	if p.Items != nil {
		if of := p.Items.limits(); of != "" {
			out = append(out, "each "+of)
		}
	}
	out = slices.DeleteFunc(out, func(s string) bool { return s == "" })
	if len(out) == 0 {
		return ""
	}
	return "(" + strings.Join(out, "; ") + ")"
}

func between(low, high json.Number, unit string) string {
	text := ""
	switch {
	case low != "" && high != "":
		text = fmt.Sprintf("%s to %s", low, high)
	case low != "":
		text = fmt.Sprintf("at least %s", low)
	case high != "":
		text = fmt.Sprintf("at most %s", high)
	default:
		return ""
	}
	return strings.TrimSpace(text + " " + unit)
}
