package schedulestore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/events"
	"github.com/helmdeck/helmdeck/pkg/jobs"
)

// Fire is word for a schedule that there is something to do.
type Fire struct {
	ScheduleID string `json:"schedule_id"`
	// At is the time that its timer was set for.
	At time.Time `json:"at,omitzero"`
	// Due is when the timer fires: At and the jitter of the schedule.
	Due time.Time `json:"due,omitzero"`
	// Ended is its job that has ended, without output and artifacts.
	Ended *jobs.Job `json:"ended,omitempty"`
}

// keep is how long word stays in the stream, attended to or not: to remove
// each piece by itself costs the server more than all else about it. What is
// lost by then the passes find, for the record says what is due.
const keep = 5 * time.Minute

// Arm implements schedules.Timers.
func (s *Store) Arm(ctx context.Context, id string, at, when time.Time) error {
	out, err := message(Fire{ScheduleID: id, At: at.UTC(), Due: when.UTC()}, events.SchedCronSubject)
	if err != nil {
		return err
	}
	if out.Target, err = events.SchedFireSubject(id); err != nil {
		return err
	}
	out.At, out.TargetTTL = when, keep
	if _, err = s.js.Publish(ctx, out); err == nil {
		failpoint.Hit(failpoint.ScheduleAfterArm)
	}
	return busError(err)
}

func message(f Fire, subject func(string) (string, error)) (bus.Outgoing, error) {
	to, err := subject(f.ScheduleID)
	if err != nil {
		return bus.Outgoing{}, err
	}
	data, err := json.Marshal(f)
	if err != nil {
		return bus.Outgoing{}, fmt.Errorf("encode timer: %w", err)
	}
	return bus.Outgoing{Subject: to, Data: data}, nil
}

// Disarm implements schedules.Timers.
func (s *Store) Disarm(ctx context.Context, id string) error {
	subject, err := events.SchedCronSubject(id)
	if err != nil {
		return err
	}
	return busError(s.js.Purge(ctx, bus.StreamSchedule, subject, 0))
}

// Armed implements schedules.Timers.
func (s *Store) Armed(ctx context.Context, fn func(id string, at time.Time) error) error {
	err := s.js.Scan(ctx, bus.StreamSchedule, []string{"sched.cron.*"}, 0, func(m bus.Message) error {
		f, err := Decode(m)
		if err != nil {
			s.log.Warn().Err(err).Str("subject", m.Subject).Msg("timer not understood, removed")
			return s.js.Purge(ctx, bus.StreamSchedule, m.Subject, 0)
		}
		return fn(f.ScheduleID, f.At)
	})
	return busError(err)
}

// Decode reads what has fired, or a timer.
func Decode(m bus.Message) (Fire, error) {
	var f Fire
	if err := json.Unmarshal(m.Data, &f); err != nil {
		return f, fmt.Errorf("decode timer %d: %w", m.Sequence, err)
	}
	if _, err := events.SchedFireSubject(f.ScheduleID); err != nil {
		return f, fmt.Errorf("decode timer %d: %w", m.Sequence, err)
	}
	return f, nil
}

// Tell lets a schedule know of the end of one of its jobs, once however often
// it is told of event.
func Tell(ctx context.Context, js bus.JetStream, job jobs.Job, event bus.Message) error {
	job.Output, job.Artifacts, job.History = nil, nil, nil
	out, err := message(Fire{ScheduleID: job.ScheduleID, Ended: &job}, events.SchedFireSubject)
	if err != nil {
		return err
	}
	if v := event.Header["ce-id"]; len(v) > 0 {
		out.MsgID = v[0]
	}
	out.TTL = keep
	_, err = js.Publish(ctx, out)
	if err != nil {
		return fmt.Errorf("tell schedule %s of the end of a job: %w", job.ScheduleID, err)
	}
	failpoint.Hit(failpoint.ScheduleAfterEnded)
	return nil
}
