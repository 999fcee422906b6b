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
