package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// quotas gives every caller the same limits.
type quotas struct{}

func (quotas) Quotas(c identity.Caller) client.Limits {
	return client.Limits{
		Weight: 2, Priority: jobs.High,
		Subject: client.Quota{Name: c.Subject, Limits: limits.Bounds{Depth: 5}, Use: limits.Use{Waiting: 3, Bytes: 9}},
		Tenant:  client.Quota{Name: "default", Limits: limits.Bounds{Rate: 1.5, Burst: 3}},
	}
}

func TestLimitsAreTheCallers(t *testing.T) {
	t.Parallel()
	r := setup(t)
	got := decode[client.Limits](t, r.call("GET", "/api/v1/limits", reader, "").want(t, 200))
	if diff := cmp.Diff(quotas{}.Quotas(identity.Caller{Subject: "ann"}), got); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	r.call("GET", "/api/v1/limits?all=1", ann, "").want(t, http.StatusBadRequest)
	r.call("GET", "/api/v1/limits", "", "").want(t, http.StatusUnauthorized)
}

// TestConcurrencyKeyInTheBody: it is kept in the record, and its faults are
// told with all others.
func TestConcurrencyKeyInTheBody(t *testing.T) {
	t.Parallel()
	r := setup(t)
	job := r.submit(ann, `{"pack":"test.echo","input":{"text":"a"},"concurrency_key":"repo 🦊"}`)
	if job.ConcurrencyKey != "repo 🦊" || job.ConcurrencyLimit != 1 || job.InputBytes == 0 {
		t.Errorf("got %q, %d, %d bytes", job.ConcurrencyKey, job.ConcurrencyLimit, job.InputBytes)
	}
	for body, pointer := range map[string]string{
		`"concurrency_limit":2`:                                "/concurrency_limit",
		`"concurrency_key":"k","concurrency_limit":1001`:       "/concurrency_limit",
		`"concurrency_key":"k","concurrency_limit":-1`:         "/concurrency_limit",
		`"concurrency_key":"` + strings.Repeat("é", 129) + `"`: "/concurrency_key",
	} {
		p := decode[client.Problem](t, r.call("POST", "/api/v1/jobs", ann, `{"pack":"test.echo","input":{"text":"a"},`+body+`}`).want(t, 400))
		if len(p.Details) != 1 || p.Details[0].Pointer != pointer {
			t.Errorf("%s: got %+v", body, p)
		}
	}
	for _, body := range []string{
		`"concurrency_key":"k","concurrency_limit":1000`,
		`"concurrency_key":"` + strings.Repeat("é", 128) + `"`,
	} {
		r.call("POST", "/api/v1/jobs", ann, `{"pack":"test.echo","input":{"text":"a"},`+body+`}`).want(t, 202)
	}
}
