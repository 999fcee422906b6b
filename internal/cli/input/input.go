// Package input makes the input of a pack from words of a command line:
//
//	text=hello          a value, with the type that the pack's schema gives the key
//	text=@deck.md       the content of a file; @- is standard input
//	data:={"a":1}       JSON
//	data:=@data.json    JSON from a file
//	tag=a tag=b         a list, when the schema says so
//
// A value that does not fit its type is sent as it is, so that the server
// tells all faults at once.
package input

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Source is where an input comes from.
type Source struct {
	// Pairs are the words; Base is the JSON object they are laid over, may be
	// empty.
	Pairs []string
	Base  json.RawMessage
	// Schema is the pack's input schema. Empty: every key is allowed and every
	// value is text.
	Schema json.RawMessage
	// Read returns the content of a file, or of standard input for "-".
	Read func(name string) ([]byte, error)
}

type property struct {
	Type  any       `json:"type"`
	Items *property `json:"items"`
}

func (p *property) kind() string {
	if p == nil {
		return ""
	}
	switch t := p.Type.(type) {
	case string:
		return t
	case []any:
		for _, k := range t {
			if s, ok := k.(string); ok && s != "null" {
				return s
			}
		}
	}
	return ""
}

// Build makes the input, a JSON object. Its errors are *packs.Error with
// invalid_input, one Detail for each fault.
func Build(s Source) (json.RawMessage, error) {
	out, err := object(s.Base)
	if err != nil {
		return nil, err
	}
	var schema struct {
		Properties map[string]*property `json:"properties"`
	}
	if len(s.Schema) > 0 {
		if err := json.Unmarshal(s.Schema, &schema); err != nil {
			return nil, fmt.Errorf("read the pack's schema: %w", err)
		}
	}
	var faults []packs.Detail
	given := map[string]bool{}
	for _, word := range s.Pairs {
		key, value, isJSON, ok := split(word)
		if !ok {
			faults = append(faults, packs.Detail{Message: fmt.Sprintf("%q is not key=value or key:=json", word)})
			continue
		}
		prop, known := schema.Properties[key]
		if len(s.Schema) > 0 && !known {
			faults = append(faults, packs.Detail{Pointer: "/" + key, Message: unknown(key, schema.Properties)})
			continue
		}
		v, err := valueOf(value, isJSON, prop, s.Read)
		if err != nil {
			faults = append(faults, packs.Detail{Pointer: "/" + key, Message: err.Error()})
			continue
		}
		if given[key] {
			// Only a list grows when its key comes again.
			have, haveList := out[key].([]any)
			more, moreList := v.([]any)
			if !haveList || !moreList {
				faults = append(faults, packs.Detail{Pointer: "/" + key, Message: "is given twice"})
				continue
			}
			v = slices.Concat(have, more)
		}
		out[key], given[key] = v, true
	}
	if len(faults) > 0 {
		return nil, &packs.Error{Code: packs.InvalidInput, Message: "the input cannot be made of these words", Details: faults}
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("encode input: %w", err)
	}
	return text, nil
}

func object(base json.RawMessage) (map[string]any, error) {
	out := map[string]any{}
	if len(base) == 0 {
		return out, nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(base, &raw); err != nil || raw == nil {
		return nil, packs.Errorf(packs.InvalidInput, "the input is no JSON object such as {\"key\": \"value\"}: %v", err)
	}
	for k, v := range raw {
		out[k] = v
	}
	return out, nil
}

// split cuts a word at its first "=", or ":=" for JSON.
func split(word string) (key, value string, isJSON, ok bool) {
	key, value, ok = strings.Cut(word, "=")
	if before, found := strings.CutSuffix(key, ":"); found {
		key, isJSON = before, true
	}
	return key, value, isJSON, ok && key != ""
}

func unknown(key string, known map[string]*property) string {
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	switch near := packs.Nearest(key, names); {
	case len(near) > 0:
		return "the pack has no such key; did you mean " + strings.Join(near, " or ") + "?"
	case len(names) == 0:
		return "the pack takes no input"
	default:
		return "the pack has no such key; it has " + strings.Join(names, ", ")
	}
}

func valueOf(value string, isJSON bool, prop *property, read func(string) ([]byte, error)) (any, error) {
	if name, ok := strings.CutPrefix(value, "@"); ok {
		content, err := read(name)
		if err != nil {
			return nil, err
		}
		value = string(content)
	}
	if isJSON {
		if !json.Valid([]byte(value)) {
			return nil, fmt.Errorf("is not valid JSON: %.60s", value)
		}
		return json.RawMessage(value), nil
	}
	return typed(value, prop), nil
}

// typed reads value as the kind that prop asks for; what does not fit stays
// text.
func typed(value string, prop *property) any {
	switch prop.kind() {
	case "integer", "number":
		if _, err := strconv.ParseFloat(value, 64); err == nil && json.Valid([]byte(value)) {
			return json.RawMessage(value)
		}
	case "boolean":
		if value == "true" || value == "false" {
			return json.RawMessage(value)
		}
	case "object":
		if json.Valid([]byte(value)) {
			return json.RawMessage(value)
		}
	case "array":
		var list []json.RawMessage
		if strings.HasPrefix(value, "[") && json.Unmarshal([]byte(value), &list) == nil {
			items := make([]any, len(list))
			for i := range list {
				items[i] = list[i]
			}
			return items
		}
		return []any{typed(value, prop.Items)}
	}
	return value
}
