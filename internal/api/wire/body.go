package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

const (
	// bodyTimeout bounds the arrival of a JSON body: 8 MiB at 140 kB/s.
	bodyTimeout = time.Minute
	// drainLimit and drainTimeout bound what is read of a body that is
	// refused: a client that is still sending sees a reset in place of the
	// answer.
	drainLimit   = 32 << 20
	drainTimeout = 10 * time.Second
)

// ReadBody reads a body of at most limit bytes; more is payload_too_large.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	rc := http.NewResponseController(w)
	if r.ContentLength > limit {
		drain(rc, r.Body)
		return nil, TooLarge(limit)
	}
	// Not every connection has deadlines; then the caller's own bounds hold.
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	_ = rc.SetReadDeadline(time.Time{})
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		return b, nil
	case errors.As(err, &tooLarge):
		drain(rc, r.Body)
		return nil, TooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, packs.Fail(packs.Timeout, err, "the body did not arrive within a minute; send it again")
	default:
		return nil, packs.Fail(packs.InvalidInput, err, "the body ended before its announced length; send it again")
	}
}

func drain(rc *http.ResponseController, body io.Reader) {
	_ = rc.SetReadDeadline(time.Now().Add(drainTimeout))
	// Courtesy only: whatever happens, the answer is the same.
	_, _ = io.CopyN(io.Discard, body, drainLimit)
	_ = rc.SetReadDeadline(time.Time{})
}

// DecodeObject decodes the JSON object in body into targets, pointers by key.
// An absent key and an explicit null leave the target alone. It returns every
// fault: unknown keys, with the known one that is near, and wrong types. The
// error is for a body that is no JSON object at all; empty counts as {}.
func DecodeObject(body []byte, targets map[string]any) ([]packs.Detail, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, notObject(body, err)
	}
	if object == nil { // null
		return nil, packs.Errorf(packs.InvalidInput, "the body must be a JSON object, got null")
	}
	var faults []packs.Detail
	known := slices.Sorted(maps.Keys(targets))
	for _, key := range slices.Sorted(maps.Keys(object)) {
		at := "/" + pointerEscaper.Replace(key)
		target, ok := targets[key]
		if !ok {
			faults = append(faults, packs.Detail{Pointer: at, Message: unknown("key", key, known)})
			continue
		}
		if string(object[key]) == "null" {
			continue
		}
		if err := json.Unmarshal(object[key], target); err != nil {
			faults = append(faults, packs.Detail{Pointer: at, Message: wrongType(target, object[key], err)})
		}
	}
	return faults, nil
}

var pointerEscaper = strings.NewReplacer("~", "~0", "/", "~1")

func notObject(body []byte, err error) error {
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return packs.Fail(packs.InvalidInput, err,
			fmt.Sprintf("the body is not valid JSON: %s at byte %d", syntax.Error(), syntax.Offset))
	}
	return packs.Fail(packs.InvalidInput, err,
		fmt.Sprintf("the body must be a JSON object such as {\"key\": \"value\"}, got %s", kindOf(body)))
}

// unknown says that name is none of known, what is near, and else what is.
func unknown(what, name string, known []string) string {
	if near := packs.Nearest(name, known); len(near) > 0 {
		return fmt.Sprintf("unknown %s; did you mean %s?", what, strings.Join(near, " or "))
	}
	if len(known) == 0 {
		return "unknown " + what + "; none is expected here"
	}
	return fmt.Sprintf("unknown %s; known are %s", what, strings.Join(known, ", "))
}

func wrongType(target any, value json.RawMessage, err error) string {
	t := reflect.TypeOf(target).Elem()
	if t == reflect.TypeFor[time.Time]() {
		return "must be a time such as 2026-01-31T12:00:00Z (RFC 3339)"
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	want := typeName(t)
	if got := kindOf(value); got != kindName(t) {
		return fmt.Sprintf("must be %s, got %s", want, got)
	}
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return fmt.Sprintf("must be %s, a %s does not fit", want, mismatch.Value)
	}
	return "must be " + want
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "a boolean"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array, each item " + typeName(t.Elem())
	case reflect.Map:
		return "an object, each value " + typeName(t.Elem())
	default:
		return "valid JSON"
	}
}

// kindName is the JSON kind that a value of type t is decoded from.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Slice:
		return "array"
	case reflect.Map, reflect.Struct:
		return "object"
	default:
		return "number"
	}
}

func kindOf(value []byte) string {
	value = bytes.TrimSpace(value)
	switch {
	case len(value) == 0:
		return "nothing"
	case value[0] == '{':
		return "object"
	case value[0] == '[':
		return "array"
	case value[0] == '"':
		return "string"
	case value[0] == 't', value[0] == 'f':
		return "boolean"
	case value[0] == 'n':
		return "null"
	default:
		return "number"
	}
}

// Invalid is the error for faults, nil when there are none.
func Invalid(faults []packs.Detail) error {
	if len(faults) == 0 {
		return nil
	}
	e := packs.Errorf(packs.InvalidInput, "the request is not valid: %s: %s", faults[0].Pointer, faults[0].Message)
	if len(faults) > 1 {
		e.Message += fmt.Sprintf(" (and %d more, see details)", len(faults)-1)
	}
	e.Details = faults
	return e
}
