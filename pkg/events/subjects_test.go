package events_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

var key = jobs.Key{Tenant: "acme", Owner: "o1", ID: "j1"}

func TestSubjects(t *testing.T) {
	t.Parallel()
	type made struct {
		subject string
		err     error
	}
	of := func(s string, err error) made { return made{s, err} }
	any := jobs.Key{}
	for want, got := range map[string]made{
		"job.core.high.3.acme.o1.j1":           of(events.JobSubject("core", jobs.High, 3, key)),
		"job.*.*.*.*.*.j1":                     of(events.JobFilter("", "", events.AnyShard, jobs.Key{ID: "j1"})),
		"job.core.low.0.*.*.*":                 of(events.JobFilter("core", jobs.Low, 0, any)),
		"evt.acme.o1.j1.lc":                    of(events.EvtSubject(key, events.KindLifecycle)),
		"evt.acme.o1.j1.in":                    of(events.EvtSubject(key, events.KindInput)),
		"evt.acme.o1.j1.art":                   of(events.EvtSubject(key, events.KindArtifacts)),
		"evt.*.*.*.lc":                         of(events.EvtFilter(any, events.KindLifecycle)),
		"prog.acme.o1.j1.progress":             of(events.ProgSubject(key, events.KindProgress)),
		"prog.acme.o1.j1.*":                    of(events.ProgFilter(key, "")),
		"sched.at.j1":                          of(events.SchedAtSubject("j1")),
		"sched.due.core.normal.0.acme.o1.j1":   of(events.SchedDueSubject("core", jobs.Normal, 0, key)),
		"sched.due.*.*.*.*.*.*":                of(events.SchedDueFilter("", "", events.AnyShard, any)),
		"hold.core.gpu.acme.o1.j1":             of(events.HoldSubject("core", "gpu", key)),
		"hold.*.*.*.*.j1":                      of(events.HoldFilter("", "", jobs.Key{ID: "j1"})),
		"dlq.core.acme.o1.j1":                  of(events.DLQSubject("core", key)),
		"dlq.mark.core.acme.o1.j1.replay":      of(events.DLQMarkSubject("core", key, events.KindReplay)),
		"dlq.mark.*.*.*.j1.poison":             of(events.DLQMarkFilter("", jobs.Key{ID: "j1"}, events.KindPoison)),
		"dlq.*.acme.o1.*":                      of(events.DLQFilter("", jobs.Key{Tenant: "acme", Owner: "o1"})),
		"hook.acme.ep1.e1":                     of(events.HookSubject("acme", "ep1", "e1")),
		"audit.acme.job_end":                   of(events.AuditSubject("acme", "job_end")),
		"live.acme.o1.j1.queued":               of(events.LiveSubject(key, events.KindQueued)),
		"live.acme.o1.*.*":                     of(events.LiveFilter(jobs.Key{Tenant: "acme", Owner: "o1"}, "")),
		"req.acme.o1.history":                  of(events.HistorySubject("acme", "o1")),
		"ctl.w1.cancel":                        of(events.CancelSubject("w1")),
		"ctl.w1.drain":                         of(events.DrainSubject("w1")),
		"hb.worker.w1":                         of(events.HeartbeatSubject("worker", "w1")),
		"sched.cron.nightly":                   of(events.SchedCronSubject("nightly")),
		"sched.fire.nightly":                   of(events.SchedFireSubject("nightly")),
		"live.acme.o1.0195a1b2-0000-7000-80.a": of(events.LiveSubject(jobs.Key{Tenant: "acme", Owner: "o1", ID: "0195a1b2-0000-7000-80"}, "a")),
	} {
		if got.err != nil || got.subject != want {
			t.Errorf("got %q, %v; want %q", got.subject, got.err, want)
		}
		if strings.Contains(want, "*") {
			continue
		}
		parsed, err := events.Parse(want)
		if err != nil {
			t.Errorf("parse %q: %v", want, err)
			continue
		}
		if again, err := parsed.Build(); err != nil || again != want {
			t.Errorf("parsed and built %q: got %q, %v", want, again, err)
		}
	}
	got, err := events.Parse("job.core.high.3.acme.o1.j1")
	want := events.Subject{Family: events.FamilyJob, Pool: "core", Lane: jobs.High, Shard: 3, Tenant: "acme", Owner: "o1", JobID: "j1"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, parts (-want +got):\n%s", err, diff)
	}
}

func TestMalformedTokensMakeNoSubject(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "a.b", "*", ">", "a b", "a\tb", "a\r\n", "é", "a\x00", "a*", "$JS", strings.Repeat("a", 2000)} {
		for name, k := range map[string]jobs.Key{
			"tenant": {Tenant: bad, Owner: "o", ID: "j"},
			"owner":  {Tenant: "t", Owner: bad, ID: "j"},
			"job":    {Tenant: "t", Owner: "o", ID: bad},
		} {
			if got, err := events.EvtSubject(k, events.KindLifecycle); !errors.Is(err, events.ErrSubject) {
				t.Errorf("%s %q: got %q, %v; want ErrSubject", name, bad, got, err)
			}
			if bad == "" {
				continue
			}
			if got, err := events.EvtFilter(k, events.KindLifecycle); !errors.Is(err, events.ErrSubject) {
				t.Errorf("filter, %s %q: got %q, %v; want ErrSubject", name, bad, got, err)
			}
		}
	}
	for what, err := range map[string]error{
		"lane":   second(events.JobSubject("core", "urgent", 0, key)),
		"shard":  second(events.JobSubject("core", jobs.High, -1, key)),
		"kind":   second(events.EvtSubject(key, "progress")),
		"no pre": second(events.Subject{Family: "nope"}.Build()),
	} {
		if !errors.Is(err, events.ErrSubject) {
			t.Errorf("%s: got %v, want ErrSubject", what, err)
		}
	}
}

func second(_ string, err error) error { return err }

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"", "evt", "evt.", "evt.a.b.c", "evt.a.b.c.lc.x", "evt.a.b.c.zz", "evt.a..c.lc", "evt.*.b.c.lc", "evt.a.b.>", "evts.a.b.c.lc",
		"job.core.high.03.a.o.j", "job.core.high.-1.a.o.j", "job.core.high.x.a.o.j", "job.core.urgent.0.a.o.j", "job.core.high.70000.a.o.j",
		"sched.j", "sched.due.j", "hd.evt.a.b.c.lc", "evt.a.b.c.lc ", "req.a.o.future", "ctl.w.kill",
	} {
		if got, err := events.Parse(bad); !errors.Is(err, events.ErrSubject) {
			t.Errorf("%q: got %+v, %v; want ErrSubject", bad, got, err)
		}
	}
}

func TestShard(t *testing.T) {
	t.Parallel()
	for _, n := range []int{-1, 0, 1} {
		if got := events.Shard("acme", n); got != 0 {
			t.Errorf("%d shards: got %d, want 0", n, got)
		}
	}
	used := map[int]int{}
	for _, tenant := range strings.Split("a b c d e f g h i j k l m n o p q r s t u v w x y z acme default", " ") {
		got := events.Shard(tenant, 4)
		if got < 0 || got > 3 || got != events.Shard(tenant, 4) {
			t.Fatalf("%s: got shard %d of 4", tenant, got)
		}
		used[got]++
	}
	if len(used) != 4 {
		t.Errorf("28 tenants use the shards %v, want all 4", used)
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	for _, plain := range []string{"gpu", "host-1", "a_b", "0"} {
		if got := events.Token(plain); got != plain {
			t.Errorf("%q: got %q, want it as it is", plain, got)
		}
	}
	seen := map[string]string{}
	for _, odd := range []string{"", "a.b", "a b", "Host", "host.example.org", "*", "é", "xray", "-a", strings.Repeat("a", 65)} {
		got := events.Token(odd)
		if !events.ValidToken(got) || got[0] != 'x' || len(got) != 17 {
			t.Errorf("%q: got %q, want a hashed token", odd, got)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%q and %q share the token %s", odd, other, got)
		}
		seen[got] = odd
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"job.core.high.3.acme.o1.j1", "evt.a.b.c.lc", "sched.due.core.low.0.a.o.j", "hb.worker.w", "live.a.b.c.d", "hook.a.b.c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, subject string) {
		s, err := events.Parse(subject)
		if err != nil {
			if !errors.Is(err, events.ErrSubject) {
				t.Fatalf("error %v is no ErrSubject", err)
			}
			return
		}
		if again, err := s.Build(); err != nil || again != subject {
			t.Fatalf("%q parsed and built: %q, %v", subject, again, err)
		}
		if strings.ContainsAny(subject, "*> \r\n") {
			t.Fatalf("%q was let through", subject)
		}
	})
}

func FuzzBuild(f *testing.F) {
	f.Add("core", "acme", "o1", "j1", "gpu")
	f.Add("a.b", "*", ">", "", " ")
	f.Fuzz(func(t *testing.T, pool, tenant, owner, id, limit string) {
		k := jobs.Key{Tenant: tenant, Owner: owner, ID: id}
		subject, err := events.HoldSubject(pool, limit, k)
		if err != nil {
			return
		}
		got, err := events.Parse(subject)
		want := events.Subject{Family: events.FamilyHold, Pool: pool, Key: limit, Tenant: tenant, Owner: owner, JobID: id}
		if err != nil || got != want {
			t.Fatalf("%q: got %+v, %v; want %+v", subject, got, err, want)
		}
	})
}

func BenchmarkEvtSubject(b *testing.B) {
	k := exampleJob().Key()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := events.EvtSubject(k, events.KindLifecycle); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	subject, err := events.JobSubject("browser", jobs.Normal, 3, exampleJob().Key())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := events.Parse(subject); err != nil {
			b.Fatal(err)
		}
	}
}
