package api

import (
	"net/http"

	"github.com/helmdeck/helmdeck/internal/api/openapi"
	"github.com/helmdeck/helmdeck/internal/api/wire"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/identity"
)

// Quotas says what callers may take and what they take.
type Quotas interface {
	Quotas(c identity.Caller) client.Limits
}

func (a *API) limitRoutes() []*route {
	return []*route{
		{openapi.Operation{Method: get, Path: "/api/v1/limits", ID: "show_limits", Tag: "jobs", Scope: readPacks,
			Summary: "Show your limits and what you take of them",
			Description: "Of yourself and of your tenant: submits a second, jobs and bytes waiting, jobs running; a limit that is absent is none. " +
				"A submit over a limit is answered 429 rate_limited with Retry-After; a job over a limit of running jobs waits.",
			Answers: []openapi.Answer{{Status: ok, Description: "Limits and use.", Body: client.Limits{}}},
		}, false, a.showLimits},
	}
}

func (a *API) showLimits(x *exchange, r *http.Request) error {
	if err := wire.NewQuery(r).Err(); err != nil {
		return err
	}
	return x.writeJSON(http.StatusOK, a.cfg.Quotas.Quotas(callerOf(r.Context())))
}
