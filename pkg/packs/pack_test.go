package packs_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

type shotInput struct {
	URL      string            `json:"url" jsonschema:"minLength=1,maxLength=2048,format=uri" jsonschema_description:"The page to open, with its scheme."`
	FullPage bool              `json:"fullPage,omitempty" jsonschema_description:"Whether the whole page is shown."`
	Width    int               `json:"width,omitempty" jsonschema:"minimum=1,maximum=4096"`
	Format   string            `json:"format,omitempty" jsonschema:"enum=png,enum=jpeg"`
	Scale    float64           `json:"scale,omitempty" jsonschema:"exclusiveMinimum=0"`
	Tags     []string          `json:"tags,omitempty" jsonschema:"maxItems=2"`
	Headers  map[string]string `json:"headers,omitempty"`
	Wait     *wait             `json:"wait,omitempty"`
	Extra    any               `json:"extra,omitempty" jsonschema_description:"Anything."`
}

type wait struct {
	Selector string `json:"selector"`
	Millis   int    `json:"millis,omitempty"`
}

type shotOutput struct {
	Input shotInput `json:"input"`
	Notes []string  `json:"notes"`
}

func shotSpec() packs.Spec[shotInput, shotOutput] {
	return packs.Spec[shotInput, shotOutput]{
		Name:     "page.shot",
		Summary:  "Shows a page",
		Defaults: shotInput{Width: 1280, Format: "png"},
		Run: func(_ context.Context, _ *packs.Run, in shotInput) (shotOutput, error) {
			return shotOutput{Input: in}, nil
		},
	}
}

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
			warnings, err := p.Validate(json.RawMessage(tt.input))
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
	_, err := packs.Define(spec).Validate(json.RawMessage(`{"url":"` + strings.Repeat("a", 100) + `"}`))
	if got, ok := errors.AsType[*packs.Error](err); !ok || got.Code != packs.PayloadTooLarge {
		t.Errorf("got %v, want payload_too_large", err)
	}
	items := strings.Repeat("1,", 1000)
	_, err = packs.Define(shotSpec()).Validate(json.RawMessage(`{"tags":[` + items + `1]}`))
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

func TestHandleDecodesOverDefaults(t *testing.T) {
	t.Parallel()
	p := packs.Define(shotSpec())
	tests := []struct{ name, input, want string }{
		{"absent", `{"url":"http://a.test/"}`, `{"url":"http://a.test/","width":1280,"format":"png"}`},
		{"null", `{"url":"http://a.test/","width":null}`, `{"url":"http://a.test/","width":1280,"format":"png"}`},
		{"given", `{"url":"http://a.test/","width":7.0,"format":"jpeg"}`, `{"url":"http://a.test/","width":7,"format":"jpeg"}`},
		// encoding/json would take URL for url although no schema looked at it.
		{"keys of another case", `{"url":"http://a.test/","WIDTH":-5,"wait":{"selector":"s","MILLIS":"x"}}`,
			`{"url":"http://a.test/","width":1280,"format":"png","wait":{"selector":"s"}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := p.Handle(t.Context(), &packs.Run{}, json.RawMessage(tt.input))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(parse(t, `{"input":`+tt.want+`,"notes":[]}`), parse(t, string(got))); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

func parse(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("parse %q: %v", text, err)
	}
	return v
}

func TestSchemas(t *testing.T) {
	t.Parallel()
	info := packs.Define(shotSpec()).Info()
	if strings.Contains(string(info.Input), "$ref") || strings.Contains(string(info.Input), `"additionalProperties":false`) {
		t.Errorf("input schema has references or is closed: %s", info.Input)
	}
	var got struct {
		Required   []string `json:"required"`
		Properties map[string]struct {
			Type        string   `json:"type"`
			Format      string   `json:"format"`
			Description string   `json:"description"`
			Default     any      `json:"default"`
			Enum        []string `json:"enum"`
		} `json:"properties"`
	}
	if err := json.Unmarshal(info.Input, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"url"}, got.Required); diff != "" {
		t.Errorf("required (-want +got):\n%s", diff)
	}
	if u := got.Properties["url"]; u.Format != "uri" || u.Description != "The page to open, with its scheme." || u.Default != nil {
		t.Errorf("got url %+v", u)
	}
	if f := got.Properties["format"]; f.Default != "png" || !cmp.Equal(f.Enum, []string{"png", "jpeg"}) {
		t.Errorf("got format %+v", f)
	}
	if w := got.Properties["width"]; w.Default != 1280.0 || w.Type != "integer" {
		t.Errorf("got width %+v", w)
	}
}

func TestDefineDefaults(t *testing.T) {
	t.Parallel()
	spec := shotSpec()
	spec.Effect = packs.EffectOnce
	spec.Errors = []packs.Code{packs.RateLimited}
	spec.Needs.Artifacts = true
	info := packs.Define(spec).Info()
	if info.Version != "v1" || info.Pool != packs.PoolCore || info.Timeout != packs.DefaultTimeout || info.MaxAttempts != 1 || info.MaxInputBytes != 8<<20 {
		t.Errorf("got %+v", info)
	}
	want := []packs.Code{"artifact_failed", "cancelled", "handler_failed", "internal", "invalid_input", "invalid_output", "outcome_unknown", "rate_limited", "timeout"}
	if diff := cmp.Diff(want, info.Errors); diff != "" {
		t.Errorf("errors (-want +got):\n%s", diff)
	}
}

func TestDefinePanics(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*packs.Spec[shotInput, shotOutput])
	}{
		{"name", func(s *packs.Spec[shotInput, shotOutput]) { s.Name = "Page.Shot" }},
		{"summary", func(s *packs.Spec[shotInput, shotOutput]) { s.Summary = " " }},
		{"pool", func(s *packs.Spec[shotInput, shotOutput]) { s.Pool = "attic" }},
		{"code", func(s *packs.Spec[shotInput, shotOutput]) { s.Errors = []packs.Code{"oops"} }},
		{"run", func(s *packs.Spec[shotInput, shotOutput]) { s.Run = nil }},
		{"default that fails its own schema", func(s *packs.Spec[shotInput, shotOutput]) { s.Defaults.Width = -1 }},
		{"example", func(s *packs.Spec[shotInput, shotOutput]) {
			s.Examples = []packs.Example{{Title: "x", Input: json.RawMessage(`{"url":1}`)}}
		}},
		{"example with a misspelt key", func(s *packs.Spec[shotInput, shotOutput]) {
			s.Examples = []packs.Example{{Title: "x", Input: json.RawMessage(`{"url":"http://a.test/","widht":1}`)}}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			spec := shotSpec()
			tt.change(&spec)
			if recovered(func() { packs.Define(spec) }) == nil {
				t.Error("Define did not panic")
			}
		})
	}
	t.Run("recursive type", func(t *testing.T) {
		t.Parallel()
		type tree struct {
			Left *tree `json:"left,omitempty"`
		}
		got := recovered(func() {
			packs.Define(packs.Spec[tree, tree]{Name: "a.b", Summary: "s", Run: func(context.Context, *packs.Run, tree) (tree, error) { return tree{}, nil }})
		})
		if got == nil {
			t.Error("Define did not panic")
		}
	})
	t.Run("default in a tag", func(t *testing.T) {
		t.Parallel()
		type in struct {
			N int `json:"n,omitempty" jsonschema:"default=3"`
		}
		got := recovered(func() {
			packs.Define(packs.Spec[in, in]{Name: "a.b", Summary: "s", Run: func(context.Context, *packs.Run, in) (in, error) { return in{}, nil }})
		})
		if got == nil {
			t.Error("Define did not panic")
		}
	})
}

func recovered(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

func TestCheckOutput(t *testing.T) {
	t.Parallel()
	p := packs.Define(shotSpec())
	if err := p.CheckOutput(json.RawMessage(`{"input":{"url":"http://a.test/"},"notes":[]}`)); err != nil {
		t.Errorf("got %v, want none", err)
	}
	for _, bad := range []string{`{}`, `{"input":{"url":"http://a.test/"},"notes":7}`, `nope`, ``} {
		err := p.CheckOutput(json.RawMessage(bad))
		if got, ok := errors.AsType[*packs.Error](err); !ok || got.Code != packs.InvalidOutput {
			t.Errorf("%s: got %v, want invalid_output", bad, err)
		}
	}
}

func TestUnencodableOutput(t *testing.T) {
	t.Parallel()
	type out struct {
		N float64 `json:"n"`
	}
	p := packs.Define(packs.Spec[struct{}, out]{Name: "a.b", Summary: "s", Run: func(context.Context, *packs.Run, struct{}) (out, error) {
		return out{N: math.NaN()}, nil
	}})
	_, err := p.Handle(t.Context(), &packs.Run{}, nil)
	if got, ok := errors.AsType[*packs.Error](err); !ok || got.Code != packs.InvalidOutput {
		t.Errorf("got %v, want invalid_output", err)
	}
}

func FuzzValidate(f *testing.F) {
	for _, s := range []string{``, `{}`, `{"url":"http://a.test/","width":1e2}`, `{"url":null,"x":[1e999]}`, `{"wait":{"selector":{}}}`, `{"headers":{"/~":1}}`, "\xff", `{"url":"http://a.test/","scale":-0.0e-1}`} {
		f.Add([]byte(s))
	}
	p := packs.Define(shotSpec())
	f.Fuzz(func(t *testing.T, input []byte) {
		_, err := p.Validate(input)
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
