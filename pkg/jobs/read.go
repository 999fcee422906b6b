package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// find reads a job the caller may see: one of the own, or for an
// administrator anybody's. The own one is looked for first, because a complete
// key is the cheaper look-up. The id is checked, for it becomes part of
// subjects.
func (s *Service) find(ctx context.Context, c identity.Caller, id string) (Job, error) {
	if !validID(id) {
		return Job{}, ErrNotFound
	}
	job, err := s.read(ctx, Key{Tenant: c.TenantToken(), Owner: c.Owner(), ID: id})
	if errors.Is(err, ErrNotFound) && c.Admin() {
		return s.read(ctx, Key{ID: id})
	}
	return job, err
}

// keyOf is the key under which c may read id: an administrator by id alone.
func keyOf(c identity.Caller, id string) Key {
	if c.Admin() {
		return Key{ID: id}
	}
	return Key{Tenant: c.TenantToken(), Owner: c.Owner(), ID: id}
}

// Get returns the job id of the caller, with its newest progress, its place
// in the queue and its whole output.
func (s *Service) Get(ctx context.Context, c identity.Caller, id string) (Job, error) {
	job, err := s.find(ctx, c, id)
	if err != nil {
		return Job{}, asError(err)
	}
	return s.complete(ctx, job)
}

// complete adds what a record leaves out.
func (s *Service) complete(ctx context.Context, job Job) (Job, error) {
	job.WaitingReason = s.waiting(job)
	if s.cfg.Index != nil {
		job.Children = s.cfg.Index.Children(job.Key())
	}
	switch {
	case job.State == Queued && s.cfg.Index != nil:
		n := s.cfg.Index.Ahead(job)
		job.QueuePosition = &n
	case job.State == Running && s.cfg.Feed != nil:
		p := s.cfg.Feed.Progress(ctx, job.Key())
		if p != nil && !p.At.Before(job.StartedAt) { // else of an earlier attempt
			job.Progress = p
		}
	}
	if job.OutputKey == "" {
		return job, nil
	}
	r, err := s.cfg.Stash.Unstash(ctx, job.OutputKey)
	if err != nil {
		return Job{}, packs.Fail(packs.ArtifactFailed, err, "the stored output of the job cannot be read; try again")
	}
	defer func() { _ = r.Close() }() // read-only
	if job.Output, err = io.ReadAll(r); err != nil {
		return Job{}, packs.Fail(packs.ArtifactFailed, err, "the stored output of the job cannot be read; try again")
	}
	job.OutputKey = ""
	return job, nil
}

// read finds a job wherever it is: its lifecycle, else the places where it
// waits, else its lifecycle again, because it may move between two look-ups;
// before giving up, through the leader, because a replica may lag.
func (s *Service) read(ctx context.Context, k Key) (Job, error) {
	for _, leader := range []bool{false, true} {
		job, err := s.readOnce(ctx, k, leader)
		if err == nil || !errors.Is(err, ErrNotFound) || errors.Is(err, ErrExpired) {
			return job, err
		}
	}
	return Job{}, ErrNotFound
}

func (s *Service) readOnce(ctx context.Context, k Key, leader bool) (Job, error) {
	rec, err := s.last(ctx, k, leader)
	if err == nil && rec.Job.State == Scheduled && !rec.Job.ScheduledFor.After(s.cfg.Now()) {
		// Its time has come: it may lie in the queue, which has no event.
		if _, place, ferr := s.cfg.Queue.Find(ctx, k, leader); ferr == nil && place == InQueue {
			rec.Job.State = Queued
		}
	}
	if err == nil || !errors.Is(err, ErrNotFound) || errors.Is(err, ErrExpired) {
		return rec.Job, err
	}
	sub, place, err := s.cfg.Queue.Find(ctx, k, leader)
	if err == nil {
		if place == InSchedule && sub.Job.State == Queued && sub.PassedOn == 0 {
			sub.Job.State = Scheduled
		}
		return sub.Job, nil
	}
	if !errors.Is(err, ErrNotFound) {
		return Job{}, err
	}
	rec, err = s.last(ctx, k, leader)
	return rec.Job, err
}

// last is the newest event of a job that readers may see.
func (s *Service) last(ctx context.Context, k Key, leader bool) (Record, error) {
	rec, err := s.cfg.Ledger.Last(ctx, k, leader)
	if err == nil && rec.Job.Expired {
		return Record{}, ErrExpired
	}
	return rec, err
}

// rereads are the times after which an awaited job is read again, because
// the feed may lose a message; the last one repeats.
var rereads = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second}

// Await returns the job once it is terminal, or as it is when ctx ends; done
// tells which. Subscribe first when the job is not submitted yet: see Run.
func (s *Service) Await(ctx context.Context, c identity.Caller, id string) (job Job, done bool, err error) {
	ended, stop := s.cfg.Feed.Terminal(keyOf(c, id))
	defer stop()
	job, err = s.find(ctx, c, id)
	if err != nil {
		return Job{}, false, asError(err)
	}
	return s.await(ctx, job, ended)
}

// Run submits a job and awaits it until ctx ends.
func (s *Service) Run(ctx context.Context, c identity.Caller, r Request) (job Job, done bool, err error) {
	sub, err := s.prepare(c, r)
	if err != nil {
		return Job{}, false, err
	}
	if r.IdempotencyKey != "" {
		job, err = s.submitKeyed(ctx, c, r, sub)
		if err != nil {
			return Job{}, false, err
		}
		return s.Await(ctx, c, job.ID)
	}
	ended, stop := s.cfg.Feed.Terminal(sub.Job.Key())
	defer stop()
	if job, err = s.enqueue(ctx, sub); err != nil {
		return Job{}, false, err
	}
	return s.await(ctx, job, ended)
}

func (s *Service) await(ctx context.Context, job Job, ended <-chan Job) (Job, bool, error) {
	timer := time.NewTimer(rereads[0])
	defer timer.Stop()
	for n := 0; !job.State.Terminal(); n++ {
		select {
		case j := <-ended:
			job = j
			continue
		case <-ctx.Done():
			return job, false, nil
		case <-timer.C:
		}
		timer.Reset(rereads[min(n+1, len(rereads)-1)])
		fresh, err := s.read(ctx, job.Key())
		switch {
		case err == nil:
			job = fresh
		case ctx.Err() != nil:
			return job, false, nil
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrUnavailable):
			// The bus is away for a moment, or a replica lags: the job was
			// accepted, so it is worth waiting for.
		default:
			return job, false, asError(err)
		}
	}
	job, err := s.complete(ctx, job)
	return job, true, err
}

// List returns the caller's jobs newest first; an administrator sees all.
func (s *Service) List(ctx context.Context, c identity.Caller, q Query) ([]Job, string, error) {
	if !c.Admin() {
		q.Tenant, q.Owner = c.TenantToken(), c.Owner()
	}
	if q.Limit < 0 || q.Limit > 200 {
		return nil, "", packs.Errorf(packs.InvalidInput, "limit must be between 1 and 200")
	}
	page, next, err := s.cfg.Index.List(ctx, q)
	if err != nil {
		return nil, "", asError(err)
	}
	for i := range page {
		page[i].WaitingReason = s.waiting(page[i])
		page[i].Children = s.cfg.Index.Children(page[i].Key())
	}
	return page, next, nil
}

// waiting says why a job does not start although it could.
func (s *Service) waiting(job Job) string {
	due := job.State == Queued || job.State == Retrying && !job.RetryAt.After(s.cfg.Now())
	if !due || s.cfg.Waiting == nil {
		return ""
	}
	return s.cfg.Waiting(job)
}

// stashInput moves a large input out of the message.
func (s *Service) stashInput(ctx context.Context, sub Submission) (Submission, error) {
	if Inline(sub.Input) {
		return sub, nil
	}
	// A key of this try alone: another of the same job, which an idempotency
	// key allows at the same time, must not lose its input with this one.
	key := artifacts.InputKey(sub.Job.ID) + "-" + uuid.NewString()
	if err := s.cfg.Stash.Stash(ctx, key, bytes.NewReader(sub.Input)); err != nil {
		return sub, packs.Fail(packs.ArtifactFailed, err, "the input could not be stored; try again")
	}
	sub.Input, sub.InputKey = nil, key
	return sub, nil
}

// Inline reports whether raw may go inside a message: encoding it once more
// writes <, > and & as six bytes each, which counts.
func Inline(raw json.RawMessage) bool {
	n := len(raw)
	for _, c := range raw {
		if n > InlineLimit {
			break
		}
		if c == '<' || c == '>' || c == '&' {
			n += 5
		}
	}
	return n <= InlineLimit
}

// LoadInput returns the input of a submission, wherever it lies.
func LoadInput(ctx context.Context, stash Stash, sub Submission) (json.RawMessage, error) {
	if sub.InputKey == "" {
		return sub.Input, nil
	}
	r, err := stash.Unstash(ctx, sub.InputKey)
	if err != nil {
		return nil, fmt.Errorf("open input %s: %w", sub.InputKey, err)
	}
	defer func() { _ = r.Close() }() // read-only
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read input %s: %w", sub.InputKey, err)
	}
	return b, nil
}

func compact(raw json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return raw
	}
	return b.Bytes()
}

// validID keeps anything but a UUID out of subjects.
func validID(id string) bool {
	if len(id) != 36 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && c != '-' {
			return false
		}
	}
	return true
}
