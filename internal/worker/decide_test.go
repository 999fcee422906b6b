package worker

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func running(change func(*jobs.Job)) jobs.Record {
	j := jobs.Job{ID: "j", State: jobs.Running, Runs: 1, Attempt: 1, Worker: "other", MaxAttempts: 3}
	if change != nil {
		change(&j)
	}
	return jobs.Record{Job: j, Sequence: 7}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	type want struct {
		action  action
		state   jobs.State
		attempt int
		code    packs.Code
	}
	for name, tt := range map[string]struct {
		rec       jobs.Record
		delivered uint64
		want      want
	}{
		"first delivery of a new job is claimed":            {jobs.Record{}, 1, want{claim, jobs.Running, 1, ""}},
		"given back before it was claimed":                  {jobs.Record{}, 5, want{claim, jobs.Running, 1, ""}},
		"handed out for ever without a claim":               {jobs.Record{}, maxStartless + 1, want{settle, jobs.Failed, 0, packs.HandlerFailed}},
		"at the edge it is still claimed":                   {jobs.Record{}, maxStartless, want{claim, jobs.Running, 1, ""}},
		"an ended job is acknowledged":                      {running(func(j *jobs.Job) { j.State = jobs.Failed }), 2, want{action: finished}},
		"a fresh copy of a running job is left alone":       {running(nil), 1, want{action: leave}},
		"a lost worker is not charged":                      {running(nil), 2, want{claim, jobs.Running, 1, ""}},
		"a lost worker whose job was to be cancelled":       {running(func(j *jobs.Job) { j.CancelRequested = true }), 2, want{settle, jobs.Cancelled, 1, packs.Cancelled}},
		"a lost worker that had begun its effect":           {running(func(j *jobs.Job) { j.EffectBegun = true }), 2, want{settle, jobs.Failed, 1, packs.OutcomeUnknown}},
		"the last worker that may be lost":                  {running(func(j *jobs.Job) { j.Lost, j.Runs = 2, 3 }), 2, want{claim, jobs.Running, 1, ""}},
		"one more is poison":                                {running(func(j *jobs.Job) { j.Lost, j.Runs = 3, 4 }), 2, want{settle, jobs.Failed, 1, packs.HandlerFailed}},
		"a retry that is due":                               {running(func(j *jobs.Job) { j.State, j.RetryAt = jobs.Retrying, now }), 2, want{claim, jobs.Running, 2, ""}},
		"a retry that is not due waits":                     {running(func(j *jobs.Job) { j.State, j.RetryAt = jobs.Retrying, now.Add(time.Second) }), 2, want{action: wait}},
		"a fresh copy of a retrying job is claimed as well": {running(func(j *jobs.Job) { j.State, j.RetryAt = jobs.Retrying, now }), 1, want{claim, jobs.Running, 2, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sub := jobs.Submission{Job: jobs.Job{ID: "j", State: jobs.Queued, MaxAttempts: 3}}
			d := decide(sub, tt.rec, tt.delivered, "me", 3, now)
			got := want{action: d.action, state: d.next.State, attempt: d.next.Attempt}
			if d.next.Error != nil {
				got.code = d.next.Error.Code
			}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if d.action == claim && (d.next.Worker != "me" || d.next.Runs != tt.rec.Job.Runs+1) {
				t.Errorf("claimed by %s as run %d", d.next.Worker, d.next.Runs)
			}
		})
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	fail := func(c packs.Code) *packs.Error { return &packs.Error{Code: c, Message: "m"} }
	job := func(change func(*jobs.Job)) jobs.Job { return running(change).Job }
	for name, tt := range map[string]struct {
		job    jobs.Job
		o      outcome
		state  jobs.State
		silent bool
	}{
		"success": {job(nil), outcome{}, jobs.Succeeded, false},
		"success although a cancel was requested": {job(nil), outcome{stop: errCancelled}, jobs.Succeeded, false},
		"cancelled":                        {job(nil), outcome{err: fail(packs.Cancelled), stop: errCancelled}, jobs.Cancelled, false},
		"fenced off":                       {job(nil), outcome{stop: errFenced}, "", true},
		"fenced off with an error":         {job(nil), outcome{err: fail(packs.Internal), stop: errFenced}, "", true},
		"handed back":                      {job(nil), outcome{err: fail(packs.Cancelled), stop: errStopping}, jobs.Retrying, false},
		"an effect is not handed back":     {job(func(j *jobs.Job) { j.EffectBegun = true }), outcome{err: fail(packs.Cancelled), stop: errStopping}, jobs.Failed, false},
		"a code the system retries":        {job(nil), outcome{err: fail(packs.SessionUnavailable)}, jobs.Retrying, false},
		"out of memory":                    {job(nil), outcome{err: fail(packs.ResourceExhausted)}, jobs.Retrying, false},
		"the last attempt":                 {job(func(j *jobs.Job) { j.Attempt = 3 }), outcome{err: fail(packs.SessionUnavailable)}, jobs.Failed, false},
		"a code only the caller may retry": {job(nil), outcome{err: fail(packs.SchemaMismatch)}, jobs.Failed, false},
		"a bad input":                      {job(nil), outcome{err: fail(packs.InvalidInput)}, jobs.Failed, false},
		"a timeout":                        {job(nil), outcome{err: fail(packs.Timeout)}, jobs.Failed, false},
		"a timeout, retries asked for":     {job(func(j *jobs.Job) { j.RetryTimeouts = true }), outcome{err: fail(packs.Timeout)}, jobs.Retrying, false},
		"stalled":                          {job(nil), outcome{err: fail(packs.Cancelled), stop: errStalled}, jobs.Failed, false},
		"the pack says retry":              {job(nil), outcome{err: &packs.Error{Code: packs.HandlerFailed, Retry: &yes}}, jobs.Retrying, false},
		"the pack says do not":             {job(nil), outcome{err: &packs.Error{Code: packs.ArtifactFailed, Retry: &no}}, jobs.Failed, false},
		"an effect is never run again":     {job(func(j *jobs.Job) { j.EffectBegun = true }), outcome{err: fail(packs.SessionUnavailable)}, jobs.Failed, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := judge(tt.job, tt.o, now, func(int) time.Duration { return time.Second })
			if v.silent != tt.silent || !v.silent && v.next.State != tt.state {
				t.Fatalf("got %s silent %v, want %s %v", v.next.State, v.silent, tt.state, tt.silent)
			}
			if !v.silent {
				if err := jobs.CheckMove(tt.job.State, v.next.State); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestABegunEffectIsNeverReportedAsWorthAnotherTry: what does not tell whether
// it happened is outcome_unknown, whatever ended the run.
func TestABegunEffectIsNeverReportedAsWorthAnotherTry(t *testing.T) {
	t.Parallel()
	begun := running(func(j *jobs.Job) { j.EffectBegun, j.MaxAttempts = true, 1 }).Job
	for code, want := range map[packs.Code]packs.Code{
		packs.Timeout: packs.OutcomeUnknown, packs.SessionUnavailable: packs.OutcomeUnknown,
		packs.ResourceExhausted: packs.OutcomeUnknown, packs.ArtifactFailed: packs.OutcomeUnknown,
		// An answer of the other side says that it did not happen.
		packs.RateLimited: packs.RateLimited, packs.HandlerFailed: packs.HandlerFailed, packs.CredentialInvalid: packs.CredentialInvalid,
	} {
		o := outcome{err: &packs.Error{Code: code, Message: "m", RetryAfter: time.Minute}}
		v := judge(begun, o, now, func(int) time.Duration { return 0 })
		if v.next.State != jobs.Failed || v.next.Error.Code != want || !strings.HasSuffix(v.next.Error.Message, "m") {
			t.Errorf("%s: got %s %+v, want %s", code, v.next.State, v.next.Error, want)
		}
		if unknown := want == packs.OutcomeUnknown; unknown == (v.next.Error.RetryAfterS > 0) {
			t.Errorf("%s: got retry_after_s %d", code, v.next.Error.RetryAfterS)
		}
		if h := v.next.History; h[len(h)-1].Code != code {
			t.Errorf("%s: the history says %s", code, h[len(h)-1].Code)
		}
	}
	o := outcome{err: &packs.Error{Code: packs.Cancelled, Message: "m"}, stop: errStalled}
	if v := judge(begun, o, now, nil); v.next.Error.Code != packs.OutcomeUnknown {
		t.Errorf("stalled: got %+v", v.next.Error)
	}
	o.stop = errCancelled
	if v := judge(begun, o, now, nil); v.next.State != jobs.Cancelled || !strings.Contains(v.next.Error.Message, "may or may not") {
		t.Errorf("cancelled: got %s %+v", v.next.State, v.next.Error)
	}
}

// TestRetryAfterIsCapped: neither a job nor its caller waits for longer than
// a day.
func TestRetryAfterIsCapped(t *testing.T) {
	t.Parallel()
	const day = packs.MaxRetryAfter
	for ask, want := range map[time.Duration]time.Duration{
		day - time.Second: day - time.Second, day: day, day + time.Second: day, math.MaxInt64: day, -time.Hour: 0,
	} {
		o := outcome{err: &packs.Error{Code: packs.RateLimited, RetryAfter: ask}}
		if v := judge(running(nil).Job, o, now, func(int) time.Duration { return 0 }); v.delay != want {
			t.Errorf("asked for %s: got a pause of %s, want %s", ask, v.delay, want)
		}
		last := running(func(j *jobs.Job) { j.Attempt = 3 }).Job
		if v := judge(last, o, now, nil); v.next.Error.RetryAfterS != int(want/time.Second) {
			t.Errorf("asked for %s: got retry_after_s %d, want %s", ask, v.next.Error.RetryAfterS, want)
		}
	}
}

func TestRetryWaitsAtLeastAsLongAsAsked(t *testing.T) {
	t.Parallel()
	o := outcome{err: &packs.Error{Code: packs.RateLimited, RetryAfter: time.Minute}}
	v := judge(running(nil).Job, o, now, func(int) time.Duration { return time.Second })
	if v.delay != time.Minute || !v.next.RetryAt.Equal(now.Add(time.Minute)) {
		t.Errorf("got %s, %s", v.delay, v.next.RetryAt)
	}
}

func TestCancelWinsOverRetryAndEffect(t *testing.T) {
	t.Parallel()
	stored := jobs.Job{CancelRequested: true}
	if got, err := obey(jobs.Job{State: jobs.Retrying}, stored); err != nil || got.State != jobs.Cancelled {
		t.Errorf("retry: got %s %v", got.State, err)
	}
	if _, err := obey(jobs.Job{State: jobs.Running}, stored); !errors.Is(err, errCancelled) {
		t.Errorf("effect: got %v", err)
	}
	if got, err := obey(jobs.Job{State: jobs.Succeeded}, stored); err != nil || got.State != jobs.Succeeded {
		t.Errorf("success: got %s %v", got.State, err)
	}
}

func TestHistoryAndMessagesAreBounded(t *testing.T) {
	t.Parallel()
	j := jobs.Job{}
	for range 3 * maxHistory {
		j = remember(j, packs.Internal, strings.Repeat("ü", maxMessage), now)
	}
	if len(j.History) != maxHistory || len(j.History[0].Message) > maxMessage+len("…") {
		t.Errorf("%d entries, message of %d bytes", len(j.History), len(j.History[0].Message))
	}
}
