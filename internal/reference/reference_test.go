package reference_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/reference"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/catalog"
)

func TestFields(t *testing.T) {
	t.Parallel()
	got, err := reference.Fields(json.RawMessage(`{"type":"object","required":["b"],"properties":{
		"b":{"type":"string","enum":["x","y"],"description":"Letter."},
		"a":{"type":"integer","minimum":1,"maximum":9,"default":3},
		"list":{"type":"array","maxItems":5,"items":{"type":"object","properties":{"in":{"type":"boolean"}}}},
		"any":{}, "text":{"type":"string","format":"uri","minLength":1}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []reference.Field{
		{Name: "b", Type: "string", Required: true, Description: "Letter.", Limits: "(one of x, y)"},
		{Name: "a", Type: "integer", Default: "3", Limits: "(1 to 9)"},
		{Name: "list", Type: "list of object", Limits: "(at most 5 items)"},
		{Name: "list[].in", Type: "boolean"},
		{Name: "any", Type: "any"},
		{Name: "text", Type: "string", Limits: "(at least 1 characters; a uri)"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := reference.Fields(json.RawMessage(`{"type":"object"}`)); err != nil || len(got) != 0 {
		t.Errorf("no properties: got %v, %v", got, err)
	}
	if _, err := reference.Fields(json.RawMessage(`[`)); err == nil {
		t.Error("no error for what is no schema")
	}
}

// TestMarkdown holds the page to its promises: every pack, every field, and a
// meaning for every code.
func TestMarkdown(t *testing.T) {
	t.Parallel()
	all := packs.NewCatalog(catalog.All(catalog.Options{TestPacks: true})...)
	text, err := reference.Markdown(all.List())
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, p := range all.List() {
		info := p.Info()
		if !strings.Contains(page, "\n## "+info.Name+" "+info.Version+"\n") {
			t.Errorf("%s has no section", info.Name)
		}
		fields, err := reference.Fields(info.Input)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fields {
			if !strings.Contains(page, "| `"+f.Name+"` |") {
				t.Errorf("%s: field %s is not there", info.Name, f.Name)
			}
		}
	}
	if strings.Contains(page, "test.echo") {
		t.Error("hidden packs are there")
	}
	for line := range strings.SplitSeq(page[strings.Index(page, "\n## Codes"):], "\n") {
		if strings.HasPrefix(line, "| `") && strings.HasSuffix(line, "|  |") {
			t.Errorf("no meaning: %s", line)
		}
	}
}
