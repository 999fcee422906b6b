package jobstest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Task is a claimed job on its way through a Handler.
type Task struct {
	jobs.Submission
	w *World
}

// Progress reports how far the job is.
func (t Task) Progress(percent float64, message string) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	l := t.w.lives[t.Job.ID]
	l.progress = &jobs.Progress{Percent: percent, Message: message, At: time.Now().UTC()}
	t.w.emit(l, "progress", "progress", false, l.progress)
}

// Log reports lines.
func (t Task) Log(lines ...string) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	t.w.emit(t.w.lives[t.Job.ID], "log", "log", false, map[string]any{"lines": lines, "at": time.Now().UTC()})
}

// Handler runs one attempt. Its ctx ends when the job is cancelled.
type Handler func(ctx context.Context, t Task) (packs.Outcome, error)

// Work runs jobs one at a time, high lane first, until ctx ends. Any number
// of workers may run at once.
func (w *World) Work(ctx context.Context, worker string, h Handler) {
	for ctx.Err() == nil {
		s, changed := w.next()
		if s == nil {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		w.attempt(ctx, worker, *s, h)
	}
}

// next returns the first job that nobody runs.
func (w *World) next() (*jobs.Submission, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, lane := range jobs.Lanes {
		for _, s := range w.queue {
			l := w.lives[s.Job.ID]
			free := l == nil || l.last == nil || l.last.Job.State == jobs.Retrying || l.last.Job.State == jobs.Scheduled
			if s.Job.Priority == lane && free && !time.Now().Before(w.due[s.Job.ID]) {
				return &s, w.changed
			}
		}
	}
	return nil, w.changed
}

// attempt claims s, runs it and writes how it ended. A lost race is silent.
func (w *World) attempt(ctx context.Context, worker string, s jobs.Submission, h Handler) {
	rec, err := w.Last(ctx, s.Job.Key(), true)
	if errors.Is(err, jobs.ErrNotFound) {
		rec = jobs.Record{Job: s.Job}
	}
	job := rec.Job
	job.State, job.Worker, job.StartedAt = jobs.Running, worker, time.Now().UTC()
	job.Runs++
	job.Attempt = job.Runs - job.Lost - job.Returned
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	in := s // kept by the ledger, while s goes on
	seq, err := w.Append(ctx, jobs.Move{Job: job, Expected: rec.Sequence, Input: &in})
	if err != nil {
		return
	}
	w.running(job.ID, cancel)
	s.Job = job
	out, err := h(run, Task{Submission: s, w: w})
	w.running(job.ID, nil)
	for ctx.Err() == nil {
		end := ended(job, out, err, run.Err() != nil)
		_, failed := w.Append(ctx, jobs.Move{Job: end, Expected: seq})
		if failed == nil && end.State.Terminal() {
			_ = w.Remove(ctx, end.Key(), end.Pool) // cannot fail
		}
		if !errors.Is(failed, jobs.ErrConflict) {
			return
		}
		// A request to cancel came between.
		moved, lost := w.Last(ctx, job.Key(), true)
		if lost != nil || moved.Job.Runs != job.Runs {
			return
		}
		job, seq = moved.Job, moved.Sequence
	}
}

func (w *World) running(id string, cancel context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if cancel == nil {
		delete(w.cancels, id)
		return
	}
	w.cancels[id] = cancel
	// A request that came before the handler was there.
	if l := w.lives[id]; l.last.Job.CancelRequested {
		cancel()
	}
}

// ended is the record of job after an attempt.
func ended(job jobs.Job, out packs.Outcome, err error, stopped bool) jobs.Job {
	job.FinishedAt = time.Now().UTC()
	job.DurationMS = job.FinishedAt.Sub(job.StartedAt).Milliseconds()
	job.SessionID = out.SessionID
	var pe *packs.Error
	switch {
	case err == nil:
		job.State, job.Output, job.Artifacts = jobs.Succeeded, out.Output, out.Artifacts
	case stopped:
		job.State = jobs.Cancelled
		job.Error = &jobs.Failure{Code: packs.Cancelled, Message: "cancelled while it ran"}
	default:
		if !errors.As(err, &pe) {
			pe = packs.Fail(packs.HandlerFailed, err, "the pack failed")
		}
		job.History = append(job.History, jobs.AttemptError{
			Run: job.Runs, Worker: job.Worker, Code: pe.Code, Message: pe.Message, At: job.FinishedAt,
		})
		if pe.Code.Automatic() && job.Attempt < job.MaxAttempts {
			job.State, job.FinishedAt, job.DurationMS = jobs.Retrying, time.Time{}, 0
			break
		}
		job.State = jobs.Failed
		job.Error = &jobs.Failure{Code: pe.Code, Message: pe.Message, Details: pe.Details,
			RetryAfterS: int(pe.RetryAfter / time.Second)}
	}
	return job
}

// Wait returns the job once cond holds of its newest record.
func (w *World) Wait(ctx context.Context, id string, cond func(jobs.Job) bool) (jobs.Job, error) {
	for {
		_, changed := w.Events(jobs.Key{ID: id}, 0)
		if rec, err := w.Last(ctx, jobs.Key{ID: id}, true); err == nil && cond(rec.Job) {
			return rec.Job, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return jobs.Job{}, fmt.Errorf("wait for job %s: %w", id, ctx.Err())
		}
	}
}

// Echo is a Handler that returns the input.
func Echo(_ context.Context, t Task) (packs.Outcome, error) {
	return packs.Outcome{Output: t.Input}, nil
}
