package schedules

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// normalise fills in the defaults.
func (s Spec) normalise() Spec {
	s.Name, s.Cron, s.Every = strings.TrimSpace(s.Name), strings.TrimSpace(s.Cron), strings.TrimSpace(s.Every)
	if s.Cron != "" && s.TimeZone == "" {
		s.TimeZone = "UTC"
	}
	if s.Overlap == "" {
		s.Overlap = Skip
	}
	if s.CatchUp == "" {
		s.CatchUp = CatchUpLast
	}
	s.StartAt, s.EndAt = s.StartAt.UTC(), s.EndAt.UTC()
	return s
}

// faults checks everything but the job.
func (s Spec) faults() []packs.Detail {
	var d []packs.Detail
	add := func(pointer, format string, args ...any) {
		d = append(d, packs.Detail{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
	}
	if len(s.Name) > MaxName || !utf8.ValidString(s.Name) || strings.ContainsFunc(s.Name, unicode.IsControl) {
		add("/name", "must be text of at most %d bytes without control characters", MaxName)
	}
	switch s.Overlap {
	case "", Skip, Queue, Replace:
	default:
		add("/overlap", "must be skip, queue or replace, got %.40q", string(s.Overlap))
	}
	switch s.CatchUp {
	case "", CatchUpNone, CatchUpLast, CatchUpAll:
	default:
		add("/catch_up", "must be none, last or all, got %.40q", string(s.CatchUp))
	}
	if s.JitterS < 0 || s.JitterS > MaxJitterS {
		add("/jitter_s", "must be between 0 and %d seconds", MaxJitterS)
	} else if every, err := parseEvery(s.Every); err == nil && time.Duration(s.JitterS)*time.Second > every {
		add("/jitter_s", "must not be longer than every (%s)", s.Every)
	}
	if !s.EndAt.IsZero() && !s.EndAt.After(s.StartAt) {
		add("/end_at", "must be after start_at")
	}
	if len(s.Input) > MaxInput {
		add("/input", "may have at most %d bytes in a schedule, this one has %d; upload large content and pass its key", MaxInput, len(s.Input))
	}
	if s.ParentID != "" {
		add("/parent_id", "a schedule has no parent; leave it out")
	}
	if !s.RunAt.IsZero() || s.DelayS != 0 {
		add("/run_at", "a schedule says itself when its jobs run; use start_at")
	}
	if s.Webhook != nil || s.WebhookURL != "" || s.WebhookSecret != "" {
		// Its secret would lie in the record, which everybody who may read the
		// schedule is shown.
		add("/webhook", "a schedule has no webhook of its own; give its jobs a label and subscribe to that with POST /api/v1/webhooks")
	}
	return d
}

// Calendar is when s is due, with every fault of what it says about that.
func (s Spec) Calendar(anchor time.Time) (Calendar, []packs.Detail) {
	c := Calendar{anchor: anchor, zone: time.UTC, start: s.StartAt, end: s.EndAt}
	var d []packs.Detail
	add := func(pointer, format string, args ...any) {
		d = append(d, packs.Detail{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
	}
	var err error
	switch {
	case s.Cron == "" && s.Every == "":
		add("/cron", "is required, or every: when the jobs run")
	case s.Cron != "" && s.Every != "":
		add("/every", "give cron or every, not both")
	case s.Every != "":
		if c.every, err = parseEvery(s.Every); err != nil {
			add("/every", "%.60q %v", s.Every, err)
		}
		if s.TimeZone != "" {
			add("/time_zone", "goes with cron; an interval has none")
		}
	default:
		if c.cron, err = parseCron(s.Cron); err != nil {
			add("/cron", "%.60q %v", s.Cron, err)
		}
	}
	if s.Cron != "" && s.TimeZone != "" {
		if c.zone, err = time.LoadLocation(s.TimeZone); err != nil || s.TimeZone == "Local" {
			add("/time_zone", "%.60q is no zone of the IANA database, such as Europe/Berlin or UTC", s.TimeZone)
		}
	}
	return c, d
}

// first is the first time after now, with a fault when there is none.
func (s Spec) first(c Calendar, now time.Time) (time.Time, []packs.Detail) {
	at := c.Next(now)
	switch {
	case !at.IsZero():
		return at, nil
	case !s.EndAt.IsZero():
		return at, []packs.Detail{{Pointer: "/end_at", Message: "no run is left before it"}}
	}
	return at, []packs.Detail{{Pointer: "/cron", Message: fmt.Sprintf("%.60q is never due within five years", s.Cron)}}
}

// retimes reports whether b is due at other times than a.
func retimes(a, b Spec) bool {
	return a.Cron != b.Cron || a.Every != b.Every || a.TimeZone != b.TimeZone || !a.StartAt.Equal(b.StartAt) || !a.EndAt.Equal(b.EndAt)
}

// putOff is by how much the jitter puts a time off.
func (r *Record) putOff(at time.Time) time.Duration {
	if r.JitterS <= 0 {
		return 0
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s@%d", r.ID, at.UnixNano()) // never fails
	return time.Duration(h.Sum64()%uint64(r.JitterS*1000)) * time.Millisecond
}

// FiresAt is when the timer of r must fire, the zero time for never.
func (r *Record) FiresAt() time.Time {
	if r.Paused || r.NextAt.IsZero() {
		return time.Time{}
	}
	return r.NextAt.Add(r.putOff(r.NextAt))
}
