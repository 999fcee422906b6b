package worker

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// none is a catalogue without packs.
type none struct{}

func (none) Get(name, _ string) (packs.Pack, error) {
	return nil, packs.Errorf(packs.NotFound, "there is no pack %s", name)
}

// timetable notes what is put off.
type timetable struct {
	jobs.Queue
	subs []jobs.Submission
	at   []time.Time
}

func (q *timetable) Schedule(_ context.Context, s jobs.Submission, at time.Time) error {
	q.subs, q.at = append(q.subs, s), append(q.at, at)
	return nil
}

// TestJobOfAnotherWorkersPack: it is left in the queue for a while, then put
// off, and never claimed.
func TestJobOfAnotherWorkersPack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		passedOn  int
		delivered uint64
		want      string
		pause     time.Duration // of a schedule
	}{
		{"first delivery", 0, 1, "nak", 0},
		{"last in the queue", 0, 5, "nak", 0},
		{"put off", 0, 6, "ack", 15 * time.Second},
		{"again, first delivery", 1, 1, "nak", 0},
		{"again, last in the queue", 1, 2, "nak", 0},
		{"again, put off", 1, 3, "ack", 30 * time.Second},
		{"put off for long", 2, 3, "ack", time.Minute},
		{"not for longer", 3, 3, "ack", time.Minute},
		{"whatever the count", 1 << 40, 3, "ack", time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l, q, d := &ledger{}, &timetable{}, &message{delivered: tt.delivered}
			w := New(Config{ID: "me", Ledger: l, Queue: q, Packs: none{}, Log: zerolog.Nop()})
			sub := queued
			sub.PassedOn = tt.passedOn
			began := time.Now()
			a, err := w.claim(context.Background(), d, sub, zerolog.Nop())
			if a != nil || err != nil || len(l.recs) != 0 {
				t.Fatalf("claim: got %v, %v and %d events, want none", a, err, len(l.recs))
			}
			if diff := cmp.Diff([]string{tt.want}, d.ended); diff != "" {
				t.Errorf("message: (-want +got)\n%s", diff)
			}
			if tt.pause == 0 {
				if len(q.subs) != 0 {
					t.Errorf("put off: %+v", q.subs)
				}
				return
			}
			if len(q.subs) != 1 || q.subs[0].PassedOn != tt.passedOn+1 || q.subs[0].Encoded != nil ||
				q.at[0].Before(began.Add(tt.pause)) || q.at[0].After(time.Now().Add(tt.pause)) {
				t.Errorf("put off: %+v at %v, want once, for %s", q.subs, q.at, tt.pause)
			}
		})
	}
}

// TestWorkerWithoutThePackEndsWhatNeedsNone: a job that has ended, or is to be
// cancelled, wants no pack.
func TestWorkerWithoutThePackEndsWhatNeedsNone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*jobs.Job)
		state  jobs.State
	}{
		"ended":             {func(j *jobs.Job) { j.State = jobs.Succeeded }, jobs.Succeeded},
		"to be cancelled":   {func(j *jobs.Job) { j.State, j.CancelRequested = jobs.Retrying, true }, jobs.Cancelled},
		"lost, to be ended": {func(j *jobs.Job) { j.State, j.CancelRequested = jobs.Running, true }, jobs.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, d := &ledger{}, &message{delivered: 2}
			l.push(other)
			l.push(tt.change)
			w := New(Config{ID: "me", Ledger: l, Packs: none{}, Log: zerolog.Nop()})
			if a, err := w.claim(context.Background(), d, queued, zerolog.Nop()); a != nil || err != nil {
				t.Errorf("claim: got %v, %v", a, err)
			}
			if got := l.recs[len(l.recs)-1].Job.State; got != tt.state {
				t.Errorf("state: got %s, want %s", got, tt.state)
			}
			if diff := cmp.Diff([]string{"ack"}, d.ended); diff != "" {
				t.Errorf("message: (-want +got)\n%s", diff)
			}
		})
	}
}

func TestRuns(t *testing.T) {
	t.Parallel()
	s := Status{Slots: map[string]int{"core": 1}, Packs: []string{"a@v1", "a@v2", "ab@v1"}}
	for _, tt := range []struct {
		pool, pack, version string
		want                bool
	}{
		{"core", "a", "v2", true},
		{"core", "a", "v3", false},
		{"core", "a", "", true},
		{"core", "ab", "v2", false},
		{"core", "b", "", false},
		{"media", "a", "v1", false},
	} {
		if got := s.Runs(tt.pool, tt.pack, tt.version); got != tt.want {
			t.Errorf("Runs(%s, %s, %s): got %v", tt.pool, tt.pack, tt.version, got)
		}
	}
	untold := Status{Slots: s.Slots}
	if !untold.Runs("core", "b", "v9") || untold.Runs("media", "b", "v9") {
		t.Error("a worker that does not tell: want everything of its pools")
	}
	s.Drain = true
	if s.Runs("core", "a", "v1") {
		t.Error("a worker that drains takes nothing")
	}
}
