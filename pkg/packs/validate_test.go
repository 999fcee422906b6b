package packs_test

import (
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 9000) + `1` + strings.Repeat(`}`, 9000)
	tests := []struct {
		name     string
		input    string
		details  []packs.Detail
		message  string // contained, when there are no details to compare
		warnings []string
	}{
		{name: "minimal", input: `{"url":"http://a.test/"}`},
		{name: "empty body", input: ``, details: []packs.Detail{{Pointer: "/url", Message: "is required"}}},
		{name: "blank body", input: " \n", details: []packs.Detail{{Pointer: "/url", Message: "is required"}}},
		{name: "all faults at once",
			input: `{"fullPage":"yes","width":0,"format":"gif","tags":["a","b","c",4],"scale":0,"headers":{"A":1},"wait":{"millis":1}}`,
			details: []packs.Detail{
				{Pointer: "/format", Message: `must be one of "png", "jpeg"; got "gif"`},
				{Pointer: "/fullPage", Message: "expected boolean, got string"},
				{Pointer: "/headers/A", Message: "expected string, got number"},
				{Pointer: "/scale", Message: "must be more than 0, got 0"},
				{Pointer: "/tags", Message: "must have at most 2 items, has 4"},
				{Pointer: "/tags/3", Message: "expected string, got number"},
				{Pointer: "/url", Message: "is required"},
				{Pointer: "/wait/selector", Message: "is required"},
				{Pointer: "/width", Message: "must be at least 1, got 0"},
			}},
		{name: "format", input: `{"url":"no scheme"}`, details: []packs.Detail{{Pointer: "/url", Message: `"no scheme" is not a valid uri`}}},
		{name: "fraction", input: `{"url":"http://a.test/","width":1.5}`, details: []packs.Detail{{Pointer: "/width", Message: "expected integer, got number"}}},
		{name: "whole number with a point", input: `{"url":"http://a.test/","width":2.0}`},
		{name: "whole number with an exponent", input: `{"url":"http://a.test/","width":1e2}`},
		{name: "integer beyond 64 bits", input: `{"url":"http://a.test/","width":9223372036854775808}`, details: []packs.Detail{{Pointer: "/width", Message: "the number is out of range"}}},
		{name: "huge exponent", input: `{"url":"http://a.test/","scale":1e999999999}`, details: []packs.Detail{{Pointer: "/scale", Message: "the number is out of range"}}},
		{name: "tiny exponent", input: `{"url":"http://a.test/","extra":[1e-999999999]}`, details: []packs.Detail{{Pointer: "/extra/0", Message: "the number is out of range"}}},
		{name: "long number", input: `{"url":"http://a.test/","scale":` + strings.Repeat("9", 500) + `}`, details: []packs.Detail{{Pointer: "/scale", Message: "the number is too long"}}},
		{name: "null on optional keys", input: `{"url":"http://a.test/","width":null,"tags":null,"wait":{"selector":"a","millis":null}}`},
		{name: "null on a required key", input: `{"url":null}`, details: []packs.Detail{{Pointer: "/url", Message: "is required"}}},
		{name: "null in a map", input: `{"url":"http://a.test/","headers":{"a/b~c":null}}`, details: []packs.Detail{{Pointer: "/headers/a~1b~0c", Message: "expected string, got null"}}},
		{name: "unknown keys", input: `{"url":"http://a.test/","fullpage":true,"zzz":1,"wait":{"selector":"a","milis":1}}`, warnings: []string{
			"unknown key /fullpage ignored; did you mean fullPage?",
			"unknown key /wait/milis ignored; did you mean millis?",
			"unknown key /zzz ignored",
		}},
		{name: "not an object", input: `[1]`, message: "must be a JSON object"},
		{name: "bad JSON", input: `{"url": }`, message: "invalid character '}' looking for beginning of value at byte 9"},
		{name: "cut JSON", input: `{"url":`, message: "ends too early at byte 7"},
		{name: "second value", input: `{"url":"http://a.test/"} {}`, message: "more data follows"},
		{name: "deep", input: `{"url":"http://a.test/","extra":` + deep + `}`},
		{name: "too deep", input: `{"url":"http://a.test/","extra":` + strings.Repeat("[", 10001) + strings.Repeat("]", 10001) + `}`, message: "exceeded max depth"},
	}
	p := packs.Define(shotSpec())
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, warnings, err := p.Validate(json.RawMessage(tt.input))
			if diff := cmp.Diff(tt.warnings, warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if tt.details == nil && tt.message == "" {
				if err != nil {
					t.Fatalf("got %v, want no error", err)
				}
				return
			}
			got, ok := errors.AsType[*packs.Error](err)
			if !ok || got.Code != packs.InvalidInput {
				t.Fatalf("got %v, want invalid_input", err)
			}
			if !strings.Contains(got.Message, tt.message) {
				t.Errorf("got message %q, want it to contain %q", got.Message, tt.message)
			}
			if diff := cmp.Diff(tt.details, got.Details); diff != "" {
				t.Errorf("details (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateLimits(t *testing.T) {
	t.Parallel()
	spec := shotSpec()
	spec.MaxInputBytes = 100
	_, _, err := packs.Define(spec).Validate(json.RawMessage(`{"url":"` + strings.Repeat("a", 100) + `"}`))
	if got, ok := errors.AsType[*packs.Error](err); !ok || got.Code != packs.PayloadTooLarge {
		t.Errorf("got %v, want payload_too_large", err)
	}
	items := strings.Repeat("1,", 1000)
	_, _, err = packs.Define(shotSpec()).Validate(json.RawMessage(`{"tags":[` + items + `1]}`))
	got, ok := errors.AsType[*packs.Error](err)
	if !ok || len(got.Details) != 101 {
		t.Fatalf("got %v, want 100 details and a count", err)
	}
	if last, want := got.Details[100].Message, "903 more faults"; last != want {
		t.Errorf("got %q, want %q", last, want)
	}
	if !strings.Contains(got.Message, "and 998 more") {
		t.Errorf("message does not count the rest: %s", got.Message)
	}
}

// TestDeepKeysCostNothing: pointers of a deep value are not written out at
// every step, which for this input would be some 20 GB.
func TestDeepKeysCostNothing(t *testing.T) {
	t.Parallel()
	const depth = 9000
	key := `{"` + strings.Repeat("k", 500) + `":`
	input := `{"url":"http://a.test/","extra":` + strings.Repeat(key, depth) + `1` + strings.Repeat("}", depth) + `}`
	p := packs.Define(shotSpec())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := p.Validate(json.RawMessage(input)); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 2<<30 {
		t.Errorf("validation allocated %d MiB", got>>20)
	}
}

func FuzzValidate(f *testing.F) {
	for _, s := range []string{``, `{}`, `{"url":"http://a.test/","width":1e2}`, `{"url":null,"x":[1e999]}`, `{"wait":{"selector":{}}}`, `{"headers":{"/~":1}}`, "\xff", `{"url":"http://a.test/","scale":-0.0e-1}`} {
		f.Add([]byte(s))
	}
	p := packs.Define(shotSpec())
	f.Fuzz(func(t *testing.T, input []byte) {
		_, _, err := p.Validate(input)
		out, handled := p.Handle(t.Context(), &packs.Run{}, input)
		if (err == nil) != (handled == nil) {
			t.Fatalf("Validate says %v, Handle says %v", err, handled)
		}
		if err == nil {
			if err := p.CheckOutput(out); err != nil {
				t.Fatalf("accepted %q became %s: %v", input, out, err)
			}
		}
	})
}
