package packs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/helmdeck/helmdeck/pkg/packs/shape"
)

// schema is a JSON Schema in the four forms a pack needs: the text surfaces
// show, the compiled form that finds all faults, the tree that knows which
// keys belong to which object, and the quick form that accepts most of what
// has no fault.
type schema struct {
	text     json.RawMessage
	compiled *validator.Schema
	root     *node
	quick    *shape.Shape
	required map[string]bool // the top-level keys
}

// node is the part of a schema that normalise walks.
type node struct {
	kind  string // JSON type; empty: any
	props map[string]*node
	items *node
	extra *node // values of keys without a property of their own
	// closed: keys that are no property are unknown.
	closed bool
}

// deriveSchema makes the schema of t, without references and with unknown
// keys allowed. defaults, a JSON object, are written into its properties.
func deriveSchema(id string, t reflect.Type, defaults json.RawMessage) (*schema, error) {
	if k := t.Kind(); k != reflect.Struct && k != reflect.Map {
		return nil, fmt.Errorf("%s is no struct", t)
	}
	if err := checkTypes(t, nil); err != nil {
		return nil, err
	}
	r := jsonschema.Reflector{Anonymous: true, DoNotReference: true, ExpandedStruct: true, AllowAdditionalProperties: true}
	s := r.ReflectFromType(t)
	s.Version = "" // 2020-12 is what every reader of ours assumes
	required := make(map[string]bool, len(s.Required))
	for _, k := range s.Required {
		required[k] = true
	}
	if err := writeDefaults(s, required, defaults); err != nil {
		return nil, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode schema: %w", err)
	}
	var doc any
	if doc, err = validator.UnmarshalJSON(bytes.NewReader(text)); err != nil {
		return nil, fmt.Errorf("read schema: %w", err)
	}
	c := validator.NewCompiler()
	c.DefaultDraft(validator.Draft2020)
	c.AssertFormat()
	c.UseLoader(noLoader{})
	if err := c.AddResource(id, doc); err != nil {
		return nil, fmt.Errorf("add schema: %w", err)
	}
	compiled, err := c.Compile(id)
	if err != nil {
		return nil, fmt.Errorf("compile schema: %w", err)
	}
	return &schema{text: text, compiled: compiled, root: newNode(doc), quick: shape.Compile(doc), required: required}, nil
}

// noLoader forbids references to other documents.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("schema %q is remote, which is not allowed", url)
}

// checkTypes refuses types whose schema would never end, being without
// references, and durations, whose JSON is a number nobody can read.
func checkTypes(t reflect.Type, within []reflect.Type) error {
	for _, w := range within {
		if w == t {
			return fmt.Errorf("type %s contains itself", t)
		}
	}
	if t == reflect.TypeFor[time.Duration]() {
		return errors.New("a time.Duration does not show its unit in JSON; use a number field named after it")
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return checkTypes(t.Elem(), within)
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return nil
		}
		within = append(within[:len(within):len(within)], t)
		for f := range t.Fields() {
			if f.Tag.Get("json") == "-" || (!f.IsExported() && !f.Anonymous) {
				continue
			}
			if err := checkTypes(f.Type, within); err != nil {
				return fmt.Errorf("field %s: %w", f.Name, err)
			}
		}
	}
	return nil
}

// writeDefaults sets the default of every optional property. A default in a
// tag would be shown without being applied, so it is refused.
func writeDefaults(s *jsonschema.Schema, required map[string]bool, defaults json.RawMessage) error {
	values := map[string]any{}
	if len(defaults) > 0 {
		d := json.NewDecoder(bytes.NewReader(defaults))
		d.UseNumber()
		if err := d.Decode(&values); err != nil {
			return fmt.Errorf("read defaults: %w", err)
		}
	}
	if s.Properties == nil {
		return nil
	}
	for p := s.Properties.Oldest(); p != nil; p = p.Next() {
		if p.Value.Default != nil {
			return fmt.Errorf("%s: the default belongs into Spec.Defaults", p.Key)
		}
		if v, ok := values[p.Key]; ok && !required[p.Key] {
			p.Value.Default = v
		}
	}
	return nil
}

// newNode reads a node from a decoded schema document.
func newNode(doc any) *node {
	m, ok := doc.(map[string]any)
	if !ok {
		return nil // true: anything goes
	}
	n := &node{}
	n.kind, _ = m["type"].(string)
	n.items = newNode(m["items"])
	n.extra = newNode(m["additionalProperties"])
	if props, ok := m["properties"].(map[string]any); ok {
		n.closed = n.extra == nil
		n.props = make(map[string]*node, len(props))
		for k, v := range props {
			n.props[k] = newNode(v)
		}
	}
	return n
}
