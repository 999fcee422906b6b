package jobstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// PackHeader names the pack of a queued job, so that a listing can show it
// without reading the message.
const PackHeader = "ce-pack"

// VersionHeader is that of the pack's version.
const VersionHeader = "helmdeck-pack-version"

// BytesHeader is the size of a queued job's input, for those who count what
// waits.
const BytesHeader = "ce-inputbytes"

// Enqueue implements jobs.Queue.
func (s *Store) Enqueue(ctx context.Context, sub jobs.Submission) error {
	k := sub.Job.Key() // a digest, worth making once
	out, err := s.submitted(sub, k)
	if err != nil {
		return err
	}
	if out.Subject, err = events.JobSubject(sub.Job.Pool, sub.Job.Lane(), s.shard(sub.Job, k), k); err != nil {
		return err
	}
	if sub.PassedOn == 0 && sub.Job.Runs == 0 && sub.Job.Lost == 0 && sub.Job.State != jobs.Retrying {
		// Only the submit itself: a copy that comes back within the server's
		// window of duplicates must not be swallowed.
		out.MsgID = sub.Job.ID
	}
	if failpoint.Planted(failpoint.BugAcceptBeforeAck) {
		go func() {
			<-time.After(20 * time.Millisecond) // the planted bug answers first
			_, _ = s.js.Publish(context.WithoutCancel(ctx), out)
		}()
		return nil
	}
	_, err = s.js.Publish(ctx, out)
	if err == nil {
		failpoint.Hit(failpoint.SubmitAfterPublish)
		if sub.Job.ScheduleID != "" {
			failpoint.Hit(failpoint.ScheduleAfterSubmit)
		}
	}
	return busError(err)
}

func (s *Store) submitted(sub jobs.Submission, k jobs.Key) (bus.Outgoing, error) {
	sub.Job = future(sub.Job)
	body, schema, err := jobs.EncodeSubmission(sub)
	if err != nil {
		return bus.Outgoing{}, err
	}
	ev, err := s.source.New(events.JobSubmitted, events.About{
		Key: k, Attempt: sub.Job.Attempt, ReplayOf: sub.Job.ReplayOf, ParentID: sub.Job.ParentID, TraceParent: sub.TraceParent,
	}, body)
	if err != nil {
		return bus.Outgoing{}, err
	}
	header, data, err := events.Encode(ev)
	if err != nil {
		return bus.Outgoing{}, err
	}
	header[PackHeader] = []string{sub.Job.Pack}
	header[VersionHeader] = []string{sub.Job.Version}
	header[BytesHeader] = []string{strconv.FormatInt(sub.Job.InputBytes, 10)}
	header[SchemaHeader] = []string{schema}
	return bus.Outgoing{Header: header, Data: data}, nil
}

func (s *Store) shard(j jobs.Job, k jobs.Key) int {
	if j.Depth() > 0 {
		return 0 // see bus.PoolLanes
	}
	return bus.ShardOf(k.Tenant, s.shards)
}

// Schedule implements jobs.Queue: a message schedule of the server, which
// fires to sched.due.… and is moved into the queue from there.
func (s *Store) Schedule(ctx context.Context, sub jobs.Submission, at time.Time) error {
	k := sub.Job.Key()
	out, err := s.submitted(sub, k)
	if err != nil {
		return err
	}
	if out.Subject, err = events.SchedAtSubject(sub.Job.ID); err != nil {
		return err
	}
	if out.Target, err = events.SchedDueSubject(sub.Job.Pool, sub.Job.Lane(), s.shard(sub.Job, k), k); err != nil {
		return err
	}
	out.At = at
	_, err = s.js.Publish(ctx, out)
	return busError(err)
}

// Find implements jobs.Queue. The pool is not known, so all are asked at once.
func (s *Store) Find(ctx context.Context, k jobs.Key, leader bool) (jobs.Submission, jobs.Place, error) {
	filters, err := findFilters(k)
	if err != nil {
		return jobs.Submission{}, "", fmt.Errorf("%w: %w", jobs.ErrNotFound, err)
	}
	type found struct {
		sub jobs.Submission
		err error
	}
	results := make([]found, len(filters))
	var wg sync.WaitGroup
	for i, f := range filters {
		wg.Go(func() {
			m, err := s.js.Last(ctx, f.stream, f.filter, leader)
			if err == nil {
				results[i].sub, err = DecodeSubmission(m)
			}
			results[i].err = busError(err)
		})
	}
	wg.Wait()
	var failed error
	for i, r := range results {
		switch {
		case r.err == nil && owns(k, r.sub.Job):
			return r.sub, filters[i].place, nil
		case r.err != nil && !errors.Is(r.err, jobs.ErrNotFound):
			failed = r.err
		}
	}
	if failed != nil {
		return jobs.Submission{}, "", failed
	}
	return jobs.Submission{}, "", jobs.ErrNotFound
}

// owns guards the schedule subject, which holds no owner.
func owns(k jobs.Key, j jobs.Job) bool {
	have := j.Key()
	return (k.Tenant == "" || k.Tenant == have.Tenant) && (k.Owner == "" || k.Owner == have.Owner)
}

type findFilter struct {
	stream, filter string
	place          jobs.Place
}

func findFilters(k jobs.Key) ([]findFilter, error) {
	var out []findFilter
	for _, p := range packs.Pools {
		job, err := events.JobFilter(string(p), "", events.AnyShard, k)
		if err != nil {
			return nil, err
		}
		hold, err := events.HoldFilter(string(p), "", k)
		if err != nil {
			return nil, err
		}
		out = append(out,
			findFilter{bus.JobsStream(p), job, jobs.InQueue},
			findFilter{bus.HoldStream(p), hold, jobs.InHold})
	}
	at, err := events.SchedAtSubject(k.ID)
	if err != nil {
		return nil, err
	}
	due, err := events.SchedDueFilter("", "", events.AnyShard, k)
	if err != nil {
		return nil, err
	}
	return append(out,
		findFilter{bus.StreamSchedule, at, jobs.InSchedule},
		findFilter{bus.StreamSchedule, due, jobs.InSchedule}), nil
}

// Remove implements jobs.Queue.
func (s *Store) Remove(ctx context.Context, k jobs.Key, pool string) error {
	failpoint.Hit(failpoint.CancelAfterEvent)
	filters, err := findFilters(k)
	if err != nil {
		return err
	}
	for _, f := range filters {
		own := f.stream == bus.JobsStream(packs.Pool(pool)) || f.stream == bus.HoldStream(packs.Pool(pool))
		if !own && f.stream != bus.StreamSchedule {
			continue
		}
		if err := s.js.Purge(ctx, f.stream, f.filter, 0); err != nil {
			return busError(fmt.Errorf("remove job %s: %w", k.ID, err))
		}
	}
	failpoint.Hit(failpoint.CancelAfterRemove)
	return nil
}

// Waiting calls fn for every job that waits in a queue, in hold or in the
// schedule.
func (s *Store) Waiting(ctx context.Context, fn func(jobs.Submission, jobs.Place) error) error {
	scan := func(stream, filter string, place jobs.Place) error {
		err := s.js.Scan(ctx, stream, []string{filter}, 0, func(m bus.Message) error {
			sub, err := DecodeSubmission(m)
			if err != nil {
				return nil //nolint:nilerr // no job: the worker that meets it takes it out
			}
			return fn(sub, place)
		})
		return busError(err)
	}
	for _, p := range packs.Pools {
		if err := scan(bus.JobsStream(p), "job."+string(p)+".>", jobs.InQueue); err != nil {
			return err
		}
		if err := scan(bus.HoldStream(p), "hold."+string(p)+".>", jobs.InHold); err != nil {
			return err
		}
	}
	if err := scan(bus.StreamSchedule, "sched.at.*", jobs.InSchedule); err != nil {
		return err
	}
	return scan(bus.StreamSchedule, "sched.due.>", jobs.InSchedule)
}

// InUse reports whether anything of a job is still kept: its events, its
// place in a queue or its dead letter.
func (s *Store) InUse(ctx context.Context, jobID string) (bool, error) {
	k := jobs.Key{ID: jobID}
	looks := []func() error{
		func() error {
			rec, err := s.Last(ctx, k, true)
			if err == nil && rec.Job.Expired {
				return jobs.ErrExpired
			}
			return err
		},
		func() error { _, _, err := s.Find(ctx, k, true); return err },
		func() error { _, err := s.Get(ctx, k); return err },
	}
	for _, look := range looks {
		if err := look(); !errors.Is(err, jobs.ErrNotFound) {
			return err == nil, err
		}
	}
	return false, nil
}

// Lanes implements worker.Source.
func (s *Store) Lanes(pool string) []worker.Lane {
	var out []worker.Lane
	for _, l := range bus.PoolLanes(s.shards) {
		out = append(out, worker.Lane{Pool: pool, Priority: l.Priority, Shard: l.Shard, Depth: jobs.LaneDepth(l.Priority)})
	}
	return out
}

// Pull implements worker.Source.
func (s *Store) Pull(ctx context.Context, l worker.Lane, n int, wait time.Duration) ([]worker.Delivery, error) {
	ds, err := s.js.Pull(ctx, bus.JobsStream(packs.Pool(l.Pool)), bus.LaneConsumer(l.Priority, l.Shard), n, wait)
	out := make([]worker.Delivery, len(ds))
	for i, d := range ds {
		out[i] = delivery{d}
	}
	return out, busError(err)
}

type delivery struct{ bus.Delivery }

func (d delivery) Submission() (jobs.Submission, error) { return DecodeSubmission(d.Message()) }

// Reserve implements jobs.Keys.
func (s *Store) Reserve(ctx context.Context, hash string, r jobs.Reservation) (jobs.Reservation, bool, error) {
	failpoint.Hit(failpoint.SubmitBeforeKey)
	kv, err := s.js.KV(ctx, bus.BucketIdem)
	if err != nil {
		return r, false, busError(err)
	}
	value, err := json.Marshal(r)
	if err != nil {
		return r, false, err
	}
	_, err = kv.Create(ctx, hash, value, 0)
	if err == nil {
		failpoint.Hit(failpoint.SubmitAfterKey)
		return r, true, nil
	}
	if !errors.Is(err, bus.ErrExists) {
		return r, false, busError(err)
	}
	e, err := kv.Get(ctx, hash)
	if err != nil {
		return r, false, busError(err)
	}
	var held jobs.Reservation
	if err := json.Unmarshal(e.Value, &held); err != nil {
		return r, false, fmt.Errorf("decode idempotency key: %w", err)
	}
	return held, false, nil
}

// Renew implements jobs.Keys.
func (s *Store) Renew(ctx context.Context, hash string, held, r jobs.Reservation) error {
	kv, err := s.js.KV(ctx, bus.BucketIdem)
	if err != nil {
		return busError(err)
	}
	e, err := kv.Get(ctx, hash)
	if errors.Is(err, bus.ErrNoMessage) {
		return fmt.Errorf("renew idempotency key: %w", jobs.ErrConflict)
	}
	if err != nil {
		return busError(err)
	}
	var now jobs.Reservation
	if err := json.Unmarshal(e.Value, &now); err != nil {
		return fmt.Errorf("decode idempotency key: %w", err)
	}
	if now.JobID != held.JobID {
		return fmt.Errorf("renew idempotency key: %w", jobs.ErrConflict)
	}
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = kv.Update(ctx, hash, value, e.Revision)
	return busError(err)
}
