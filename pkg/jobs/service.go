package jobs

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// Limits of a request; each is a default of Config.
const (
	// InlineLimit is the largest input or output inside a message, in bytes;
	// above it goes to the stash (claim check).
	InlineLimit = 256 << 10
	// MaxLabels, MaxLabelKey and MaxLabelValue bound the labels of a job.
	MaxLabels, MaxLabelKey, MaxLabelValue = 32, 64, 256
	// MaxIdempotencyKey is in bytes of UTF-8.
	MaxIdempotencyKey = 256
	// MaxTimeoutS is two hours, the longest a session may live.
	MaxTimeoutS = 7200
	// MaxAttempts bounds max_attempts of a request.
	MaxAttempts = 25
	// MinResultTTLS is a minute: a caller must have the time to fetch what it
	// asked for. MaxResultTTLS is 30 days, the retention of the events.
	MinResultTTLS, MaxResultTTLS = 60, 30 * 24 * 3600
	// MaxDelay is how far ahead a job may be put off: a leap year.
	MaxDelay = 366 * 24 * time.Hour
	// MaxConcurrencyKey is in bytes of UTF-8, MaxConcurrencyLimit in jobs.
	MaxConcurrencyKey, MaxConcurrencyLimit = 256, 1000
)

// Config is what a Service is built from.
type Config struct {
	Ledger Ledger
	Queue  Queue
	Keys   Keys
	Index  Index
	Feed   Feed
	Dead   DeadLetters
	Stash  Stash
	Packs  Catalog
	// Waiting says why a queued job does not start, "" when only its turn has
	// not come. It is asked for every waiting job of a list, so it looks
	// nothing up. Nil: not known.
	Waiting func(Job) string
	// Follow is needed where packs call others.
	Follow Follower
	// Admission bounds what callers submit; nil: nobody is bounded.
	Admission Admission
	// Accepted hears of every job that was put into a queue or a schedule; may
	// be nil.
	Accepted func(Job)
	// KeySecret keys the hash of idempotency keys.
	KeySecret []byte
	// Sealer seals the secrets of webhooks; nil: webhooks have none.
	Sealer *webhooks.Sealer
	// CheckWebhook refuses the URL of a webhook that must not be reached, with
	// an error for the caller; nil: all may be.
	CheckWebhook func(ctx context.Context, url string) error
	// Route overrides the pool of a pack by name.
	Route map[string]string
	Now   func() time.Time // nil: time.Now
	NewID func() string    // nil: UUID version 7
}

// Service is the client side of the job system. REST, MCP and the command
// line all call it. Errors are *packs.Error.
type Service struct {
	cfg Config
}

// New returns a Service over the ports of cfg.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.NewID == nil {
		cfg.NewID = func() string { return uuid.Must(uuid.NewV7()).String() }
	}
	return &Service{cfg: cfg}
}

// Submit validates r, every fault at once, and puts a job into its queue. It
// returns once the bus has the job safe. With an idempotency key the same
// caller gets the same job for the same input.
func (s *Service) Submit(ctx context.Context, c identity.Caller, r Request) (Job, error) {
	sub, err := s.prepare(c, r)
	if err != nil {
		return Job{}, err
	}
	return s.accept(ctx, c, r, sub)
}

// accept puts what prepare made of r into its queue.
func (s *Service) accept(ctx context.Context, c identity.Caller, r Request, sub Submission) (Job, error) {
	if r.IdempotencyKey != "" {
		return s.submitKeyed(ctx, c, r, sub)
	}
	return s.enqueue(ctx, sub)
}

// prepare turns a request into a submission without touching the bus.
func (s *Service) prepare(c identity.Caller, r Request) (Submission, error) {
	pack, err := s.cfg.Packs.Get(r.Pack, r.Version)
	if err != nil {
		return Submission{}, asError(err)
	}
	info := pack.Info()
	if int64(len(r.Input)) > info.MaxInputBytes && info.MaxInputBytes > 0 {
		return Submission{}, packs.Errorf(packs.PayloadTooLarge,
			"the input of %s may be at most %d bytes, this one has %d; store large content with artifact.put or upload it and pass its key",
			info.Name, info.MaxInputBytes, len(r.Input))
	}
	input, warnings, err := pack.Validate(r.Input)
	now := s.cfg.Now().UTC()
	if faults := r.faults(now); len(faults) > 0 || err != nil {
		return Submission{}, mergeFaults(err, faults)
	}
	c.Scopes = nil // rights are checked at the door, not carried in records
	job := Job{
		ID: s.cfg.NewID(), Pack: info.Name, Version: info.Version, Pool: s.pool(info), State: Queued,
		Priority: r.Priority, Labels: maps.Clone(r.Labels), Caller: c, ParentID: r.ParentID,
		CreatedAt: now, Warnings: warnings, TimeoutS: r.TimeoutS,
		MaxAttempts: r.MaxAttempts, RetryTimeouts: r.MaxAttempts > 1, Effect: info.Effect, ResultTTLS: r.ResultTTLS,
		ConcurrencyKey: r.ConcurrencyKey, ConcurrencyLimit: r.ConcurrencyLimit, InputBytes: int64(len(input)),
	}
	if job.Priority == "" && s.cfg.Admission != nil {
		job.Priority = s.cfg.Admission.Priority(c)
	}
	if job.Priority == "" {
		job.Priority = Normal
	}
	if job.ConcurrencyKey != "" && job.ConcurrencyLimit == 0 {
		job.ConcurrencyLimit = 1
	}
	if job.MaxAttempts == 0 {
		job.MaxAttempts = info.MaxAttempts
	}
	if job.TimeoutS == 0 {
		job.TimeoutS = int((info.Timeout + time.Second - 1) / time.Second)
	}
	if at := r.due(now); at.After(now) {
		job.State, job.ScheduledFor = Scheduled, at
	}
	sub := Submission{Job: job, Input: input, TraceParent: r.TraceParent}
	return sub, s.attach(&sub, r.webhook())
}

// due is when the job may run, the zero time for at once.
func (r Request) due(now time.Time) time.Time {
	if r.DelayS > 0 {
		return now.Add(time.Duration(r.DelayS) * time.Second)
	}
	return r.RunAt.UTC()
}

func (s *Service) pool(info packs.Info) string {
	if p, ok := s.cfg.Route[info.Name]; ok {
		return p
	}
	return string(info.Pool)
}

// faults checks everything about a request but the pack's own input.
func (r Request) faults(now time.Time) []packs.Detail {
	var d []packs.Detail
	add := func(pointer, format string, args ...any) {
		d = append(d, packs.Detail{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
	}
	switch r.Priority {
	case "", High, Normal, Low:
	default:
		add("/priority", "must be high, normal or low, got %q", r.Priority)
	}
	if r.TimeoutS < 0 || r.TimeoutS > MaxTimeoutS {
		add("/timeout_s", "must be between 1 and %d seconds", MaxTimeoutS)
	}
	if r.MaxAttempts < 0 || r.MaxAttempts > MaxAttempts {
		add("/max_attempts", "must be between 1 and %d", MaxAttempts)
	}
	if len(r.Labels) > MaxLabels {
		add("/labels", "at most %d labels, got %d", MaxLabels, len(r.Labels))
	}
	for k, v := range r.Labels {
		if k == "" || len(k) > MaxLabelKey || len(v) > MaxLabelValue {
			add("/labels", "label %.80q: key of 1 to %d bytes and value of at most %d bytes", k, MaxLabelKey, MaxLabelValue)
		}
	}
	if r.ParentID != "" && !validID(r.ParentID) {
		add("/parent_id", "must be the id of a job")
	}
	if r.ResultTTLS != 0 && (r.ResultTTLS < MinResultTTLS || r.ResultTTLS > MaxResultTTLS) {
		add("/result_ttl_s", "must be between %d and %d seconds (30 days); leave it out to keep the job like all others", MinResultTTLS, MaxResultTTLS)
	}
	if r.DelayS < 0 || r.DelayS > int(MaxDelay/time.Second) {
		add("/delay_s", "must be between 1 and %d seconds (366 days)", int(MaxDelay/time.Second))
	}
	if r.RunAt.After(now.Add(MaxDelay)) {
		add("/run_at", "must be at most 366 days ahead")
	}
	if r.DelayS != 0 && !r.RunAt.IsZero() {
		add("/delay_s", "give run_at or delay_s, not both")
	}
	if len(r.ConcurrencyKey) > MaxConcurrencyKey || !utf8.ValidString(r.ConcurrencyKey) {
		add("/concurrency_key", "must be valid UTF-8 of at most %d bytes", MaxConcurrencyKey)
	}
	switch {
	case r.ConcurrencyLimit < 0 || r.ConcurrencyLimit > MaxConcurrencyLimit:
		add("/concurrency_limit", "must be between 1 and %d", MaxConcurrencyLimit)
	case r.ConcurrencyLimit > 0 && r.ConcurrencyKey == "":
		add("/concurrency_limit", "limits the jobs of a concurrency_key; name one")
	}
	if len(r.IdempotencyKey) > MaxIdempotencyKey || !utf8.ValidString(r.IdempotencyKey) {
		add("", "Idempotency-Key must be valid UTF-8 of at most %d bytes", MaxIdempotencyKey)
	}
	return append(d, r.webhookFaults()...)
}

func mergeFaults(err error, faults []packs.Detail) error {
	var pe *packs.Error
	if !errors.As(err, &pe) {
		if err != nil {
			return asError(err)
		}
		pe = packs.Errorf(packs.InvalidInput, "the request is not valid: %s %s", faults[0].Pointer, faults[0].Message)
	}
	merged := *pe
	merged.Details = append(append([]packs.Detail(nil), pe.Details...), faults...)
	return &merged
}

// enqueue is the one publish of a submit.
func (s *Service) enqueue(ctx context.Context, sub Submission) (job Job, err error) {
	defer func() {
		if err == nil && s.cfg.Accepted != nil {
			s.cfg.Accepted(job)
		}
	}()
	job = sub.Job
	if err := s.checkWebhook(ctx, job); err != nil {
		return Job{}, err
	}
	done, err := s.admit(job)
	if err != nil {
		return Job{}, err
	}
	accepted := false
	defer func() { done(accepted) }()
	sub, err = s.stashInput(ctx, sub)
	if err != nil {
		return Job{}, err
	}
	if job.State == Scheduled {
		if err := s.putOff(ctx, sub); err != nil {
			return Job{}, err
		}
		accepted = true
		return job, nil
	}
	err = s.cfg.Queue.Enqueue(ctx, sub)
	if err != nil && !errors.Is(err, ErrQueued) {
		s.dropRefused(ctx, sub, err)
		return Job{}, submitError(err)
	}
	accepted = true
	return job, nil
}

// putOff schedules a job. It is accepted once the schedule is stored; its
// event, which listings and followers hear of it by, comes after, so that no
// event tells of a job that is nowhere. A lost event costs a listing the time
// until it reads the schedules again.
func (s *Service) putOff(ctx context.Context, sub Submission) error {
	if err := s.cfg.Queue.Schedule(ctx, sub, sub.Job.ScheduledFor); err != nil {
		s.dropRefused(ctx, sub, err)
		return submitError(err)
	}
	// A conflict: it has been cancelled, or started, meanwhile. Nobody waits
	// for a write that is still under way when the caller hangs up.
	_, _ = s.cfg.Ledger.Append(ctx, Move{Job: sub.Job, Input: &sub, TraceParent: sub.TraceParent})
	return nil
}

// admit asks whether the caller of a job may submit it now.
func (s *Service) admit(j Job) (done func(accepted bool), err error) {
	if s.cfg.Admission == nil {
		return func(bool) {}, nil
	}
	return s.cfg.Admission.Admit(j)
}

// dropRefused removes the stashed input of a job that was refused for good,
// so that a full queue does not fill the store. Whatever else went wrong
// leaves open whether the job is in the queue; the sweep removes what nobody
// needs.
func (s *Service) dropRefused(ctx context.Context, sub Submission, refusal error) {
	if sub.InputKey == "" || !errors.Is(refusal, ErrQueueFull) {
		return
	}
	// The call may have been repeated on its way: the first may have got in.
	if _, _, err := s.cfg.Queue.Find(ctx, sub.Job.Key(), true); !errors.Is(err, ErrNotFound) {
		return
	}
	if _, err := s.cfg.Ledger.Last(ctx, sub.Job.Key(), true); !errors.Is(err, ErrNotFound) {
		return
	}
	// Failing that, the sweep does it.
	_ = s.cfg.Stash.DropStash(ctx, sub.InputKey)
}

// keyTries bounds how often a key that others renew meanwhile is looked at.
const keyTries = 4

// submitKeyed submits once per key. A key whose job has expired starts over.
func (s *Service) submitKeyed(ctx context.Context, c identity.Caller, r Request, sub Submission) (Job, error) {
	return s.submitOnce(ctx, s.keyHash(c, r.IdempotencyKey), inputHash(s.hashed(r)), sub, true)
}

// submitOnce submits once per key, of which hash is the digest; call is a
// digest of what makes two calls with the key the same. A key whose job has
// expired starts over if renew says so, else it is ErrExpired.
func (s *Service) submitOnce(ctx context.Context, hash, call string, sub Submission, renew bool) (Job, error) {
	want := Reservation{JobID: sub.Job.ID, InputHash: call, CreatedAt: sub.Job.CreatedAt}
	for range keyTries {
		held, fresh, err := s.cfg.Keys.Reserve(ctx, hash, want)
		if err != nil {
			return Job{}, submitError(err)
		}
		if fresh {
			return s.enqueue(ctx, sub)
		}
		job, err := s.keyed(ctx, held, want, sub)
		if !errors.Is(err, ErrExpired) || !renew {
			return job, asError(err)
		}
		err = s.cfg.Keys.Renew(ctx, hash, held, want)
		if err == nil {
			return s.enqueue(ctx, sub)
		}
		if !errors.Is(err, ErrConflict) {
			return Job{}, submitError(err)
		}
	}
	return Job{}, packs.Errorf(packs.IdempotencyConflict, "others use this Idempotency-Key at the same time; try again")
}

// keyed returns the job a key is held for, or ErrExpired.
func (s *Service) keyed(ctx context.Context, held, want Reservation, sub Submission) (Job, error) {
	same := held.InputHash == want.InputHash
	sub.Job.ID, sub.Job.CreatedAt = held.JobID, held.CreatedAt
	job, err := s.read(ctx, sub.Job.Key())
	switch {
	case errors.Is(err, ErrExpired):
		return Job{}, ErrExpired
	case !same:
		return Job{}, packs.Errorf(packs.IdempotencyConflict,
			"this Idempotency-Key was used for another call; use a new key, or repeat the call exactly")
	case errors.Is(err, ErrNotFound):
		// The first submit died between reserving the key and publishing.
		return s.enqueue(ctx, sub)
	case err != nil:
		return Job{}, submitError(err)
	}
	return job, nil
}

func (s *Service) keyHash(c identity.Caller, key string) string {
	mac := hmac.New(sha256.New, s.cfg.KeySecret)
	// The lengths keep ("a","bc") and ("ab","c") apart.
	fmt.Fprintf(mac, "%d:%s%d:%s%s", len(c.Tenant), c.Tenant, len(c.Subject), c.Subject, key)
	return hex.EncodeToString(mac.Sum(nil))
}

// inputHash covers all that makes two calls the same call. JSON input is
// compacted, so that white space does not matter.
func inputHash(r Request) string {
	r.Input = compact(r.Input)
	b, err := json.Marshal(r)
	if err != nil { // r.Input passed validation, so it is JSON
		b = r.Input
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func submitError(err error) error {
	switch {
	case errors.Is(err, ErrQueueFull):
		e := packs.Fail(packs.RateLimited, err, "the queue of this pool is full; try again in a few seconds")
		e.RetryAfter = 5 * time.Second
		return e
	case errors.Is(err, ErrUnavailable):
		e := packs.Fail(packs.SessionUnavailable, err,
			"the job queue cannot take the job now (bus or its storage unavailable); nothing was lost, try again shortly")
		e.RetryAfter = 5 * time.Second
		return e
	}
	return asError(err)
}

// asError makes err a *packs.Error; what is none becomes internal.
func asError(err error) error {
	var pe *packs.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pe):
		return pe
	case errors.Is(err, ErrNotFound):
		return packs.Fail(packs.NotFound, err, "no such job; list jobs with GET /api/v1/jobs")
	case errors.Is(err, ErrUnavailable), errors.Is(err, ErrQueueFull):
		return submitError(err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return packs.Fail(packs.Timeout, err, "the request ended before the answer was there; the job, if one was made, goes on")
	default:
		return packs.Fail(packs.Internal, err, "internal error; the server's log has the details")
	}
}
