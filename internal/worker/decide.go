package worker

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// action is what a worker does with a delivery.
type action int

const (
	// leave: touch neither lifecycle nor message. Another worker has the
	// job; a late acknowledgement would delete the message under it.
	leave action = iota
	// finished: the job has ended; acknowledge.
	finished
	// wait: the next attempt is not due; give the message back until then.
	wait
	// claim: append next and run.
	claim
	// settle: append next, a terminal record, and acknowledge.
	settle
)

// decision is what decide makes of a delivery.
type decision struct {
	action action
	next   jobs.Job
	until  time.Time // of wait
}

// maxStartless is how often a message may be delivered without any claim
// before it counts as poison. A worker whose slots are taken gives a message
// back to the next one that waits, and 4,096 may wait at a consumer.
const maxStartless = 5000

// decide says what to do with a delivery of sub, given the newest record of
// the job (rec.Sequence 0: none yet) and how often the message was delivered.
func decide(sub jobs.Submission, rec jobs.Record, delivered uint64, worker string, maxLost int, now time.Time) decision {
	if rec.Sequence == 0 {
		job := sub.Job
		if delivered > maxStartless {
			return quarantine(job, now, fmt.Sprintf("the job was handed out %d times and no worker could start it", delivered))
		}
		return start(job, worker, now)
	}
	job := rec.Job
	switch {
	case job.State.Terminal():
		return decision{action: finished}
	case job.State == jobs.Retrying:
		if job.CancelRequested {
			return ended(job, jobs.Cancelled, packs.Cancelled, "cancelled before it ran again", now)
		}
		if job.RetryAt.After(now) {
			return decision{action: wait, until: job.RetryAt}
		}
		return start(job, worker, now)
	case job.State != jobs.Running:
		return start(job, worker, now)
	case delivered <= 1:
		// Running, and this is a fresh copy: its worker may well be alive. If
		// it is not, the message comes again after the acknowledgement wait.
		return decision{action: leave}
	}
	return takeOver(job, worker, maxLost, now)
}

// takeOver claims a running job whose worker let the acknowledgement wait
// pass: it is lost, or so slow that it must be fenced off.
func takeOver(job jobs.Job, worker string, maxLost int, now time.Time) decision {
	lost := fmt.Sprintf("worker %s was lost while it ran the job", job.Worker)
	job = remember(job, packs.Internal, lost, now)
	job.Lost++
	switch {
	case job.CancelRequested:
		return ended(job, jobs.Cancelled, packs.Cancelled, "cancelled; its worker was lost meanwhile", now)
	case job.EffectBegun:
		return ended(job, jobs.Failed, packs.OutcomeUnknown,
			"the worker was lost after the effect had begun, so it may or may not have happened; check before you call again", now)
	case job.Lost > maxLost:
		return quarantine(job, now, fmt.Sprintf("%d workers were lost while they ran this job; it is quarantined", job.Lost))
	}
	return start(job, worker, now)
}

func start(job jobs.Job, worker string, now time.Time) decision {
	job.State, job.Worker = jobs.Running, worker
	job.StartedAt, job.RetryAt, job.Error = now.UTC(), time.Time{}, nil
	job.SessionID, job.DurationMS = "", 0 // of the run before
	job.Runs++
	job.Attempt = job.Runs - job.Lost - job.Returned
	return decision{action: claim, next: job}
}

func quarantine(job jobs.Job, now time.Time, message string) decision {
	job.Poison = true
	return ended(job, jobs.Failed, packs.HandlerFailed, message, now)
}

func ended(job jobs.Job, state jobs.State, code packs.Code, message string, now time.Time) decision {
	job.State, job.FinishedAt = state, now.UTC()
	job.Error = &jobs.Failure{Code: code, Message: shorten(message)}
	return decision{action: settle, next: job}
}

func shorten(message string) string { return cut(message, maxMessage) }

func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// maxHistory bounds the error chain in a record.
const maxHistory = 20

// maxMessage bounds an error message in a record, in bytes: a record is one
// message of the bus, with up to twenty of them.
const maxMessage = 4 << 10

// maxDetails bounds the faults of one error, maxDetail each part of a fault
// in bytes.
const maxDetails, maxDetail = 100, 512

func details(all []packs.Detail) []packs.Detail {
	var out []packs.Detail
	for _, d := range all[:min(len(all), maxDetails)] {
		out = append(out, packs.Detail{Pointer: cut(d.Pointer, maxDetail), Message: cut(d.Message, maxDetail)})
	}
	return out
}

// remember adds the outcome of the present run to the job's history.
func remember(job jobs.Job, code packs.Code, message string, now time.Time) jobs.Job {
	h := append([]jobs.AttemptError(nil), job.History...)
	h = append(h, jobs.AttemptError{Run: job.Runs, Worker: job.Worker, Code: code, Message: shorten(message), At: now.UTC()})
	job.History = h[max(0, len(h)-maxHistory):]
	return job
}

// outcome is how the run of an attempt ended.
type outcome struct {
	err  *packs.Error // nil: success
	stop error        // why the run was stopped from outside, nil if it was not
}

// verdict is what follows from an outcome.
type verdict struct {
	next  jobs.Job
	delay time.Duration // of a retry
	// silent: write nothing and leave the message alone.
	silent bool
}

// judge turns the outcome of a run into the next record.
func judge(job jobs.Job, o outcome, now time.Time, backoff func(int) time.Duration) verdict {
	took := now.Sub(job.StartedAt)
	job.DurationMS = took.Milliseconds()
	switch {
	case errors.Is(o.stop, errFenced):
		return verdict{silent: true}
	case o.err == nil:
		job.State, job.FinishedAt, job.Error = jobs.Succeeded, now.UTC(), nil
		return verdict{next: job}
	case errors.Is(o.stop, errCancelled):
		return verdict{next: stopped(job, now)}
	case errors.Is(o.stop, errStopping):
		return handBack(job, now)
	}
	code, message := o.err.Code, o.err.Message
	if errors.Is(o.stop, errStalled) {
		code, message = packs.Timeout, "the job showed no progress for too long and was stopped"
	}
	job = remember(job, code, message, now)
	if retries(job, code, o.err.Retry) {
		delay := max(backoff(job.Attempt), o.err.Pause())
		job.State, job.RetryAt = jobs.Retrying, now.Add(delay).UTC()
		job.Error = &jobs.Failure{Code: code, Message: shorten(message), Details: details(o.err.Details)}
		return verdict{next: job, delay: delay}
	}
	pause := o.err.Pause()
	if job.EffectBegun && untold[code] {
		pause, code, message = 0, packs.OutcomeUnknown,
			"the effect had begun, so it may or may not have happened; check before you call again: "+message
	}
	next := ended(job, jobs.Failed, code, message, now).next
	next.Error.Details = details(o.err.Details)
	next.Error.RetryAfterS = int((pause + time.Second - 1) / time.Second)
	return verdict{next: next}
}

// untold are the codes of runs that ended without an answer of whoever was
// asked for the effect, or after it: once it was begun they do not tell
// whether it happened, and a caller who tries again may make it happen twice.
var untold = map[packs.Code]bool{
	packs.Timeout: true, packs.SessionUnavailable: true, packs.ResourceExhausted: true, packs.ArtifactFailed: true,
}

// stopped is the record of a job that was cancelled while it ran.
func stopped(job jobs.Job, now time.Time) jobs.Job {
	message := "cancelled while it ran"
	if job.EffectBegun {
		message += "; the effect had begun, so it may or may not have happened"
	}
	return ended(job, jobs.Cancelled, packs.Cancelled, message, now).next
}

// handBack returns a job whose worker stops, uncharged. An effect that has
// begun cannot be handed on.
func handBack(job jobs.Job, now time.Time) verdict {
	if job.EffectBegun {
		return verdict{next: ended(job, jobs.Failed, packs.OutcomeUnknown,
			"the worker was stopped after the effect had begun, so it may or may not have happened; check before you call again", now).next}
	}
	job = remember(job, packs.Internal, "the worker was stopped and handed the job back", now)
	job.Returned++
	job.State, job.RetryAt = jobs.Retrying, now.UTC()
	return verdict{next: job}
}

// obey adapts the next event of a run to a request to cancel that came before
// it: a job is cancelled rather than run again, and no effect begins.
func obey(next, stored jobs.Job) (jobs.Job, error) {
	if !stored.CancelRequested {
		return next, nil
	}
	next.CancelRequested = true
	switch next.State {
	case jobs.Running:
		return next, errCancelled
	case jobs.Retrying:
		next.RetryAt = time.Time{}
		return stopped(next, time.Now()), nil
	}
	return next, nil
}

// retries says whether the system runs a failed job again by itself.
func retries(job jobs.Job, code packs.Code, forced *bool) bool {
	if job.Attempt >= job.MaxAttempts || job.EffectBegun {
		return false
	}
	if forced != nil {
		return *forced
	}
	if code == packs.Timeout {
		return job.RetryTimeouts
	}
	return code.Automatic()
}
