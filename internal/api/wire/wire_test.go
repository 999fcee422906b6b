package wire_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

func TestPrefer(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]wire.Preference{
		"":                               {Wait: -1},
		"respond-async":                  {Async: true, Wait: -1},
		"wait=10":                        {Wait: 10 * time.Second},
		"Respond-Async, WAIT=10":         {Async: true, Wait: 10 * time.Second},
		`foo; bar="1", wait = "7" ; x=y`: {Wait: 7 * time.Second},
		"wait=5, wait=9":                 {Wait: 5 * time.Second},
		"wait=-1":                        {Wait: -1},
		"wait=soon":                      {Wait: -1},
		"wait=99999999999999999999":      {Wait: -1},
	} {
		if got := wire.Prefer(http.Header{"Prefer": {header}}); got != want {
			t.Errorf("Prefer: %s: got %+v, want %+v", header, got, want)
		}
	}
	if got, want := wire.Prefer(http.Header{"Prefer": {"respond-async", "wait=3"}}), (wire.Preference{Async: true, Wait: 3 * time.Second}); got != want {
		t.Errorf("two headers: got %+v, want %+v", got, want)
	}
}

func TestQuery(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	q := wire.NewQuery(httptest.NewRequest("GET", "/x?n=7&b&c=false&s=a&t=2026-01-31T13:00:00+01:00", nil), "n", "b", "c", "s", "t", "none")
	if n, s, tt := q.Int("n", 1, 9, 0), q.OneOf("s", "a", "b"), q.Time("t"); n != 7 || s != "a" || !tt.Equal(at) {
		t.Errorf("got %d, %q, %s", n, s, tt)
	}
	if !q.Bool("b") || q.Bool("c") || q.Bool("none") || q.Int("none", 1, 9, 5) != 5 || q.Text("none") != "" || !q.Time("none").IsZero() {
		t.Error("flags or absent parameters read wrong")
	}
	if err := q.Err(); err != nil {
		t.Error(err)
	}
	q = wire.NewQuery(httptest.NewRequest("GET", "/x?b=maybe&typo=1", nil), "b")
	q.Bool("b")
	got := wire.AsError(q.Err()).Details
	want := []packs.Detail{{Pointer: "?typo", Message: "unknown parameter; known are b"}, {Pointer: "?b", Message: "must be true or false"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

// FuzzDecodeObject: whatever is taken is an object, every key of it is either
// known or named, and no fault is without a place and words.
func FuzzDecodeObject(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"s":"a","n":1,"l":["a"],"m":{"a":"b"},"r":{"x":[1]}}`, `{"s":null}`,
		`{"s":7,"n":"x","l":"a","m":[],"x~/y":1}`, "{\"s\":\"\xff\"}", `{"n":1e400}`, `{"s":"a"}{}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var s string
		var n int
		var l []string
		var m map[string]string
		var r json.RawMessage
		faults, err := wire.DecodeObject(body, map[string]any{"s": &s, "n": &n, "l": &l, "m": &m, "r": &r})
		if err != nil {
			if e := wire.AsError(err); e.Code != packs.InvalidInput || e.Message == "" {
				t.Errorf("got %v, want invalid_input", err)
			}
			return
		}
		var object map[string]json.RawMessage
		if len(bytes.TrimSpace(body)) > 0 {
			if err := json.Unmarshal(body, &object); err != nil || object == nil {
				t.Fatalf("%q was taken, which is no object: %v", body, err)
			}
		}
		named := map[string]bool{}
		for _, d := range faults {
			named[strings.NewReplacer("~1", "/", "~0", "~").Replace(strings.TrimPrefix(d.Pointer, "/"))] = true
			if !strings.HasPrefix(d.Pointer, "/") || d.Message == "" {
				t.Errorf("got fault %+v", d)
			}
		}
		for key := range object {
			switch key {
			case "s", "n", "l", "m", "r":
			default:
				if !named[key] {
					t.Errorf("unknown key %q of %q vanished", key, body)
				}
			}
		}
	})
}
