package packs

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// faults returns everything that is wrong with value, ordered by pointer, in
// words that say what to write instead.
func (s *schema) faults(value any) []Detail {
	var failed *validator.ValidationError
	if err := s.compiled.Validate(value); !errors.As(err, &failed) {
		if err != nil {
			return []Detail{{Message: err.Error()}}
		}
		return nil
	}
	return merge(nil, details(failed))
}

// merge orders faults by pointer. Of a value that has a fault in first, those
// in second are left out.
func merge(first, second []Detail) []Detail {
	known := make(map[string]bool, len(first))
	for _, d := range first {
		known[d.Pointer] = true
	}
	for _, d := range second {
		if !known[d.Pointer] {
			first = append(first, d)
		}
	}
	slices.SortFunc(first, func(a, b Detail) int {
		return cmp.Or(cmp.Compare(a.Pointer, b.Pointer), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(first)
}

func details(e *validator.ValidationError) []Detail {
	switch k := e.ErrorKind.(type) {
	case *kind.AnyOf:
		return alternatives(e)
	case *kind.OneOf:
		if len(k.Subschemas) == 0 {
			return alternatives(e)
		}
	}
	if len(e.Causes) > 0 {
		var out []Detail
		for _, cause := range e.Causes {
			out = append(out, details(cause)...)
		}
		return out
	}
	at := pointerOf(e)
	if r, ok := e.ErrorKind.(*kind.Required); ok {
		var out []Detail
		for _, key := range r.Missing {
			out = append(out, Detail{Pointer: at + "/" + escapePointer(key), Message: "is required"})
		}
		return out
	}
	return []Detail{{Pointer: at, Message: describe(e.ErrorKind)}}
}

// alternatives tells of a value that fits none of several forms: which types
// it may have, or what is wrong with the form it seems to be.
func alternatives(e *validator.ValidationError) []Detail {
	at := pointerOf(e)
	var want []string
	var got string
	var rest []Detail
	for _, cause := range e.Causes {
		if t, ok := cause.ErrorKind.(*kind.Type); ok && pointerOf(cause) == at {
			want, got = append(want, t.Want...), t.Got
			continue
		}
		rest = append(rest, details(cause)...)
	}
	if len(rest) > 0 || len(want) == 0 {
		return rest
	}
	return []Detail{{Pointer: at, Message: fmt.Sprintf("expected %s, got %s", strings.Join(want, " or "), got)}}
}

func pointerOf(e *validator.ValidationError) string {
	var b strings.Builder
	for _, step := range e.InstanceLocation {
		b.WriteByte('/')
		b.WriteString(escapePointer(step))
	}
	return b.String()
}

var english = message.NewPrinter(language.English)

func describe(k validator.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return fmt.Sprintf("expected %s, got %s", strings.Join(k.Want, " or "), k.Got)
	case *kind.Enum:
		want := make([]string, len(k.Want))
		for i, w := range k.Want {
			want[i] = show(w)
		}
		return fmt.Sprintf("must be one of %s; got %s", strings.Join(want, ", "), show(k.Got))
	case *kind.Const:
		return fmt.Sprintf("must be %s; got %s", show(k.Want), show(k.Got))
	case *kind.Format:
		return fmt.Sprintf("%s is not a valid %s", show(k.Got), k.Want)
	case *kind.Pattern:
		return fmt.Sprintf("%s does not match the pattern %s", show(k.Got), k.Want)
	case *kind.MinLength:
		if k.Want == 1 {
			return "must not be empty"
		}
		return fmt.Sprintf("must have at least %d characters, has %d", k.Want, k.Got)
	case *kind.MaxLength:
		return fmt.Sprintf("must have at most %d characters, has %d", k.Want, k.Got)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %d items, has %d", k.Want, k.Got)
	case *kind.MaxItems:
		return fmt.Sprintf("must have at most %d items, has %d", k.Want, k.Got)
	case *kind.UniqueItems:
		return fmt.Sprintf("items %d and %d are the same", k.Duplicates[0], k.Duplicates[1])
	case *kind.Minimum:
		return fmt.Sprintf("must be at least %s, got %s", decimal(k.Want), decimal(k.Got))
	case *kind.Maximum:
		return fmt.Sprintf("must be at most %s, got %s", decimal(k.Want), decimal(k.Got))
	case *kind.ExclusiveMinimum:
		return fmt.Sprintf("must be more than %s, got %s", decimal(k.Want), decimal(k.Got))
	case *kind.ExclusiveMaximum:
		return fmt.Sprintf("must be less than %s, got %s", decimal(k.Want), decimal(k.Got))
	case *kind.MultipleOf:
		return fmt.Sprintf("must be a multiple of %s, got %s", decimal(k.Want), decimal(k.Got))
	case *kind.FalseSchema:
		return "is not allowed"
	}
	return k.LocalizedString(english)
}

func decimal(r *big.Rat) string {
	f, _ := r.Float64()
	text, _ := json.Marshal(f)
	return string(text)
}

// show prints a value of the caller's, briefly.
func show(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return kindOf(v)
	}
	return shorten(string(text), 80)
}

// decodeFault says which key did not fit the Go type behind the schema.
func decodeFault(err error) Detail {
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return Detail{
			Pointer: "/" + strings.ReplaceAll(mismatch.Field, ".", "/"),
			Message: fmt.Sprintf("%s does not fit (%s)", mismatch.Value, mismatch.Type),
		}
	}
	return Detail{Message: shorten(err.Error(), 200)}
}

// invalid is the invalid_input error of pack name.
func invalid(name string, faults []Detail) *Error {
	return &Error{
		Code:    InvalidInput,
		Message: fmt.Sprintf("the input of %s is invalid: %s", name, summarise(faults)),
		Details: capDetails(faults),
	}
}

// summarise puts the first faults into one line.
func summarise(faults []Detail) string {
	const shown = 5
	var parts []string
	for _, f := range faults[:min(shown, len(faults))] {
		parts = append(parts, cmp.Or(f.Pointer, "/")+": "+f.Message)
	}
	text := strings.Join(parts, "; ")
	if n := len(faults) - shown; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return text
}

func capDetails(faults []Detail) []Detail {
	if len(faults) <= maxDetails {
		return faults
	}
	return append(faults[:maxDetails:maxDetails], Detail{Message: fmt.Sprintf("%d more faults", len(faults)-maxDetails)})
}
