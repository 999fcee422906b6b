package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// DeadQuery selects dead letters, newest first. Zero fields select all.
type DeadQuery struct {
	Tenant, Owner string // tokens; both empty: everybody's (administrators)
	Pool, Pack    string
	Code          packs.Code // of the error the job ended with
	// Poison and Replayed select those that were quarantined or replayed, or
	// those that were not; nil: both.
	Poison, Replayed *bool
	LabelKey         string
	LabelValue       string
	Since, Until     time.Time // from and before, by the time of death
	Limit            int       // 1 to MaxBatch; 0: 50
	Cursor           string
}

// Matches reports whether q selects d, whoever it belongs to.
func (q DeadQuery) Matches(d DeadLetter) bool {
	j := d.Submission.Job
	value, labelled := j.Labels[q.LabelKey]
	switch {
	case q.Pool != "" && q.Pool != j.Pool,
		q.Pack != "" && q.Pack != j.Pack,
		q.Code != "" && (j.Error == nil || q.Code != j.Error.Code),
		q.Poison != nil && *q.Poison != d.Poison,
		q.Replayed != nil && *q.Replayed != (len(d.ReplayedAs) > 0),
		q.LabelKey != "" && !labelled,
		q.LabelValue != "" && q.LabelValue != value,
		!q.Since.IsZero() && d.DeadAt.Before(q.Since),
		!q.Until.IsZero() && !d.DeadAt.Before(q.Until):
		return false
	}
	return true
}

// DeadLetters lists the caller's dead letters newest first, without their
// inputs; an administrator sees all.
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
	d, err := s.dead(ctx, c, id)
	if err != nil {
		return DeadLetter{}, err
	}
	if d.Submission.Input, err = LoadInput(ctx, s.cfg.Stash, d.Submission); err != nil {
		return DeadLetter{}, packs.Fail(packs.ArtifactFailed, err, "the stored input of the job cannot be read; try again")
	}
	return d, nil
}

func (s *Service) dead(ctx context.Context, c identity.Caller, id string) (DeadLetter, error) {
	if !validID(id) {
		return DeadLetter{}, asError(ErrNotFound)
	}
	d, err := s.cfg.Dead.Get(ctx, keyOf(c, id))
	if err != nil {
		return DeadLetter{}, asError(err)
	}
	return d, nil
}

// DropDead forgets a dead letter: it can no longer be seen or replayed. The
// record of its job stays for as long as its events do.
func (s *Service) DropDead(ctx context.Context, c identity.Caller, id string) error {
	d, err := s.dead(ctx, c, id)
	if err != nil {
		return err
	}
	job := d.Submission.Job
	return asError(s.cfg.Dead.Drop(ctx, job.Key(), job.Pool))
}

// DropManyDead forgets the dead letters of ids, at most MaxBatch, each on its
// own: one error for each, nil for those that are gone.
func (s *Service) DropManyDead(ctx context.Context, c identity.Caller, ids []string) []error {
	out := make([]error, len(ids))
	together(len(ids), func(i int) { out[i] = s.DropDead(ctx, c, ids[i]) })
	return out
}

// Replay submits a new job from a dead letter; see Retry.
func (s *Service) Replay(ctx context.Context, c identity.Caller, id string, edited json.RawMessage) (Job, error) {
	return s.replayDead(ctx, c, id, replayPlan{input: edited})
}

// MinRate and MaxRate bound ReplayMany: MaxBatch jobs spread over a bit more
// than a day, or more than any queue takes.
const MinRate, MaxRate = 0.01, 1000.0

// Replays says how ReplayMany goes about it.
type Replays struct {
	IDs []string // of the dead letters, at most MaxBatch
	// Input replaces the input of the one letter there is; empty keeps it.
	Input json.RawMessage
	// Rate is how many of the new jobs run a second, MinRate to MaxRate; 0: all
	// at once. They are scheduled at once, so nobody need live through it.
	Rate float64
	// StartAt is when the first one runs; zero, or past: now.
	StartAt time.Time
	// Key makes the call safe to repeat: each letter is replayed once for it.
	Key string
}

// RunAt is when the job of letter i runs, as of now; not after now: at once.
func (r Replays) RunAt(now time.Time, i int) time.Time {
	at := now
	if r.StartAt.After(now) {
		at = r.StartAt
	}
	if r.Rate > 0 {
		at = at.Add(time.Duration(float64(i) / r.Rate * float64(time.Second)))
	}
	return at.UTC()
}

// ReplayMany submits a new job from each of several dead letters, each on its
// own, and returns one result for each in the same order.
func (s *Service) ReplayMany(ctx context.Context, c identity.Caller, r Replays) []Result {
	now := s.cfg.Now()
	out := make([]Result, len(r.IDs))
	together(len(r.IDs), func(i int) {
		p := replayPlan{input: r.Input, at: r.RunAt(now, i)}
		if r.Key != "" {
			p.key = derived("replay", c.Tenant, c.Subject, r.Key, r.IDs[i])
		}
		out[i].Job, out[i].Err = s.replayDead(ctx, c, r.IDs[i], p)
	})
	return out
}

func (s *Service) replayDead(ctx context.Context, c identity.Caller, id string, p replayPlan) (Job, error) {
	d, err := s.dead(ctx, c, id)
	if err != nil {
		return Job{}, err
	}
	job, err := s.replay(ctx, d.Submission, p)
	if err == nil {
		s.noteReplay(ctx, d.Submission.Job, job)
	}
	return job, err
}

// noteTries bounds how often a replay is noted again.
const noteTries = 3

// noteReplay notes at the dead letter of old that it was replayed as job. The
// job is accepted whether or not this can be stored, and names the old one
// itself, so an error ends here.
func (s *Service) noteReplay(ctx context.Context, old, job Job) {
	for range noteTries {
		err := s.cfg.Dead.Replayed(ctx, old.Key(), old.Pool, ReplayedAs{JobID: job.ID, At: job.CreatedAt})
		if err == nil || ctx.Err() != nil {
			return
		}
	}
}

// replayPlan is how an ended job runs again.
type replayPlan struct {
	input json.RawMessage // instead of the old one, unless empty
	at    time.Time       // not before it
	key   string          // of the one replay that this is; empty: of none
}

// replay submits a job that runs on what an ended one ran on.
func (s *Service) replay(ctx context.Context, old Submission, p replayPlan) (Job, error) {
	input := p.input
	if len(input) == 0 {
		if len(old.Input) == 0 && old.InputKey == "" {
			return Job{}, inputGone()
		}
		var err error
		if input, err = LoadInput(ctx, s.cfg.Stash, old); err != nil {
			if errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
				return Job{}, asError(err)
			}
			return Job{}, packs.Fail(packs.ArtifactFailed, err, "the stored input of the job cannot be read; pass it again")
		}
	}
	o := old.Job
	r := Request{
		Pack: o.Pack, Version: o.Version, Input: input, Priority: o.Priority, TimeoutS: o.TimeoutS,
		MaxAttempts: o.MaxAttempts, Labels: o.Labels, ParentID: o.ParentID, TraceParent: old.TraceParent,
		ResultTTLS: o.ResultTTLS, ConcurrencyKey: o.ConcurrencyKey, ConcurrencyLimit: o.ConcurrencyLimit,
	}
	// Repeated, the call would name other times and be the same call.
	call := inputHash(r)
	r.RunAt = p.at
	sub, err := s.prepare(o.Caller, r)
	if err != nil {
		return Job{}, err
	}
	sub.Job.ReplayOf = o.ID
	sub.Job.Webhook, sub.WebhookSecret = o.Webhook, old.WebhookSecret
	// What the record says of attempts may be the pack's default.
	sub.Job.RetryTimeouts = o.RetryTimeouts
	if p.key == "" {
		return s.enqueue(ctx, sub)
	}
	job, err := s.submitOnce(ctx, s.keyHash(o.Caller, p.key), call, sub, false)
	if errors.Is(err, ErrExpired) {
		return Job{}, packs.Errorf(packs.NotFound,
			"this call replayed the job before, and the result of the new one has expired; use another Idempotency-Key to replay it again")
	}
	return job, err
}
