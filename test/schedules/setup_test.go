package schedules_test

import (
	"slices"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/bus/jobstore"
	"github.com/helmdeck/helmdeck/internal/bus/schedulestore"
	"github.com/helmdeck/helmdeck/internal/control"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/schedules"
	"github.com/helmdeck/helmdeck/test/rig"
)

// replica is what an API replica has for schedules, on a connection of its
// own, behind a wrapper that breaks its calls.
type replica struct {
	*rig.Rig
	svc    *schedules.Service
	store  *schedulestore.Store
	faults *bustest.Faults
}

// newReplica starts a replica; attending starts its loop too.
func newReplica(r *rig.Rig, attending bool) *replica {
	r.T.Helper()
	faults := bustest.NewFaults(r.Env.TCP(bus.RoleAPI).JetStream())
	store, err := schedulestore.New(r.Ctx(), faults, r.Log)
	if err != nil {
		r.T.Fatal(err)
	}
	ledger, err := jobstore.New(faults, "test", 1, r.Log)
	if err != nil {
		r.T.Fatal(err)
	}
	cfg := r.Config()
	cfg.Ledger, cfg.Queue, cfg.Keys = ledger, ledger, ledger
	p := &replica{Rig: r, store: store, faults: faults}
	p.svc = schedules.New(schedules.Config{
		Store: store, Names: store, Timers: store, Jobs: jobs.New(cfg), KeySecret: []byte("secret"), Log: r.Log,
	})
	r.Background("schedule records", store.Run)
	if attending {
		r.Background("schedules", (&control.Schedules{
			JS: faults, Service: p.svc, OverdueEvery: time.Second, PassEvery: 2 * time.Second, Log: r.Log,
		}).Run)
	}
	return p
}

func (p *replica) create(change func(*schedules.Spec)) schedules.Schedule {
	p.T.Helper()
	spec := schedules.Spec{Every: "1s", Request: jobs.Request{Pack: "test.echo", Input: []byte(`{"message":"tick"}`)}}
	if change != nil {
		change(&spec)
	}
	s, err := p.svc.Create(p.Ctx(), rig.Ann, spec, "")
	if err != nil {
		p.T.Fatalf("create: %v", err)
	}
	return s
}

func (p *replica) get(id string) schedules.Schedule {
	p.T.Helper()
	s, err := p.svc.Get(p.Ctx(), rig.Ann, id)
	if err != nil {
		p.T.Fatalf("get: %v", err)
	}
	return s
}

// jobsOf returns all jobs that schedules made, oldest first, from the ledger:
// each with the number of times it was started.
func jobsOf(t *testing.T, r *rig.Rig) (made []jobs.Job, starts map[string]int) {
	t.Helper()
	starts = map[string]int{}
	last := map[string]jobs.Job{}
	js := r.Env.Conn(bus.RoleAdmin).JetStream()
	err := js.Scan(r.Ctx(), bus.StreamEvents, []string{"evt.*.*.*.lc"}, 0, func(m bus.Message) error {
		j, err := decode(m)
		if err != nil {
			return err
		}
		if j.ScheduleID == "" {
			return nil
		}
		if j.State == jobs.Running && !j.CancelRequested {
			starts[j.ID]++
		}
		last[j.ID] = j
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range last {
		made = append(made, j)
	}
	slices.SortFunc(made, func(a, b jobs.Job) int { return a.ScheduledFor.Compare(b.ScheduledFor) })
	return made, starts
}

// left counts the messages of schedules that lie in the stream.
func left(r *rig.Rig, filter string) int {
	r.T.Helper()
	n := 0
	js := r.Env.Conn(bus.RoleAdmin).JetStream()
	if err := js.Scan(r.Ctx(), bus.StreamSchedule, []string{filter}, 0, func(bus.Message) error { n++; return nil }); err != nil {
		r.T.Fatal(err)
	}
	return n
}

// settled reports whether all that was said to schedules was attended to.
func settled(r *rig.Rig) bool {
	r.T.Helper()
	js := r.Env.Conn(bus.RoleAdmin).JetStream()
	state, err := js.Consumer(r.Ctx(), bus.StreamSchedule, bus.ConsumerSchedules)
	if err != nil {
		r.T.Fatal(err)
	}
	return state.Pending == 0 && state.Unacked == 0
}
