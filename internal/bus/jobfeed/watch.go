package jobfeed

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Watch follows single jobs by a subscription each: for a process that waits
// for a few jobs, such as a worker whose packs call others, where a Hub would
// hear of all there are. It implements jobs.Feed and jobs.Follower.
type Watch struct {
	core bus.Core
	log  zerolog.Logger
}

// NewWatch returns a Watch.
func NewWatch(core bus.Core, log zerolog.Logger) *Watch { return &Watch{core: core, log: log} }

// Follow implements jobs.Follower.
func (w *Watch) Follow(k jobs.Key, fn func(jobs.Sight)) (stop func(), err error) {
	filter, err := events.LiveFilter(k, "")
	if err != nil {
		return nil, err
	}
	return w.core.Subscribe(filter, func(m bus.CoreMessage) {
		kind := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
		switch kind {
		case events.KindLifecycle:
			if job, err := jobs.ReadJob(m.Data); err == nil {
				fn(jobs.Sight{Job: &job})
			}
		case events.KindProgress:
			var p jobs.Progress
			if json.Unmarshal(m.Data, &p) == nil {
				fn(jobs.Sight{Progress: &p})
			}
		}
	})
}

// Terminal implements jobs.Feed.
func (w *Watch) Terminal(k jobs.Key) (<-chan jobs.Job, func()) {
	ended := make(chan jobs.Job, 1)
	stop, err := w.Follow(k, func(s jobs.Sight) {
		if s.Job != nil && s.Job.State.Terminal() {
			select {
			case ended <- *s.Job:
			default:
			}
		}
	})
	if err != nil { // the caller re-reads
		return ended, func() {}
	}
	return ended, stop
}

// Progress implements jobs.Feed: nothing is kept of the past.
func (w *Watch) Progress(context.Context, jobs.Key) *jobs.Progress { return nil }

// Cancel implements jobs.Feed.
func (w *Watch) Cancel(ctx context.Context, worker string, k jobs.Key) {
	pushCancel(ctx, w.core, w.log, worker, k)
}
