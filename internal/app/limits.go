package app

import (
	"context"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobindex"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/bus/limitstore"
	"github.com/helmdeck/helmdeck/internal/gate"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// gate wires what decides whether a claimed job may run.
func (r *workerRole) gate(ctx context.Context, js bus.JetStream, store *jobstore.Store, source *limits.Source, done *closer) (*gate.Gate, error) {
	slots, err := limitstore.Open(ctx, js)
	if err != nil {
		return nil, err
	}
	done.add(slots.Close)
	return &gate.Gate{Limits: source, Slots: slots, Hold: store}, nil
}

// quotas tells callers of their limits and what they take.
type quotas struct {
	source *limits.Source
	index  *jobindex.Index
}

// Quotas implements api.Quotas.
func (q quotas) Quotas(c identity.Caller) client.Limits {
	l, tenant := q.source.Policy().Of(c), c.Tenant
	if tenant == "" {
		tenant = identity.DefaultTenant
	}
	return client.Limits{
		Weight: l.Weight, Priority: l.Priority,
		Subject: client.Quota{Name: c.Subject, Limits: l.Subject, Use: q.index.Use(c.TenantToken(), c.Owner())},
		Tenant:  client.Quota{Name: tenant, Limits: l.Tenant, Use: q.index.Use(c.TenantToken(), "")},
	}
}
