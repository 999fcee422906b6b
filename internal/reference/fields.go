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
}

// Fields lists the keys of a schema that packs.Info holds, in its order.
func Fields(schema json.RawMessage) ([]Field, error) {
	var s struct {
		Properties *ordered.OrderedMap[string, schemaProperty] `json:"properties"`
		Required   []string                                    `json:"required"`
	}
	if err := json.Unmarshal(schema, &s); err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	var out []Field
	if s.Properties == nil {
		return out, nil
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		out = append(out, Field{
			Name: p.Key, Type: p.Value.kind(), Required: slices.Contains(s.Required, p.Key),
			Default: string(bytes.TrimSpace(p.Value.Default)), Description: p.Value.Description, Limits: p.Value.limits(),
		})
	}
	return out, nil
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
