package schedules_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
)

func TestCreateShowsDefaultsAndNextRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.create(func(s *schedules.Spec) { s.Cron = "0 6 * * *" })
	want := schedules.Schedule{
		ID: got.ID, State: schedules.Active, Caller: ann, CreatedAt: noon, UpdatedAt: noon, LastRuns: []schedules.Run{},
		Spec: schedules.Spec{Cron: "0 6 * * *", TimeZone: "UTC", Overlap: schedules.Skip, CatchUp: schedules.CatchUpLast,
			Request: jobs.Request{Pack: "test.echo"}},
	}
	for day := range schedules.NextRuns {
		want.NextRuns = append(want.NextRuns, time.Date(2026, 6, 2+day, 6, 0, 0, 0, time.UTC))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("created (-want +got):\n%s", diff)
	}
	read, err := w.svc.Get(w.ctx(), ann, got.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, read); diff != "" {
		t.Errorf("read (-created +read):\n%s", diff)
	}
	w.armed(got.ID)
}

func TestEveryFaultIsToldAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.svc.Create(w.ctx(), ann, schedules.Spec{
		Name: "a\nb", Cron: "* * *", TimeZone: "Mars", StartAt: noon.Add(time.Hour), EndAt: noon, JitterS: -1, Overlap: "never", CatchUp: "some",
		Request: jobs.Request{Pack: "nothing", Input: make([]byte, schedules.MaxInput+1), ParentID: "x", DelayS: 5},
	}, "")
	var pe *packs.Error
	if !errors.As(err, &pe) || pe.Code != packs.InvalidInput {
		t.Fatalf("got %v", err)
	}
	got := []string{}
	for _, d := range pe.Details {
		got = append(got, d.Pointer)
	}
	same(t, "faults", got, []string{"/name", "/overlap", "/catch_up", "/jitter_s", "/end_at", "/input", "/parent_id", "/run_at", "/cron", "/time_zone", "/pack"})
}

// text is a JSON string of n bytes.
func text(n int) []byte { return []byte(`"` + strings.Repeat("x", n-2) + `"`) }

func TestLimitsAtTheirEdge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*schedules.Spec)
		fault  string
	}{
		{"longest name", func(s *schedules.Spec) { s.Name = strings.Repeat("x", schedules.MaxName) }, ""},
		{"longer name", func(s *schedules.Spec) { s.Name = strings.Repeat("x", schedules.MaxName+1) }, "/name"},
		{"jitter of an hour", func(s *schedules.Spec) { s.JitterS = 3600 }, ""},
		{"jitter of more", func(s *schedules.Spec) { s.JitterS = 3601 }, "/jitter_s"},
		{"jitter of the interval", func(s *schedules.Spec) { s.Cron, s.Every, s.JitterS = "", "10s", 10 }, ""},
		{"jitter beyond it", func(s *schedules.Spec) { s.Cron, s.Every, s.JitterS = "", "10s", 11 }, "/jitter_s"},
		{"largest input", func(s *schedules.Spec) { s.Input = text(schedules.MaxInput) }, ""},
		{"larger input", func(s *schedules.Spec) { s.Input = text(schedules.MaxInput + 1) }, "/input"},
		{"ends with its only run", func(s *schedules.Spec) { s.EndAt = noon.Add(time.Minute) }, ""},
		{"ends before any", func(s *schedules.Spec) { s.EndAt = noon.Add(time.Minute - 1) }, "/end_at"},
		{"has ended", func(s *schedules.Spec) { s.EndAt = noon.Add(-time.Hour) }, "/end_at"},
		{"never", func(s *schedules.Spec) { s.Cron = "0 0 30 2 *" }, "/cron"},
	} {
		w := newWorld(t)
		_, err := w.svc.Create(w.ctx(), ann, spec(tt.change), "")
		var pe *packs.Error
		switch {
		case tt.fault == "" && err != nil, tt.fault != "" && (!errors.As(err, &pe) || len(pe.Details) != 1 || pe.Details[0].Pointer != tt.fault):
			t.Errorf("%s: got %v, want a fault at %q", tt.name, err, tt.fault)
		}
	}
}

func TestTenantHasALimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 4 {
		w.create(nil)
	}
	if _, err := w.svc.Create(w.ctx(), bob, spec(nil), ""); code(err) != packs.RateLimited {
		t.Errorf("the fifth of the tenant: %v", err)
	}
	if _, err := w.svc.Create(w.ctx(), identity.Caller{Subject: "Bob", Tenant: "other"}, spec(nil), ""); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

func TestNamesAreUniquePerOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	named := func(name string) func(*schedules.Spec) { return func(s *schedules.Spec) { s.Name = name } }
	first := w.create(named("täglich"))
	if _, err := w.svc.Create(w.ctx(), ann, spec(named(" täglich ")), ""); code(err) != packs.SchemaMismatch {
		t.Errorf("the same name: %v", err)
	}
	if _, err := w.svc.Create(w.ctx(), bob, spec(named("täglich")), ""); err != nil {
		t.Errorf("another owner: %v", err)
	}
	rename := func(id, name string) error {
		_, err := w.svc.Update(w.ctx(), ann, id, func(s schedules.Spec) (schedules.Spec, error) { s.Name = name; return s, nil })
		return err
	}
	second := w.create(named("weekly"))
	if err := rename(second.ID, "täglich"); code(err) != packs.SchemaMismatch {
		t.Errorf("rename to a taken name: %v", err)
	}
	if err := rename(first.ID, "daily"); err != nil {
		t.Fatal(err)
	}
	if err := rename(second.ID, "täglich"); err != nil {
		t.Errorf("rename to a name that was freed: %v", err)
	}
	if err := w.svc.Delete(w.ctx(), ann, second.ID); err != nil {
		t.Fatal(err)
	}
	w.create(named("täglich"))
}

// TestNameOfADeadProcess: it claimed a name and died before it stored the
// schedule.
func TestNameOfADeadProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	real := w.create(func(s *schedules.Spec) { s.Name = "x" })
	if err := w.Memory.Delete(w.ctx(), real.ID); err != nil { // the record alone
		t.Fatal(err)
	}
	w.set(time.Now())
	if _, err := w.svc.Create(w.ctx(), ann, spec(func(s *schedules.Spec) { s.Name = "x" }), ""); code(err) != packs.SchemaMismatch {
		t.Errorf("at once: %v", err)
	}
	w.set(time.Now().Add(2 * time.Minute))
	w.create(func(s *schedules.Spec) { s.Name = "x" })
}

func TestCreateUnderAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, err := w.svc.Create(w.ctx(), ann, spec(nil), "key")
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.svc.Create(w.ctx(), ann, spec(nil), "key")
	if err != nil || again.ID != first.ID {
		t.Errorf("again: %s, %v, want %s", again.ID, err, first.ID)
	}
	if _, err := w.svc.Create(w.ctx(), ann, spec(func(s *schedules.Spec) { s.Cron = "0 * * * *" }), "key"); code(err) != packs.IdempotencyConflict {
		t.Errorf("another call: %v", err)
	}
	if other, err := w.svc.Create(w.ctx(), bob, spec(nil), "key"); err != nil || other.ID == first.ID {
		t.Errorf("another caller: %s, %v", other.ID, err)
	}
	if _, err := w.svc.Create(w.ctx(), ann, spec(nil), strings.Repeat("k", 257)); code(err) != packs.InvalidInput {
		t.Errorf("long key: %v", err)
	}
}

func TestSomebodyElsesIsNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(nil)
	for _, c := range []identity.Caller{bob, {Subject: "Ann", Tenant: "other"}} {
		calls := map[string]func() error{
			"get":    func() error { _, err := w.svc.Get(w.ctx(), c, s.ID); return err },
			"pause":  func() error { _, err := w.svc.Pause(w.ctx(), c, s.ID); return err },
			"resume": func() error { _, err := w.svc.Resume(w.ctx(), c, s.ID); return err },
			"run":    func() error { _, err := w.svc.RunNow(w.ctx(), c, s.ID, ""); return err },
			"delete": func() error { return w.svc.Delete(w.ctx(), c, s.ID) },
			"update": func() error {
				_, err := w.svc.Update(w.ctx(), c, s.ID, func(s schedules.Spec) (schedules.Spec, error) { return s, nil })
				return err
			},
		}
		for name, call := range calls {
			if err := call(); code(err) != packs.NotFound {
				t.Errorf("%s by another: %v", name, err)
			}
		}
		if page, _, err := w.svc.List(w.ctx(), c, schedules.Query{}); err != nil || len(page) != 0 {
			t.Errorf("list: %v, %v", page, err)
		}
	}
	for _, id := range []string{"", "x", "s.*", strings.ToUpper(s.ID), "00000000-0000-7000-8000-000000000000"} {
		if _, err := w.svc.Get(w.ctx(), ann, id); code(err) != packs.NotFound {
			t.Errorf("get %q: %v", id, err)
		}
	}
	if got, err := w.svc.Pause(w.ctx(), admin, s.ID); err != nil || got.State != schedules.Paused {
		t.Errorf("an administrator: %v", err)
	}
	if job, err := w.svc.RunNow(w.ctx(), admin, s.ID, ""); err != nil || job.Caller.Subject != "Ann" {
		t.Errorf("run by an administrator as %q, %v", job.Caller.Subject, err)
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var want []string
	for i := range 4 {
		w.set(noon.Add(time.Duration(i) * time.Second))
		want = append(want, w.create(func(s *schedules.Spec) { s.Name = fmt.Sprint("n", i) }).ID)
	}
	slices.Reverse(want)
	var got []string
	for cursor := ""; ; {
		page, next, err := w.svc.List(w.ctx(), ann, schedules.Query{Limit: 3, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page {
			got = append(got, s.ID)
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	same(t, "ids", got, want)
	if page, _, err := w.svc.List(w.ctx(), ann, schedules.Query{Name: "n2"}); err != nil || len(page) != 1 || page[0].ID != want[1] {
		t.Errorf("by name: %v, %v", page, err)
	}
	if page, _, err := w.svc.List(w.ctx(), ann, schedules.Query{State: schedules.Paused}); err != nil || len(page) != 0 {
		t.Errorf("by state: %v, %v", page, err)
	}
	for _, q := range []schedules.Query{{Limit: 201}, {Limit: -1}, {Cursor: "zz!"}} {
		if _, _, err := w.svc.List(w.ctx(), ann, q); code(err) != packs.InvalidInput {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(nil)
	update := func(change func(*schedules.Spec)) (schedules.Schedule, error) {
		return w.svc.Update(w.ctx(), ann, s.ID, func(s schedules.Spec) (schedules.Spec, error) { change(&s); return s, nil })
	}
	w.step(time.Minute)
	// Other labels: the times stay.
	w.set(noon.Add(90 * time.Second))
	got, err := update(func(s *schedules.Spec) { s.Labels = map[string]string{"a": "b"} })
	if err != nil || !got.NextRuns[0].Equal(noon.Add(2*time.Minute)) || !got.UpdatedAt.Equal(w.clock()) {
		t.Errorf("got %+v, %v", got, err)
	}
	// Another interval: from now on.
	got, err = update(func(s *schedules.Spec) { s.Cron, s.TimeZone, s.Every = "", "", "10m" })
	if err != nil || !got.NextRuns[0].Equal(noon.Add(11*time.Minute+30*time.Second)) {
		t.Errorf("got %v, %v", got.NextRuns, err)
	}
	w.armed(s.ID)
	if _, err := update(func(s *schedules.Spec) { s.Every = "1ms" }); code(err) != packs.InvalidInput {
		t.Errorf("bad interval: %v", err)
	}
	refused := errors.New("refused")
	if _, err := w.svc.Update(w.ctx(), ann, s.ID, func(s schedules.Spec) (schedules.Spec, error) { return s, refused }); !errors.Is(err, refused) {
		t.Errorf("refused change: %v", err)
	}
	// A clock that was set back does not bring a time back that has run.
	w.finish(w.running(), jobs.Succeeded)
	if _, err = update(func(s *schedules.Spec) { s.Cron, s.Every = "* * * * *", "" }); err != nil {
		t.Fatal(err)
	}
	w.steps(30*time.Second, noon.Add(4*time.Minute))
	w.finish(w.running(), jobs.Succeeded)
	w.set(noon.Add(2 * time.Minute))
	if got, err = update(func(s *schedules.Spec) { s.Cron = "0-59 * * * *" }); err != nil || !got.NextRuns[0].Equal(noon.Add(5*time.Minute)) {
		t.Errorf("after the clock was set back: next %v, %v", got.NextRuns, err)
	}
}

func TestStartEndAndJitter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(func(s *schedules.Spec) {
		s.Cron, s.Every, s.JitterS = "", "10m", 60
		s.StartAt, s.EndAt = noon.Add(5*time.Minute), noon.Add(15*time.Minute)
	})
	timer, ok := w.Timer(s.ID)
	if put := timer.When.Sub(timer.At); !ok || !timer.At.Equal(s.StartAt) || put <= 0 || put >= time.Minute {
		t.Errorf("timer %+v, %v", timer, ok)
	}
	w.set(timer.When.Add(-time.Millisecond))
	w.ring()
	same(t, "before", w.ran(), []string{})
	w.set(timer.When)
	w.ring()
	same(t, "jobs", w.ran(), []string{"12:05:00"})
	w.finish(w.running(), jobs.Succeeded)
	w.steps(time.Minute, noon.Add(time.Hour))
	same(t, "jobs", w.ran(), []string{"12:05:00", "12:15:00"})
	got, err := w.svc.Get(w.ctx(), ann, s.ID)
	if err != nil || got.State != schedules.Ended || len(got.NextRuns) != 0 {
		t.Errorf("got %s, next %v, %v", got.State, got.NextRuns, err)
	}
	w.armed(s.ID)
	// It can still be run by hand, and begin anew.
	if _, err := w.svc.Update(w.ctx(), ann, s.ID, func(s schedules.Spec) (schedules.Spec, error) {
		s.Labels = map[string]string{"a": "b"}
		return s, nil
	}); err != nil {
		t.Errorf("change of an ended one: %v", err)
	}
	got, err = w.svc.Update(w.ctx(), ann, s.ID, func(s schedules.Spec) (schedules.Spec, error) { s.EndAt = time.Time{}; return s, nil })
	if err != nil || got.State != schedules.Active || !got.NextRuns[0].Equal(noon.Add(65*time.Minute)) {
		t.Errorf("again: %s, %v, %v", got.State, got.NextRuns, err)
	}
}

func TestRunNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(nil)
	if _, err := w.svc.Pause(w.ctx(), ann, s.ID); err != nil {
		t.Fatal(err)
	}
	first, err := w.svc.RunNow(w.ctx(), ann, s.ID, "key")
	if err != nil || first.ScheduleID != s.ID {
		t.Fatalf("run: %+v, %v", first, err)
	}
	if again, err := w.svc.RunNow(w.ctx(), ann, s.ID, "key"); err != nil || again.ID != first.ID {
		t.Errorf("again under the key: %s, %v", again.ID, err)
	}
	second, err := w.svc.RunNow(w.ctx(), ann, s.ID, "")
	if err != nil || second.ID == first.ID {
		t.Errorf("without a key: %s, %v", second.ID, err)
	}
	w.finish(first.ID, jobs.Failed)
	w.finish(second.ID, jobs.Succeeded)
	got, err := w.svc.Get(w.ctx(), ann, s.ID)
	if err != nil || len(got.LastRuns) != 2 || got.LastRuns[0].Outcome != schedules.RunSucceeded ||
		got.LastRuns[1].Outcome != schedules.RunFailed || got.LastRuns[1].Trigger != schedules.ByHand {
		t.Errorf("runs %+v, %v", got.LastRuns, err)
	}
	w.refuse = packs.Errorf(packs.InvalidInput, "no")
	if _, err := w.svc.RunNow(w.ctx(), ann, s.ID, ""); code(err) != packs.InvalidInput {
		t.Errorf("refused: %v", err)
	}
}

func TestDeleteLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.create(nil)
	w.step(time.Minute)
	job := w.running()
	if err := w.svc.Delete(w.ctx(), ann, s.ID); err != nil {
		t.Fatal(err)
	}
	w.armed(s.ID)
	// A timer that was set by a process that had read the record before.
	if err := w.Memory.Arm(w.ctx(), s.ID, noon.Add(2*time.Minute), noon.Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	w.step(time.Minute)
	w.finish(job, jobs.Succeeded)
	w.armed(s.ID)
	if len(w.order) != 1 {
		t.Errorf("%d jobs", len(w.order))
	}
}
