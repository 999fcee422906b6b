package schedules_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/schedules"
)

func calendar(t *testing.T, s schedules.Spec, anchor time.Time) schedules.Calendar {
	t.Helper()
	c, faults := s.Calendar(anchor)
	if len(faults) > 0 {
		t.Fatalf("faults: %+v", faults)
	}
	return c
}

// times returns the next n times after from, each with its offset.
func times(t *testing.T, s schedules.Spec, from string, n int) []string {
	t.Helper()
	at, err := time.Parse(time.RFC3339, from)
	if err != nil {
		t.Fatal(err)
	}
	c, zone := calendar(t, s, at), time.UTC
	if s.TimeZone != "" {
		if zone, err = time.LoadLocation(s.TimeZone); err != nil {
			t.Fatal(err)
		}
	}
	got := []string{}
	for range n {
		if at = c.Next(at); at.IsZero() {
			break
		}
		got = append(got, at.In(zone).Format(time.RFC3339))
	}
	return got
}

func TestNextTimes(t *testing.T) {
	t.Parallel()
	cron := func(expr, zone string) schedules.Spec { return schedules.Spec{Cron: expr, TimeZone: zone} }
	day := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, tt := range []struct {
		name string
		spec schedules.Spec
		from string
		want []string
	}{
		{"five fields", cron("30 9 * * 1-5", ""), "2026-01-30T09:30:00Z",
			[]string{"2026-02-02T09:30:00Z", "2026-02-03T09:30:00Z"}},
		{"six fields", cron("*/20 30 9 * * *", ""), "2026-01-30T09:30:00Z",
			[]string{"2026-01-30T09:30:20Z", "2026-01-30T09:30:40Z", "2026-01-31T09:30:00Z"}},
		{"shorthand", cron("@daily", "Asia/Tokyo"), "2026-01-30T09:30:00Z", []string{"2026-01-31T00:00:00+09:00"}},
		{"names", cron("0 0 1 JAN,JUL SUN", ""), "2026-01-31T00:00:00Z", []string{"2026-07-01T00:00:00Z", "2026-07-05T00:00:00Z"}},
		{"7 is Sunday", cron("0 0 * * 7", ""), "2026-01-30T00:00:00Z", []string{"2026-02-01T00:00:00Z"}},
		{"to 7", cron("0 0 * * 6-7", ""), "2026-01-30T00:00:00Z", []string{"2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z"}},
		{"leap day", cron("0 0 29 2 *", ""), "2026-01-30T00:00:00Z", []string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		{"within a second", cron("* * * * * *", ""), "2026-01-30T00:00:00.5Z", []string{"2026-01-30T00:00:01Z"}},

		// Berlin puts its clocks forward at 2:00 on 29 March 2026.
		{"a time in the gap runs once, at its end", cron("30 2 * * *", "Europe/Berlin"), "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		{"many times in the gap are one", cron("*/10 2 * * *", "Europe/Berlin"), "2026-03-29T00:59:59Z",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"}},
		{"a time at the end of the gap is not doubled", cron("0 2,3 * * *", "Europe/Berlin"), "2026-03-29T00:00:00Z",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"}},
		{"every hour goes on through the gap", cron("0 * * * *", "Europe/Berlin"), "2026-03-29T00:00:00Z",
			[]string{"2026-03-29T03:00:00+02:00", "2026-03-29T04:00:00+02:00"}},
		{"every 30 minutes too", cron("*/30 * * * *", "Europe/Berlin"), "2026-03-29T00:15:00Z",
			[]string{"2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"}},

		// It puts them back at 3:00 on 25 October 2026.
		{"a time that comes twice runs at the first", cron("30 2 * * *", "Europe/Berlin"), "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		{"and not again between the two", cron("30 2 * * *", "Europe/Berlin"), "2026-10-25T01:00:00Z",
			[]string{"2026-10-26T02:30:00+01:00"}},
		{"the hour after is on time", cron("0 3 * * *", "Europe/Berlin"), "2026-10-25T00:00:00Z",
			[]string{"2026-10-25T03:00:00+01:00"}},
		{"every 30 minutes goes on through both", cron("*/30 * * * *", "Europe/Berlin"), "2026-10-25T00:00:00Z",
			[]string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:00:00+01:00"}},

		{"New York, gap", cron("15 2 * * *", "America/New_York"), "2026-03-07T20:00:00Z",
			[]string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:15:00-04:00"}},
		{"New York, twice", cron("15 1 * * *", "America/New_York"), "2026-10-31T20:00:00Z",
			[]string{"2026-11-01T01:15:00-04:00", "2026-11-02T01:15:00-05:00"}},
		{"half an hour, Lord Howe", cron("15 2 * * *", "Australia/Lord_Howe"), "2026-10-03T00:00:00Z",
			[]string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"}},
		{"midnight in the gap, Beirut", cron("0 0 * * *", "Asia/Beirut"), "2026-03-28T12:00:00Z",
			[]string{"2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"}},
		{"a day that is not there, Apia", cron("0 12 * * *", "Pacific/Apia"), "2011-12-29T21:00:00Z",
			[]string{"2011-12-29T12:00:00-10:00", "2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"}},

		{"interval", schedules.Spec{Every: "90m"}, "2026-01-30T00:00:00Z", []string{"2026-01-30T01:30:00Z", "2026-01-30T03:00:00Z"}},
		{"interval until the end", schedules.Spec{Every: "1h", EndAt: day("2026-01-30T02:00:00Z")}, "2026-01-30T00:00:00Z",
			[]string{"2026-01-30T01:00:00Z", "2026-01-30T02:00:00Z"}},
		{"cron from its start", schedules.Spec{Cron: "0 * * * *", StartAt: day("2026-01-31T12:00:00Z")}, "2026-01-30T00:00:00Z",
			[]string{"2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, times(t, tt.spec, tt.from, len(tt.want))); diff != "" {
				t.Errorf("times (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTimesGrow holds every expression and zone to the one rule that all else
// builds on, through all changes of the clocks in two years.
func TestTimesGrow(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Antarctica/Troll"} {
		for _, expr := range []string{"0 */3 * * *", "30 0-4 * * *", "59 23 * * *", "*/30 * * * *", "0 2 * * 0"} {
			spec := schedules.Spec{Cron: expr, TimeZone: zone}
			c := calendar(t, spec, time.Time{})
			at := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
			for end := at.AddDate(2, 0, 0); at.Before(end); {
				next := c.Next(at)
				if !next.After(at) || next.Sub(at) > 8*24*time.Hour {
					t.Fatalf("%s in %s: after %s comes %s", expr, zone, at, next)
				}
				// Asking from a moment before gives the same.
				if again := c.Next(next.Add(-1)); !again.Equal(next) {
					t.Fatalf("%s in %s: just before %s comes %s", expr, zone, next, again)
				}
				at = next
			}
		}
	}
}

func TestBadTimes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spec          schedules.Spec
		pointer, text string
	}{
		"nothing":          {schedules.Spec{}, "/cron", "is required"},
		"both":             {schedules.Spec{Cron: "* * * * *", Every: "1m"}, "/every", "not both"},
		"four fields":      {schedules.Spec{Cron: "* * * *"}, "/cron", "has 4 fields"},
		"seven fields":     {schedules.Spec{Cron: "* * * * * * *"}, "/cron", "has 7 fields"},
		"minute 60":        {schedules.Spec{Cron: "60 * * * *"}, "/cron", "is no cron expression"},
		"words":            {schedules.Spec{Cron: "every day at ten o'clock"}, "/cron", "is no cron expression"},
		"zone inside":      {schedules.Spec{Cron: "TZ=UTC * * * * *"}, "/cron", "time_zone"},
		"zone alone":       {schedules.Spec{Cron: "TZ=UTC"}, "/cron", "time_zone"},
		"@every":           {schedules.Spec{Cron: "@every 5m"}, "/cron", "use every"},
		"step 0":           {schedules.Spec{Cron: "*/0 * * * *"}, "/cron", "is no cron expression"},
		"commas":           {schedules.Spec{Cron: ", , * * * *"}, "/cron", "a field is empty"},
		"long":             {schedules.Spec{Cron: strings.Repeat("1,", 100) + "1 * * * *"}, "/cron", "bytes"},
		"zone":             {schedules.Spec{Cron: "* * * * *", TimeZone: "Mars/Olympus"}, "/time_zone", "IANA"},
		"zone Local":       {schedules.Spec{Cron: "* * * * *", TimeZone: "Local"}, "/time_zone", "IANA"},
		"zone with a path": {schedules.Spec{Cron: "* * * * *", TimeZone: "../UTC"}, "/time_zone", "IANA"},
		"zone of interval": {schedules.Spec{Every: "1m", TimeZone: "UTC"}, "/time_zone", "goes with cron"},
		"999ms":            {schedules.Spec{Every: "999ms"}, "/every", "between 1s and"},
		"negative":         {schedules.Spec{Every: "-5m"}, "/every", "between 1s and"},
		"367 days":         {schedules.Spec{Every: "8808h"}, "/every", "between 1s and"},
		"no unit":          {schedules.Spec{Every: "30"}, "/every", "needs a unit"},
		"no duration":      {schedules.Spec{Every: "daily"}, "/every", "is no duration"},
	} {
		_, faults := tt.spec.Calendar(time.Now())
		if len(faults) != 1 || faults[0].Pointer != tt.pointer || !strings.Contains(faults[0].Message, tt.text) {
			t.Errorf("%s: got %+v, want %q at %s", name, faults, tt.text, tt.pointer)
		}
	}
	for _, good := range []schedules.Spec{{Every: "1s"}, {Every: "8784h"}, {Cron: "@Hourly"}, {Cron: "0 0 1 1 ?"}} {
		if _, faults := good.Calendar(time.Now()); len(faults) > 0 {
			t.Errorf("%+v: %+v", good, faults)
		}
	}
}

func FuzzCron(f *testing.F) {
	for _, s := range []string{"* * * * *", "TZ=", "@every 1s", "*/0 1-7 , - /", "0 0 29 2 7", "5-7/2,7 * * * 1-7"} {
		f.Add(s, int64(1_790_000_000))
	}
	f.Fuzz(func(t *testing.T, expr string, unix int64) {
		c, faults := schedules.Spec{Cron: expr, TimeZone: "Europe/Berlin"}.Calendar(time.Time{})
		if len(faults) > 0 || unix < 0 || unix > 4_000_000_000 {
			return
		}
		at := time.Unix(unix, 0)
		if next := c.Next(at); !next.IsZero() && !next.After(at) {
			t.Errorf("%q: after %s comes %s", expr, at, next)
		}
	})
}
