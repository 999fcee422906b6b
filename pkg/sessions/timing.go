package sessions

import (
	"cmp"
	"time"
)

// SweepEvery is how often a scheduler compares sidecars with leases.
const SweepEvery = 15 * time.Second

// Timing is the rhythm of leases; zero fields mean the constants of this
// package. Leasers, schedulers and agents of one installation share it.
type Timing struct {
	ConfirmWithin, RenewEvery, ExpireAfter, SweepAfter, SweepEvery, DeadManAfter time.Duration
}

// WithDefaults returns t with its zero fields filled in.
func (t Timing) WithDefaults() Timing {
	return Timing{
		ConfirmWithin: cmp.Or(t.ConfirmWithin, ConfirmWithin),
		RenewEvery:    cmp.Or(t.RenewEvery, RenewEvery),
		ExpireAfter:   cmp.Or(t.ExpireAfter, ExpireAfter),
		SweepAfter:    cmp.Or(t.SweepAfter, SweepAfter),
		SweepEvery:    cmp.Or(t.SweepEvery, SweepEvery),
		DeadManAfter:  cmp.Or(t.DeadManAfter, DeadManAfter),
	}
}
