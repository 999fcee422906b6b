package client

import (
	"context"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// Limits is what a caller may take and takes: the answer of GET /api/v1/limits.
type Limits struct {
	// Weight is the tenant's share of the slots of a cap that other tenants'
	// jobs wait for too.
	Weight int `json:"weight"`
	// Priority is that of a job whose submit names none.
	Priority jobs.Priority `json:"priority"`
	Subject  Quota         `json:"subject"`
	Tenant   Quota         `json:"tenant"`
}

// Quota is one party's limits and use.
type Quota struct {
	Name string `json:"name"`
	// Limits that are absent are none.
	Limits limits.Bounds `json:"limits"`
	Use    limits.Use    `json:"use"`
}

// Limits shows the caller's limits and what it takes of them.
func (c *Client) Limits(ctx context.Context) (l Limits, err error) {
	err = c.get(ctx, pathOf("limits"), nil, &l)
	return l, err
}
