package wire

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Query reads query parameters and remembers what is wrong with them. In
// details the pointer of a parameter is "?" and its name.
type Query struct {
	values url.Values
	faults []packs.Detail
}

// NewQuery reads the parameters of r, of which only known ones are allowed:
// a misspelt filter must not vanish silently.
func NewQuery(r *http.Request, known ...string) *Query {
	q := &Query{}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		q.fault("", "the query string is malformed: %v", err)
	}
	q.values = values
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(known, name) {
			q.fault(name, "%s", unknown("parameter", name, known))
		}
	}
	return q
}

func (q *Query) fault(name, format string, args ...any) {
	q.faults = append(q.faults, packs.Detail{Pointer: "?" + name, Message: fmt.Sprintf(format, args...)})
}

// Err returns all faults so far as one error.
func (q *Query) Err() error { return Invalid(q.faults) }

// Text returns the parameter, "" when absent.
func (q *Query) Text(name string) string { return q.values.Get(name) }

// OneOf returns the parameter, which must be one of allowed when given.
func (q *Query) OneOf(name string, allowed ...string) string {
	v := q.values.Get(name)
	if v != "" && !slices.Contains(allowed, v) {
		q.fault(name, "must be one of %s", strings.Join(allowed, ", "))
	}
	return v
}

// Int returns the parameter, or absent when it is not given.
func (q *Query) Int(name string, least, most, absent int) int {
	v := q.values.Get(name)
	if v == "" {
		return absent
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		q.fault(name, "must be a whole number from %d to %d", least, most)
		return absent
	}
	return n
}

// Bool returns the parameter; given without a value it is true.
func (q *Query) Bool(name string) bool {
	if !q.values.Has(name) {
		return false
	}
	switch q.values.Get(name) {
	case "", "true", "1":
		return true
	case "false", "0":
		return false
	}
	q.fault(name, "must be true or false")
	return false
}

// Choice is Bool for a parameter whose absence means a third thing, nil.
func (q *Query) Choice(name string) *bool {
	if !q.values.Has(name) {
		return nil
	}
	v := q.Bool(name)
	return &v
}

// Time returns the parameter in RFC 3339, the zero time when absent.
func (q *Query) Time(name string) time.Time {
	v := q.values.Get(name)
	if v == "" {
		return time.Time{}
	}
	// A "+" that nobody escaped arrives as a space.
	t, err := time.Parse(time.RFC3339, strings.Replace(v, " ", "+", 1))
	if err != nil {
		q.fault(name, "must be a time such as 2026-01-31T12:00:00Z")
	}
	return t
}

// Preference is what a Prefer header asks for (RFC 7240).
type Preference struct {
	Async bool
	// Wait is -1 when not given.
	Wait time.Duration
}

// Prefer reads the Prefer headers; what it does not know it ignores, as the
// RFC says.
func Prefer(h http.Header) Preference {
	p := Preference{Wait: -1}
	for item := range strings.SplitSeq(strings.Join(h.Values("Prefer"), ","), ",") {
		item, _, _ = strings.Cut(item, ";") // parameters of a preference
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "respond-async":
			p.Async = true
		case "wait":
			n, err := strconv.ParseUint(strings.Trim(strings.TrimSpace(value), `"`), 10, 31)
			if err == nil && p.Wait < 0 {
				p.Wait = time.Duration(n) * time.Second
			}
		}
	}
	return p
}
