package schedules

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // zones do not depend on the machine

	"github.com/robfig/cron/v3"
)

// Calendar tells when a schedule is due.
//
// Cron expressions are read on the clock on the wall. When clocks are put
// forward, times that do not exist are due once, at the moment the gap ends;
// when they are put back, times that exist twice are due the first time only.
// An expression for every hour ("*/15 * * * *") goes on by real time instead,
// through both.
type Calendar struct {
	every  time.Duration // 0: cron
	anchor time.Time
	cron   *cron.SpecSchedule
	zone   *time.Location
	start  time.Time
	end    time.Time
}

var parser = cron.NewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

var shorthands = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
	"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// parseCron reads an expression of five or six fields.
func parseCron(expr string) (*cron.SpecSchedule, error) {
	if long, ok := shorthands[strings.ToLower(expr)]; ok {
		expr = long
	}
	switch {
	case len(expr) > MaxCron:
		return nil, fmt.Errorf("has %d bytes, at most %d are allowed", len(expr), MaxCron)
	case strings.HasPrefix(expr, "@every"):
		return nil, errors.New("use every for intervals")
	case strings.Contains(expr, "="):
		return nil, errors.New("put the zone into time_zone")
	}
	fields := strings.Fields(expr)
	if len(fields) != 5 && len(fields) != 6 {
		return nil, fmt.Errorf("has %d fields; it takes five (minute hour day month weekday) or six with seconds first", len(fields))
	}
	fields[len(fields)-1] = sunday(fields[len(fields)-1])
	s, err := parser.Parse(strings.Join(fields, " "))
	if err != nil {
		return nil, fmt.Errorf("is no cron expression: %w", err)
	}
	spec, ok := s.(*cron.SpecSchedule)
	if !ok || spec.Second == 0 || spec.Minute == 0 || spec.Hour == 0 || spec.Dom == 0 || spec.Month == 0 || spec.Dow == 0 {
		// A field of commas alone, which a search would take seconds over.
		return nil, errors.New("is no cron expression: a field is empty")
	}
	return spec, nil
}

// sunday writes 7, which many crons take for Sunday, as 0.
func sunday(field string) string {
	items := strings.Split(field, ",")
	for i, item := range items {
		if item == "7" {
			items[i] = "0"
		} else if from, ok := strings.CutSuffix(item, "-7"); ok {
			items[i] = from + "-6,0"
		}
	}
	return strings.Join(items, ",")
}

// everyHour reports whether the hour of an expression is left open.
func everyHour(s *cron.SpecSchedule) bool {
	const all = 1<<24 - 1
	return s.Hour&all == all
}

// Next returns the first time after t, in UTC, or the zero time when there is
// none: none before EndAt, or none within five years.
func (c Calendar) Next(t time.Time) time.Time {
	if !c.start.IsZero() && t.Before(c.start) {
		t = c.start.Add(-1)
	}
	var at time.Time
	switch {
	case c.every > 0:
		at = c.nextInterval(t)
	case everyHour(c.cron):
		at = c.nextElapsed(t)
	default:
		at = c.nextOnWall(t)
	}
	if at.IsZero() || !c.end.IsZero() && at.After(c.end) {
		return time.Time{}
	}
	return at.UTC()
}

func (c Calendar) nextInterval(t time.Time) time.Time {
	if t.Before(c.anchor) {
		return c.anchor
	}
	return c.anchor.Add((t.Sub(c.anchor)/c.every + 1) * c.every)
}

// wall is what clocks in the zone show at t, written as a time in UTC.
func (c Calendar) wall(t time.Time) time.Time {
	t = t.In(c.zone)
	return time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
}

// nextElapsed looks through one stretch of constant offset after the other.
func (c Calendar) nextElapsed(t time.Time) time.Time {
	from, wall := t, c.wall(t)
	for {
		next := c.cron.Next(wall)
		if next.IsZero() {
			return next
		}
		at := from.Add(next.Sub(c.wall(from)))
		_, end := from.In(c.zone).ZoneBounds()
		if end.IsZero() || at.Before(end) {
			return at
		}
		from, wall = end, c.wall(end).Add(-1)
	}
}

// nextOnWall skips the times that are shown a second time: their first time
// is over.
func (c Calendar) nextOnWall(t time.Time) time.Time {
	wall := c.wall(t)
	for {
		wall = c.cron.Next(wall)
		if wall.IsZero() {
			return wall
		}
		if at := c.instant(wall); at.After(t) {
			return at
		}
	}
}

// instant is the first moment at which clocks in the zone show wall, or the
// end of the gap that swallows it.
func (c Calendar) instant(wall time.Time) time.Time {
	at := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), wall.Second(), wall.Nanosecond(), c.zone)
	start, end := at.ZoneBounds()
	if !c.wall(at).Equal(wall) {
		// In a gap: time.Date took the offset of one of its sides.
		if !start.IsZero() && (end.IsZero() || at.Sub(start) < end.Sub(at)) {
			return start
		}
		return end
	}
	if start.IsZero() {
		return at
	}
	_, offset := at.Zone()
	_, before := start.Add(-1).In(c.zone).Zone()
	if back := time.Duration(before-offset) * time.Second; back > 0 {
		if first := at.Add(-back); first.Before(start) && c.wall(first).Equal(wall) {
			return first
		}
	}
	return at
}

// backlog returns the times from first to now, the latest MaxBacklog of them,
// how many came before those, and the first time after now. put is by how much
// a time is put off.
func (c Calendar) backlog(first, now time.Time, put func(time.Time) time.Duration) (times []time.Time, passed int, next time.Time) {
	due := func(t time.Time) bool { return !t.IsZero() && !t.Add(put(t)).After(now) }
	walk := func(from time.Time, most int) bool {
		times, passed = nil, 0
		for next = from; due(next); next = c.Next(next) {
			if times = append(times, next); len(times) > MaxBacklog {
				times = times[1:]
				passed++
			}
			if passed+len(times) > most {
				return false
			}
		}
		return true
	}
	if walk(first, maxWalk) {
		return times, passed, next
	}
	// There are more than can be counted: look back from now, further and
	// further.
	for window := 2 * time.Hour; ; window *= 10 {
		from := c.Next(now.Add(-window))
		if !walk(from, 10*maxWalk) || len(times) == MaxBacklog || window > MaxEvery {
			return times, maxWalk, next
		}
	}
}

// maxWalk bounds the times that are counted one by one.
const maxWalk = 10_000

func parseEvery(s string) (time.Duration, error) {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("needs a unit, such as %ss", s)
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, errors.New("is no duration such as 90s, 15m or 1h30m")
	case d < MinEvery || d > MaxEvery:
		return 0, fmt.Errorf("must be between %s and %s", MinEvery, "8784h (366 days)")
	}
	return d, nil
}
