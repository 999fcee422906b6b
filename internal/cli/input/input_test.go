package input_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/cli/input"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

const schema = `{"type":"object","properties":{
	"text":{"type":"string"},"count":{"type":"integer"},"ratio":{"type":"number"},"on":{"type":"boolean"},
	"tags":{"type":"array","items":{"type":"string"}},"sizes":{"type":"array","items":{"type":"integer"}},
	"headers":{"type":"object"},"any":{}}}`

func read(name string) ([]byte, error) {
	if name == "missing" {
		return nil, errors.New("no file missing")
	}
	return []byte(map[string]string{"deck.md": "# Deck\n", "n.json": "[1, 2]", "-": "typed in"}[name]), nil
}

func TestBuild(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pairs, base string
		want        string
	}{
		"nothing":                      {"", "", `{}`},
		"types come from the schema":   {"text=5 count=5 ratio=.5e1 ratio=0.5", "", ""},
		"text stays text":              {"text=5", "", `{"text":"5"}`},
		"numbers":                      {"count=-5 ratio=2.50", "", `{"count":-5,"ratio":2.50}`},
		"what does not fit is sent":    {"count=five on=perhaps", "", `{"count":"five","on":"perhaps"}`},
		"booleans":                     {"on=true", "", `{"on":true}`},
		"an empty value":               {"text=", "", `{"text":""}`},
		"a value with equals signs":    {"text=a=b:=c", "", `{"text":"a=b:=c"}`},
		"lists grow":                   {"tags=a tags=b", "", `{"tags":["a","b"]}`},
		"lists of numbers":             {"sizes=1 sizes=[2,3]", "", `{"sizes":[1,2,3]}`},
		"objects":                      {`headers={"a":"b"}`, "", `{"headers":{"a":"b"}}`},
		"JSON":                         {`any:={"a":[1]} text:="x"`, "", `{"any":{"a":[1]},"text":"x"}`},
		"anything is text without :=":  {"any=5", "", `{"any":"5"}`},
		"a file":                       {"text=@deck.md", "", `{"text":"# Deck\n"}`},
		"standard input":               {"text=@-", "", `{"text":"typed in"}`},
		"JSON from a file":             {"any:=@n.json", "", `{"any":[1,2]}`},
		"pairs are laid over the base": {"count=2", `{"count":1,"text":"a","other":1.50}`, `{"count":2,"other":1.50,"text":"a"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := input.Build(input.Source{
				Pairs: strings.Fields(tt.pairs), Base: json.RawMessage(tt.base), Schema: json.RawMessage(schema), Read: read,
			})
			if tt.want == "" {
				if err == nil {
					t.Fatalf("got %s, want an error", got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBuildTellsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := input.Build(input.Source{
		Pairs:  []string{"word", "=x", "txet=a", "zzzzzzzz=1", "text=@missing", "any:={", "on=true", "on=false"},
		Schema: json.RawMessage(schema), Read: read,
	})
	var e *packs.Error
	if !errors.As(err, &e) || e.Code != packs.InvalidInput {
		t.Fatalf("got %v, want invalid_input", err)
	}
	var got []string
	for _, d := range e.Details {
		got = append(got, fmt.Sprintf("%s %.30s", d.Pointer, d.Message))
	}
	want := []string{
		` "word" is not key=value or key`, ` "=x" is not key=value or key:=`, "/txet the pack has no such key; did ",
		"/zzzzzzzz the pack has no such key; it h", "/text no file missing", "/any is not valid JSON: {", "/on is given twice",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBuildRefusesABaseThatIsNoObject(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"[1]", "null", "{", `"x"`} {
		if got, err := input.Build(input.Source{Base: json.RawMessage(base)}); err == nil {
			t.Errorf("%s: got %s, want an error", base, got)
		}
	}
}
