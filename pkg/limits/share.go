package limits

// Share says whose turn it is among parties that wait for the same thing, so
// that what each gets is in proportion to its weight while it waits: start-time
// fair queueing (Goyal, Vin, Cheng 1996). A party that comes back after a while
// saved nothing up, one that is alone gets everything. Not safe for concurrent
// use; the zero value is ready.
type Share struct {
	// clock is the virtual start of what was served last; ends is the virtual
	// end of what each party was served last.
	clock float64
	ends  map[string]float64
}

func (s *Share) start(name string) float64 { return max(s.clock, s.ends[name]) }

// Next returns whose turn it is among waiting, "" when nobody waits. A tie goes
// to the one that comes first.
func (s *Share) Next(waiting []string) string {
	best, at := "", 0.0
	for _, name := range waiting {
		if start := s.start(name); best == "" || start < at {
			best, at = name, start
		}
	}
	return best
}

// Serve notes that name was given something of the given cost, in any unit.
func (s *Share) Serve(name string, cost float64, weight int) {
	if s.ends == nil {
		s.ends = map[string]float64{}
	}
	start := s.start(name)
	s.clock = start
	s.ends[name] = start + cost/float64(max(1, weight))
	if len(s.ends) > maxShares {
		for n, end := range s.ends {
			if end <= s.clock { // as good as forgotten
				delete(s.ends, n)
			}
		}
	}
}

// maxShares is when parties that have no advantage left are forgotten.
const maxShares = 1000
