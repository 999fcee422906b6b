package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/jobs/jobstest"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// TestJobsUnderAnyOrderOfEvents lets callers and workers act on jobs in random
// orders: the client side and the workers are the real ones, the bus is the
// job system in memory. After every step the history of every job must be one
// that the rules allow; at the end every job has ended, once.
func TestJobsUnderAnyOrderOfEvents(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		// Pauses between two tries of a write take no time in a bubble.
		var failure any
		synctest.Test(t, func(*testing.T) {
			defer func() { failure = recover() }() // rapid's own, which must not end the bubble
			m := newMachine(rt)
			rt.Repeat(map[string]func(*rapid.T){
				"submit": m.submit, "deliver": m.deliver, "begin": m.begin, "finish": m.finish, "lose": m.lose, "die": m.die,
				"cancel": m.cancel, "retry": m.retry, "replay": m.replay, "drop": m.drop, "": m.check,
			})
			m.drain(rt)
		})
		if failure != nil {
			panic(failure)
		}
	})
}

// propertyMaxLost is how many lost workers a job of the machine survives.
const propertyMaxLost = 2

// machine is the system and what the test knows of it.
type machine struct {
	ctx     context.Context //nolint:containedctx // of the whole run
	world   *jobstest.World
	jobs    *jobs.Service
	workers []*Worker

	ids       []string          // of all jobs, in order
	keyed     map[string]string // idempotency key → job
	delivered map[string]uint64 // deliveries of each message
	attempts  []*attempt        // that run, some of them fenced off
	begun     map[string]int    // effects begun, by job
	cancelled map[string]bool   // ended by a cancel before they ran
	stopping  map[string]int    // running when a cancel was requested → runs by then
	ended     map[string]string // the terminal record of a job
}

func newMachine(t *rapid.T) *machine {
	plain := packs.Define(packs.Spec[struct{}, struct{}]{
		Name: "t.plain", Summary: "s", MaxAttempts: 2,
		Run: func(context.Context, *packs.Run, struct{}) (struct{}, error) { return struct{}{}, nil },
	})
	once := packs.Define(packs.Spec[struct{}, struct{}]{
		Name: "t.once", Summary: "s", Effect: packs.EffectOnce,
		Run: func(context.Context, *packs.Run, struct{}) (struct{}, error) { return struct{}{}, nil },
	})
	m := &machine{
		ctx: context.Background(), world: jobstest.New(), keyed: map[string]string{}, delivered: map[string]uint64{},
		begun: map[string]int{}, cancelled: map[string]bool{}, stopping: map[string]int{}, ended: map[string]string{},
	}
	catalog := packs.NewCatalog(plain, once)
	m.jobs = jobs.New(m.world.Config(catalog))
	for i := range 3 {
		m.workers = append(m.workers, New(Config{
			ID: fmt.Sprintf("w%d", i), Ledger: m.world, Queue: m.world, Packs: catalog, MaxLost: propertyMaxLost,
			Backoff: func(int) time.Duration { return 0 }, Log: zerolog.Nop(),
		}))
	}
	return m
}

var propertyCaller = identity.Caller{Subject: "Ann"}

// letterOf is a message of the queue on its way to a worker.
type letterOf struct {
	m   *machine
	sub jobs.Submission
	n   uint64
}

func (l *letterOf) Submission() (jobs.Submission, error) { return l.sub, nil }
func (l *letterOf) Delivered() uint64                    { return l.n }
func (l *letterOf) Ack(ctx context.Context) error {
	return l.m.world.Remove(ctx, l.sub.Job.Key(), l.sub.Job.Pool)
}
func (l *letterOf) AckLater(ctx context.Context) error       { return l.Ack(ctx) }
func (l *letterOf) Nak(context.Context, time.Duration) error { return nil }
func (l *letterOf) Working(context.Context) error            { return nil }
func (l *letterOf) Term(ctx context.Context, _ string) error { return l.Ack(ctx) }

// one draws a job, or skips the step when there is none.
func (m *machine) one(t *rapid.T) string {
	if len(m.ids) == 0 {
		t.Skip("no job yet")
	}
	return rapid.SampledFrom(m.ids).Draw(t, "job")
}

func (m *machine) record(id string) (jobs.Record, bool) {
	rec, err := m.world.Last(m.ctx, jobs.Key{ID: id}, true)
	return rec, err == nil
}

func (m *machine) submit(t *rapid.T) {
	r := jobs.Request{Pack: rapid.SampledFrom([]string{"t.plain", "t.once"}).Draw(t, "pack")}
	r.IdempotencyKey = rapid.SampledFrom([]string{"", "", "k1", "k2"}).Draw(t, "key")
	job, err := m.jobs.Submit(m.ctx, propertyCaller, r)
	switch first, known := m.keyed[r.IdempotencyKey+r.Pack]; {
	case r.IdempotencyKey != "" && codeOf(err) == packs.IdempotencyConflict:
		// The key stands for the other pack.
		if known {
			t.Fatalf("key %s conflicts with its own call", r.IdempotencyKey)
		}
		return
	case err != nil:
		t.Fatalf("submit: %v", err)
	case known && job.ID != first:
		t.Fatalf("key %s gave job %s, then %s", r.IdempotencyKey, first, job.ID)
	case known:
		return
	}
	if r.IdempotencyKey != "" {
		m.keyed[r.IdempotencyKey+r.Pack] = job.ID
	}
	m.ids = append(m.ids, job.ID)
}

func codeOf(err error) packs.Code {
	var e *packs.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// deliver hands a message to a worker: for the first time, after it was given
// back, or because its worker was slow or lost.
func (m *machine) deliver(t *rapid.T) {
	m.handOver(t, m.one(t), rapid.SampledFrom(m.workers).Draw(t, "worker"))
}

func (m *machine) handOver(t *rapid.T, id string, w *Worker) {
	sub, _, err := m.world.Find(m.ctx, jobs.Key{ID: id}, true)
	if err != nil {
		return // it has left the queue
	}
	m.delivered[id]++
	d := &letterOf{m, sub, m.delivered[id]}
	if w.adopt(id, d) {
		return
	}
	a, err := w.claim(m.ctx, d, sub, zerolog.Nop())
	if err != nil {
		t.Fatalf("claim of job %s: %v", id, err)
	}
	if a != nil {
		m.attempts = append(m.attempts, a)
	}
}

// running draws an attempt.
func (m *machine) running(t *rapid.T) (int, *attempt) {
	if len(m.attempts) == 0 {
		t.Skip("nothing runs")
	}
	i := rapid.IntRange(0, len(m.attempts)-1).Draw(t, "attempt")
	return i, m.attempts[i]
}

func (m *machine) begin(t *rapid.T) {
	_, a := m.running(t)
	if a.claimed.Effect != packs.EffectOnce {
		t.Skip("has no effect")
	}
	before, _ := m.record(a.claimed.ID)
	if err := a.begin(m.ctx); err != nil {
		return
	}
	m.begun[a.claimed.ID]++
	if before.Job.CancelRequested || before.Job.EffectBegun || before.Job.Runs != a.claimed.Runs {
		t.Fatalf("an effect of job %s was begun although %+v", a.claimed.ID, before.Job)
	}
}

// outcomes are the ways a run may end.
var outcomes = map[string]outcome{
	"success":             {},
	"failed":              {err: packs.Errorf(packs.HandlerFailed, "no")},
	"session unavailable": {err: packs.Errorf(packs.SessionUnavailable, "no")},
	"timeout":             {err: packs.Errorf(packs.Timeout, "no")},
	"retry asked for":     {err: packs.Retry(packs.Errorf(packs.HandlerFailed, "no"), 0)},
	"worker stops":        {err: packs.Errorf(packs.Cancelled, "no"), stop: errStopping},
	"stalled":             {err: packs.Errorf(packs.Cancelled, "no"), stop: errStalled},
}

func (m *machine) finish(t *rapid.T) {
	i, a := m.running(t)
	m.attempts = slices.Delete(m.attempts, i, i+1)
	names := []string{"success", "failed", "session unavailable", "timeout", "retry asked for", "worker stops", "stalled"}
	o := outcomes[rapid.SampledFrom(names).Draw(t, "outcome")]
	if rec, _ := m.record(a.claimed.ID); rec.Job.CancelRequested && rapid.Bool().Draw(t, "told of the cancel") {
		o = outcome{err: packs.Errorf(packs.Cancelled, "no"), stop: errCancelled}
	}
	m.end(t, a, o)
}

func (m *machine) end(t *rapid.T, a *attempt, o outcome) {
	before, _ := m.record(a.claimed.ID)
	job, err := a.finish(m.ctx, packs.Outcome{Output: json.RawMessage(`{}`)}, o)
	a.w.forget(a)
	fenced := before.Job.State.Terminal() || before.Job.Runs != a.claimed.Runs
	switch {
	case fenced && !errors.Is(err, errFenced):
		t.Fatalf("a fenced attempt of job %s ended with %v and %s, over %+v", a.claimed.ID, err, job.State, before.Job)
	case !fenced && err != nil:
		t.Fatalf("the end of job %s: %v", a.claimed.ID, err)
	case fenced:
		if after, _ := m.record(a.claimed.ID); after.Sequence != before.Sequence {
			t.Fatalf("a fenced attempt of job %s wrote %+v", a.claimed.ID, after.Job)
		}
	}
}

// lose ends a worker's run without a word.
func (m *machine) lose(t *rapid.T) {
	i, a := m.running(t)
	m.attempts = slices.Delete(m.attempts, i, i+1)
	a.w.forget(a)
}

// die lets one worker after the other take a job over.
func (m *machine) die(t *rapid.T) {
	id := m.one(t)
	for range propertyMaxLost + 2 {
		for _, w := range m.workers {
			m.handOver(t, id, w)
		}
	}
}

func (m *machine) cancel(t *rapid.T) {
	id := m.one(t)
	before, claimed := m.record(id)
	job, err := m.jobs.Cancel(m.ctx, propertyCaller, id)
	if err != nil {
		t.Fatalf("cancel job %s: %v", id, err)
	}
	switch {
	case claimed && before.Job.State.Terminal():
		if job.State != before.Job.State {
			t.Fatalf("a cancel turned job %s from %s into %s", id, before.Job.State, job.State)
		}
	case claimed && before.Job.State == jobs.Running:
		if !job.CancelRequested {
			t.Fatalf("the cancel of the running job %s was not requested", id)
		}
		if _, known := m.stopping[id]; !known {
			m.stopping[id] = job.Runs
		}
	default:
		if job.State != jobs.Cancelled {
			t.Fatalf("a cancel left the waiting job %s %s", id, job.State)
		}
		m.cancelled[id] = true
	}
}

func (m *machine) retry(t *rapid.T) {
	id := m.one(t)
	rec, claimed := m.record(id)
	again, err := m.jobs.Retry(m.ctx, propertyCaller, id, nil)
	if !claimed || !rec.Job.State.Terminal() {
		if codeOf(err) != packs.SchemaMismatch {
			t.Fatalf("retry of the unfinished job %s: %v", id, err)
		}
		return
	}
	m.again(t, id, again, err)
}

func (m *machine) again(t *rapid.T, id string, again jobs.Job, err error) {
	if err != nil {
		t.Fatalf("run job %s again: %v", id, err)
	}
	if again.ReplayOf != id || slices.Contains(m.ids, again.ID) {
		t.Fatalf("job %s run again is %+v", id, again)
	}
	m.ids = append(m.ids, again.ID)
}

func (m *machine) replay(t *rapid.T) {
	id := m.one(t)
	key := rapid.SampledFrom([]string{"", "k"}).Draw(t, "key")
	_, deadErr := m.jobs.DeadLetter(m.ctx, propertyCaller, id)
	res := m.jobs.ReplayMany(m.ctx, propertyCaller, jobs.Replays{IDs: []string{id}, Key: key})[0]
	known := key != "" && m.keyed["replay "+id] != ""
	switch {
	case deadErr != nil:
		if codeOf(res.Err) != packs.NotFound {
			t.Fatalf("replay of job %s without a letter: %v", id, res.Err)
		}
	case known:
		if res.Err != nil || res.Job.ID != m.keyed["replay "+id] {
			t.Fatalf("replay of job %s repeated: got %s %v, want %s", id, res.Job.ID, res.Err, m.keyed["replay "+id])
		}
	default:
		m.again(t, id, res.Job, res.Err)
		if key != "" {
			m.keyed["replay "+id] = res.Job.ID
		}
	}
}

func (m *machine) drop(t *rapid.T) {
	id := m.one(t)
	err := m.jobs.DropDead(m.ctx, propertyCaller, id)
	if _, left := m.jobs.DeadLetter(m.ctx, propertyCaller, id); codeOf(left) != packs.NotFound {
		t.Fatalf("dropped job %s (%v) still has a letter", id, err)
	}
}

// check holds the history of every job against the rules.
func (m *machine) check(t *rapid.T) {
	for _, id := range m.ids {
		m.checkHistory(t, id)
		if n := m.begun[id]; n > 1 {
			t.Fatalf("the effect of job %s was begun %d times", id, n)
		}
		rec, claimed := m.record(id)
		_, _, err := m.world.Find(m.ctx, jobs.Key{ID: id}, true)
		if waits := err == nil; !waits && (!claimed || !rec.Job.State.Terminal()) {
			t.Fatalf("job %s is in no queue, and %+v", id, rec.Job)
		}
	}
}

func (m *machine) checkHistory(t *rapid.T, id string) {
	events, _ := m.world.Events(jobs.Key{ID: id}, 0)
	last := jobs.Job{State: jobs.Queued}
	for i, e := range events {
		var got struct {
			Data jobs.Job `json:"data"`
		}
		if err := json.Unmarshal(e.Data, &got); err != nil {
			t.Fatal(err)
		}
		j := got.Data
		switch {
		case jobs.CheckMove(last.State, j.State) != nil:
			t.Fatalf("job %s went from %s to %s", id, last.State, j.State)
		case last.State.Terminal():
			t.Fatalf("job %s went on after its end: %s", id, e.Type)
		case j.State.Terminal() != e.Terminal, e.Terminal && i != len(events)-1:
			t.Fatalf("event %d of %d of job %s: %s", i, len(events), id, e.Type)
		case j.Runs < last.Runs || j.Runs > last.Runs+1 || j.Lost < last.Lost || j.Returned < last.Returned:
			t.Fatalf("the counts of job %s went from %+v to %+v", id, last, j)
		case j.State == jobs.Running && j.Attempt != j.Runs-j.Lost-j.Returned:
			t.Fatalf("job %s is at attempt %d after %d runs, %d lost, %d returned", id, j.Attempt, j.Runs, j.Lost, j.Returned)
		case j.Attempt > j.MaxAttempts || j.Attempt < 0:
			t.Fatalf("job %s is at attempt %d of %d", id, j.Attempt, j.MaxAttempts)
		case j.Lost > propertyMaxLost+1, j.Lost > propertyMaxLost && j.State != jobs.Failed && j.State != jobs.Cancelled:
			t.Fatalf("job %s is %s after %d lost workers", id, j.State, j.Lost)
		case last.CancelRequested && (j.Runs > last.Runs || j.State == jobs.Retrying || j.EffectBegun && !last.EffectBegun):
			t.Fatalf("job %s went on after a cancel was requested: %+v", id, j)
		case last.EffectBegun && j.Runs > last.Runs:
			t.Fatalf("job %s ran again after its effect was begun", id)
		case j.Poison && j.State != jobs.Failed:
			t.Fatalf("job %s is poison and %s", id, j.State)
		}
		last = j
	}
	if m.cancelled[id] && (last.State != jobs.Cancelled || !strings.HasPrefix(last.Error.Message, "cancelled before")) {
		t.Fatalf("job %s was cancelled while it waited and is %s: %+v", id, last.State, last.Error)
	}
	if runs, ok := m.stopping[id]; ok && last.Runs != runs {
		t.Fatalf("job %s ran again after a cancel: %d runs, then %d", id, runs, last.Runs)
	}
	if last.State.Terminal() {
		b, err := json.Marshal(last)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		if before, known := m.ended[id]; known && before != text {
			t.Fatalf("the end of job %s changed from %s to %s", id, before, text)
		}
		m.ended[id] = text
	}
	_, err := m.jobs.DeadLetter(m.ctx, propertyCaller, id)
	if err == nil && last.State != jobs.Failed {
		t.Fatalf("the %s job %s is a dead letter", last.State, id)
	}
}

// drain lets everything that still runs end and hands out what waits, until
// nothing does.
func (m *machine) drain(t *rapid.T) {
	for round := 0; ; round++ {
		for _, a := range m.attempts {
			m.end(t, a, outcome{})
		}
		m.attempts = nil
		waiting := 0
		for _, id := range m.ids {
			if _, _, err := m.world.Find(m.ctx, jobs.Key{ID: id}, true); err == nil {
				waiting++
				m.handOver(t, id, m.workers[round%len(m.workers)])
			}
		}
		if waiting == 0 {
			break
		}
		if round > 20 {
			t.Fatalf("%d jobs never end", waiting)
		}
	}
	m.check(t)
	for _, id := range m.ids {
		if rec, ok := m.record(id); !ok || !rec.Job.State.Terminal() {
			t.Fatalf("job %s never ended: %+v", id, rec.Job)
		}
	}
}
