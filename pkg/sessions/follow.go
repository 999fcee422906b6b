package sessions

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"
)

// Follow calls each for every record and every change in r until ctx ends,
// when it returns nil. When the watch breaks it begins again after a pause that
// grows to 5 s; then the present records come once more. synced, if not nil, is
// called whenever the present records have been handed over. A record that was
// deleted while the watch was broken is not reported.
func Follow(ctx context.Context, r Registry, log zerolog.Logger, each func(Entry), synced func()) error {
	pause := firstPause
	for {
		err := followOnce(ctx, r, each, func() {
			pause = firstPause
			if synced != nil {
				synced()
			}
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a watch that ended with ctx is the clean end
		}
		log.Warn().Err(err).Dur("pause", pause).Msg("watch of leases broke")
		// With jitter, so that a fleet does not come back as one.
		t := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		pause = min(2*pause, 5*time.Second)
	}
}

// firstPause is short: most breaks are over at once.
const firstPause = 100 * time.Millisecond

func followOnce(ctx context.Context, r Registry, each func(Entry), synced func()) error {
	entries, err := r.Watch(ctx)
	if err != nil {
		return err
	}
	for e := range entries {
		if e.Lease.ID == "" {
			synced()
			continue
		}
		each(e)
	}
	return nil
}
