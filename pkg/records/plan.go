package records

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Plan writes and reads the JSON form of the struct T as encoding/json does,
// byte for byte, in less time: what T is made of is looked at once, and what
// was written by a Plan is read in one pass. Whatever is unusual, in a value or
// in a text, is left to encoding/json. Safe for concurrent use.
type Plan[T any] struct {
	fields *fields // nil: T is nothing for a plan
	size   atomic.Int64
}

// PlanOf returns the plan of T.
func PlanOf[T any]() *Plan[T] {
	p := &Plan[T]{fields: fieldsOf(reflect.TypeFor[T]())}
	p.size.Store(512)
	return p
}

// Marshal is json.Marshal of *v.
func (p *Plan[T]) Marshal(v *T) ([]byte, error) {
	if p.fields == nil {
		return json.Marshal(v)
	}
	b := make([]byte, 0, p.size.Load())
	b, err := p.fields.append(b, reflect.ValueOf(v).Elem())
	if err == nil && int64(len(b)) > p.size.Load() && len(b) < 4<<10 {
		p.size.Store(int64(len(b) + len(b)/8)) // the next ones are not grown
	}
	return b, err
}

// Unmarshal is json.Unmarshal of data into *v, which is overwritten.
func (p *Plan[T]) Unmarshal(data []byte, v *T) error {
	var zero T
	*v = zero
	if p.fields != nil {
		s := scan{in: data}
		if s.fields(p.fields, reflect.ValueOf(v).Elem()) && s.at == len(data) {
			return nil
		}
		*v = zero
	}
	return json.Unmarshal(data, v)
}

// what a field is, as far as it matters how it is written.
type what int

const (
	other what = iota // left to encoding/json
	text
	truth
	number
	instant
	raw
	record // a struct with a plan of its own
)

// empty says when a field is left out.
type empty int

const (
	never empty = iota
	whenEmpty
	whenZero
)

type field struct {
	index int
	key   string // `"name":`
	what  what
	omit  empty
	of    *fields // of a record
}

type fields struct {
	all    []field
	byName map[string]int // of all
}

// maxFields is what scan can tell apart.
const maxFields = 128

var (
	rawType     = reflect.TypeFor[json.RawMessage]()
	timeType    = reflect.TypeFor[time.Time]()
	marshaler   = reflect.TypeFor[json.Marshaler]()
	unmarshaler = reflect.TypeFor[json.Unmarshaler]()
)

// fieldsOf returns nil for a type that is nothing for a plan: no struct, or one
// with embedded fields, or with tags that are seldom used.
func fieldsOf(t reflect.Type) *fields {
	if t.Kind() != reflect.Struct || t.NumField() > maxFields || encodesItself(t) {
		return nil
	}
	f := &fields{byName: map[string]int{}}
	for i := range t.NumField() {
		sf := t.Field(i)
		name, options, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if name == "-" && options == "" || !sf.IsExported() && !sf.Anonymous {
			continue
		}
		fd := field{index: i, key: `"` + name + `":`, what: whatOf(sf.Type)}
		switch options {
		case "":
		case "omitempty":
			fd.omit = whenEmpty
		case "omitzero":
			fd.omit = whenZero
		default:
			return nil
		}
		if fd.what == record {
			fd.of = fieldsOf(sf.Type)
		}
		if _, twice := f.byName[name]; twice || name == "" || sf.Anonymous || fd.what == record && fd.of == nil {
			return nil
		}
		f.byName[name] = len(f.all)
		f.all = append(f.all, fd)
	}
	return f
}

func encodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(marshaler) || p.Implements(unmarshaler) || textual(p)
}

func textual(t reflect.Type) bool {
	_, to := t.MethodByName("MarshalText")
	_, from := t.MethodByName("UnmarshalText")
	return to || from
}

func whatOf(t reflect.Type) what {
	switch {
	case t == rawType:
		return raw
	case t == timeType:
		return instant
	case encodesItself(t):
		return other
	}
	switch t.Kind() {
	case reflect.String:
		return text
	case reflect.Bool:
		return truth
	case reflect.Int, reflect.Int64:
		return number
	case reflect.Struct:
		if fieldsOf(t) != nil {
			return record
		}
	}
	return other
}

func (f *fields) append(b []byte, v reflect.Value) ([]byte, error) {
	b = append(b, '{')
	first := true
	for i := range f.all {
		fd := &f.all[i]
		fv := v.Field(fd.index)
		if fd.omit == whenEmpty && hollow(fv) || fd.omit == whenZero && fd.zero(fv) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, fd.key...)
		var err error
		if b, err = fd.append(b, fv); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// hollow is what encoding/json calls empty.
func hollow(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String, reflect.Slice, reflect.Map, reflect.Array:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

func (f *field) zero(v reflect.Value) bool {
	if f.what == instant {
		return v.Addr().Interface().(*time.Time).IsZero()
	}
	if z, ok := v.Interface().(interface{ IsZero() bool }); ok && (v.Kind() != reflect.Pointer || !v.IsNil()) {
		return z.IsZero()
	}
	return v.IsZero()
}

func (f *field) append(b []byte, v reflect.Value) ([]byte, error) {
	switch f.what {
	case text:
		if s := v.String(); plain(s) {
			return append(append(append(b, '"'), s...), '"'), nil
		}
	case truth:
		return strconv.AppendBool(b, v.Bool()), nil
	case number:
		return strconv.AppendInt(b, v.Int(), 10), nil
	case instant:
		t := v.Addr().Interface().(*time.Time)
		if y := t.Year(); t.Location() == time.UTC && y >= 0 && y < 10_000 {
			return append(t.AppendFormat(append(b, '"'), time.RFC3339Nano), '"'), nil
		}
	case raw:
		r := v.Bytes()
		s := scan{in: r}
		if s.value(0) && s.at == len(r) && !s.changes {
			return append(b, r...), nil
		}
	case record:
		return f.of.append(b, v)
	case other:
	}
	more, err := json.Marshal(v.Interface())
	return append(b, more...), err
}

// plain reports whether s stands in JSON as it is.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= utf8.RuneSelf || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}
