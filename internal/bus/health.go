package bus

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"github.com/nats-io/nats-server/v2/server"
)

// Healthy returns nil when the server takes writes. A stream whose storage
// failed (a full disk, as a rule) is an error wrapping ErrFrozen; it stays so
// until Restart.
func (s *Server) Healthy(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	ns := s.ns
	s.mu.Unlock()
	if ns == nil || !ns.Running() {
		return fmt.Errorf("bus server: %w: not running", ErrUnavailable)
	}
	if s.frozen.Load() {
		return fmt.Errorf("bus server: %w", ErrFrozen)
	}
	h := ns.Healthz(&server.HealthzOptions{})
	if strings.Contains(h.Error, "could not be recovered") {
		// A folder without its stream: it is being made or restored, or its
		// files are damaged. A restart would break the one off and mend
		// nothing of the other.
		return fmt.Errorf("bus server: %w: %s", ErrUnavailable, h.Error)
	}
	if h.StatusCode != 0 && h.StatusCode != 200 || h.Status != "ok" {
		return fmt.Errorf("bus server: %w: %s", ErrFrozen, h.Error)
	}
	return nil
}

// Space returns the bytes free to the store and those of its whole disk.
func (s *Server) Space() (free, total int64, err error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.cfg.Dir, &fs); err != nil {
		return 0, 0, &DirError{Dir: s.cfg.Dir, Err: err}
	}
	return int64(fs.Bavail) * fs.Bsize, int64(fs.Blocks) * fs.Bsize, nil
}
