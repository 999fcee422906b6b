package packs

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type leaf struct {
	Name  string   `json:"name" jsonschema:"minLength=2,maxLength=5"`
	Kind  string   `json:"kind,omitempty" jsonschema:"enum=red,enum=blue"`
	Count int      `json:"count,omitempty" jsonschema:"minimum=-3,maximum=40"`
	Ratio float64  `json:"ratio,omitempty"`
	Tags  []string `json:"tags,omitempty" jsonschema:"minItems=1,maxItems=3"`
}

type tree struct {
	A      string          `json:"a"`
	On     bool            `json:"on,omitempty"`
	Free   any             `json:"free,omitempty"`
	Map    map[string]int  `json:"map,omitempty"`
	Leaf   *leaf           `json:"leaf,omitempty"`
	Leaves map[string]leaf `json:"leaves,omitempty"`
	List   []leaf          `json:"list,omitempty" jsonschema:"maxItems=2"`
	Mail   string          `json:"mail,omitempty" jsonschema:"format=email"`
	Word   string          `json:"word,omitempty" jsonschema:"pattern=^x+$"`
	Bytes  []byte          `json:"bytes,omitempty"`
	Small  int8            `json:"small,omitempty"`
	Score  float64         `json:"score,omitempty" jsonschema:"minimum=0,maximum=1"`
}

// twins are the same pack with and without the quick form of its schemas.
func twins(t testing.TB) (quick, slow *pack[tree, tree]) {
	t.Helper()
	define := func() *pack[tree, tree] {
		return Define(Spec[tree, tree]{Name: "t.tree", Summary: "s", Defaults: tree{On: true},
			Run: func(_ context.Context, _ *Run, in tree) (tree, error) { return in, nil }}).(*pack[tree, tree])
	}
	quick, slow = define(), define()
	slow.input.quick, slow.output.quick = nil, nil
	return quick, slow
}

type judged struct {
	Clean    string
	Warnings []string
	Err      string
	Details  []Detail
}

func judge(p *pack[tree, tree], text []byte) (in, out judged) {
	clean, warnings, err := p.Validate(text)
	in = judged{Clean: string(clean), Warnings: warnings}
	for to, err := range map[*judged]error{&in: err, &out: p.CheckOutput(text)} {
		if err != nil {
			to.Err = err.Error()
			if e, ok := err.(*Error); ok { //nolint:errorlint // what the caller sees
				to.Details = e.Details
			}
		}
	}
	return in, out
}

// same fails when the quick way shows anywhere.
func same(t *testing.T, quick, slow *pack[tree, tree], text []byte) {
	t.Helper()
	in, out := judge(quick, text)
	wantIn, wantOut := judge(slow, text)
	if d := cmp.Diff(wantIn, in); d != "" {
		t.Errorf("input %s: -validator +quick\n%s", text, d)
	}
	if d := cmp.Diff(wantOut, out); d != "" {
		t.Errorf("output %s: -validator +quick\n%s", text, d)
	}
}

var edges = []string{
	`{"a":"x"}`, `{}`, ``, `[]`, `null`, `"a"`, ` {"a" : "x" } `, `{"a":"x"}}`, `{"a":"x",}`, `{"a":"x"`, `{"a":1}`, `{"a":null}`,
	`{"on":false,"a":"x"}`, `{"a":"x","a":"y"}`, `{"a":"x","A":"y"}`, `{"a":"x","b":1}`, `{"a":"\u0041"}`, `{"a":"\n\t\r\"\\"}`, `{"a":"\/"}`,
	`{"a":"<"}`, `{"a":"é\u2028"}`, "{\"a\":\"\u2028\"}", "{\"a\":\"\xff\"}", "{\"a\":\"\x01\"}", "{\"a\":\"\x7f\"}", `{"\u0061":"x"}`, `{"a\n":"x"}`,
	`{"a":"x","free":{"z":1,"b":[null,true,{"y":1.50,"x":-0}]}}`, `{"a":"x","free":null}`, `{"a":"x","free":1e400}`, `{"a":"x","free":12345678901234567890}`,
	`{"a":"x","free":{"b":1,"b":2}}`, `{"a":"x","map":{"z":1,"b":2}}`, `{"a":"x","map":{"z":1.0}}`, `{"a":"x","map":{"z":null}}`, `{"a":"x","map":{"z":1e2}}`,
	`{"a":"x","leaf":{"name":"ab"}}`, `{"a":"x","leaf":{"name":"a"}}`, `{"a":"x","leaf":{"name":"éé"}}`, `{"a":"x","leaf":{"name":"abcdef"}}`, `{"a":"x","leaf":{}}`,
	`{"a":"x","leaf":{"name":"ab","kind":"red"}}`, `{"a":"x","leaf":{"name":"ab","kind":"green"}}`, `{"a":"x","leaf":{"kind":"blue","name":"ab","count":40}}`,
	`{"a":"x","leaf":{"name":"ab","count":41}}`, `{"a":"x","leaf":{"name":"ab","count":-3}}`, `{"a":"x","leaf":{"name":"ab","count":-4}}`, `{"a":"x","leaf":{"name":"ab","count":-0}}`,
	`{"a":"x","leaf":{"name":"ab","count":01}}`, `{"a":"x","leaf":{"name":"ab","ratio":0.5}}`, `{"a":"x","leaf":{"name":"ab","ratio":.5}}`, `{"a":"x","leaf":{"name":"ab","ratio":5.}}`,
	`{"a":"x","leaf":{"name":"ab","tags":[]}}`, `{"a":"x","leaf":{"name":"ab","tags":["1","2","3"]}}`, `{"a":"x","leaf":{"name":"ab","tags":["1","2","3","4"]}}`, `{"a":"x","leaf":{"name":"ab","tags":[null]}}`,
	`{"a":"x","list":[{"name":"ab"},{"name":"cd"}]}`, `{"a":"x","list":[{"name":"ab"},{"name":"cd"},{"name":"ef"}]}`, `{"a":"x","leaves":{"q":{"name":"ab","zz":1}}}`,
	`{"a":"x","mail":"a@b.example"}`, `{"a":"x","mail":"nope"}`, `{"a":"x","word":"xxx"}`, `{"a":"x","word":"y"}`, `{"a":"x","bytes":"AAEC"}`, `{"a":"x","bytes":"?"}`,
	`{"a":"x","small":127}`, `{"a":"x","small":128}`, `{"a":"x","score":0.5}`, `{"a":"x","score":1}`, `{"a":"x","score":2}`, `{"a":"x","score":1.0000000000000001}`,
	`{"a":"x","free":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, `{"a":"x","free":nul}`, `{"a":"x","free":truefalse}`, `{"a":"x" "on":true}`, `{"a":"x","free":"` + "\\",
}

func TestQuickWayDoesNotShow(t *testing.T) {
	t.Parallel()
	quick, slow := twins(t)
	for _, text := range edges {
		same(t, quick, slow, []byte(text))
	}
}

// TestQuickWayIsTaken keeps it from being equal because it is never taken.
func TestQuickWayIsTaken(t *testing.T) {
	t.Parallel()
	quick, _ := twins(t)
	for text, want := range map[string]string{
		`{"a":"x"}`:                           `{"a":"x"}`,
		`{ "on" : true, "a":"x",  "free":[]}`: `{"a":"x","free":[],"on":true}`,
		`{"a":"é\n","map":{"z":1,"b":2},"leaf":{"name":"ab","kind":"red","count":40,"ratio":0.25,"tags":["1"]}}`: `{"a":"é\n","leaf":{"count":40,"kind":"red","name":"ab","ratio":0.25,"tags":["1"]},"map":{"b":2,"z":1}}`,
	} {
		if got, ok := quick.input.quick.Clean([]byte(text)); !ok || string(got) != want {
			t.Errorf("%s: got %s, %t; want %s", text, got, ok, want)
		}
		if !quick.output.quick.Valid([]byte(text)) {
			t.Errorf("output %s: the quick way was not taken", text)
		}
	}
}

// TestQuickWayOnRandomTexts writes texts near the schema, and breaks one byte
// of half of them.
func TestQuickWayOnRandomTexts(t *testing.T) {
	t.Parallel()
	quick, slow := twins(t)
	r := rand.New(rand.NewPCG(1, 2))
	taken := 0
	for range 5000 {
		text := []byte(object(r, 0))
		if r.IntN(2) == 0 {
			text[r.IntN(len(text))] = "{}[]\",:0159.eE-+ntf\\ é<x"[r.IntN(25)]
		}
		same(t, quick, slow, text)
		if _, ok := quick.input.quick.Clean(text); ok {
			taken++
		}
	}
	if taken < 100 {
		t.Errorf("the quick way was taken for %d texts only: the test tests too little", taken)
	}
}

func object(r *rand.Rand, depth int) string {
	keys := []string{"a", "on", "free", "map", "leaf", "leaves", "list", "mail", "word", "bytes", "small", "score", "name", "kind", "count", "ratio", "tags", "q"}
	var members []string
	if depth == 0 {
		members = append(members, `"a":"x"`)
	}
	for range r.IntN(4) {
		members = append(members, fmt.Sprintf("%q:%s", keys[r.IntN(len(keys))], value(r, depth+1)))
	}
	return "{" + strings.Join(members, ",") + "}"
}

func value(r *rand.Rand, depth int) string {
	scalars := []string{`"x"`, `"ab"`, `"red"`, `"éé"`, `"a\n"`, `"\u00e9"`, "1", "-3", "0.5", "1.0", "1e2", "300", "true", "false", "null", `""`}
	switch n := r.IntN(8); {
	case n == 0 && depth < 4:
		return object(r, depth)
	case n == 1 && depth < 4:
		return "[" + value(r, depth+1) + "," + value(r, depth+1) + "]"
	case n == 2 && depth < 4:
		return `{"name":"ab","count":` + value(r, 9) + `}`
	}
	return scalars[r.IntN(len(scalars))]
}

func FuzzQuickWay(f *testing.F) {
	for _, text := range edges {
		f.Add([]byte(text))
	}
	quick, slow := twins(f)
	f.Fuzz(func(t *testing.T, text []byte) { same(t, quick, slow, text) })
}

func BenchmarkValidate(b *testing.B) {
	quick, slow := twins(b)
	text := json.RawMessage(`{"a":"` + strings.Repeat("x", 200) + `","leaf":{"name":"ab","count":4},"on":true}`)
	for name, p := range map[string]*pack[tree, tree]{"quick": quick, "validator": slow} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := p.Validate(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
