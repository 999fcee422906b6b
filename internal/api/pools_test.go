package api_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

func TestPauseOfAPool(t *testing.T) {
	t.Parallel()
	r := setup(t)
	before := decode[client.PoolStatus](t, r.call("GET", "/api/v1/pools/core", ann, "").want(t, 200))
	if before.Paused != nil || before.Waiting != 2 {
		t.Errorf("got %+v", before)
	}
	paused := decode[client.PoolStatus](t, r.call("POST", "/api/v1/pools/core/pause", admin, `{"for_s":60,"reason":"new disk"}`).want(t, 200))
	p := paused.Paused
	if p == nil || p.Reason != "new disk" || p.By != "admin" || p.Until.Sub(p.Since) != time.Minute {
		t.Fatalf("got %+v", p)
	}
	// Who paused it is no concern of everybody.
	seen := decode[client.PoolList](t, r.call("GET", "/api/v1/pools", ann, "").want(t, 200)).Pools[0].Paused
	if seen == nil || seen.By != "" || seen.Reason != "new disk" {
		t.Errorf("a caller sees %+v", seen)
	}
	endless := decode[client.PoolStatus](t, r.call("POST", "/api/v1/pools/core/pause", admin, "").want(t, 200))
	if endless.Paused == nil || !endless.Paused.Until.IsZero() {
		t.Errorf("without a time: %+v", endless.Paused)
	}
	for range 2 { // may be repeated
		after := decode[client.PoolStatus](t, r.call("POST", "/api/v1/pools/core/resume", admin, "").want(t, 200))
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("after resume (-before +after):\n%s", diff)
		}
	}
}

func TestPauseRefusesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	r := setup(t)
	year := 366 * 24 * 3600
	for body, status := range map[string]int{
		fmt.Sprintf(`{"for_s":%d}`, year):               200,
		fmt.Sprintf(`{"for_s":%d}`, year+1):             400,
		`{"for_s":-1}`:                                  400,
		`{"until":"2020-01-01T00:00:00Z"}`:              400,
		`{"until":"tomorrow"}`:                          400,
		`{"until":"2999-01-01T00:00:00Z"}`:              400,
		`{"until":"2999-01-01T00:00:00Z","for_s":1}`:    400,
		`{"reason":"` + strings.Repeat("r", 256) + `"}`: 200,
		`{"reason":"` + strings.Repeat("r", 257) + `"}`: 400,
		`{"reson":"x"}`:                                 400,
	} {
		r.call("POST", "/api/v1/pools/core/pause", admin, body).want(t, status)
	}
	p := decode[client.Problem](t, r.call("POST", "/api/v1/pools/nonsense/pause", admin, "").want(t, 404))
	if p.Error != packs.NotFound || !strings.Contains(p.Message, "media") {
		t.Errorf("got %+v, want the pools there are", p)
	}
	for _, path := range []string{"/api/v1/pools/core/pause", "/api/v1/pools/core/resume", "/api/v1/workers/worker-1/drain"} {
		r.call("POST", path, ann, "").want(t, 403)
	}
	r.call("GET", "/api/v1/workers", ann, "").want(t, 403)
	r.call("GET", "/api/v1/pools/nonsense", ann, "").want(t, 404)
}

func TestDrainOfAWorker(t *testing.T) {
	t.Parallel()
	r := setup(t)
	w := decode[client.WorkerStatus](t, r.call("POST", "/api/v1/workers/worker-1/drain", admin, `{"within_s":7200}`).want(t, 202))
	if !w.Draining || w.DrainBy.Sub(w.LastBeat) != 2*time.Hour {
		t.Errorf("got %+v", w)
	}
	r.call("POST", "/api/v1/workers/worker-1/drain", admin, "").want(t, 202)
	r.call("POST", "/api/v1/workers/worker-1/drain", admin, `{"within_s":7201}`).want(t, 400)
	r.call("POST", "/api/v1/workers/worker-1/drain", admin, `{"within_s":-1}`).want(t, 400)
	r.call("POST", "/api/v1/workers/worker-2/drain", admin, "").want(t, 404)
	list := decode[client.WorkerList](t, r.call("GET", "/api/v1/workers", admin, "").want(t, 200))
	if len(list.Workers) != 1 || !list.Workers[0].Draining || list.Workers[0].Slots["core"] != 4 {
		t.Errorf("got %+v", list)
	}
}
