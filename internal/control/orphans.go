package control

import (
	"context"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// OrphanIndex knows which called jobs may have lost their parent.
type OrphanIndex interface {
	Orphans(limit int) []jobs.Key
}

// Orphans cancels the called jobs whose parent has ended or is being cancelled: those the worker of
// the parent did not reach, because it died or because the parent ended
// without one. What the index says is looked up before anything is done.
type Orphans struct {
	Jobs  *jobs.Service
	Index OrphanIndex
	// Every is the time between two passes; default two seconds.
	Every time.Duration
	Log   zerolog.Logger
}

// maxOrphans bounds one pass; the next ones do the rest.
const maxOrphans = 1000

// Run works until ctx ends.
func (o *Orphans) Run(ctx context.Context) error {
	every := o.Every
	if every == 0 {
		every = 2 * time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		o.pass(ctx)
	}
}

func (o *Orphans) pass(ctx context.Context) {
	keys := o.Index.Orphans(maxOrphans)
	slots := make(chan struct{}, parallel)
	for _, k := range keys {
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			done, err := o.Jobs.CancelOrphan(ctx, k)
			switch {
			case err != nil && ctx.Err() == nil:
				o.Log.Warn().Err(err).Str("job", k.ID).Msg("child of an ended parent not cancelled, the next pass tries again")
			case done:
				o.Log.Info().Str("job", k.ID).Msg("child of an ended parent cancelled")
			}
		}()
	}
	for range parallel {
		slots <- struct{}{}
	}
}
