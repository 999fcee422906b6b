package audit_test

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/audit"
	"github.com/helmdeck/helmdeck/pkg/identity"
)

func TestPayloadIsRedactedByKey(t *testing.T) {
	t.Parallel()
	in := map[string]any{
		"Authorization": "Bearer x", "X-API-Key": 7, "PASSWORD": []any{"a"}, "private_key": map[string]any{"a": "b"}, "db_password": "x",
		"key": nil, "monkey": "banana", "tokens": 5,
		"deep": []any{map[string]any{"Set-Cookie": "a=b", "ok": []any{[]any{map[string]string{"refresh_token": "x", "n": "1"}}}}},
		"typed": struct {
			Secret string `json:"secret"`
			Name   string `json:"name"`
		}{"s", "n"},
	}
	want := `{"Authorization":"[redacted]","PASSWORD":"[redacted]","X-API-Key":"[redacted]","db_password":"[redacted]",` +
		`"deep":[{"Set-Cookie":"[redacted]","ok":[[{"n":"1","refresh_token":"[redacted]"}]]}],` +
		`"key":null,"monkey":"banana","private_key":"[redacted]","tokens":5,"typed":{"name":"n","secret":"[redacted]"}}`
	if diff := cmp.Diff(want, string(audit.Redactor{}.Payload(in))); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
}

func TestKnownSecretsDisappear(t *testing.T) {
	t.Parallel()
	var s audit.Secrets
	const secret = `s3cr3t "value"&more`
	remove := s.Add(secret)
	defer s.Add("12345678")()
	r := audit.Redactor{Secrets: &s}
	encoded := base64.StdEncoding.EncodeToString([]byte(secret))
	p := r.Pending(audit.Event{
		At: time.Now(), Kind: audit.Request, Path: "/x/" + url.PathEscape(secret) + "/y", Actor: identity.Caller{Subject: "ann " + secret, Client: secret},
		Payload: map[string]any{
			"text": "before " + secret + " after", secret: 1, "n": 12345678, "in": []any{map[string]any{"b64": "x" + encoded + "y"}},
			"query": "a=" + url.QueryEscape(secret), "long": strings.Repeat("x", 1000) + secret,
		},
	})
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{secret, "s3cr3t", encoded, "12345678", url.QueryEscape(secret), url.PathEscape(secret)} {
		if strings.Contains(string(b), form) {
			t.Errorf("%q is in %s", form, b)
		}
	}
	if !strings.Contains(string(b), "before [redacted] after") {
		t.Errorf("the rest of the text is gone: %s", b)
	}
	remove()
	remove()
	if got := s.Clean(secret); got != secret {
		t.Errorf("a secret that was removed is looked for: %q", got)
	}
	// Short ones are in every other word.
	s.Add("tok")
	if got := s.Clean("token"); got != "token" {
		t.Errorf("got %q", got)
	}
}

func TestSizesAreCapped(t *testing.T) {
	t.Parallel()
	many, deep := map[string]any{}, map[string]any{}
	for i := range 200 {
		many[strings.Repeat("k", i+1)] = strings.Repeat("v", 5000)
	}
	inner := deep
	for range 50 {
		next := map[string]any{}
		inner["d"] = next
		inner = next
	}
	items := make([]any, 1000)
	for name, tt := range map[string]struct {
		in   map[string]any
		most int
		has  string
	}{
		"text at the edge": {map[string]any{"t": strings.Repeat("x", 1024)}, 1100, strings.Repeat("x", 1024)},
		"text over it":     {map[string]any{"t": strings.Repeat("x", 1025)}, 1100, "…[1025 bytes]"},
		"not UTF-8":        {map[string]any{"t": "a\xffb"}, 100, "a\uFFFDb"},
		"items":            {map[string]any{"t": items}, 1000, "…[936 more]"},
		"depth":            {deep, 300, "[too deep]"},
		"everything":       {many, 16 << 10, `"truncated_bytes":`},
		"no JSON":          {map[string]any{"t": math.NaN(), "f": func() {}}, 100, "[unrecordable]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := audit.Redactor{}.Payload(tt.in)
			if !json.Valid(got) || len(got) > tt.most || !strings.Contains(string(got), tt.has) {
				t.Errorf("got %d bytes %.300s, want valid JSON of at most %d with %s", len(got), got, tt.most, tt.has)
			}
		})
	}
}

func TestSeverityComesFromStatus(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{0: "info", 200: "info", 302: "info", 399: "info", 400: "warning", 499: "warning", 500: "error", 503: "error"} {
		if got := (audit.Redactor{}).Pending(audit.Event{Status: status}).Severity; got != want {
			t.Errorf("%d: got %s, want %s", status, got, want)
		}
	}
}

// FuzzRedaction: whatever is recorded, nothing panics, the payload is valid
// JSON of a bounded size, and no secret is in any text of it.
func FuzzRedaction(f *testing.F) {
	f.Add("hunter2hunter2", "abcdef", `{"a":"x hunter2hunter2 y","b":[1,{"password":"p"}]}`)
	f.Add("redacted]", "[redact", `{"a":"xredacted]y"}`)
	f.Add("aaaaaa", "aaaaaaa", `{"aaaaaaaaaaaaa":["aaaaaaaaaaa"]}`)
	f.Add("123456", "1234567", `{"n":1234567,"m":-123456.5e3}`)
	f.Add("\xff\xfe\xfd\xfc\xfb\xfa", "é́é́é́", `{"é́é́é́":"\ufffd"}`)
	f.Fuzz(func(t *testing.T, one, two, text string) {
		var s audit.Secrets
		s.Add(one)
		s.Add(two)
		var v map[string]any
		if json.Unmarshal([]byte(text), &v) != nil {
			v = map[string]any{"text": text, "list": []string{text}, text: map[string]string{text: text}}
		}
		p := audit.Redactor{Secrets: &s}.Pending(audit.Event{Kind: audit.Request, Path: text, Method: text, Payload: v, Actor: identity.Caller{Subject: text}})
		if len(p.Payload) > 16<<10 {
			t.Fatalf("payload of %d bytes", len(p.Payload))
		}
		var back any
		if len(p.Payload) > 0 {
			if err := json.Unmarshal(p.Payload, &back); err != nil {
				t.Fatalf("payload %s: %v", p.Payload, err)
			}
		}
		texts := append(walk(back), p.Path, p.Method, p.ActorSubject)
		for _, got := range texts {
			if s.Holds(got) {
				t.Errorf("%q holds a secret of %q, %q", got, one, two)
			}
		}
	})
}

// walk lists the texts of decoded JSON, keys included.
func walk(v any) (all []string) {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		for _, item := range v {
			all = append(all, walk(item)...)
		}
	case map[string]any:
		for k, item := range v {
			all = append(append(all, k), walk(item)...)
		}
	}
	return all
}
