package records_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/helmdeck/helmdeck/pkg/records"
)

type inner struct {
	C int `json:"c,omitempty"`
}

type older struct {
	A string `json:"a"`
	B int    `json:"b,omitempty"`
	inner
	Hidden string `json:"-"`
}

type newer struct {
	older
	D []int `json:"d,omitempty"`
}

func TestSchema(t *testing.T) {
	t.Parallel()
	old, young := records.FormOf(older{}), records.FormOf(&newer{})
	if old.Schema(false) == young.Schema(false) || old.Schema(false) != records.FormOf(older{}).Schema(false) {
		t.Errorf("schemas %s and %s, want two that stay", old.Schema(false), young.Schema(false))
	}
	for _, tt := range []struct {
		schema  string
		unknown bool
		newer   bool
		fails   bool
	}{
		{schema: ""},
		{schema: old.Schema(false)},
		{schema: young.Schema(false), unknown: true},
		{schema: old.Schema(true), unknown: true},
		{schema: "0.12345678", unknown: true},
		{schema: "2.12345678", newer: true, fails: true},
		{schema: "x", fails: true},
	} {
		unknown, err := old.Check(tt.schema)
		if unknown != tt.unknown || errors.Is(err, records.ErrNewer) != tt.newer || (err != nil) != tt.fails {
			t.Errorf("Check(%q): got %v, %v", tt.schema, unknown, err)
		}
	}
}

func TestSplitAndJoin(t *testing.T) {
	t.Parallel()
	form := records.FormOf(older{})
	for _, tt := range []struct{ in, unknown string }{
		{`{"a":"x","b":1,"c":2}`, ``},
		{`{}`, ``},
		{`{"d":[1,{"e":"}"}]}`, `{"d":[1,{"e":"}"}]}`},
		{` {"a":"x", "z":null , "Hidden":1 } `, `{"Hidden":1,"z":null}`},
	} {
		got, err := form.Split([]byte(tt.in))
		if err != nil || string(got) != tt.unknown {
			t.Errorf("Split(%s): got %s, %v, want %s", tt.in, got, err, tt.unknown)
		}
	}
	for _, bad := range []string{``, `[]`, `{"a":`, `1`} {
		if got, err := form.Split([]byte(bad)); err == nil {
			t.Errorf("Split(%s): got %s, no error", bad, got)
		}
	}
	if got, err := records.Join([]byte(`[]`), records.Unknown(`{"a":1}`)); err == nil {
		t.Errorf("Join of an array: got %s", got)
	}
}

// TestRoundTrip: whatever members a newer program writes, an older one that
// changes the record gives them back.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	form := records.FormOf(older{})
	rapid.Check(t, func(t *rapid.T) {
		record := map[string]any{"a": rapid.String().Draw(t, "a")}
		for _, name := range rapid.SliceOf(rapid.StringMatching(`[d-z_"\\é]{0,8}`)).Draw(t, "names") {
			record[name] = rapid.OneOf(rapid.String().AsAny(), rapid.Float64Range(-1e6, 1e6).AsAny(), rapid.Bool().AsAny()).Draw(t, name)
		}
		data, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		var known older
		if err := json.Unmarshal(data, &known); err != nil {
			t.Fatal(err)
		}
		unknown, err := form.Split(data)
		if err != nil {
			t.Fatal(err)
		}
		known.B = 7
		again, err := json.Marshal(known)
		if err == nil {
			again, err = records.Join(again, unknown)
		}
		if err != nil {
			t.Fatal(err)
		}
		want, got := record, map[string]any{}
		want["b"] = float64(7)
		if err := json.Unmarshal(again, &got); err != nil {
			t.Fatalf("%v in %s", err, again)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}
