package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/poolstore"
	"github.com/helmdeck/helmdeck/internal/metrics"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/testpacks"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// want looks for lines of what is scraped.
func want(t *testing.T, reg *prometheus.Registry, lines ...string) {
	t.Helper()
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := rec.Body.String()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("no line %q in:\n%s", line, text)
		}
	}
}

func TestWorkerTellsOfLossesAndPoison(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	w := metrics.NewWorker(reg, testpacks.All)
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	want(t, reg, `helmdeck_jobs_poisoned_total{pack="test.echo",pool="core"} 0`)
	queued := jobs.Job{Pack: "test.echo", Pool: "core", Priority: jobs.Low, CreatedAt: at}
	first := queued
	first.Runs, first.StartedAt = 1, at.Add(10*time.Second)
	w.Claimed(first, jobs.Job{})
	again := first
	again.Runs, again.Lost = 2, 1
	w.Claimed(again, first) // took it over
	dead := again
	dead.Lost, dead.State, dead.Poison, dead.Error = 2, jobs.Failed, true, &jobs.Failure{Code: packs.HandlerFailed}
	w.Ended(dead, again, 0)
	want(t, reg,
		`helmdeck_jobs_started_total{pack="test.echo",pool="core"} 2`,
		`helmdeck_jobs_lost_workers_total{pack="test.echo",pool="core"} 2`,
		`helmdeck_jobs_poisoned_total{pack="test.echo",pool="core"} 1`,
		`helmdeck_attempts_total{code="handler_failed",pack="test.echo",pool="core",state="failed"} 1`,
		`helmdeck_jobs_wait_seconds_sum{pool="core",priority="low"} 10`,
		`helmdeck_jobs_wait_seconds_count{pool="core",priority="low"} 1`,
	)
	put := first // a delayed job waits from its own time on
	put.ScheduledFor = at.Add(8 * time.Second)
	w.Claimed(put, jobs.Job{})
	want(t, reg, `helmdeck_jobs_wait_seconds_sum{pool="core",priority="low"} 12`)
}

type noRoom struct{}

func (noRoom) Lease(context.Context, sessions.Request) (sessions.Session, error) {
	return nil, errors.New("no room")
}

func TestLeaseWaits(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	l := metrics.NewWorker(reg, nil).Leaser(noRoom{})
	if _, err := l.Lease(t.Context(), sessions.Request{Spec: sessions.Spec{Image: "browser"}}); err == nil {
		t.Error("the error is lost")
	}
	want(t, reg, `helmdeck_leases_wait_seconds_count{image="browser",outcome="refused"} 1`)
}

func TestPublishErrorsHaveReasons(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	observe := metrics.Publishes(reg)
	if metrics.Publishes(reg); observe == nil {
		t.Fatal("no observer")
	}
	observe("evt", time.Millisecond, nil)
	observe("unheard", time.Millisecond, errors.New("x"))
	for reason, err := range map[string]error{
		"conflict": bus.ErrWrongSequence, "taken": bus.ErrSubjectTaken, "full": bus.ErrFull, "frozen": bus.ErrFrozen,
		"unavailable": fmt.Errorf("%w: %w", bus.ErrUnavailable, context.DeadlineExceeded), "cancelled": context.Canceled, "denied": bus.ErrDenied,
	} {
		observe("job", time.Millisecond, fmt.Errorf("publish: %w", err))
		want(t, reg, fmt.Sprintf(`helmdeck_bus_publish_errors_total{family="job",reason=%q} 1`, reason))
	}
	want(t, reg, `helmdeck_bus_publish_duration_seconds_count{family="evt"} 1`, `helmdeck_bus_publish_duration_seconds_count{family="other"} 1`,
		`helmdeck_bus_publish_errors_total{family="other",reason="other"} 1`)
}

func TestPoolsOfABusThatIsAway(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	var err error
	metrics.Pools(reg, func(context.Context) ([]poolstore.Load, error) {
		return []poolstore.Load{{Pool: "media", Waiting: 2, Unacked: 1}, {Pool: "core", Waiting: 1, Workers: 1, Paused: &poolstore.Pause{}}}, err
	})
	want(t, reg, `helmdeck_pool_unserved_jobs{pool="media"} 3`, `helmdeck_pool_unserved_jobs{pool="core"} 0`, `helmdeck_pool_paused{pool="core"} 1`)
	err = bus.ErrUnavailable
	if _, err := reg.Gather(); !errors.Is(err, bus.ErrUnavailable) && (err == nil || !strings.Contains(err.Error(), "unavailable")) {
		t.Errorf("got %v, want the fault to show", err)
	}
}

func TestStreamsWithoutALeaderShow(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	looks := 0
	metrics.Streams(reg, func(_ context.Context, stream, subjects string) (bus.StreamState, error) {
		switch stream {
		case bus.StreamEvents:
			return bus.StreamState{}, bus.ErrUnavailable
		case bus.StreamAudit:
			looks++ // one look a stream, so alone
			if subjects == "" {
				t.Error("the advisories are not asked for")
			}
			return bus.StreamState{Replicas: 3, Current: 2, Subjects: map[string]uint64{
				"$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.EVT": 2, "$JS.EVENT.ADVISORY.CONSUMER.LEADER_ELECTED.EVT.c": 1,
				"$JS.EVENT.ADVISORY.STREAM.QUORUM_LOST.EVT": 1,
			}}, nil
		}
		return bus.StreamState{Messages: 3, Bytes: 100, MaxBytes: 200, Replicas: 1, Current: 1}, nil
	})
	for range 2 {
		want(t, reg, `helmdeck_bus_stream_has_leader{stream="EVT"} 0`, `helmdeck_bus_stream_has_leader{stream="PROG"} 1`,
			`helmdeck_bus_stream_bytes{stream="JOBS_core"} 100`, `helmdeck_bus_stream_replicas_current{stream="AUDIT"} 2`,
			`helmdeck_bus_advisories{kind="leader_elected"} 3`, `helmdeck_bus_advisories{kind="quorum_lost"} 1`,
			`helmdeck_bus_advisories{kind="max_deliveries"} 0`)
	}
	if looks != 1 {
		t.Errorf("%d looks at a stream within seconds, want one", looks)
	}
}
