package audit

import (
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// JobEnds records how jobs ended, each once.
type JobEnds struct {
	// Store is that of a Writer.
	Store func(e Event, stored func(error))
}

// Ended records the end of a job whose last event has a sequence in the
// lifecycle stream; repeated says that it may have been told before. stored is
// called as by Writer.Store.
func (j JobEnds) Ended(job jobs.Job, sequence uint64, repeated bool, stored func(error)) {
	j.Store(jobEnd(job, sequence, repeated), stored)
}

func jobEnd(job jobs.Job, sequence uint64, repeated bool) Event {
	e := Event{
		At: job.FinishedAt, Kind: JobEnd, Severity: Info, Actor: job.Caller, SessionID: job.SessionID, JobID: job.ID,
		Once: sequence, Repeated: repeated,
		Payload: map[string]any{
			"pack": job.Pack, "version": job.Version, "state": string(job.State), "attempts": job.Attempt,
			"duration_ms": job.DurationMS, "sequence": sequence,
		},
	}
	if e.At.IsZero() {
		e.At = time.Now()
	}
	for key, v := range map[string]string{
		"worker": job.Worker, "parent_id": job.ParentID, "schedule_id": job.ScheduleID, "replay_of": job.ReplayOf,
	} {
		if v != "" {
			e.Payload[key] = v
		}
	}
	if job.State != jobs.Succeeded {
		e.Severity = Warning
	}
	if job.State == jobs.Failed && job.Error != nil {
		e.Severity = Error
		e.Payload["code"] = string(job.Error.Code)
	}
	return e
}
