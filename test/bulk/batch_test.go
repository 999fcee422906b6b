// Package bulk_test proves on a real bus what acts on many jobs at once:
// batches, bulk cancel and retry, replays of dead letters.
package bulk_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

// echoes is a batch of n jobs; key makes their idempotency keys.
func echoes(n int, key string) []jobs.Request {
	out := make([]jobs.Request, n)
	for i := range out {
		out[i] = jobs.Request{
			Pack: "test.echo", Input: json.RawMessage(fmt.Sprintf(`{"message":"%d"}`, i)), Labels: map[string]string{"batch": "1"},
		}
		if key != "" {
			out[i].IdempotencyKey = jobs.ItemKey(key, i)
		}
	}
	return out
}

// TestABatchRepeatedIsTheSameJobs: also when parts of the first try were lost
// on the way, before or after the bus had them.
func TestABatchRepeatedIsTheSameJobs(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	const n = 60
	for nth := range 8 {
		r.Client.Add(
			bustest.Rule{Op: bustest.OpPublish, Subject: "job.", Nth: 5*nth + 1, Kind: bustest.Before},
			bustest.Rule{Op: bustest.OpPublish, Subject: "job.", Nth: 5*nth + 2, Kind: bustest.After},
			bustest.Rule{Op: bustest.OpKVCreate, Nth: 5*nth + 3, Kind: bustest.After},
		)
	}
	lost := 0
	for _, res := range r.Jobs.SubmitBatch(r.Ctx(), rig.Ann, echoes(n, "k")) {
		if res.Err != nil {
			lost++
		}
	}
	if lost == 0 {
		t.Error("no fault was made")
	}
	r.Client.Heal()
	first := r.Jobs.SubmitBatch(r.Ctx(), rig.Ann, echoes(n, "k"))
	again := r.Jobs.SubmitBatch(r.Ctx(), rig.Ann, echoes(n, "k"))
	for i := range first {
		if first[i].Err != nil || again[i].Err != nil || first[i].Job.ID != again[i].Job.ID {
			t.Fatalf("job %d: got %s %v, then %s %v", i, first[i].Job.ID, first[i].Err, again[i].Job.ID, again[i].Err)
		}
	}
	if got := r.Queued(); got != n {
		t.Errorf("got %d jobs in the queue, want %d", got, n)
	}
	r.Worker("w")
	for i, res := range first {
		if job := r.Ends(res.Job.ID); job.State != jobs.Succeeded || job.Pack != "test.echo" {
			t.Errorf("job %d: got %s", i, job.State)
		}
	}
}

// TestABatchLargerThanTheQueue fills it to its limit; the rest is refused and
// nothing accepted is lost.
func TestABatchLargerThanTheQueue(t *testing.T) {
	t.Parallel()
	const room = 50
	r := rig.NewProfile(t, func(p *bus.Profile) { p.QueueMaxMsgs = room })
	accepted := 0
	for _, res := range r.Jobs.SubmitBatch(r.Ctx(), rig.Ann, echoes(room+30, "")) {
		switch {
		case res.Err == nil:
			accepted++
		case rig.Code(res.Err) != packs.RateLimited:
			t.Errorf("got %v, want rate_limited", res.Err)
		}
	}
	if accepted != room || r.Queued() != room {
		t.Errorf("got %d accepted and %d queued, want %d", accepted, r.Queued(), room)
	}
}

func encode(t *testing.T, v any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
