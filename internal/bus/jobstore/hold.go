package jobstore

import (
	"context"
	"errors"
	"maps"
	"strings"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Headers of a held job, for those who are told of it without its input.
const (
	holdSlots = "hd-slots" // the keys of the slots it needs, by spaces
	holdLane  = "hd-lane"
)

// Held is a job in hold, without what it runs on.
type Held struct {
	Job    jobs.Key
	Pool   string
	Lane   jobs.Priority
	Reason string   // the limit key it was held for
	Slots  []string // keys of the slots it needs
}

// Subject is where the job lies.
func (h Held) Subject() (string, error) { return events.HoldSubject(h.Pool, h.Reason, h.Job) }

// Hold puts a job aside until its limit allows it to run; reason is the key of
// the limit, slots are the keys of all the slots it needs. A copy of the same
// state that is there already is left there.
func (s *Store) Hold(ctx context.Context, sub jobs.Submission, reason string, slots []string) error {
	k := sub.Job.Key()
	var out bus.Outgoing
	if e := sub.Encoded; e != nil {
		out = bus.Outgoing{Header: maps.Clone(e.Header), Data: e.Data}
	} else {
		var err error
		if out, err = s.submitted(sub, k); err != nil {
			return err
		}
	}
	out.Header[holdSlots] = []string{strings.Join(slots, " ")}
	out.Header[holdLane] = []string{string(sub.Job.Lane())}
	var err error
	if out.Subject, err = events.HoldSubject(sub.Job.Pool, reason, k); err != nil {
		return err
	}
	_, err = s.js.Publish(ctx, out)
	if errors.Is(err, bus.ErrSubjectTaken) {
		err = s.replaceHeld(ctx, sub, out)
	}
	if err == nil {
		failpoint.Hit(failpoint.HoldAfterPublish)
	}
	return busError(err)
}

// replaceHeld makes a copy that lies there the newest: one of an earlier run
// would be taken for superseded and dropped. The message in the queue is not
// acknowledged yet, so nothing is lost in between.
func (s *Store) replaceHeld(ctx context.Context, sub jobs.Submission, out bus.Outgoing) error {
	stream := bus.HoldStream(packs.Pool(sub.Job.Pool))
	m, err := s.js.Last(ctx, stream, out.Subject, true)
	if err == nil {
		var old jobs.Submission
		if old, err = DecodeSubmission(m); err == nil && old.Job.Runs == sub.Job.Runs {
			return nil
		}
		err = s.js.Purge(ctx, stream, out.Subject, m.Sequence+1)
	}
	if err != nil && !errors.Is(err, bus.ErrNoMessage) {
		return err
	}
	_, err = s.js.Publish(ctx, out)
	return err
}

// Requeue puts a job that lay elsewhere into its lane: Enqueue past the
// server's window of duplicates, which would swallow a job that was queued a
// moment ago.
func (s *Store) Requeue(ctx context.Context, sub jobs.Submission) error {
	k := sub.Job.Key()
	out, err := s.submitted(sub, k)
	if err != nil {
		return err
	}
	if out.Subject, err = events.JobSubject(sub.Job.Pool, sub.Job.Lane(), s.shard(sub.Job, k), k); err != nil {
		return err
	}
	_, err = s.js.Publish(ctx, out)
	return busError(err)
}

// HeldCopy reads a held job, or jobs.ErrNotFound, with the sequence it has now.
func (s *Store) HeldCopy(ctx context.Context, h Held) (jobs.Submission, uint64, error) {
	subject, err := h.Subject()
	if err != nil {
		return jobs.Submission{}, 0, err
	}
	m, err := s.js.Last(ctx, bus.HoldStream(packs.Pool(h.Pool)), subject, true)
	if err != nil {
		return jobs.Submission{}, 0, busError(err)
	}
	sub, err := DecodeSubmission(m)
	return sub, m.Sequence, err
}

// Unhold removes the copies of a held job up to a sequence.
func (s *Store) Unhold(ctx context.Context, h Held, upTo uint64) error {
	subject, err := h.Subject()
	if err != nil {
		return err
	}
	return busError(s.js.Purge(ctx, bus.HoldStream(packs.Pool(h.Pool)), subject, upTo+1))
}

// HeldJobs calls fn for every job in hold, oldest first within a pool.
func (s *Store) HeldJobs(ctx context.Context, fn func(Held)) error {
	for _, p := range packs.Pools {
		err := s.js.Scan(ctx, bus.HoldStream(p), []string{"hold." + string(p) + ".>"}, 0, func(m bus.Message) error {
			if h, ok := heldOf(m.Subject, m.Header); ok {
				fn(h)
			}
			return nil
		})
		if err != nil {
			return busError(err)
		}
	}
	return nil
}

// WatchHeld calls fn for every job that is put into hold from now on; it may
// miss some.
func WatchHeld(core bus.Core, fn func(Held)) (stop func(), err error) {
	return core.Subscribe(bus.HeldPrefix+">", func(m bus.CoreMessage) {
		subject := "hold." + strings.TrimPrefix(m.Subject, bus.HeldPrefix)
		if h, ok := heldOf(subject, m.Header); ok {
			fn(h)
		}
	})
}

func heldOf(subject string, header map[string][]string) (Held, bool) {
	s, err := events.Parse(subject)
	if err != nil || s.Family != events.FamilyHold {
		return Held{}, false
	}
	h := Held{
		Job:  jobs.Key{Tenant: s.Tenant, Owner: s.Owner, ID: s.JobID},
		Pool: s.Pool, Reason: s.Key, Lane: jobs.Normal,
	}
	if v := header[holdSlots]; len(v) > 0 {
		h.Slots = strings.Fields(v[0])
	}
	if v := header[holdLane]; len(v) > 0 {
		h.Lane = jobs.Priority(v[0])
	}
	return h, true
}
