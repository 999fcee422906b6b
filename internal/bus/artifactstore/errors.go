package artifactstore

import (
	"errors"
	"fmt"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// translate puts the errors a caller branches on into the words of artifacts.
func translate(verb, key string, err error) error {
	switch {
	case errors.Is(err, bus.ErrNoMessage):
		err = fmt.Errorf("%w: %w", artifacts.ErrNotFound, err)
	case errors.Is(err, bus.ErrFull), errors.Is(err, bus.ErrFrozen):
		err = fmt.Errorf("%w: %w", artifacts.ErrNoSpace, err)
	}
	return fmt.Errorf("%s %s: %w", verb, key, err)
}
