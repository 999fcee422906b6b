package schedules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
	"github.com/helmdeck/helmdeck/pkg/schedules/schedulestest"
)

var (
	ann   = identity.Caller{Subject: "Ann"}
	bob   = identity.Caller{Subject: "Bob"}
	admin = identity.Caller{Subject: "root", Scopes: []string{identity.ScopeAdmin}}
	noon  = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
)

// errInjected is a call that failed, undone or with its answer lost.
var errInjected = fmt.Errorf("injected: %w", jobs.ErrUnavailable)

// world is schedules on a clock of its own, with jobs that end when told to.
type world struct {
	t *testing.T
	*schedulestest.Memory
	svc *schedules.Service

	mu     sync.Mutex // guards all below
	now    time.Time
	jobs   map[string]jobs.Job
	order  []string // of the jobs
	refuse error    // what SubmitRun answers, when set
	calls  int
	fail   int // the call that fails; 0: none
	after  bool
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, Memory: schedulestest.NewMemory(), now: noon, jobs: map[string]jobs.Job{}}
	w.svc = w.replica()
	return w
}

// replica is one more process on the same bus.
func (w *world) replica() *schedules.Service {
	return schedules.New(schedules.Config{
		Store: w, Names: w.Memory, Timers: w, Jobs: w, KeySecret: []byte("secret"), Now: w.clock,
		MaxPerTenant: 4, Log: zerolog.New(zerolog.NewTestWriter(w.t)).Level(zerolog.ErrorLevel),
	})
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// call counts a call and says whether it fails before or after it is made.
func (w *world) call(do func() error) error {
	w.mu.Lock()
	w.calls++
	failed := w.calls == w.fail
	after := w.after
	w.mu.Unlock()
	if failed && !after {
		return errInjected
	}
	err := do()
	if failed {
		return errInjected
	}
	return err
}

func (w *world) Get(ctx context.Context, id string) (r schedules.Record, revision uint64, err error) {
	err = w.call(func() (err error) { r, revision, err = w.Memory.Get(ctx, id); return err })
	return r, revision, err
}

func (w *world) Update(ctx context.Context, r schedules.Record, revision uint64) error {
	return w.call(func() error { return w.Memory.Update(ctx, r, revision) })
}

func (w *world) Arm(ctx context.Context, id string, at, when time.Time) error {
	return w.call(func() error { return w.Memory.Arm(ctx, id, at, when) })
}

// SubmitRun implements schedules.Jobs.
func (w *world) SubmitRun(_ context.Context, c identity.Caller, r jobs.Request, run jobs.Run) (job jobs.Job, err error) {
	err = w.call(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refuse != nil {
			return w.refuse
		}
		var ok bool
		if job, ok = w.jobs[run.JobID]; ok {
			return nil // as the queue does
		}
		job = jobs.Job{ID: run.JobID, ScheduleID: run.ScheduleID, ScheduledFor: run.At, Caller: c, Pack: r.Pack, State: jobs.Queued}
		w.jobs[run.JobID] = job
		w.order = append(w.order, run.JobID)
		return nil
	})
	return job, err
}

// Locate implements schedules.Jobs.
func (w *world) Locate(_ context.Context, k jobs.Key) (job jobs.Job, err error) {
	err = w.call(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		var ok bool
		if job, ok = w.jobs[k.ID]; !ok || job.Key() != k {
			return jobs.ErrNotFound
		}
		return nil
	})
	return job, err
}

// Cancel implements schedules.Jobs: a queued job is cancelled at once, a
// running one when finish says so.
func (w *world) Cancel(_ context.Context, _ identity.Caller, id string) (job jobs.Job, err error) {
	err = w.call(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		job = w.jobs[id]
		job.CancelRequested = true
		if job.State == jobs.Queued {
			job.State = jobs.Cancelled
		}
		w.jobs[id] = job
		return nil
	})
	return job, err
}

// Faults implements schedules.Jobs.
func (w *world) Faults(r jobs.Request) ([]packs.Detail, error) {
	if r.Pack != "test.echo" {
		return []packs.Detail{{Pointer: "/pack", Message: "there is no pack named " + r.Pack}}, nil
	}
	return nil, nil
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.t.Cleanup(cancel)
	return ctx
}

// spec is a schedule of test.echo, changed.
func spec(change func(*schedules.Spec)) schedules.Spec {
	s := schedules.Spec{Cron: "* * * * *", Request: jobs.Request{Pack: "test.echo"}}
	if change != nil {
		change(&s)
	}
	return s
}

func (w *world) create(change func(*schedules.Spec)) schedules.Schedule {
	w.t.Helper()
	s, err := w.svc.Create(w.ctx(), ann, spec(change), "")
	if err != nil {
		w.t.Fatalf("create: %v", err)
	}
	return s
}

// set moves the clock, forward or back.
func (w *world) set(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = at
}

// step moves the clock on and lets what is due fire, each twice and at two
// replicas at once.
func (w *world) step(d time.Duration) {
	w.t.Helper()
	w.set(w.clock().Add(d))
	w.ring()
}

func (w *world) ring() {
	w.t.Helper()
	for fired := w.Due(w.clock()); len(fired) > 0; fired = w.Due(w.clock()) {
		var wg sync.WaitGroup
		for id, at := range fired {
			for _, s := range []*schedules.Service{w.svc, w.replica()} {
				wg.Go(func() {
					for range 2 {
						if _, err := s.Attend(w.ctx(), id, schedules.Word{At: at}); err != nil {
							w.t.Errorf("attend: %v", err)
						}
					}
				})
			}
		}
		wg.Wait()
	}
}

// steps makes steps up to a time.
func (w *world) steps(d time.Duration, until time.Time) {
	w.t.Helper()
	for w.clock().Before(until) {
		w.step(d)
	}
}

// finish ends a job and tells its schedule.
func (w *world) finish(id string, state jobs.State) {
	w.t.Helper()
	w.mu.Lock()
	job := w.jobs[id]
	job.State, job.FinishedAt = state, w.now
	w.jobs[id] = job
	w.mu.Unlock()
	if _, err := w.svc.Attend(w.ctx(), job.ScheduleID, schedules.Word{Ended: &job}); err != nil {
		w.t.Errorf("attend: %v", err)
	}
}

// running returns the id of the one job that has not ended.
func (w *world) running() string {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	id := ""
	for _, j := range w.jobs {
		if !j.State.Terminal() {
			if id != "" {
				w.t.Fatalf("jobs %s and %s run at once", id, j.ID)
			}
			id = j.ID
		}
	}
	if id == "" {
		w.t.Fatal("no job runs")
	}
	return id
}

// begin makes the one job that waits run.
func (w *world) begin() string {
	id := w.running()
	w.mu.Lock()
	defer w.mu.Unlock()
	job := w.jobs[id]
	job.State = jobs.Running
	w.jobs[id] = job
	return id
}

// ran returns the times of all jobs, oldest first.
func (w *world) ran() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := []string{}
	for _, id := range w.order {
		at = append(at, short(w.jobs[id].ScheduledFor))
	}
	return at
}

func short(t time.Time) string { return t.UTC().Format("15:04:05") }

// runs returns the last runs of a schedule, oldest first.
func (w *world) runs(id string) []string {
	w.t.Helper()
	s, err := w.svc.Get(w.ctx(), ann, id)
	if err != nil {
		w.t.Fatal(err)
	}
	out := []string{}
	for _, r := range slices.Backward(s.LastRuns) {
		line := short(r.At) + " " + string(r.Trigger) + " " + string(r.Outcome)
		if r.Count > 0 {
			line += fmt.Sprint(" ", r.Count)
		}
		if (r.JobID != "") != (r.Outcome == schedules.RunActive || r.Outcome == schedules.RunSucceeded ||
			r.Outcome == schedules.RunCancelled || r.Outcome == schedules.RunUnknown || r.Outcome == schedules.RunFailed && r.Error.Code == packs.HandlerFailed) {
			w.t.Errorf("run %+v: has a job or has none", r)
		}
		out = append(out, line)
	}
	return out
}

// armed checks that a timer is set for the next run, and only then.
func (w *world) armed(id string) {
	w.t.Helper()
	rec, _, err := w.Memory.Get(w.ctx(), id)
	if err != nil && !errors.Is(err, schedules.ErrNotFound) {
		w.t.Fatal(err)
	}
	timer, ok := w.Timer(id)
	if ok != !rec.FiresAt().IsZero() || ok && (!timer.At.Equal(rec.NextAt) || !timer.When.Equal(rec.FiresAt())) {
		w.t.Errorf("timer %+v (%v), record's next run %s at %s", timer, ok, rec.NextAt, rec.FiresAt())
	}
}

func code(err error) packs.Code {
	var pe *packs.Error
	if errors.As(err, &pe) {
		return pe.Code
	}
	return packs.Code(fmt.Sprint(err))
}
