package worker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// ledger is the lifecycle of one job. before, when set, runs at the next
// append, ahead of it; lose makes the answer of the next one get lost.
type ledger struct {
	mu     sync.Mutex // guards the fields below
	recs   []jobs.Record
	before func()
	lose   error
	inputs int
	tries  int
}

func (l *ledger) Last(context.Context, jobs.Key, bool) (jobs.Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.recs) == 0 {
		return jobs.Record{}, jobs.ErrNotFound
	}
	return l.recs[len(l.recs)-1], nil
}

func (l *ledger) Append(_ context.Context, m jobs.Move) (uint64, error) {
	l.mu.Lock()
	before := l.before
	l.before = nil
	l.tries++
	l.mu.Unlock()
	if before != nil {
		before()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	last := uint64(0)
	if n := len(l.recs); n > 0 {
		last = l.recs[n-1].Sequence
	}
	if m.Expected != last {
		return 0, jobs.ErrConflict
	}
	lost := l.lose
	l.lose = nil
	if errors.Is(lost, jobs.ErrConflict) {
		return 0, lost // a write was in flight
	}
	l.recs = append(l.recs, jobs.Record{Job: m.Job, Sequence: last + 1})
	if m.Input != nil && !errors.Is(lost, jobs.ErrInputNotStored) {
		l.inputs++
	}
	return last + 1, lost
}

func (l *ledger) Input(context.Context, jobs.Key) (jobs.Submission, error) {
	return jobs.Submission{}, jobs.ErrNotFound
}

func (l *ledger) KeepInput(context.Context, jobs.Submission) error { return nil }

// push writes a record as somebody else would.
func (l *ledger) push(change func(*jobs.Job)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last jobs.Record
	if n := len(l.recs); n > 0 {
		last = l.recs[n-1]
	}
	change(&last.Job)
	last.Sequence++
	l.recs = append(l.recs, last)
}

type message struct {
	delivered uint64
	ended     []string
}

func (m *message) Submission() (jobs.Submission, error) { return jobs.Submission{}, nil }
func (m *message) Delivered() uint64                    { return m.delivered }
func (m *message) Ack(context.Context) error            { m.ended = append(m.ended, "ack"); return nil }
func (m *message) AckLater(ctx context.Context) error   { return m.Ack(ctx) }
func (m *message) Nak(context.Context, time.Duration) error {
	m.ended = append(m.ended, "nak")
	return nil
}
func (m *message) Working(context.Context) error { return nil }
func (m *message) Term(context.Context, string) error {
	m.ended = append(m.ended, "term")
	return nil
}

var queued = jobs.Submission{Job: jobs.Job{ID: "j", State: jobs.Queued, MaxAttempts: 3}}

func claims(l *ledger, d *message) (*attempt, error) {
	w := New(Config{ID: "me", Ledger: l, Packs: every{}, Log: zerolog.Nop()})
	return w.claim(context.Background(), d, queued, zerolog.Nop())
}

// other claims as another worker.
func other(j *jobs.Job) {
	*j = start(*j, "other", now).next
	j.ID = "j"
}

// TestLoserOfAClaimStopsSilently: whatever the delivery, somebody faster is
// neither fenced off nor robbed of the message.
func TestLoserOfAClaimStopsSilently(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		past      func(*jobs.Job) // what the lifecycle holds already
		delivered uint64
	}{
		"first delivery":         {nil, 1},
		"later delivery":         {nil, 3},
		"a retry that is due":    {func(j *jobs.Job) { other(j); j.State = jobs.Retrying }, 2},
		"the job of a lost one":  {func(j *jobs.Job) { other(j); j.Worker = "lost" }, 2},
		"a copy from a schedule": {func(j *jobs.Job) { other(j); j.State = jobs.Retrying }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &ledger{}
			if tt.past != nil {
				l.push(tt.past)
			}
			l.before = func() { l.push(other) }
			if tt.delivered == 1 && tt.past != nil {
				// The first try expects no event at all; the race is later.
				l.before = func() { l.mu.Lock(); l.before = func() { l.push(other) }; l.mu.Unlock() }
			}
			d := &message{delivered: tt.delivered}
			a, err := claims(l, d)
			if a != nil || err != nil || len(d.ended) > 0 {
				t.Errorf("got attempt %v, error %v, message %v", a, err, d.ended)
			}
			if last, _ := l.Last(t.Context(), jobs.Key{}, true); last.Job.Worker != "other" || last.Job.Lost > 0 {
				t.Errorf("%s holds the job, %d workers lost", last.Job.Worker, last.Job.Lost)
			}
		})
	}
}

func TestEndedJobIsAcknowledgedEvenWhenItEndsDuringAClaim(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	l.push(other)
	l.before = func() { l.push(func(j *jobs.Job) { j.State = jobs.Succeeded }) }
	d := &message{delivered: 2}
	if a, err := claims(l, d); a != nil || err != nil || len(d.ended) != 1 || d.ended[0] != "ack" {
		t.Errorf("got attempt %v, error %v, message %v", a, err, d.ended)
	}
}

// TestWriteInFlightIsNoLostClaim: the server refuses a lone writer once in a
// while, because it sees a write in flight.
func TestWriteInFlightIsNoLostClaim(t *testing.T) {
	t.Parallel()
	for _, delivered := range []uint64{1, 2} {
		l := &ledger{lose: jobs.ErrConflict}
		a, err := claims(l, &message{delivered: delivered})
		if a == nil || err != nil {
			t.Errorf("delivery %d: got %v, %v", delivered, a, err)
		}
	}
}

// TestClaimWhoseAnswerWasLost is not made a second time.
func TestClaimWhoseAnswerWasLost(t *testing.T) {
	t.Parallel()
	l := &ledger{lose: jobs.ErrUnavailable}
	a, err := claims(l, &message{delivered: 1})
	if a == nil || err != nil || a.expected != 1 || len(l.recs) != 1 {
		t.Errorf("got %v, %v with %d events", a, err, len(l.recs))
	}
}

// TestClaimWithoutItsInputCountsAsNotMade: the job must not leave the queue
// before what it runs on is kept elsewhere.
func TestClaimWithoutItsInputCountsAsNotMade(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]error{
		"event stored": jobs.ErrInputNotStored,
		"answer lost":  errors.Join(jobs.ErrUnavailable, jobs.ErrInputNotStored),
	} {
		l := &ledger{lose: lost}
		d := &message{delivered: 1}
		if a, err := claims(l, d); a != nil || !errors.Is(err, jobs.ErrInputNotStored) || len(d.ended) > 0 {
			t.Fatalf("%s: got %v, %v, message %v", name, a, err, d.ended)
		}
		a, err := claims(l, &message{delivered: 2})
		if a == nil || err != nil || l.inputs != 1 {
			t.Errorf("%s: the next claim got %v, %v; input stored %d times", name, a, err, l.inputs)
		}
	}
}

// TestSettledDeliveryEnds: a job that is ended instead of run leaves the
// queue, poison with a reason of its own.
func TestSettledDeliveryEnds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		past func(*jobs.Job)
		want string
		code packs.Code
	}{
		"poison":          {func(j *jobs.Job) { other(j); j.Lost = 3 }, "term", packs.HandlerFailed},
		"outcome unknown": {func(j *jobs.Job) { other(j); j.EffectBegun = true }, "ack", packs.OutcomeUnknown},
		"cancelled":       {func(j *jobs.Job) { other(j); j.CancelRequested = true }, "ack", packs.Cancelled},
	} {
		l := &ledger{}
		l.push(tt.past)
		d := &message{delivered: 2}
		a, err := claims(l, d)
		last, _ := l.Last(t.Context(), jobs.Key{}, true)
		if a != nil || err != nil || len(d.ended) != 1 || d.ended[0] != tt.want || last.Job.Error.Code != tt.code {
			t.Errorf("%s: got %v, %v, message %v, %+v", name, a, err, d.ended, last.Job.Error)
		}
	}
}

// TestGraceOfACancelIsTheEngines: it is the engine that closes the session
// under a handler and gives up on it.
func TestGraceOfACancelIsTheEngines(t *testing.T) {
	t.Parallel()
	if got := New(Config{CancelGrace: time.Minute}).engine.Grace; got != time.Minute {
		t.Errorf("got %s, want a minute", got)
	}
}

// every is a catalogue that has every pack, none of which can be run.
type every struct{}

func (every) Get(string, string) (packs.Pack, error) { return nil, nil }
