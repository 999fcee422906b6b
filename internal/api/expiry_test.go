package api_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

func TestResultTTLHasBounds(t *testing.T) {
	t.Parallel()
	r := setup(t)
	for ttl, status := range map[int]int{
		0: 202, jobs.MinResultTTLS - 1: 400, jobs.MinResultTTLS: 202, jobs.MaxResultTTLS: 202, jobs.MaxResultTTLS + 1: 400, -1: 400,
	} {
		a := r.call("POST", "/api/v1/jobs", ann, fmt.Sprintf(`{"pack":"test.echo","input":{"text":"a"},"result_ttl_s":%d}`, ttl)).want(t, status)
		if status == 400 {
			if p := decode[client.Problem](t, a); len(p.Details) != 1 || p.Details[0].Pointer != "/result_ttl_s" {
				t.Errorf("%d: got %+v", ttl, p)
			}
			continue
		}
		if got := decode[jobs.Job](t, a); got.ResultTTLS != ttl {
			t.Errorf("%d: the record says %d", ttl, got.ResultTTLS)
		}
	}
}

func TestTimeOfExpiry(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		job  jobs.Job
		want time.Time
	}{
		"ended":   {jobs.Job{State: jobs.Failed, FinishedAt: end, ResultTTLS: 60}, end.Add(time.Minute)},
		"running": {jobs.Job{State: jobs.Running, ResultTTLS: 60}, time.Time{}},
		"kept":    {jobs.Job{State: jobs.Succeeded, FinishedAt: end}, time.Time{}},
	} {
		if got := tt.job.Stamped().ExpiresAt; !got.Equal(tt.want) {
			t.Errorf("%s: got %s, want %s", name, got, tt.want)
		}
	}
}
