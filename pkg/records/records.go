// Package records keeps JSON records whole when programs of two versions work
// on them: members of a record that this program does not know, because a newer
// one wrote them, are kept aside when it is decoded and put back when it is
// encoded.
//
// Records written by the same version need none of that, and a short text
// beside them, the Schema, tells so without a look inside. A newer version may
// add members to the top level of a record, which older ones then carry along;
// what an older one could not live with raises Major, and is refused.
package records

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Major is the version of all records this program reads and writes.
const Major = 1

// ErrNewer is wrapped by the error for a record of a newer major version. What
// is not understood must be left alone, for those who do.
var ErrNewer = errors.New("record of a newer major version")

// mixed stands in place of the members in the Schema of a record that has
// members its writer did not know.
const mixed = "mixed"

// Unknown are the members of a record that this program does not know, as a
// JSON object; nil when there are none.
type Unknown = json.RawMessage

// Form knows the members of one kind of record.
type Form struct {
	members []string
	schema  string
}

// FormOf returns the form of a record made of the members of values, which are
// structs or pointers to them.
func FormOf(values ...any) *Form {
	f := &Form{}
	for _, v := range values {
		f.members = append(f.members, membersOf(reflect.TypeOf(v))...)
	}
	slices.Sort(f.members)
	f.members = slices.Compact(f.members)
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.Join(f.members, ","))) // never fails
	f.schema = fmt.Sprintf("%d.%08x", Major, h.Sum32())
	return f
}

func membersOf(t reflect.Type) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var out []string
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case field.Anonymous && name == "":
			out = append(out, membersOf(field.Type)...)
		case field.IsExported() && name == "":
			out = append(out, field.Name)
		case field.IsExported():
			out = append(out, name)
		}
	}
	return out
}

// Schema names the version and the members of a record of this form, as it is
// written beside it: "1.5f3a9c21". has tells that the record has unknown members.
func (f *Form) Schema(has bool) string {
	if has {
		return strconv.Itoa(Major) + "." + mixed
	}
	return f.schema
}

// Check reads the schema found beside a record: whether the record may have
// members unknown to this form. Empty means a writer from before there were
// schemas, who knew no more than this program. ErrNewer.
func (f *Form) Check(schema string) (unknown bool, err error) {
	if schema == "" || schema == f.schema {
		return false, nil
	}
	major, _, _ := strings.Cut(schema, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return false, fmt.Errorf("malformed record schema %.40q", schema)
	}
	if n > Major {
		return false, fmt.Errorf("%w: it is of version %d, this program knows %d: upgrade it", ErrNewer, n, Major)
	}
	return true, nil
}

// Split returns the members of the JSON object data that are not of the form.
func (f *Form) Split(data []byte) (Unknown, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("read members of a record: %w", err)
	}
	for _, m := range f.members {
		delete(all, m)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return json.Marshal(all)
}

// Join adds unknown members to the JSON object data.
func Join(data []byte, unknown Unknown) ([]byte, error) {
	if len(unknown) == 0 {
		return data, nil
	}
	data, rest := bytes.TrimSpace(data), bytes.TrimSpace(unknown)
	if len(data) < 2 || data[len(data)-1] != '}' || len(rest) < 2 || rest[0] != '{' {
		return nil, errors.New("join members of a record: not a JSON object")
	}
	if len(rest) == 2 {
		return data, nil
	}
	out := make([]byte, 0, len(data)+len(rest))
	out = append(out, data[:len(data)-1]...)
	if len(data) > 2 {
		out = append(out, ',')
	}
	return append(out, rest[1:]...), nil
}

// Encode makes the JSON form of v with unknown members.
func Encode(v any, unknown Unknown) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return Join(data, unknown)
}

// Decode reads the JSON object data into v and returns the members that are not
// of the form. For records without a schema beside them.
func (f *Form) Decode(data []byte, v any) (Unknown, error) {
	if err := json.Unmarshal(data, v); err != nil {
		return nil, err
	}
	return f.Split(data)
}
