package bus

import (
	"context"
	"fmt"
)

// LeaseConsumers makes consumers of lease requests on demand: which images
// there are is known to the schedulers alone. JetStream of a Conn and
// bustest.Faults implement it.
type LeaseConsumers interface {
	// EnsureLeaseConsumer makes the durable consumer of the requests of an
	// image when there is none, and returns what to Pull from. The scheduler
	// role may do it.
	EnsureLeaseConsumer(ctx context.Context, image string) (stream, consumer string, err error)
}

var _ LeaseConsumers = (*jetStream)(nil)

func (j *jetStream) EnsureLeaseConsumer(ctx context.Context, image string) (stream, consumer string, err error) {
	c := (*Conn)(j)
	ctx, cancel := c.bound(ctx, c.timeout)
	defer cancel()
	cfg := leaseConsumer(c.names, c.profile, image)
	if err := c.applyConsumer(ctx, c.names.stream(StreamLeases), cfg); err != nil {
		return "", "", fmt.Errorf("make consumer for leases of %s: %w", image, err)
	}
	return StreamLeases, cfg.Name, nil
}

// EnsureLeaseConsumer is that of LeaseConsumers.
func (c *Conn) EnsureLeaseConsumer(ctx context.Context, image string) (stream, consumer string, err error) {
	return (*jetStream)(c).EnsureLeaseConsumer(ctx, image)
}
