package api_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/api"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

const batchPath = "/api/v1/jobs/batch"

// batchOf is a batch of n jobs.
func batchOf(n int) string {
	item := `{"pack":"test.echo","input":{"text":"a"}}`
	return `{"jobs":[` + strings.TrimSuffix(strings.Repeat(item+",", n), ",") + `]}`
}

func TestBatchAnswersEachOnItsOwn(t *testing.T) {
	t.Parallel()
	r := setup(t)
	body := `{"jobs":[
		{"pack":"test.echo","input":{"text":"a"},"labels":{"n":"0"}},
		{"pack":"test.echo","input":{"text":"","count":10},"priority":"urgent"},
		{"pack":"test.eco"},
		{"input":{}},
		{"pack":"test.echo","input":{"text":"b"},"piority":"high"},
		7,
		{"pack":"test.big","input":{"code":"` + strings.Repeat("x", 96<<10) + `"}},
		{"pack":"test.echo","input":{"text":"c"}}]}`
	got := decode[client.BatchResult](t, r.call("POST", batchPath, ann, body).want(t, 200))
	if got.Accepted != 2 || got.Refused != 6 || len(got.Jobs) != 8 {
		t.Fatalf("got %d accepted, %d refused of %d", got.Accepted, got.Refused, len(got.Jobs))
	}
	type refusal struct {
		Code    packs.Code
		Details []string
	}
	refusals := map[int]refusal{}
	for i, a := range got.Jobs {
		if a.Index != i || (a.Job == nil) == (a.Error == nil) {
			t.Errorf("item %d: got %+v", i, a)
		}
		if a.Error == nil {
			continue
		}
		f := refusal{Code: a.Error.Error}
		for _, d := range a.Error.Details {
			f.Details = append(f.Details, d.Pointer)
		}
		refusals[i] = f
	}
	want := map[int]refusal{
		1: {packs.InvalidInput, []string{"/jobs/1/input/count", "/jobs/1/input/text", "/jobs/1/priority"}},
		2: {Code: packs.NotFound},
		3: {packs.InvalidInput, []string{"/jobs/3/pack"}},
		4: {packs.InvalidInput, []string{"/jobs/4/piority"}},
		5: {Code: packs.InvalidInput},
		6: {Code: packs.PayloadTooLarge},
	}
	if diff := cmp.Diff(want, refusals); diff != "" {
		t.Errorf("refusals (-want +got):\n%s", diff)
	}
	for i, text := range map[int]string{0: "a", 7: "c"} {
		job := r.until(got.Jobs[i].Job.ID, ended)
		if job.State != jobs.Succeeded || string(job.Output) != `{"text":"`+text+`"}` {
			t.Errorf("item %d: got %s %s", i, job.State, job.Output)
		}
	}
	if got.Jobs[0].Job.Labels["n"] != "0" || got.Jobs[0].Job.ID >= got.Jobs[7].Job.ID {
		t.Errorf("got ids %s and %s, want them in order", got.Jobs[0].Job.ID, got.Jobs[7].Job.ID)
	}
}

func TestBatchLimits(t *testing.T) {
	t.Parallel()
	r := setup(t, func(c *api.Config) { c.Limits.Batch = 1 << 20 })
	for _, tt := range []struct {
		name, body, pointer string
		status              int
		code                packs.Code
	}{
		{"none", batchOf(0), "/jobs", 400, packs.InvalidInput},
		{"one", batchOf(1), "", 200, ""},
		{"the most", batchOf(jobs.MaxBatch), "", 200, ""},
		{"one more", batchOf(jobs.MaxBatch + 1), "/jobs", 400, packs.InvalidInput},
		{"no key", `{}`, "/jobs", 400, packs.InvalidInput},
		{"null", `{"jobs":null}`, "/jobs", 400, packs.InvalidInput},
		{"no list", `{"jobs":{}}`, "/jobs", 400, packs.InvalidInput},
		{"a list", `[]`, "", 400, packs.InvalidInput},
		{"another key", `{"jobs":[{"pack":"test.echo"}],"job":1}`, "/job", 400, packs.InvalidInput},
		{"bytes at the limit", padded(batchOf(1), 1<<20), "", 200, ""},
		{"bytes above it", padded(batchOf(1), 1<<20+1), "", 413, packs.PayloadTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := r.call("POST", batchPath, ann, tt.body).want(t, tt.status)
			if tt.status == 200 {
				got := decode[client.BatchResult](t, a)
				if got.Refused != 0 || got.Accepted != len(got.Jobs) || got.Accepted == 0 {
					t.Errorf("got %d accepted, %d refused of %d", got.Accepted, got.Refused, len(got.Jobs))
				}
				return
			}
			p := decode[client.Problem](t, a)
			if p.Error != tt.code || tt.pointer != "" && (len(p.Details) == 0 || p.Details[0].Pointer != tt.pointer) {
				t.Errorf("got %+v, want %s at %s", p, tt.code, tt.pointer)
			}
		})
	}
	r.call("POST", batchPath, reader, batchOf(1)).want(t, 403)
	long := strings.Repeat("k", jobs.MaxIdempotencyKey)
	r.call("POST", batchPath, ann, batchOf(1), "Idempotency-Key", long).want(t, 200)
	r.call("POST", batchPath, ann, batchOf(1), "Idempotency-Key", long+"k").want(t, 400)
}

// padded fills body with white space up to n bytes.
func padded(body string, n int) string { return body + strings.Repeat(" ", n-len(body)) }

func ids(t *testing.T, res client.BatchResult) []string {
	t.Helper()
	var out []string
	for _, a := range res.Jobs {
		if a.Job == nil {
			out = append(out, string(a.Error.Error))
			continue
		}
		out = append(out, a.Job.ID)
	}
	return out
}

// TestBatchKeys: a key for the batch gives each item one of its own, which
// gives way to the item's.
func TestBatchKeys(t *testing.T) {
	t.Parallel()
	r := setup(t)
	c, ctx := r.dial(ann)
	send := func(key string, texts ...string) []string {
		t.Helper()
		var batch []client.BatchJob
		for _, text := range texts {
			text, own, _ := strings.Cut(text, "#")
			job := client.BatchJob{IdempotencyKey: own}
			job.Pack, job.Input = "test.echo", json.RawMessage(fmt.Sprintf(`{"text":%q}`, text))
			batch = append(batch, job)
		}
		res, err := c.SubmitBatch(ctx, batch, key)
		if err != nil {
			t.Fatal(err)
		}
		return ids(t, res)
	}
	first := send("k", "a", "a", "b#own")
	if first[0] == first[1] {
		t.Error("two items of one batch are one job")
	}
	if diff := cmp.Diff(first, send("k", "a", "a", "b#own")); diff != "" {
		t.Errorf("the batch repeated (-first +again):\n%s", diff)
	}
	changed := send("k", "a", "x", "b#own")
	if want := []string{first[0], string(packs.IdempotencyConflict), first[2]}; !slices.Equal(changed, want) {
		t.Errorf("got %v for a changed batch, want %v", changed, want)
	}
	if got := send("other", "b#own", "b#own"); got[0] != first[2] || got[1] != first[2] {
		t.Errorf("got %v for the item's own key, want %s twice", got, first[2])
	}
	if got := send("", "a"); got[0] == first[0] {
		t.Error("a batch without a key gave an old job")
	}
}

func TestBatchIntoAFullQueue(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.world.Refuse(jobs.ErrQueueFull)
	got := decode[client.BatchResult](t, r.call("POST", batchPath, ann, batchOf(2)).want(t, 200))
	if got.Refused != 2 || got.Jobs[1].Error.Error != packs.RateLimited || got.Jobs[1].Error.RetryAfterS != 5 {
		t.Errorf("got %+v, want both rate_limited", got)
	}
}
