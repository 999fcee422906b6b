package worker

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// scratch is the folder of one run: made when the handler asks for it, and
// gone for good after the run, even for a handler that was given up on.
type scratch struct {
	path string

	mu         sync.Mutex // guards the fields below
	made, over bool
}

var errRunOver = errors.New("the run is over")

func (s *scratch) make() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
		return "", fmt.Errorf("make scratch folder: %w", errRunOver)
	case s.made:
		return s.path, nil
	}
	if err := os.MkdirAll(s.path, 0o700); err != nil {
		return "", fmt.Errorf("make scratch folder: %w", err)
	}
	s.made = true
	return s.path, nil
}

func (s *scratch) remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if !s.made {
		return nil
	}
	return os.RemoveAll(s.path)
}
