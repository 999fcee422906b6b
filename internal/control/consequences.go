package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/bus/schedulestore"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/records"
)

// Consequences does what follows from the events of a job: deliveries to
// webhooks, a dead letter for a failed one, visible artifacts for a succeeded
// one, word to the schedule that made it. It reads the lifecycle
// through one durable consumer and acknowledges an event only after its
// consequences are stored, so none is lost with the process that finished the
// job.
type Consequences struct {
	JS        bus.JetStream
	Store     *jobstore.Store
	Artifacts *artifacts.Store
	// Hooks sees every event; nil: there are no webhooks.
	Hooks Hooks
	// Limits frees what a run held; may be nil.
	Limits Limits
	// Ends is told of jobs that ended, after all else is done; may be nil.
	Ends Ends
	Log  zerolog.Logger
}

// Ends keeps the ends of jobs on record. stored is called, soon and quickly,
// once the record is safe, or with the reason why it is not; then the end is
// told again. repeated says that it may have been told before.
type Ends interface {
	Ended(job jobs.Job, sequence uint64, repeated bool, stored func(error))
}

// Limits is told of runs that are over. It may be told twice.
type Limits interface {
	Ended(ctx context.Context, job jobs.Job) error
}

// Run works until ctx ends.
func (c *Consequences) Run(ctx context.Context) error {
	return consume(ctx, c.JS, bus.StreamEvents, bus.ConsumerConsequences, c.Log, c.handle)
}

func (c *Consequences) handle(ctx context.Context, d bus.Delivery) error {
	m := d.Message()
	if err := c.follow(ctx, m); err != nil {
		return err
	}
	if v := m.Header["ce-type"]; c.Ends != nil && len(v) > 0 && events.Terminal(v[0]) {
		if done, err := c.end(ctx, d, m); done || err != nil {
			return err
		}
	}
	// All of it may happen twice, so nobody need wait for the confirmation.
	return d.AckLater(ctx)
}

// end has the end of a job recorded and acknowledges the event afterwards. It
// does not wait: many ends are stored together. done is false for an event
// that is none.
func (c *Consequences) end(ctx context.Context, d bus.Delivery, m bus.Message) (done bool, err error) {
	job, err := jobstore.DecodeJob(m)
	if errors.Is(err, records.ErrNewer) {
		return false, err // for a newer replica
	}
	if err != nil || job.Expired {
		return false, nil //nolint:nilerr // told of already; it would come for ever
	}
	c.Ends.Ended(job, m.Sequence, d.Delivered() > 1, func(err error) {
		if err == nil {
			failpoint.Hit(failpoint.AuditBeforeAck)
			err = d.AckLater(ctx)
		}
		if err != nil && ctx.Err() == nil {
			c.Log.Warn().Err(err).Str("job", job.ID).Msg("end of a job not recorded, it is told again")
			_ = d.Nak(ctx, retryIn) // lost: it comes again after the acknowledgement wait
		}
	})
	return true, nil
}

func (c *Consequences) follow(ctx context.Context, m bus.Message) error {
	// A webhook that cannot be served now keeps nothing else from happening,
	// except that the event goes away.
	var hooks error
	if c.Hooks != nil {
		hooks = c.Hooks.Follow(ctx, m)
	}
	return errors.Join(hooks, c.settle(ctx, m, hooks == nil))
}

// settle does what follows within the system; the job may expire if told is
// set.
func (c *Consequences) settle(ctx context.Context, m bus.Message, told bool) error {
	typ := ""
	if v := m.Header["ce-type"]; len(v) > 0 {
		typ = v[0]
	}
	if err := c.free(ctx, typ, m); err != nil {
		return err
	}
	if !events.Terminal(typ) {
		return nil
	}
	scheduled := bytes.Contains(m.Data, scheduleKey)
	if typ != events.JobFailed && !scheduled && !bytes.Contains(m.Data, artifactsKey) && !bytes.Contains(m.Data, expiryKey) {
		return nil // the common case, worth not decoding
	}
	job, err := jobstore.DecodeJob(m)
	if errors.Is(err, records.ErrNewer) {
		return err // for a newer replica
	}
	if err != nil {
		c.Log.Error().Err(err).Uint64("sequence", m.Sequence).Msg("lifecycle event not understood, passed over")
		return nil // it would come for ever
	}
	if job.ScheduleID != "" {
		if err := schedulestore.Tell(ctx, c.JS, job, m); err != nil {
			return err
		}
	}
	if job.ExpiresAt.IsZero() {
		return c.keep(ctx, job, m)
	}
	// What a job left that is gone already must not come back.
	if job.ExpiresAt.After(time.Now()) {
		if err := c.keep(ctx, job, m); err != nil {
			return err
		}
	}
	if !told {
		return nil
	}
	// Last, so that nothing of the above meets the removal.
	return c.Store.NoteExpiry(ctx, job)
}

// keep stores what stays of a job beside its events.
func (c *Consequences) keep(ctx context.Context, job jobs.Job, m bus.Message) error {
	if len(job.Artifacts) > 0 {
		if err := c.Artifacts.Publish(ctx, owned(job)...); err != nil {
			return err
		}
	}
	if job.State != jobs.Failed {
		return nil
	}
	return c.bury(ctx, job, m)
}

// expiryKey is in every record that goes away.
var expiryKey = []byte(`"result_ttl_s":`)

// limitKeys is in every record of a run that held slots.
var limitKeys = []byte(`"limit_keys":[`)

// free gives back the slots of a run that is over.
func (c *Consequences) free(ctx context.Context, typ string, m bus.Message) error {
	over := events.Terminal(typ) || typ == events.JobRetrying
	// A job may be cancelled when it is about to run.
	if c.Limits == nil || !over || typ != events.JobCancelled && !bytes.Contains(m.Data, limitKeys) {
		return nil
	}
	job, err := jobstore.DecodeJob(m)
	if errors.Is(err, records.ErrNewer) {
		return err // for a newer replica
	}
	if err != nil {
		return nil //nolint:nilerr // told of below
	}
	return c.Limits.Ended(ctx, job)
}

// artifactsKey is in every record that has artifacts.
var artifactsKey = []byte(`"artifacts":[`)

// scheduleKey is in every record of a job that a schedule made.
var scheduleKey = []byte(`"schedule_id":"`)

// owned gives refs that came from JSON their owner back.
func owned(job jobs.Job) []artifacts.Ref {
	k := job.Key()
	refs := make([]artifacts.Ref, len(job.Artifacts))
	for i, r := range job.Artifacts {
		r.Tenant, r.Owner = k.Tenant, k.Owner
		refs[i] = r
	}
	return refs
}

func (c *Consequences) bury(ctx context.Context, job jobs.Job, m bus.Message) error {
	sub, err := c.Store.Input(ctx, job.Key())
	if errors.Is(err, jobs.ErrNotFound) {
		sub, err = jobs.Submission{}, nil
	}
	if err != nil {
		return err
	}
	sub.Job = job
	err = c.Store.Bury(ctx, jobs.DeadLetter{Submission: sub, Poison: job.Poison, DeadAt: m.Time.UTC()})
	if errors.Is(err, jobs.ErrConflict) {
		// Buried before, or another replica is about to: look.
		if _, err = c.Store.Get(ctx, job.Key()); err != nil {
			return fmt.Errorf("dead letter of job %s: %w", job.ID, err)
		}
		return nil
	}
	if err == nil {
		failpoint.Hit(failpoint.ConsequenceAfterDead)
		c.Log.Info().Str("job", job.ID).Str("pack", job.Pack).Bool("poison", job.Poison).Msg("dead letter stored")
	}
	return err
}
