package limitstore

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/limits"
)

// State is who holds the slots of one key.
type State struct {
	// Holders are the runs that hold a slot, by job id; one slot a job.
	Holders map[string]limits.Holder
	// Queued is set once a job had to be held back: from then on slots go to
	// held jobs only, so that nobody overtakes them, until none is left.
	Queued bool
}

func (s *State) clone() State {
	c := State{Holders: make(map[string]limits.Holder, len(s.Holders)+1), Queued: s.Queued}
	for id, h := range s.Holders {
		c.Holders[id] = h
	}
	return c
}

func (s *State) empty() bool { return len(s.Holders) == 0 && !s.Queued }

// encode writes one line a holder, in the order of ids:
//
//	queued
//	<jobid> <run> <tenant> <owner>
func (s *State) encode() []byte {
	ids := make([]string, 0, len(s.Holders))
	for id := range s.Holders {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	b := make([]byte, 0, 8+len(ids)*72)
	if s.Queued {
		b = append(b, "queued\n"...)
	}
	for _, id := range ids {
		h := s.Holders[id]
		b = append(b, id...)
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(h.Run), 10)
		b = append(b, ' ')
		b = append(b, h.Job.Tenant...)
		b = append(b, ' ')
		b = append(b, h.Job.Owner...)
		b = append(b, '\n')
	}
	return b
}

var errMalformed = errors.New("malformed slot state")

func decode(b []byte) (State, error) {
	s := State{Holders: map[string]limits.Holder{}}
	for line := range strings.SplitSeq(string(b), "\n") {
		if line == "" {
			continue
		}
		if line == "queued" {
			s.Queued = true
			continue
		}
		f := strings.Split(line, " ")
		if len(f) != 4 {
			return s, fmt.Errorf("%w: %.100q", errMalformed, line)
		}
		run, err := strconv.Atoi(f[1])
		if err != nil {
			return s, fmt.Errorf("%w: run: %w", errMalformed, err)
		}
		s.Holders[f[0]] = limits.Holder{Job: jobs.Key{ID: f[0], Tenant: f[2], Owner: f[3]}, Run: run}
	}
	return s, nil
}
