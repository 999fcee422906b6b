package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/test/rig"
)

// TestLinesOfALogAreNumbered over all its events, also where too many at once
// were dropped before they were sent.
func TestLinesOfALogAreNumbered(t *testing.T) {
	t.Parallel()
	const burst = 10_000
	r := rig.New(t, handler(packs.EffectNone, func(_ context.Context, run *packs.Run) (answer, error) {
		for i := range burst {
			run.Log(fmt.Sprint(i))
		}
		return answer{}, nil
	}))
	r.Worker("a")
	job := r.Ends(r.Submit("t.t", struct{}{}).ID)
	if job.State != jobs.Succeeded {
		t.Fatalf("got %s", job.State)
	}
	next, dropped, last := 0, 0, ""
	err := r.Env.Conn(bus.RoleAdmin).JetStream().Scan(r.Ctx(), bus.StreamProgress, []string{"prog.*.*." + job.ID + ".log"}, 0,
		func(m bus.Message) error {
			var l events.Log
			if err := json.Unmarshal(m.Data, &l); err != nil {
				return err
			}
			if l.From != next || len(l.Lines) == 0 {
				t.Errorf("an event has %d lines from %d, want from %d", len(l.Lines), l.From, next)
			}
			next, last = l.From+len(l.Lines), l.Lines[len(l.Lines)-1]
			var n int
			if strings.HasPrefix(l.Lines[0], "…") {
				if _, err := fmt.Sscanf(l.Lines[0], "… %d lines dropped", &n); err != nil {
					t.Errorf("note %q", l.Lines[0])
				}
				dropped += n - 1 // less the note itself
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	if next+dropped != burst || dropped == 0 || last != fmt.Sprint(burst-1) {
		t.Errorf("%d lines kept and %d dropped of %d, last %s", next, dropped, burst, last)
	}
}
