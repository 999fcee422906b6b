package limits

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v4"
)

// reloadEvery is how soon a changed file takes effect.
const reloadEvery = 2 * time.Second

// maxFile bounds the file, in bytes.
const maxFile = 4 << 20

// Parse reads a policy from YAML or JSON, which YAML includes. Unknown keys
// are errors, and all faults of values are told together.
func Parse(data []byte) (*Policy, error) {
	p := &Policy{}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(p); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := d.Decode(&Policy{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document in it; keep one")
	}
	if err := p.Seal(); err != nil {
		return nil, err
	}
	return p, nil
}

// Source gives the policy in force. Safe for concurrent use; a nil Source
// limits nobody.
type Source struct {
	path string
	log  zerolog.Logger
	now  atomic.Pointer[Policy]
	last []byte // the file as last read; touched by Run only

	mu    sync.Mutex // guards hooks
	hooks []func()
}

// Fixed returns a Source of one policy, which must be sealed.
func Fixed(p *Policy) *Source {
	s := &Source{}
	s.now.Store(p)
	return s
}

// Open reads the policy in the file at path, which Run follows. An empty path
// limits nobody.
func Open(path string, log zerolog.Logger) (*Source, error) {
	s := Fixed(&Policy{})
	s.path, s.log = path, log
	if path == "" {
		return s, nil
	}
	if _, err := s.read(); err != nil {
		return nil, fmt.Errorf("limits: %w; correct it, or start without --limits", err)
	}
	return s, nil
}

// Policy returns the policy in force, never nil.
func (s *Source) Policy() *Policy {
	if s == nil {
		return none
	}
	return s.now.Load()
}

var none = &Policy{}

// OnChange calls fn after every change of the policy.
func (s *Source) OnChange(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = append(s.hooks, fn)
}

// read takes the file over when it differs from what was last read.
func (s *Source) read() (changed bool, err error) {
	f, err := os.Open(s.path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // read-only
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return false, err
	}
	if len(data) > maxFile {
		return false, fmt.Errorf("%s: larger than the %d bytes allowed", s.path, maxFile)
	}
	if s.last != nil && bytes.Equal(data, s.last) {
		return false, nil
	}
	s.last = data
	p, err := Parse(data)
	if err != nil {
		return false, fmt.Errorf("%s: %w", s.path, err)
	}
	s.now.Store(p)
	return true, nil
}

// Run follows the file until ctx ends. A file that cannot be read or has
// faults leaves the policy as it is and is reported once.
func (s *Source) Run(ctx context.Context) error {
	tick := time.NewTicker(reloadEvery)
	defer tick.Stop()
	reported := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s.path == "" {
			continue
		}
		changed, err := s.read()
		if err != nil {
			if err.Error() != reported {
				s.log.Error().Err(err).Msg("limits not changed: the file has faults; the policy before it stays in force")
			}
			reported = err.Error()
			continue
		}
		if !changed {
			continue
		}
		reported = ""
		s.log.Info().Str("file", s.path).Msg("limits changed")
		s.mu.Lock()
		hooks := s.hooks
		s.mu.Unlock()
		for _, fn := range hooks {
			fn()
		}
	}
}
