package jobs_test

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// fill sets v to something random, every field of a struct in turn.
func fill(r *rand.Rand, v reflect.Value) {
	switch v.Interface().(type) {
	case time.Time:
		at := time.Unix(r.Int64N(1<<36)-1<<33, r.Int64N(1e9)*r.Int64N(2)).UTC()
		if r.IntN(4) == 0 {
			at = at.In(time.FixedZone("", 60*(r.IntN(1400)-700)))
		}
		v.Set(reflect.ValueOf(at))
		return
	case json.RawMessage:
		v.SetBytes([]byte(values[r.IntN(len(values))]))
		return
	}
	if r.IntN(3) == 0 {
		return // its zero value
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(texts[r.IntN(len(texts))])
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(r.Int64() >> r.IntN(63) * (r.Int64N(2)*2 - 1))
	case reflect.Float64:
		v.SetFloat(r.NormFloat64())
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(r, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.IntN(3), 4))
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(r, key)
			fill(r, value)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Tag.Get("json") != "-" {
				fill(r, v.Field(i))
			}
		}
	}
}

var (
	texts  = []string{"", "plain", "q\"\\/", "<&>", "ü€😀", "bad\xff\xc3", "line\nend\u2028\u2029\x00\x7f", strings.Repeat("long ", 50)}
	values = []string{
		`{}`, `[]`, `"x"`, `null`, `true`, `-0.5e+10`, `{"a":[1,{"b":"\u00e9\n"}],"c":false}`, "{ \"a\" :\t1 }", `"<b>&\u2028"`, "\"\u2028 \u2029 €\"",
		strings.Repeat("[", 250) + strings.Repeat("]", 250), "\"\xff\"", `12345678901234567890123`,
	}
)

// TestRecordsAreWrittenAsJSON: whatever a record holds is written and read
// just as encoding/json does it.
func TestRecordsAreWrittenAsJSON(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		var sub jobs.Submission
		fill(r, reflect.ValueOf(&sub).Elem())
		want, err := json.Marshal(sub)
		if err != nil {
			t.Fatal(err)
		}
		got, schema, err := jobs.EncodeSubmission(sub)
		if err != nil || string(got) != string(want) {
			t.Fatalf("EncodeSubmission: %v\n got %s\nwant %s", err, got, want)
		}
		checkDecoded(t, want, schema)
		want, err = json.Marshal(sub.Job)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err = jobs.EncodeJob(sub.Job); err != nil || string(got) != string(want) {
			t.Fatalf("EncodeJob: %v\n got %s\nwant %s", err, got, want)
		}
	}
	broken := jobs.Submission{Input: []byte(`{"a":}`)}
	if got, _, err := jobs.EncodeSubmission(broken); err == nil {
		t.Errorf("input that is no JSON: got %s", got)
	}
}

func checkDecoded(t *testing.T, data []byte, schema string) {
	t.Helper()
	var want jobs.Submission
	wantErr := json.Unmarshal(data, &want)
	got, err := jobs.DecodeSubmission(data, schema)
	if (err != nil) != (wantErr != nil) {
		t.Fatalf("DecodeSubmission(%q): got %v, want %v", data, err, wantErr)
	}
	if diff := cmp.Diff(want, got); err == nil && diff != "" {
		t.Fatalf("DecodeSubmission(%q): -want +got\n%s", data, diff)
	}
}

// FuzzDecodeSubmission: any text is read as encoding/json reads it.
func FuzzDecodeSubmission(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 40 {
		var sub jobs.Submission
		fill(r, reflect.ValueOf(&sub).Elem())
		data, _, err := jobs.EncodeSubmission(sub)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(data))
	}
	for _, seed := range []string{
		``, `null`, `{}`, ` {"input":1}`, `{"input":1} `, `{"Input":1}`, `{"input":null}`, `{"job":null}`, `{"job":{"id":"a","id":"b"}}`,
		`{"job":{"id":1}}`, `{"job":{"runs":1.5}}`, `{"job":{"runs":01}}`, `{"job":{"runs":99999999999999999999}}`, `{"job":{"attempt":-0}}`,
		`{"job":{"created_at":"2024-02-30T00:00:00Z"}}`, `{"job":{"created_at":"2024-02-03T1:00:00Z"}}`, `{"job":{"created_at":"2024-02-03t00:00:00,5Z"}}`,
		`{"input":[1,]}`, `{"input":{"a":1,}}`, `{"input":"\ud800"}`, `{"input":"\x"}`, `{"input":1.}`, `{"input":-}`, `{"input":1e}`, `{"job":{},}`, `{"passed_on":1}}`,
		`{"input":tru}`, `{"job":{"labels":{"a":"b","a":"c"}}}`, `{"unheard_of":1,"input":2}`, `{"input":[1 , 2]}`, `{"job":{"poison":true,"expired":false}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkDecoded(t, data, "") })
}

func BenchmarkEncodeJob(b *testing.B) {
	j := typical()
	for b.Loop() {
		if _, _, err := jobs.EncodeJob(j); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeJob(b *testing.B) {
	data, schema, err := jobs.EncodeJob(typical())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := jobs.DecodeJob(data, schema); err != nil {
			b.Fatal(err)
		}
	}
}

func typical() jobs.Job {
	now := time.Date(2026, 5, 4, 3, 2, 1, 987654321, time.UTC)
	return jobs.Job{
		ID: "01980000-0000-7000-8000-000000000000", Pack: "test.echo", Version: "v1", Pool: "core", State: jobs.Succeeded, Attempt: 1,
		Priority: jobs.Normal, Output: []byte(`{"message":"` + strings.Repeat("x", 240) + `"}`), CreatedAt: now, StartedAt: now, FinishedAt: now,
		TimeoutS: 60, MaxAttempts: 3, Worker: "worker-1", Runs: 1, InputBytes: 256,
	}
}
