package webhooks_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	hooks "github.com/helmdeck/helmdeck/internal/webhooks"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
	"github.com/helmdeck/helmdeck/test/rig"
)

func create(t *testing.T, r *rig.Rig, s webhooks.Spec) webhooks.Created {
	t.Helper()
	made, err := r.Webhooks.Create(r.Ctx(), rig.Ann, s)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func attempts(r *rig.Rig, id string) []webhooks.Attempt {
	page, _, err := r.Webhooks.Deliveries(r.Ctx(), rig.Ann, id, webhooks.LogQuery{})
	if err != nil {
		r.T.Fatal(err)
	}
	return page
}

func outcomes(page []webhooks.Attempt) string {
	var out []string
	for i := len(page) - 1; i >= 0; i-- {
		out = append(out, string(page[i].Outcome))
	}
	return strings.Join(out, " ")
}

func echo(r *rig.Rig, change ...func(*jobs.Request)) jobs.Job {
	return r.Submit("test.echo", map[string]any{"message": "x"}, change...)
}

// TestAnswers: what an answer leads to, up to the end of the ladder.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer  func(int, http.ResponseWriter, *http.Request)
		want    string
		problem string // in the first entry
	}{
		"500 then 200": {status(500, 2), "retrying delivered", "500"},
		"never":        {status(404, 0), "retrying retrying retrying failed", "404"},
		"gone":         {status(410, 0), "gone", "410"},
		"redirect": {func(_ int, w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		},
			"retrying retrying retrying failed", "redirects"},
		"too many, now": {func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 1 {
				w.Header().Set("Retry-After", "0")
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}, "retrying delivered", "503"},
		"slow": {func(n int, _ http.ResponseWriter, r *http.Request) {
			if n == 1 {
				<-r.Context().Done()
			}
		}, "retrying delivered", "no answer within"},
		"garbage": {func(n int, w http.ResponseWriter, _ *http.Request) {
			if n > 1 {
				return
			}
			if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
				_, _ = c.Write([]byte("\x00\xff no http\r\n\r\n"))
				_ = c.Close() // that is the point
			}
		}, "retrying delivered", "malformed"},
		"huge": {func(n int, w http.ResponseWriter, _ *http.Request) {
			if n == 1 {
				w.WriteHeader(http.StatusInternalServerError)
			}
			_, _ = w.Write([]byte(strings.Repeat("\xff", 1<<20))) // read as far as wanted
		}, "retrying delivered", "500"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			r.Sender(func(c *hooks.Config) { c.Timeout = 2 * time.Second })
			r.Worker("a")
			to := receive(t, tt.answer)
			w := create(t, r, webhooks.Spec{URL: to.URL})
			echo(r)
			n := len(strings.Fields(tt.want))
			r.Until("all attempts", func() bool { return len(attempts(r, w.ID)) >= n })
			page := attempts(r, w.ID)
			if got := outcomes(page); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if first := page[len(page)-1]; !strings.Contains(first.Error, tt.problem) || len(first.Response) > 1<<10 {
				t.Errorf("first entry: %+v", first)
			}
			var ids []string
			for i, g := range to.got() {
				verify(t, g, w.Secret)
				ids = append(ids, g.id())
				if g.id() != ids[0] || g.Header.Get("X-Helmdeck-Delivery-Attempt") != string(rune('1'+i)) {
					t.Errorf("attempt %d: %v", i+1, g.Header)
				}
			}
			if e, err := r.Webhooks.Get(r.Ctx(), rig.Ann, w.ID); err != nil || e.Enabled == (name == "gone") {
				t.Errorf("endpoint: %+v, %v", e, err)
			}
		})
	}
}

// TestFilters: two replicas send what the filters let through, and an endpoint
// hears of an event that comes right after it was made.
func TestFilters(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Sender()
	r.Sender()
	r.Worker("a")
	ends, labelled, others, failed := receive(t, nil), receive(t, nil), receive(t, nil), receive(t, nil)
	create(t, r, webhooks.Spec{URL: ends.URL, Packs: []string{"test.*"}})
	create(t, r, webhooks.Spec{URL: labelled.URL, Labels: map[string]string{"a": "b"}, Events: []string{webhooks.EventAny}})
	create(t, r, webhooks.Spec{URL: failed.URL, Events: []string{"job.failed"}})
	if _, err := r.Webhooks.Create(r.Ctx(), identity.Caller{Subject: "Bob"}, webhooks.Spec{URL: others.URL}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		echo(r)
	}
	echo(r, func(q *jobs.Request) { q.Labels = map[string]string{"a": "b", "c": "d"} })
	r.Until("deliveries", func() bool { return ends.count() >= 6 && labelled.count() >= 2 })
	if a, b, c, d := ends.count(), labelled.count(), others.count(), failed.count(); a != 6 || b != 2 || c != 0 || d != 0 {
		t.Errorf("ends %d, labelled %d, another owner's %d, failed %d", a, b, c, d)
	}
}

// TestBreaker: after failures in a row nothing is sent until a probe succeeds,
// and the waiting uses up no attempts.
func TestBreaker(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Sender(func(c *hooks.Config) {
		c.Pace = hooks.Pace{Failures: 2, Open: 300 * time.Millisecond, MaxOpen: 300 * time.Millisecond, Together: 1}
	})
	r.Worker("a")
	to := receive(t, status(500, 4))
	w := create(t, r, webhooks.Spec{URL: to.URL})
	for range 6 {
		echo(r)
	}
	r.Until("all delivered", func() bool { return strings.Count(outcomes(attempts(r, w.ID)), "delivered") == 6 })
	if n := to.count(); n != 9 {
		t.Errorf("%d requests, want the 3 failures and 6 successes", n)
	}
}

// TestRotation: both secrets sign while the old one is kept, the new one alone
// when it is not.
func TestRotation(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Sender()
	to := receive(t, nil)
	w := create(t, r, webhooks.Spec{URL: to.URL})
	ping := func(n int) got {
		if _, err := r.Webhooks.Test(r.Ctx(), rig.Ann, w.ID); err != nil {
			t.Fatal(err)
		}
		r.Until("ping", func() bool { return to.count() == n })
		return to.got()[n-1]
	}
	second, err := r.Webhooks.Rotate(r.Ctx(), rig.Ann, w.ID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	both := ping(1)
	verify(t, both, w.Secret)
	verify(t, both, second.Secret)
	third, err := r.Webhooks.Rotate(r.Ctx(), rig.Ann, w.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	only := ping(2)
	verify(t, only, third.Secret)
	if v, err := webhooks.NewVerifier(w.Secret, second.Secret); err != nil || v.Verify(only.Header, only.Body) == nil {
		t.Errorf("signed by an old secret as well: %v", err)
	}
}

// TestReplayAndDeletion: a failed delivery is sent again with its id; a deleted
// webhook gets nothing of what waits.
func TestReplayAndDeletion(t *testing.T) {
	t.Parallel()
	r := rig.New(t)
	r.Sender(func(c *hooks.Config) { c.Ladder = []time.Duration{2 * time.Second} })
	r.Worker("a")
	to := receive(t, status(500, 3))
	w := create(t, r, webhooks.Spec{URL: to.URL})
	echo(r)
	r.Until("it failed", func() bool { return outcomes(attempts(r, w.ID)) == "retrying failed" })
	id := attempts(r, w.ID)[0].Delivery
	if err := r.Webhooks.Replay(r.Ctx(), rig.Ann, w.ID, id); err != nil {
		t.Fatal(err)
	}
	r.Until("replayed", func() bool { return to.count() == 3 })
	if g := to.got(); g[2].id() != id || string(g[2].Body) != string(g[0].Body) {
		t.Errorf("another event is replayed: %v", g[2].Header)
	}
	if err := r.Webhooks.Replay(r.Ctx(), rig.Ann, w.ID, "nothing"); rig.Code(err) != "not_found" {
		t.Errorf("replay of nothing: %v", err)
	}
	bad := receive(t, status(500, 0))
	b := create(t, r, webhooks.Spec{URL: bad.URL})
	echo(r)
	r.Until("first attempt", func() bool { return len(attempts(r, b.ID)) == 1 })
	if err := r.Webhooks.Delete(r.Ctx(), rig.Ann, b.ID); err != nil {
		t.Fatal(err)
	}
	admin := r.Env.Conn(bus.RoleAdmin)
	if n, err := admin.CountSubjects(r.Ctx(), bus.StreamSchedule, "sched.hook.>"); err != nil || n != 0 {
		t.Errorf("%d wait on the ladder, %v", n, err)
	}
	if _, err := r.Webhooks.Get(r.Ctx(), rig.Ann, b.ID); rig.Code(err) != "not_found" {
		t.Errorf("it is still there: %v", err)
	}
}

// TestEachStepFails: every call of the consequence consumer, the sender and
// the mover fails, before and after it took effect; nothing is lost.
func TestEachStepFails(t *testing.T) {
	t.Parallel()
	for _, kind := range []bustest.Kind{bustest.Before, bustest.After, bustest.Twice} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			r := rig.New(t)
			for _, s := range []string{"hook.", "sched.hook", "hooklog."} {
				r.Client.Add(bustest.Rule{Op: bustest.OpPublish, Subject: s, Nth: 1, Kind: kind},
					bustest.Rule{Op: bustest.OpAck, Subject: s, Nth: 1, Kind: kind},
					bustest.Rule{Op: bustest.OpPurge, Subject: s, Nth: 1, Kind: kind})
			}
			_, f := r.Sender()
			for _, s := range []string{"hook.", "sched.hook.", "hooklog."} {
				f.Add(bustest.Rule{Op: bustest.OpPublish, Subject: s, Nth: 1, Kind: kind},
					bustest.Rule{Op: bustest.OpAck, Subject: s, Nth: 1, Kind: kind})
			}
			r.Worker("a")
			to := receive(t, status(503, 2))
			create(t, r, webhooks.Spec{URL: to.URL})
			for range 3 {
				echo(r)
			}
			r.Until("three events taken", func() bool {
				ids := map[string]bool{}
				for _, g := range to.got()[min(1, to.count()):] {
					ids[g.id()] = true
				}
				return len(ids) == 3
			})
		})
	}
}
