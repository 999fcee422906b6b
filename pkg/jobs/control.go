package jobs

import (
	"context"
	"encoding/json"
	"errors"

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
	for range casTries {
		job, err := s.cancelOnce(ctx, c, id)
		if !errors.Is(err, ErrConflict) {
			return job, asError(err)
		}
	}
	return Job{}, packs.Errorf(packs.SchemaMismatch, "the job keeps changing; read it and cancel again")
}

func (s *Service) cancelOnce(ctx context.Context, c identity.Caller, id string) (Job, error) {
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
	job, err := s.find(ctx, c, id)
	if err != nil {
		return Job{}, asError(err)
	}
	if !job.State.Terminal() {
		return Job{}, packs.Errorf(packs.SchemaMismatch,
			"the job is still %s; wait until it ends, or cancel it first", job.State)
	}
	sub, err := s.inputOf(ctx, job)
	if err != nil {
		return Job{}, err
	}
	return s.replay(ctx, sub, edited)
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

func (s *Service) replay(ctx context.Context, old Submission, edited json.RawMessage) (Job, error) {
	input := edited
	if len(input) == 0 {
		if len(old.Input) == 0 && old.InputKey == "" {
			return Job{}, inputGone()
		}
		var err error
		if input, err = LoadInput(ctx, s.cfg.Stash, old); err != nil {
			return Job{}, packs.Fail(packs.ArtifactFailed, err, "the stored input of the job cannot be read; pass it again")
		}
	}
	o := old.Job
	sub, err := s.prepare(o.Caller, Request{
		Pack: o.Pack, Version: o.Version, Input: input, Priority: o.Priority, TimeoutS: o.TimeoutS,
		MaxAttempts: o.MaxAttempts, Labels: o.Labels, ParentID: o.ParentID, TraceParent: old.TraceParent,
		ResultTTLS:     o.ResultTTLS,
		ConcurrencyKey: o.ConcurrencyKey, ConcurrencyLimit: o.ConcurrencyLimit,
	})
	if err != nil {
		return Job{}, err
	}
	sub.Job.ReplayOf = o.ID
	sub.Job.Webhook, sub.WebhookSecret = o.Webhook, old.WebhookSecret
	// What the record says of attempts may be the pack's default.
	sub.Job.RetryTimeouts = o.RetryTimeouts
	return s.enqueue(ctx, sub)
}

// DeadLetters lists the caller's dead letters newest first; an administrator
// sees all.
func (s *Service) DeadLetters(ctx context.Context, c identity.Caller, q DeadQuery) ([]DeadLetter, string, error) {
	if !c.Admin() {
		q.Tenant, q.Owner = c.TenantToken(), c.Owner()
	}
	page, next, err := s.cfg.Dead.List(ctx, q)
	if err != nil {
		return nil, "", asError(err)
	}
	return page, next, nil
}

// DeadLetter returns one dead letter with its input.
func (s *Service) DeadLetter(ctx context.Context, c identity.Caller, id string) (DeadLetter, error) {
	if !validID(id) {
		return DeadLetter{}, asError(ErrNotFound)
	}
	d, err := s.cfg.Dead.Get(ctx, keyOf(c, id))
	if err != nil {
		return DeadLetter{}, asError(err)
	}
	if d.Submission.Input, err = LoadInput(ctx, s.cfg.Stash, d.Submission); err != nil {
		return DeadLetter{}, packs.Fail(packs.ArtifactFailed, err, "the stored input of the job cannot be read; try again")
	}
	return d, nil
}

// Replay submits a new job from a dead letter; see Retry.
func (s *Service) Replay(ctx context.Context, c identity.Caller, id string, edited json.RawMessage) (Job, error) {
	if !validID(id) {
		return Job{}, asError(ErrNotFound)
	}
	d, err := s.cfg.Dead.Get(ctx, keyOf(c, id))
	if err != nil {
		return Job{}, asError(err)
	}
	return s.replay(ctx, d.Submission, edited)
}
