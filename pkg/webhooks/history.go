package webhooks

import (
	"context"
	"errors"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Test queues a delivery of the event webhook.test, tried once, and returns
// its id, under which the log shows what became of it.
func (s *Service) Test(ctx context.Context, c identity.Caller, id string) (string, error) {
	r, err := s.find(ctx, c, id)
	if err != nil {
		return "", err
	}
	if !r.Enabled {
		return "", packs.Errorf(packs.SchemaMismatch, "the webhook is disabled (%s); enable it first", r.DisabledReason)
	}
	delivery, err := s.cfg.Courier.Test(ctx, r)
	return delivery, asError(err)
}

// Deliveries returns a page of the log of an endpoint, newest first: its last
// attempts, as many as the bus keeps.
func (s *Service) Deliveries(ctx context.Context, c identity.Caller, id string, q LogQuery) ([]Attempt, string, error) {
	r, err := s.find(ctx, c, id)
	if err != nil {
		return nil, "", err
	}
	return s.list(ctx, r.Caller.TenantToken(), id, q)
}

// JobDeliveries is Deliveries of the own webhook of a job, which the caller
// may read: whoever calls has checked that.
func (s *Service) JobDeliveries(ctx context.Context, tenant, jobID string, q LogQuery) ([]Attempt, string, error) {
	return s.list(ctx, tenant, jobID, q)
}

func (s *Service) list(ctx context.Context, tenant, endpoint string, q LogQuery) ([]Attempt, string, error) {
	var err error
	if q.Limit, err = pageLimit(q.Limit); err != nil {
		return nil, "", err
	}
	page, next, err := s.cfg.Log.List(ctx, tenant, endpoint, q)
	return page, next, asError(err)
}

// Replay queues a delivery that is in the log once more, from the first step
// of the retry ladder, whatever became of it. The receiver sees the same id.
func (s *Service) Replay(ctx context.Context, c identity.Caller, id, delivery string) error {
	r, err := s.find(ctx, c, id)
	if err != nil {
		return err
	}
	if !r.Enabled {
		return packs.Errorf(packs.SchemaMismatch, "the webhook is disabled (%s); enable it first", r.DisabledReason)
	}
	return s.replay(ctx, r.Caller.TenantToken(), r.Caller.Owner(), id, delivery, &r)
}

// JobReplay is Replay of the own webhook of a job; see JobDeliveries.
func (s *Service) JobReplay(ctx context.Context, tenant, owner, jobID, delivery string) error {
	return s.replay(ctx, tenant, owner, jobID, delivery, nil)
}

func (s *Service) replay(ctx context.Context, tenant, owner, endpoint, delivery string, r *Record) error {
	gone := packs.Errorf(packs.NotFound, "no such delivery, or its event is no longer kept; list them with GET …/deliveries")
	page, _, err := s.cfg.Log.List(ctx, tenant, endpoint, LogQuery{Delivery: delivery, Limit: 1})
	switch {
	case err != nil:
		return asError(err)
	case len(page) == 0:
		return gone
	case page[0].JobID == "":
		return packs.Errorf(packs.SchemaMismatch, "a test is not replayed; send another with POST …/test")
	}
	err = s.cfg.Courier.Again(ctx, Origin{Tenant: tenant, Owner: owner, JobID: page[0].JobID, Event: delivery}, r)
	if errors.Is(err, ErrNotFound) {
		return gone
	}
	return asError(err)
}
