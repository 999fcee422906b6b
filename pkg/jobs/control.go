package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// casTries bounds how often a change is tried again when the lifecycle moved
// meanwhile: a job makes few moves, so a handful is plenty.
const casTries = 8

// Cancel stops a job. A queued one is cancelled when Cancel returns; of a
// running one the cancel is requested, and the worker ends it within its
// grace. A job that has ended is returned as it is.
func (s *Service) Cancel(ctx context.Context, c identity.Caller, id string) (Job, error) {
	job, err := s.cancel(ctx, c, id, nil)
	return job, asError(err)
}

// cancel is Cancel for a job that is in one of states, none meaning any;
// errMoved when it is in another.
func (s *Service) cancel(ctx context.Context, c identity.Caller, id string, states []State) (Job, error) {
	for range casTries {
		job, err := s.cancelOnce(ctx, c, id, states)
		if !errors.Is(err, ErrConflict) {
			return job, err
		}
	}
	return Job{}, packs.Errorf(packs.SchemaMismatch, "the job keeps changing; read it and cancel again")
}

func (s *Service) cancelOnce(ctx context.Context, c identity.Caller, id string, states []State) (Job, error) {
	job, err := s.find(ctx, c, id)
	if err != nil {
		return Job{}, err
	}
	rec, err := s.last(ctx, job.Key(), true)
	if errors.Is(err, ErrNotFound) && !errors.Is(err, ErrExpired) {
		rec, err = Record{Job: job}, nil // nobody has claimed it yet
	}
	if err != nil {
		return Job{}, err
	}
	job = rec.Job
	if len(states) > 0 && !slices.Contains(states, job.State) {
		return job, errMoved
	}
	if job.State.Terminal() {
		// A cancel that died before the removal leaves the message behind.
		return job, s.cfg.Queue.Remove(ctx, job.Key(), job.Pool)
	}
	if job.State == Running {
		return s.requestCancel(ctx, rec)
	}
	if err := CheckMove(job.State, Cancelled); err != nil {
		return Job{}, packs.Fail(packs.SchemaMismatch, err, err.Error())
	}
	job.State, job.FinishedAt = Cancelled, s.cfg.Now().UTC()
	job.Error = &Failure{Code: packs.Cancelled, Message: "cancelled before it ran"}
	if err := s.keepInput(ctx, job); err != nil {
		return Job{}, err
	}
	if _, err := s.cfg.Ledger.Append(ctx, Move{Job: job, Expected: rec.Sequence}); err != nil {
		return Job{}, err
	}
	return job, s.cfg.Queue.Remove(ctx, job.Key(), job.Pool)
}

// keepInput stores the input of a job that no worker has claimed, which lies
// in its message alone. It is done before the job is cancelled: from then on
// any worker that meets the message removes it, and Retry needs the input.
func (s *Service) keepInput(ctx context.Context, job Job) error {
	if job.Runs > 0 {
		return nil // its first claim stored it
	}
	sub, _, err := s.cfg.Queue.Find(ctx, job.Key(), true)
	if errors.Is(err, ErrNotFound) {
		return nil // claimed this moment, which the write of the event shows
	}
	if err != nil {
		return err
	}
	return s.cfg.Ledger.KeepInput(ctx, sub)
}

func (s *Service) requestCancel(ctx context.Context, rec Record) (Job, error) {
	job := rec.Job
	if !job.CancelRequested {
		job.CancelRequested = true
		if _, err := s.cfg.Ledger.Append(ctx, Move{Job: job, Expected: rec.Sequence}); err != nil {
			return Job{}, err
		}
	}
	s.cfg.Feed.Cancel(ctx, job.Worker, job.Key())
	return job, nil
}

// Retry submits a new job with the input of an ended one, or with edited
// input when it is not empty; the new job's ReplayOf names the old one.
func (s *Service) Retry(ctx context.Context, c identity.Caller, id string, edited json.RawMessage) (Job, error) {
	return s.retry(ctx, c, id, replayPlan{input: edited}, nil)
}

// retry is Retry for a job that is in one of states, none meaning any that
// has ended; errMoved when it is in another.
func (s *Service) retry(ctx context.Context, c identity.Caller, id string, p replayPlan, states []State) (Job, error) {
	job, err := s.find(ctx, c, id)
	if err != nil {
		return Job{}, asError(err)
	}
	if len(states) > 0 && !slices.Contains(states, job.State) {
		return job, errMoved
	}
	if !job.State.Terminal() {
		return Job{}, packs.Errorf(packs.SchemaMismatch,
			"the job is still %s; wait until it ends, or cancel it first", job.State)
	}
	sub, err := s.inputOf(ctx, job)
	if err != nil {
		return Job{}, err
	}
	again, err := s.replay(ctx, sub, p)
	if err == nil && job.State == Failed {
		s.noteReplay(ctx, job, again)
	}
	return again, err
}

// inputOf finds what an ended job ran on: stored with its first claim, or in
// its dead letter.
func (s *Service) inputOf(ctx context.Context, job Job) (Submission, error) {
	sub, err := s.cfg.Ledger.Input(ctx, job.Key())
	if errors.Is(err, ErrNotFound) {
		var dead DeadLetter
		dead, err = s.cfg.Dead.Get(ctx, job.Key())
		sub = dead.Submission
	}
	if errors.Is(err, ErrNotFound) {
		return Submission{}, inputGone()
	}
	if err != nil {
		return Submission{}, asError(err)
	}
	return sub, nil
}

func inputGone() error {
	return packs.Errorf(packs.NotFound, "the input of this job is no longer kept; submit it anew with POST /api/v1/jobs")
}
