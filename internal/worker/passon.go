package worker

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// newerPause is how long a job that this program does not understand waits for
// another worker.
const newerPause = 5 * time.Second

// passOnPauses are how long a job waits in the queue for a worker that has its
// pack, by delivery: during an upgrade there is one, and it pulls at once.
var passOnPauses = []time.Duration{
	100 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
}

// passOnAgain is the number of those for a job that was put off before.
const passOnAgain = 2

// The pause of a job that nobody took rides on a schedule: in the queue it would
// fill the consumer's allowance of unacknowledged messages, and its deliveries
// would count as those of a job that kills its workers.
const (
	passOnFirst = 15 * time.Second
	passOnMost  = time.Minute
)

// PackName names a version of a pack in heartbeats: "http.fetch@v1".
func PackName(name, version string) string { return name + "@" + version }

// Runs reports whether the worker takes jobs of a pack, by its last heartbeat.
// version may be empty: any. A worker that does not tell what it runs, as older
// ones do not, is taken to run everything of its pools.
func (s Status) Runs(pool, pack, version string) bool {
	if s.Drain || s.Slots[pool] == 0 {
		return false
	}
	if len(s.Packs) == 0 {
		return true
	}
	if version != "" {
		return slices.Contains(s.Packs, PackName(pack, version))
	}
	return slices.ContainsFunc(s.Packs, func(p string) bool { return strings.HasPrefix(p, pack+"@") })
}

// serves reports whether this worker has the version of the pack that a job
// names. A job is never run by another version than it was validated by.
func (w *Worker) serves(job jobs.Job) bool {
	_, err := w.cfg.Packs.Get(job.Pack, job.Version)
	return err == nil
}

// passOn leaves a job to a worker that has its pack, without a claim, so that
// no attempt is charged.
func (w *Worker) passOn(ctx context.Context, d Delivery, sub jobs.Submission, rec jobs.Record, log zerolog.Logger) error {
	pauses := passOnPauses
	if sub.PassedOn > 0 {
		pauses = pauses[:passOnAgain]
	}
	if n := d.Delivered(); n <= uint64(len(pauses)) {
		return d.Nak(ctx, pauses[max(n, 1)-1])
	}
	pause := min(passOnFirst<<min(sub.PassedOn, 8), passOnMost)
	sub.PassedOn++
	sub.Encoded = nil
	if rec.Sequence > 0 {
		sub.Job = rec.Job
	}
	log.Info().Str("version", sub.Job.Version).Dur("pause", pause).Msg("no worker took a job whose pack this worker lacks; it is put off")
	if err := w.cfg.Queue.Schedule(ctx, sub, time.Now().Add(pause)); err != nil {
		return err
	}
	return d.Ack(ctx)
}
