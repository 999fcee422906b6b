package audit

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
)

const (
	// minSecret is the shortest value that is looked for: shorter ones are in
	// many words.
	minSecret = 6
	// maxSecret is how much of a secret is looked for, in bytes.
	maxSecret = 32 << 10
)

// Secrets is the set of values that must not appear in a record. Whoever holds
// a secret adds it. The zero value is empty; it is safe for concurrent use.
type Secrets struct {
	mu     sync.RWMutex   // guards what follows
	counts map[string]int // how often each value was added
	values []string       // what is looked for, longest first
	swap   *strings.Replacer
}

// Add makes value, and its base64 and URL-escaped forms, disappear from
// records until remove is called. Values below six bytes are too common to
// look for and are not added.
func (s *Secrets) Add(value string) (remove func()) {
	if len(value) < minSecret || strings.Contains(marker, value) {
		return func() {}
	}
	if len(value) > maxSecret {
		value = value[:maxSecret]
	}
	s.change(value, 1)
	return sync.OnceFunc(func() { s.change(value, -1) })
}

func (s *Secrets) change(value string, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts == nil {
		s.counts = map[string]int{}
	}
	if s.counts[value] += by; s.counts[value] <= 0 {
		delete(s.counts, value)
	}
	s.values = s.values[:0]
	for v := range s.counts {
		s.values = append(s.values, forms(v)...)
	}
	slices.SortFunc(s.values, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	s.values = slices.Compact(s.values)
	var pairs []string
	for _, v := range s.values {
		pairs = append(pairs, v, marker)
	}
	s.swap = strings.NewReplacer(pairs...)
}

// forms are the ways in which a secret is written.
func forms(v string) []string {
	all := []string{v, url.QueryEscape(v), url.PathEscape(v)}
	for _, e := range []*base64.Encoding{base64.StdEncoding, base64.RawURLEncoding} {
		all = append(all, e.EncodeToString([]byte(v)))
	}
	if quoted, err := json.Marshal(v); err == nil {
		all = append(all, string(quoted[1:len(quoted)-1]))
	}
	return slices.DeleteFunc(all, func(f string) bool { return len(f) < minSecret || strings.Contains(marker, f) })
}

// Clean returns text without the secrets.
func (s *Secrets) Clean(text string) string {
	if s == nil {
		return text
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.found(text) {
		return text
	}
	if text = s.swap.Replace(text); s.found(text) {
		// What was left beside the marker makes another secret.
		return marker
	}
	return text
}

// Holds reports whether a secret is in text.
func (s *Secrets) Holds(text string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.found(text)
}

func (s *Secrets) found(text string) bool {
	for _, v := range s.values {
		if strings.Contains(text, v) {
			return true
		}
	}
	return false
}
