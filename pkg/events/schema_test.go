package events_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/google/go-cmp/cmp"
	"github.com/invopop/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

var update = flag.Bool("update", false, "rewrite docs/events")

const docsDir = "../../docs/events"

// envelope lists the attributes of an event for the reflection of the schemas.
type envelope struct {
	SpecVersion     string    `json:"specversion" jsonschema:"enum=1.0" jsonschema_description:"Version of CloudEvents."`
	ID              string    `json:"id" jsonschema:"minLength=1" jsonschema_description:"Unique id of the event, a UUIDv7."`
	Source          string    `json:"source" jsonschema:"format=uri-reference,pattern=^/helmdeck/." jsonschema_description:"The installation: /helmdeck/{installation}."`
	Type            string    `json:"type" jsonschema_description:"Type of the event."`
	Subject         string    `json:"subject,omitempty" jsonschema:"minLength=1" jsonschema_description:"Id of the job."`
	Time            time.Time `json:"time" jsonschema_description:"When it happened."`
	DataContentType string    `json:"datacontenttype" jsonschema:"enum=application/json" jsonschema_description:"Media type of the data."`
	Tenant          string    `json:"tenant,omitempty" jsonschema_description:"Tenant token of the job's caller."`
	JobID           string    `json:"jobid,omitempty" jsonschema_description:"Id of the job, the same as subject."`
	Attempt         int32     `json:"attempt,omitempty" jsonschema:"minimum=1" jsonschema_description:"Charged attempts of the job begun so far."`
	Sequence        string    `json:"sequence,omitempty" jsonschema:"pattern=^[0-9]{20}$" jsonschema_description:"Orders the events of one job and producer: a number padded to 20 digits."`
	TraceParent     string    `json:"traceparent,omitempty" jsonschema_description:"W3C trace context."`
	ReplayOf        string    `json:"replayof,omitempty" jsonschema_description:"Id of the job that this one repeats."`
	ParentID        string    `json:"parentid,omitempty" jsonschema_description:"Id of the parent of the job."`
}

type documented struct {
	typ   string
	data  any // example
	about events.About
	state jobs.State // of lifecycle events
}

func example(typ string, state jobs.State, edit func(*jobs.Job)) documented {
	j := exampleJob()
	j.State = state
	if edit != nil {
		edit(&j)
	}
	return documented{typ: typ, data: j, state: state}
}

func documentedTypes() []documented {
	j := exampleJob()
	at := j.CreatedAt.Add(3 * time.Second)
	ref := artifacts.Ref{Key: "slides.render/00112233aabbccdd-deck.pdf", Pack: "slides.render", Name: "deck.pdf",
		ContentType: "application/pdf", Size: 48213, SHA256: strings.Repeat("0f", 32), CreatedAt: at, JobID: j.ID, Attempt: 1}
	failure := &jobs.Failure{Code: packs.SessionUnavailable, Message: "no browser became free", RetryAfterS: 30}
	finish := func(j *jobs.Job) { j.FinishedAt, j.DurationMS = at, 2000 }
	queued := j
	queued.State, queued.Attempt, queued.Runs, queued.Worker, queued.StartedAt = jobs.Queued, 0, 0, "", time.Time{}
	session := events.Session{SessionID: "s-7f3a", Image: "chromium", Host: "host-1"}
	return []documented{
		{typ: events.JobSubmitted, data: jobs.Submission{Job: queued, Input: []byte(`{"source":"# Hello"}`)}, state: jobs.Queued},
		example(events.JobScheduled, jobs.Scheduled, func(j *jobs.Job) {
			*j = queued
			j.State, j.ScheduledFor = jobs.Scheduled, at.Add(time.Hour)
		}),
		example(events.JobStarted, jobs.Running, nil),
		example(events.JobCancelRequested, jobs.Running, func(j *jobs.Job) { j.CancelRequested = true }),
		example(events.JobRetrying, jobs.Retrying, func(j *jobs.Job) {
			j.RetryAt = at.Add(time.Minute)
			j.History = []jobs.AttemptError{{Run: 1, Worker: "w1", Code: failure.Code, Message: failure.Message, At: at}}
		}),
		example(events.JobSucceeded, jobs.Succeeded, func(j *jobs.Job) {
			finish(j)
			j.Output, j.Artifacts = []byte(`{"artifact_key":"`+ref.Key+`"}`), []artifacts.Ref{ref}
		}),
		example(events.JobFailed, jobs.Failed, func(j *jobs.Job) { finish(j); j.Error = failure }),
		example(events.JobCancelled, jobs.Cancelled, func(j *jobs.Job) {
			finish(j)
			j.Error = &jobs.Failure{Code: packs.Cancelled, Message: "cancelled by its caller"}
		}),
		example(events.JobExpired, jobs.Succeeded, func(j *jobs.Job) {
			finish(j)
			j.ResultTTLS = 3600
			*j = j.Stamped().Tombstone()
		}),
		{typ: events.JobProgress, data: jobs.Progress{Percent: 40, Message: "rendering", At: at}},
		{typ: events.JobLog, data: events.Log{Lines: []string{"chromium is up", "3 slides"}, From: 4, At: at}},
		{typ: events.JobArtifact, data: events.Manifest{Artifacts: []artifacts.Ref{ref}}},
		{typ: events.SessionLeased, data: session},
		{typ: events.SessionReleased, data: session},
		{typ: events.PipelineStep, data: events.Step{RunID: "run_00112233aabbccdd", PipelineID: "deck", StepID: "render",
			Pack: "slides.render", Status: "running", JobID: j.ID, At: at}},
		{typ: events.PipelineFinished, data: events.Run{RunID: "run_00112233aabbccdd", PipelineID: "deck", Status: "succeeded",
			StartedAt: j.CreatedAt, EndedAt: at}},
	}
}

func docFile(typ, what string) string {
	return filepath.Join(docsDir, strings.TrimPrefix(typ, events.Prefix)+"."+what+".json")
}

// golden compares with a file of docs/events, or rewrites it.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is stale; run go test ./pkg/events -run Documented -update (-file +structs):\n%s", path, diff)
	}
}

func indent(t *testing.T, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		t.Fatal(err)
	}
	b.WriteByte('\n')
	return b.Bytes()
}

func TestDocumentedTypes(t *testing.T) {
	t.Parallel()
	r := reflector(t)
	seen := map[string]bool{"README.md": true}
	for _, d := range documentedTypes() {
		seen[filepath.Base(docFile(d.typ, "schema"))] = true
		seen[filepath.Base(docFile(d.typ, "example"))] = true
		t.Run(d.typ, func(t *testing.T) {
			t.Parallel()
			schema := indent(t, schemaOf(r, d))
			golden(t, docFile(d.typ, "schema"), schema)
			ev := exampleEvent(t, d)
			structured := indent(t, ev)
			golden(t, docFile(d.typ, "example"), structured)
			check(t, d.typ, schema, structured)
			roundTrip(t, d, ev, structured)
		})
	}
	entries, err := os.ReadDir(docsDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !seen[e.Name()] {
			t.Errorf("%s documents no type", e.Name())
		}
	}
}

func reflector(t *testing.T) *jsonschema.Reflector {
	t.Helper()
	r := &jsonschema.Reflector{Anonymous: true, DoNotReference: true, ExpandedStruct: true,
		AllowAdditionalProperties: true, // readers must live with new fields
		Mapper: func(typ reflect.Type) *jsonschema.Schema {
			switch typ {
			case reflect.TypeFor[jobs.State]():
				return &jsonschema.Schema{Type: "string", Enum: []any{jobs.Scheduled, jobs.Queued, jobs.Running,
					jobs.Retrying, jobs.Succeeded, jobs.Failed, jobs.Cancelled}}
			case reflect.TypeFor[jobs.Priority]():
				return &jsonschema.Schema{Type: "string", Enum: []any{jobs.High, jobs.Normal, jobs.Low}}
			}
			return nil
		}}
	const here = "github.com/helmdeck/helmdeck/pkg/events"
	for _, dir := range []string{".", "../jobs", "../artifacts", "../identity"} {
		if err := r.AddGoComments(here, dir); err != nil {
			t.Fatal(err)
		}
	}
	for k, v := range r.CommentMap {
		r.CommentMap[k] = strings.Join(strings.Fields(v), " ")
	}
	return r
}

func schemaOf(r *jsonschema.Reflector, d documented) *jsonschema.Schema {
	s := r.Reflect(envelope{})
	s.ID = jsonschema.ID("urn:helmdeck:event:" + strings.TrimPrefix(d.typ, events.Prefix))
	s.Title = d.typ
	typ, _ := s.Properties.Get("type")
	typ.Const = d.typ
	data := r.ReflectFromType(reflect.TypeOf(d.data))
	data.Version = ""
	if d.state != "" && d.typ != events.JobSubmitted {
		state, _ := data.Properties.Get("state")
		state.Enum, state.Const = nil, d.state
	}
	s.Properties.Set("data", data)
	s.Required = append(s.Required, "data")
	return s
}

func exampleEvent(t *testing.T, d documented) event.Event {
	t.Helper()
	j := exampleJob()
	d.about.ID, d.about.Time = "0195a1b2-0000-7000-8000-00000000ce01", j.CreatedAt.Add(3*time.Second)
	d.about.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	d.about.Sequence = 3
	var ev event.Event
	var err error
	switch data := d.data.(type) {
	case jobs.Job:
		ev, err = source(t).Lifecycle(data, d.about)
	case jobs.Submission:
		ev, err = source(t).Submitted(data, d.about)
	default:
		d.about.Key, d.about.Attempt = j.Key(), j.Attempt
		ev, err = source(t).New(d.typ, d.about, data)
	}
	if err != nil {
		t.Fatal(err)
	}
	if ev.Type() != d.typ {
		t.Fatalf("got an event of type %s, want %s", ev.Type(), d.typ)
	}
	return ev
}

func check(t *testing.T, typ string, schema, structured []byte) {
	t.Helper()
	sch := compile(t, typ, schema)
	doc, err := validator.UnmarshalJSON(bytes.NewReader(structured))
	if err != nil {
		t.Fatal(err)
	}
	if err := sch.Validate(doc); err != nil {
		t.Errorf("example does not follow its schema: %v", err)
	}
	// The schema must be able to refuse.
	for _, name := range []string{"specversion", "id", "source", "type", "data"} {
		broken := map[string]any{}
		for k, v := range doc.(map[string]any) {
			broken[k] = v
		}
		broken[name] = true
		if sch.Validate(broken) == nil {
			t.Errorf("schema accepts true for %s", name)
		}
	}
}

func compile(t *testing.T, typ string, schema []byte) *validator.Schema {
	t.Helper()
	doc, err := validator.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		t.Fatal(err)
	}
	c := validator.NewCompiler()
	c.AssertFormat()
	url := "urn:helmdeck:event:" + strings.TrimPrefix(typ, events.Prefix)
	if err := c.AddResource(url, doc); err != nil {
		t.Fatal(err)
	}
	sch, err := c.Compile(url)
	if err != nil {
		t.Fatal(err)
	}
	return sch
}

// roundTrip takes the golden example through both modes and its struct.
func roundTrip(t *testing.T, d documented, ev event.Event, structured []byte) {
	t.Helper()
	parsed, err := events.Decode(map[string][]string{"content-type": {events.StructuredType}}, structured)
	if err != nil {
		t.Fatal(err)
	}
	header, data, err := events.Encode(ev)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := events.Decode(header, data)
	if err != nil {
		t.Fatal(err)
	}
	for mode, got := range map[string]event.Event{"structured": parsed, "binary": binary} {
		var compact bytes.Buffer
		if err := json.Compact(&compact, got.DataEncoded); err != nil {
			t.Fatal(err)
		}
		got.DataEncoded = compact.Bytes()
		if diff := diffEvents(ev, got); diff != "" {
			t.Errorf("%s mode (-want +got):\n%s", mode, diff)
		}
		value := reflect.New(reflect.TypeOf(d.data))
		if err := json.Unmarshal(got.Data(), value.Interface()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(d.data, value.Elem().Interface()); diff != "" {
			t.Errorf("%s mode, data (-want +got):\n%s", mode, diff)
		}
	}
}
