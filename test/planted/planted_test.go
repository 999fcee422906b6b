//go:build faults

// Package planted checks the checker: each known bug, planted by name into a
// build with the tag "faults", must show as a violation in a scenario that
// runs clean without it.
package planted

import (
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/bustest"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/internal/worker"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/test/history"
	"github.com/helmdeck/helmdeck/test/rig"
)

// settle is how long a job may take to end: several times the acknowledgement
// wait. Only a planted bug makes a scenario wait that long.
const settle = 8 * time.Second

type scenario struct {
	r *rig.Rig
	l *history.Log
}

func (s scenario) accepted(j jobs.Job) jobs.Job {
	s.l.Accepted(j.ID, "")
	return j
}

func schedules(c *worker.Config) { c.RetryInQueue = -1; c.Backoff = pause }

func pause(int) time.Duration { return 300 * time.Millisecond }

var scenarios = map[string]struct {
	noLosses bool
	run      func(s scenario)
}{
	failpoint.BugAckBeforeFinish: {run: func(s scenario) {
		_, f := s.r.FaultyWorker("a", briefly)
		refuseFromThird(f)
		s.accepted(s.r.Submit("test.echo", map[string]any{"message": "x"}))
		s.gaveUp(f)
	}},
	failpoint.BugRetryAckFirst: {run: func(s scenario) {
		_, f := s.r.FaultyWorker("a", briefly)
		refuseFromThird(f)
		s.accepted(s.r.Submit("test.fail", map[string]any{"code": "session_unavailable", "times": 1}))
		s.gaveUp(f)
	}},
	failpoint.BugLoserAcks: {noLosses: true, run: func(s scenario) {
		_, f := s.r.FaultyWorker("a")
		for n := 1; n <= 2; n++ {
			f.Add(bustest.Rule{Op: bustest.OpPublish, Subject: "evt.", Nth: n, Kind: bustest.Before, Err: bus.ErrWrongSequence})
		}
		s.accepted(s.r.Submit("test.echo", map[string]any{"message": "x"}))
	}},
	failpoint.BugNoFence: {run: func(s scenario) {
		// One slot, or the worker would be handed its own job again.
		_, f := s.r.FaultyWorker("a", func(c *worker.Config) { c.Slots = map[string]int{"core": 1} })
		f.Add(bustest.Rule{Op: bustest.OpWorking, Kind: bustest.Before},
			bustest.Rule{Op: bustest.OpLast, Subject: "evt.", Kind: bustest.Before})
		j := s.accepted(s.r.Submit("test.sleep", map[string]any{"ms": 4000}))
		s.r.Until("claimed", func() bool { return s.r.State(j.ID) == jobs.Running })
		s.r.Worker("b")
		s.r.Until("taken over", func() bool {
			got, err := s.r.Jobs.Get(s.r.Ctx(), rig.Ann, j.ID)
			return err == nil && got.Runs > 1
		})
	}},
	failpoint.BugConflictIsLost: {noLosses: true, run: func(s scenario) {
		s.r.Worker("a")
		j := s.accepted(s.r.Submit("test.sleep", map[string]any{"ms": 60000}))
		s.r.Until("claimed", func() bool { return s.r.State(j.ID) == jobs.Running })
		if _, err := s.r.Jobs.Cancel(s.r.Ctx(), rig.Ann, j.ID); err != nil {
			s.r.T.Fatal(err)
		}
	}},
	failpoint.BugPurgeBeforeCancel: {noLosses: true, run: func(s scenario) {
		j := s.accepted(s.r.Submit("test.echo", map[string]any{"message": "x"}))
		// The input is kept first.
		s.r.Client.Add(bustest.Rule{Op: bustest.OpPublish, Subject: "evt.", Nth: 2, Kind: bustest.Before})
		if _, err := s.r.Jobs.Cancel(s.r.Ctx(), rig.Ann, j.ID); err == nil {
			s.r.T.Fatal("cancel succeeded although its event was refused")
		}
		s.r.Client.Heal()
		s.r.Worker("a")
	}},
	failpoint.BugMoverDrops: {noLosses: true, run: func(s scenario) {
		_, f := s.r.FaultyWorker("a", schedules)
		f.Add(bustest.Rule{Op: bustest.OpAck, Subject: "job.", Nth: 1, Kind: bustest.Delayed, Delay: 1300 * time.Millisecond})
		s.accepted(s.r.Submit("test.fail", map[string]any{"code": "session_unavailable", "times": 1}))
	}},
	failpoint.BugAcceptBeforeAck: {noLosses: true, run: func(s scenario) {
		s.r.Client.Add(bustest.Rule{Op: bustest.OpPublish, Subject: "job.", Nth: 1, Kind: bustest.Before})
		s.r.Worker("a")
		j, err := s.r.Jobs.Submit(s.r.Ctx(), rig.Ann, jobs.Request{Pack: "test.echo", Input: []byte(`{"message":"x"}`)})
		if err == nil {
			s.accepted(j)
		}
	}},
}

// refuseFromThird refuses every event write from the third on: after input
// and claim comes the one that ends the run.
func refuseFromThird(f *bustest.Faults) {
	f.Add(bustest.Rule{Op: bustest.OpPublish, Subject: "evt.", Nth: 3, Kind: bustest.Before, Do: func() {
		f.Add(bustest.Rule{Op: bustest.OpPublish, Subject: "evt.", Kind: bustest.Before})
	}})
}

// An outcome is tried after 0, 50, 150, 350, 750 and 1550 ms, and would be
// again after 3150: past recordFor.
const (
	recordFor   = 3 * time.Second
	recordTries = 6
)

func briefly(c *worker.Config) { c.RecordFor = recordFor }

// gaveUp waits until the worker has tried to end the run as often as it does,
// then lets writes through again.
func (s scenario) gaveUp(f *bustest.Faults) {
	s.r.Until("the worker gave up", func() bool { return len(f.Injected()) >= recordTries })
	f.Heal()
}

// play runs a scenario and returns what the checker finds at rest.
func play(t *testing.T, bug string) []history.Violation {
	t.Helper()
	sc := scenarios[bug]
	s := scenario{r: rig.New(t), l: history.NewLog()}
	sc.run(s)
	settled := time.After(settle)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		found, err := history.Check(s.r.Ctx(), s.r.Env.Conn(bus.RoleAdmin).JetStream(), s.r.Store, s.l, history.Options{NoLosses: sc.noLosses})
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			return nil
		}
		select {
		case <-settled:
			return found
		case <-tick.C:
		}
	}
}

func TestScenariosRunClean(t *testing.T) {
	for bug := range scenarios {
		t.Run(bug, func(t *testing.T) {
			t.Parallel() // ends before a bug is planted
			for _, v := range play(t, bug) {
				t.Error(v)
			}
		})
	}
}

func TestEveryPlantedBugIsCaught(t *testing.T) {
	for _, bug := range failpoint.Bugs {
		t.Run(bug, func(t *testing.T) {
			if _, ok := scenarios[bug]; !ok {
				t.Fatal("bug has no scenario")
			}
			defer failpoint.Plant(bug)()
			found := play(t, bug)
			if len(found) == 0 {
				t.Fatal("the checker saw nothing")
			}
			t.Log(found[0])
		})
	}
}
