package jobstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Last implements jobs.Ledger.
func (s *Store) Last(ctx context.Context, k jobs.Key, leader bool) (jobs.Record, error) {
	filter, err := events.EvtFilter(k, events.KindLifecycle)
	if err != nil {
		return jobs.Record{}, fmt.Errorf("%w: %w", jobs.ErrNotFound, err)
	}
	m, err := s.js.Last(ctx, bus.StreamEvents, filter, leader)
	if err != nil {
		return jobs.Record{}, busError(err)
	}
	job, err := DecodeJob(m)
	if err != nil {
		return jobs.Record{}, err
	}
	return jobs.Record{Job: job, Sequence: m.Sequence}, nil
}

// Append implements jobs.Ledger. A terminal event with artifacts goes with
// their manifest in one atomic batch.
func (s *Store) Append(ctx context.Context, m jobs.Move) (uint64, error) {
	if m.Job.State == jobs.Cancelled && m.Job.Runs == 0 && failpoint.Planted(failpoint.BugPurgeBeforeCancel) {
		if err := s.Remove(ctx, m.Job.Key(), m.Job.Pool); err != nil {
			return 0, err
		}
	}
	out, err := s.lifecycle(m)
	if err != nil {
		return 0, err
	}
	if failpoint.Planted(failpoint.BugNoFence) {
		out.Expect = nil
	}
	if m.Input != nil && m.Job.State.Terminal() {
		// Whoever draws the consequences of an end reads the input.
		if err := s.storeInput(ctx, *m.Input); err != nil {
			return 0, fmt.Errorf("%w: %w", jobs.ErrInputNotStored, busError(err))
		}
		m.Input = nil
	}
	stored := make(chan error, 1)
	if m.Input != nil {
		// Beside the first event, not before it: one round trip, and it need
		// only be there before the message leaves the queue.
		go func() { stored <- s.storeInput(ctx, *m.Input) }()
	} else {
		stored <- nil
	}
	var seq uint64
	if m.Job.State == jobs.Succeeded && len(m.Job.Artifacts) > 0 {
		seq, err = s.withManifest(ctx, m, out)
	} else {
		seq, err = s.js.Publish(ctx, out)
	}
	inputErr := <-stored
	if inputErr != nil {
		// Whatever became of the event, whose answer may be lost as well.
		inputErr = fmt.Errorf("%w: %w", jobs.ErrInputNotStored, busError(inputErr))
	}
	if err = errors.Join(busError(err), inputErr); err != nil {
		return 0, err
	}
	return seq, nil
}

func (s *Store) lifecycle(m jobs.Move) (bus.Outgoing, error) {
	typ := events.TypeOf(&m.Job)
	if typ == "" {
		return bus.Outgoing{}, fmt.Errorf("append event of job %s: state %q has no event", m.Job.ID, m.Job.State)
	}
	k := m.Job.Key() // a digest, worth making once
	m.Job = m.Job.Stamped()
	record, schema, err := jobs.EncodeJob(future(m.Job))
	if err != nil {
		return bus.Outgoing{}, err
	}
	ev, err := s.source.New(typ, events.About{
		Key: k, Attempt: m.Job.Attempt, ReplayOf: m.Job.ReplayOf, ParentID: m.Job.ParentID, TraceParent: m.TraceParent,
	}, record)
	if err != nil {
		return bus.Outgoing{}, err
	}
	subject, err := events.EvtSubject(k, events.KindLifecycle)
	if err != nil {
		return bus.Outgoing{}, err
	}
	header, data, err := events.Encode(ev)
	if err != nil {
		return bus.Outgoing{}, err
	}
	header[SchemaHeader] = []string{schema}
	return bus.Outgoing{Subject: subject, Header: header, Data: data, Expect: &m.Expected}, nil
}

func (s *Store) withManifest(ctx context.Context, m jobs.Move, terminal bus.Outgoing) (uint64, error) {
	ev, err := s.source.New(events.JobArtifact,
		events.About{Key: m.Job.Key(), Attempt: m.Job.Attempt, ParentID: m.Job.ParentID, TraceParent: m.TraceParent},
		events.Manifest{Artifacts: m.Job.Artifacts})
	if err != nil {
		return 0, err
	}
	subject, err := events.EvtSubject(m.Job.Key(), events.KindArtifacts)
	if err != nil {
		return 0, err
	}
	header, data, err := events.Encode(ev)
	if err != nil {
		return 0, err
	}
	return s.js.PublishBatch(ctx, []bus.Outgoing{{Subject: subject, Header: header, Data: data}, terminal})
}

// inputTries bounds how often the input is stored again: a claim whose input
// could not be stored counts as not made.
const inputTries = 3

func (s *Store) storeInput(ctx context.Context, sub jobs.Submission) error {
	k := sub.Job.Key()
	subject, err := events.EvtSubject(k, events.KindInput)
	if err != nil {
		return err
	}
	e := sub.Encoded
	if e == nil {
		out, err := s.submitted(sub, k)
		if err != nil {
			return err
		}
		e = &jobs.Encoded{Header: out.Header, Data: out.Data}
	}
	none := uint64(0)
	for range inputTries {
		_, err = s.js.Publish(ctx, bus.Outgoing{Subject: subject, Header: e.Header, Data: e.Data, Expect: &none})
		if err == nil || errors.Is(err, bus.ErrWrongSequence) { // there already
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return err
}

// KeepInput implements jobs.Ledger.
func (s *Store) KeepInput(ctx context.Context, sub jobs.Submission) error {
	if err := s.storeInput(ctx, sub); err != nil {
		return fmt.Errorf("keep input of job %s: %w", sub.Job.ID, busError(err))
	}
	return nil
}

// Input implements jobs.Ledger.
func (s *Store) Input(ctx context.Context, k jobs.Key) (jobs.Submission, error) {
	filter, err := events.EvtFilter(k, events.KindInput)
	if err != nil {
		return jobs.Submission{}, fmt.Errorf("%w: %w", jobs.ErrNotFound, err)
	}
	m, err := s.js.Last(ctx, bus.StreamEvents, filter, false)
	if errors.Is(err, bus.ErrNoMessage) { // a replica may lag
		m, err = s.js.Last(ctx, bus.StreamEvents, filter, true)
	}
	if err != nil {
		return jobs.Submission{}, busError(err)
	}
	return DecodeSubmission(m)
}

// SchemaHeader is beside every record of a job on the bus; see package records.
const SchemaHeader = "helmdeck-schema"

func schemaOf(m bus.Message) string {
	if v := m.Header[SchemaHeader]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// DecodeJob reads the record in a lifecycle event. records.ErrNewer.
func DecodeJob(m bus.Message) (jobs.Job, error) {
	job, err := jobs.DecodeJob(m.Data, schemaOf(m))
	if err != nil {
		return job, fmt.Errorf("event %d of %s: %w", m.Sequence, m.Stream, err)
	}
	return job, nil
}

// DecodeSubmission reads a queued, scheduled or stored job.
func DecodeSubmission(m bus.Message) (jobs.Submission, error) {
	sub, err := jobs.DecodeSubmission(m.Data, schemaOf(m))
	if err != nil {
		return sub, fmt.Errorf("message %d of %s: %w", m.Sequence, m.Stream, err)
	}
	if sub.Job.ID == "" || sub.Job.Pack == "" {
		return sub, fmt.Errorf("decode submission %d of %s: no job in it", m.Sequence, m.Stream)
	}
	sub.Encoded = &jobs.Encoded{Header: m.Header, Data: m.Data}
	return sub, nil
}
