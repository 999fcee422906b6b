package jobs_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/records"
)

func members(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return m
}

// TestOlderProgramKeepsMembers: what a later version wrote survives a change
// by this one, on its way through the queue and in the lifecycle.
func TestOlderProgramKeepsMembers(t *testing.T) {
	t.Parallel()
	const later = "1.0badcafe"
	sub, err := jobs.DecodeSubmission([]byte(`{"job":{"id":"j","pack":"p","tomorrow":{"a":[1]}},"input":{"x":1},"next_week":true}`), later)
	if err != nil {
		t.Fatalf("DecodeSubmission: %v", err)
	}
	sub.Job.State = jobs.Queued
	data, schema, err := jobs.EncodeSubmission(sub)
	if err != nil {
		t.Fatalf("EncodeSubmission: %v", err)
	}
	got := members(t, data)
	job, _ := got["job"].(map[string]any)
	if diff := cmp.Diff(map[string]any{"a": []any{1.0}}, job["tomorrow"]); diff != "" || got["next_week"] != true || job["state"] != "queued" {
		t.Errorf("got %s: %s", data, diff)
	}

	// And on through a program of the very same version, told by the schema.
	again, err := jobs.DecodeSubmission(data, schema)
	if err != nil {
		t.Fatalf("DecodeSubmission: %v", err)
	}
	record := again.Job
	record.State = jobs.Running
	data, schema, err = jobs.EncodeJob(record)
	if err != nil {
		t.Fatalf("EncodeJob: %v", err)
	}
	if last, err := jobs.DecodeJob(data, schema); err != nil || string(last.Unknown) != `{"tomorrow":{"a":[1]}}` || last.State != jobs.Running {
		t.Errorf("got %+v, %v in %s", last, err, data)
	}
	data, err = jobs.EncodeDead(jobs.DeadLetter{Submission: again, Poison: true})
	if err != nil {
		t.Fatalf("EncodeDead: %v", err)
	}
	letter := members(t, data)
	buried, _ := letter["submission"].(map[string]any)
	if job, _ := buried["job"].(map[string]any); job["tomorrow"] == nil || buried["next_week"] != true || letter["poison"] != true {
		t.Errorf("dead letter: got %s", data)
	}
}

func TestSameVersionIsNotLookedInto(t *testing.T) {
	t.Parallel()
	data, schema, err := jobs.EncodeJob(jobs.Job{ID: "j"})
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(jobs.Job{ID: "j"})
	if err != nil || string(want) != string(data) {
		t.Errorf("got %s, %v, want %s", data, err, want)
	}
	job, err := jobs.DecodeJob([]byte(`{"id":"j","not_of":"this version"}`), schema)
	if err != nil || job.Unknown != nil {
		t.Errorf("got %s, %v: the schema says that there is nothing unknown", job.Unknown, err)
	}
}

func TestNewerMajorVersionIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := jobs.DecodeJob([]byte(`{"id":"j"}`), "2.00000000"); !errors.Is(err, records.ErrNewer) {
		t.Errorf("DecodeJob: got %v, want ErrNewer", err)
	}
	if _, err := jobs.DecodeSubmission([]byte(`{"job":{"id":"j"}}`), "2.00000000"); !errors.Is(err, records.ErrNewer) {
		t.Errorf("DecodeSubmission: got %v, want ErrNewer", err)
	}
}

var sample = func() jobs.Submission {
	sub := jobs.Submission{Input: json.RawMessage(`{"message":"` + string(make256()) + `"}`)}
	sub.Job = jobs.Job{ID: "0192d3a4-0000-7000-8000-000000000000", Pack: "test.echo", Version: "v1", Pool: "core", State: jobs.Queued, MaxAttempts: 3, Priority: jobs.Normal}
	return sub
}()

func make256() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = 'a' + byte(i%26)
	}
	return b
}

// The hot path against the plain encoding: without unknown members there is
// nothing but a comparison of two strings.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("plain", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			data, err := json.Marshal(sample)
			var s jobs.Submission
			if err == nil {
				err = json.Unmarshal(data, &s)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("with schema", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			data, schema, err := jobs.EncodeSubmission(sample)
			if err == nil {
				_, err = jobs.DecodeSubmission(data, schema)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
