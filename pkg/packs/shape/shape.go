// Package shape is a compiled form of simple JSON Schemas that accepts in one
// pass over the text what is surely valid, and says nothing about the rest.
//
// It is the fast way in front of a full validator: whoever asks goes to the
// validator when a Shape does not accept, also for the faults it would list.
// A Shape never accepts what the validator refuses; a schema it does not
// understand, or a text with anything unusual in it, it does not accept.
package shape

import (
	"encoding/json"
	"math"
	"strconv"
)

// Shape is a compiled schema. A nil Shape accepts nothing. Safe for concurrent
// use.
type Shape struct{ root *node }

// kind is the JSON type a node asks for.
type kind int

const (
	never kind = iota // not understood: accepts nothing
	anything
	object
	array
	text
	integer
	number
	boolean
)

// node is one schema. The limits are those of its kind: lengths of strings in
// runes, of arrays in items, values of numbers.
type node struct {
	kind     kind
	min, max int64
	bounded  bool // of numbers: min or max is set
	oneOf    map[string]bool
	items    *node
	props    map[string]prop
	required uint64 // a bit for each property
	extra    *node  // values of keys that are no property; nil: not accepted
}

type prop struct {
	bit uint64
	of  *node
}

var neverNode = &node{kind: never}

// Compile reads a schema document as encoding/json decodes it with UseNumber.
func Compile(doc any) *Shape { return &Shape{root: compile(doc)} }

// notes are the keywords that check nothing.
var notes = map[string]bool{
	"title": true, "description": true, "default": true, "examples": true,
	"$schema": true, "$comment": true, "deprecated": true, "readOnly": true, "writeOnly": true,
}

func compile(doc any) *node {
	if doc == true {
		return &node{kind: anything}
	}
	m, ok := doc.(map[string]any)
	if !ok {
		return neverNode
	}
	n := &node{kind: anything, max: math.MaxInt64}
	if t, typed := m["type"]; typed {
		name, _ := t.(string)
		n.kind = map[string]kind{
			"object": object, "array": array, "string": text, "integer": integer, "number": number, "boolean": boolean,
		}[name]
	}
	if n.kind == integer || n.kind == number {
		n.min = math.MinInt64
	}
	for key, value := range m {
		if key != "type" && !notes[key] && !n.keyword(key, value) {
			return neverNode
		}
	}
	return n.finish(m)
}

// keyword takes one keyword in and reports whether it is understood for the
// kind of n.
func (n *node) keyword(key string, value any) bool {
	switch {
	case n.kind == object && (key == "properties" || key == "required"):
		return true // see finish
	case n.kind == object && key == "additionalProperties":
		if value != true && value != false {
			n.extra = compile(value)
		}
		return true
	case n.kind == array && key == "items":
		n.items = compile(value)
		return true
	case n.kind == array && key == "minItems", n.kind == text && key == "minLength":
		return whole(value, &n.min)
	case n.kind == array && key == "maxItems", n.kind == text && key == "maxLength":
		return whole(value, &n.max)
	case (n.kind == integer || n.kind == number) && key == "minimum":
		n.bounded = true
		return whole(value, &n.min)
	case (n.kind == integer || n.kind == number) && key == "maximum":
		n.bounded = true
		return whole(value, &n.max)
	case n.kind == text && key == "enum":
		return n.choices(value)
	}
	return false
}

// whole reads a limit that is a whole number.
func whole(value any, to *int64) bool {
	text, ok := value.(json.Number)
	if !ok {
		return false
	}
	v, err := strconv.ParseInt(string(text), 10, 64)
	*to = v
	return err == nil
}

func (n *node) choices(value any) bool {
	list, ok := value.([]any)
	n.oneOf = make(map[string]bool, len(list))
	for _, v := range list {
		s, isText := v.(string)
		ok = ok && isText
		n.oneOf[s] = true
	}
	return ok
}

// finish reads the properties, which belong together with required.
func (n *node) finish(m map[string]any) *node {
	if n.kind != object {
		return n
	}
	props, _ := m["properties"].(map[string]any)
	if _, given := m["properties"]; given && props == nil || len(props) > 64 {
		return neverNode
	}
	n.props = make(map[string]prop, len(props))
	bit := uint64(1)
	for key, value := range props {
		n.props[key] = prop{bit: bit, of: compile(value)}
		bit <<= 1
	}
	if m["properties"] == nil && n.extra == nil {
		n.extra = &node{kind: anything}
		if m["additionalProperties"] == false {
			return neverNode
		}
	}
	required, given := m["required"].([]any)
	if _, wanted := m["required"]; wanted && !given {
		return neverNode
	}
	for _, key := range required {
		name, _ := key.(string)
		p, ok := n.props[name]
		if !ok {
			return neverNode
		}
		n.required |= p.bit
	}
	return n
}
