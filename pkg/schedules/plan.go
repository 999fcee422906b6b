package schedules

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// take deals with all times up to now that were not dealt with: each runs,
// waits or is left out. It reports whether there were any.
func (r *Record) take(now time.Time, cal Calendar) bool {
	if at := r.FiresAt(); at.IsZero() || at.After(now) {
		return false
	}
	times, passed, next := cal.backlog(r.NextAt, now, r.putOff)
	if len(times) == 0 { // so long ago that they were not looked for
		times = []time.Time{r.NextAt}
	}
	r.LastAt, r.NextAt = times[len(times)-1], next
	late := now.Add(-Grace)
	if r.MissedBefore.After(late) {
		late = r.MissedBefore
	}
	i, _ := slices.BinarySearchFunc(times, late, time.Time.Compare)
	missed, onTime := times[:i], times[i:]
	var runs []Waiting
	switch {
	case r.CatchUp == CatchUpAll:
		for _, t := range missed {
			runs = append(runs, Waiting{At: t, Trigger: ByCatchUp})
		}
		missed = nil
	case r.CatchUp == CatchUpLast && len(missed) > 0 && len(onTime) == 0:
		last := len(missed) - 1
		runs = append(runs, Waiting{At: missed[last], Trigger: ByCatchUp})
		missed = missed[:last]
	}
	if n := passed + len(missed); n > 0 {
		// Those that were passed are older than all of times.
		at := times[0]
		if len(missed) > 0 {
			at = missed[len(missed)-1]
		}
		r.leaveOut(Run{At: at, Trigger: ByTime, Outcome: RunMissed, Count: n})
	}
	for _, t := range onTime {
		runs = append(runs, Waiting{At: t, Trigger: ByTime})
	}
	r.enter(runs)
	return true
}

// enter applies the overlap policy to runs that are due. Runs that are found
// together after a pause wait for each other under every policy but Replace:
// none of them was running when the next was due.
func (r *Record) enter(runs []Waiting) {
	if len(runs) == 0 {
		return
	}
	busy := r.Begun != nil || len(r.Waiting) > 0
	last := runs[len(runs)-1]
	switch {
	case r.Overlap == Replace:
		old := append(r.Waiting, runs[:len(runs)-1]...)
		if len(old) > 0 {
			r.leaveOut(Run{At: old[len(old)-1].At, Trigger: old[len(old)-1].Trigger, Outcome: RunReplaced, Count: len(old)})
		}
		r.Waiting, r.Replacing = []Waiting{last}, r.Begun != nil
	case r.Overlap == Skip && busy:
		r.leaveOut(Run{At: last.At, Trigger: last.Trigger, Outcome: RunSkipped, Count: len(runs)})
	default:
		room := max(MaxWaiting-len(r.Waiting), 0)
		if len(runs) > room {
			r.leaveOut(Run{At: last.At, Trigger: last.Trigger, Outcome: RunSkipped, Count: len(runs) - room})
			runs = runs[:room]
		}
		r.Waiting = append(r.Waiting, runs...)
	}
}

// begin takes the first run that waits when nothing runs. It reports whether
// there was one.
func (r *Record) begin(now time.Time) bool {
	if r.Begun != nil || r.Paused || len(r.Waiting) == 0 {
		return false
	}
	w := r.Waiting[0]
	r.Waiting = slices.Clone(r.Waiting[1:])
	r.Begun = &Begun{JobID: JobID(r.ID, w.At), At: w.At, DecidedAt: now}
	r.remember(Run{At: w.At, Trigger: w.Trigger, JobID: r.Begun.JobID, Outcome: RunActive})
	return true
}

// remember puts a run in front of the others.
func (r *Record) remember(run Run) {
	r.Runs = append([]Run{run}, r.Runs...)
	r.Runs = r.Runs[:min(len(r.Runs), MaxRuns)]
}

// leaveOut notes times without a job. The same again and again is one entry,
// so that it does not drive the real runs out.
func (r *Record) leaveOut(run Run) {
	if len(r.Runs) > 0 && r.Runs[0].Outcome == run.Outcome && r.Runs[0].JobID == "" && r.Runs[0].Error == nil {
		run.Count += r.Runs[0].Count
		r.Runs = slices.Clone(r.Runs)
		r.Runs[0] = run
		return
	}
	r.remember(run)
}

// settle notes how the run of a job ended. It reports whether anything
// changed.
func (r *Record) settle(jobID string, outcome Outcome, f *jobs.Failure, at time.Time) bool {
	changed := false
	if r.Begun != nil && r.Begun.JobID == jobID {
		r.Begun, r.Replacing, changed = nil, false, true
	}
	for i := range r.Runs {
		if r.Runs[i].JobID != jobID || r.Runs[i].Outcome != RunActive {
			continue
		}
		r.Runs = slices.Clone(r.Runs)
		r.Runs[i].Outcome, r.Runs[i].Error, r.Runs[i].FinishedAt = outcome, f, at
		changed = true
	}
	return changed
}

// unsettled returns the jobs of runs that have not ended as far as r knows.
func (r *Record) unsettled() []string {
	var ids []string
	if r.Begun != nil {
		ids = append(ids, r.Begun.JobID)
	}
	for _, run := range r.Runs {
		if run.Outcome == RunActive && !slices.Contains(ids, run.JobID) {
			ids = append(ids, run.JobID)
		}
	}
	return ids
}

func outcomeOf(s jobs.State) Outcome {
	switch s {
	case jobs.Succeeded:
		return RunSucceeded
	case jobs.Failed:
		return RunFailed
	case jobs.Cancelled:
		return RunCancelled
	}
	return RunActive
}

// JobID is the id of the job of a schedule's run: a UUID of version 7 (RFC
// 9562) whose time is the one the run is due for and whose random part is a
// digest, so that whoever works it out gets the same.
func JobID(schedule string, at time.Time) string {
	sum := sha256.Sum256([]byte(schedule + "@" + strconv.FormatInt(at.UnixNano(), 10)))
	return uuid7(at, sum)
}

func uuid7(at time.Time, random [32]byte) string {
	var b [16]byte
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(at.UnixMilli(), 0)))
	copy(b[:6], ms[2:])
	copy(b[6:], random[:10])
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
