package worker

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/records"
)

// handle deals with one delivery from decode to acknowledgement.
func (w *Worker) handle(ctx context.Context, d Delivery, s *slot) {
	sub, err := d.Submission()
	if errors.Is(err, records.ErrNewer) {
		w.cfg.Log.Warn().Err(err).Msg("job is left to a newer worker")
		if err := d.Nak(ctx, newerPause); err != nil {
			w.cfg.Log.Debug().Err(err).Msg("delivery not given back, it comes again")
		}
		return
	}
	if err != nil {
		w.cfg.Log.Error().Err(err).Msg("message in the queue is no job, taken out")
		if err := d.Term(ctx, "not a job"); err != nil {
			w.cfg.Log.Warn().Err(err).Msg("message not taken out, it comes again")
		}
		return
	}
	log := w.cfg.Log.With().Str("job", sub.Job.ID).Str("pack", sub.Job.Pack).Logger()
	if w.adopt(sub.Job.ID, d) {
		return
	}
	a, err := w.claim(ctx, d, sub, log)
	if err != nil {
		// Nothing is lost: the message comes again after the
		// acknowledgement wait.
		log.Warn().Err(err).Msg("delivery not handled, it comes again")
		return
	}
	if a == nil {
		return
	}
	defer w.forget(a)
	a.slot = s
	a.run(ctx)
}

// adopt hands a second delivery of a job that still runs here to its attempt.
func (w *Worker) adopt(id string, d Delivery) bool {
	w.mu.Lock()
	a := w.active[id]
	w.mu.Unlock()
	return a != nil && a.take(d)
}

func (w *Worker) forget(a *attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active[a.claimed.ID] == a {
		delete(w.active, a.claimed.ID)
	}
}

// claimTries bounds how often a claim is tried while nobody else moves.
const claimTries = 5

// claim decides about d and carries the decision out. It returns an attempt
// only when this worker won the job.
func (w *Worker) claim(ctx context.Context, d Delivery, sub jobs.Submission, log zerolog.Logger) (*attempt, error) {
	var rec jobs.Record
	// A first delivery is claimed without reading: the expectation that there
	// is no event yet does the reading.
	read, looked := d.Delivered() > 1, false
	var entered jobs.Job // the run the gate let pass, if it holds anything
	for try := 0; ; try++ {
		if read {
			seen := rec.Sequence
			var err error
			if rec, err = w.last(ctx, sub.Job.Key()); err != nil {
				return nil, err
			}
			moved := looked && rec.Sequence != seen && !rec.Job.State.Terminal()
			if moved || try > claimTries {
				return nil, nil // lost the race: silent
			}
			looked = true
		}
		dec := decide(sub, rec, d.Delivered(), w.cfg.ID, w.cfg.MaxLost, time.Now())
		switch dec.action {
		case leave:
			if failpoint.Planted(failpoint.BugLoserAcks) {
				return nil, d.Ack(ctx)
			}
			return nil, nil
		case finished:
			w.leave(ctx, entered, log)
			return nil, d.Ack(ctx)
		case wait:
			w.leave(ctx, entered, log)
			sub.Job, sub.Encoded = rec.Job, nil
			return nil, w.postpone(ctx, d, sub, dec.until)
		case claim:
			if !w.serves(dec.next) {
				return nil, w.passOn(ctx, d, sub, rec, log)
			}
		}
		if dec.action == claim && w.cfg.Gate != nil {
			keys, pass, err := w.enter(ctx, d, sub, rec, dec.next)
			if !pass || err != nil {
				return nil, err
			}
			if dec.next.LimitKeys = keys; len(keys) > 0 {
				entered = dec.next
			}
		}
		seq, err := w.append(ctx, d, sub, rec, dec.next)
		if errors.Is(err, jobs.ErrConflict) {
			if failpoint.Planted(failpoint.BugLoserAcks) {
				return nil, d.Ack(ctx)
			}
			// Either somebody was faster, which the next look shows, or a
			// write to the subject was still in flight.
			read = true
			continue
		}
		if err != nil {
			return nil, err
		}
		if dec.action == settle {
			return nil, w.settled(ctx, d, dec.next, rec.Job, log)
		}
		w.cfg.Observer.Claimed(dec.next, rec.Job)
		return w.hold(ctx, d, sub, dec.next, seq, log), nil
	}
}

// enter asks the gate whether the claim next may be made. A job that was put
// aside leaves the queue.
func (w *Worker) enter(ctx context.Context, d Delivery, sub jobs.Submission, rec jobs.Record, next jobs.Job) (keys []string, pass bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	if rec.Sequence > 0 {
		sub.Job, sub.Encoded = rec.Job, nil
	}
	if keys, pass, err = w.cfg.Gate.Enter(ctx, sub, next); pass || err != nil {
		return keys, pass, err
	}
	err = d.Ack(ctx)
	failpoint.Hit(failpoint.HoldAfterAck)
	return nil, false, err
}

// leave tells the gate that a run it let pass does not begin.
func (w *Worker) leave(ctx context.Context, entered jobs.Job, log zerolog.Logger) {
	if len(entered.LimitKeys) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	if err := w.cfg.Gate.Leave(ctx, entered); err != nil {
		log.Warn().Err(err).Msg("slots not given back, a later pass does it")
	}
}

// append writes the event of a claim or of its refusal.
func (w *Worker) append(ctx context.Context, d Delivery, sub jobs.Submission, rec jobs.Record, next jobs.Job) (uint64, error) {
	failpoint.Hit(failpoint.ClaimBeforeStarted)
	move := jobs.Move{Job: next, Expected: rec.Sequence, TraceParent: sub.TraceParent}
	if rec.Sequence == 0 || d.Delivered() > 1 {
		// An earlier claim may have failed to store it.
		move.Input = &sub
	}
	seq, err := w.cfg.Ledger.Append(ctx, move)
	switch {
	case err == nil:
	case errors.Is(err, jobs.ErrConflict), errors.Is(err, jobs.ErrInputNotStored):
		return 0, err
	default:
		if seq, err = w.confirm(ctx, next, err); err != nil {
			return 0, err
		}
	}
	failpoint.Hit(failpoint.ClaimAfterStarted)
	return seq, nil
}

// settled ends the delivery of a job that was ended instead of claimed.
func (w *Worker) settled(ctx context.Context, d Delivery, job, before jobs.Job, log zerolog.Logger) error {
	log.Warn().Str("state", string(job.State)).Msg(job.Error.Message)
	w.cfg.Observer.Ended(job, before, 0)
	if job.Poison {
		return d.Term(ctx, "poison: "+job.Error.Message)
	}
	return d.Ack(ctx)
}

// confirm looks whether a claim whose answer was lost was stored after all.
func (w *Worker) confirm(ctx context.Context, next jobs.Job, lost error) (uint64, error) {
	rec, err := w.last(ctx, next.Key())
	if err == nil && rec.Job.Runs == next.Runs && rec.Job.Worker == next.Worker && rec.Job.State == next.State &&
		rec.Job.StartedAt.Equal(next.StartedAt) {
		return rec.Sequence, nil
	}
	return 0, lost
}

func (w *Worker) last(ctx context.Context, k jobs.Key) (jobs.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, busTimeout)
	defer cancel()
	rec, err := w.cfg.Ledger.Last(ctx, k, true)
	if errors.Is(err, jobs.ErrNotFound) {
		return jobs.Record{}, nil
	}
	return rec, err
}

// hold registers a won claim, so that heartbeats and cancels reach it.
func (w *Worker) hold(ctx context.Context, d Delivery, sub jobs.Submission, job jobs.Job, seq uint64, log zerolog.Logger) *attempt {
	a := &attempt{
		w: w, sub: sub, claimed: job, fence: seq, log: log.With().Int("attempt", job.Attempt).Logger(),
		job: job, expected: seq, delivery: d, begun: time.Now(),
	}
	a.ctx, a.halt = context.WithCancelCause(ctx)
	w.mu.Lock()
	w.active[job.ID] = a
	w.mu.Unlock()
	return a
}
