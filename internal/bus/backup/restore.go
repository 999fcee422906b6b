package backup

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/helmdeck/helmdeck/internal/bus"
)

// Restore makes the installation of conn, an administrator's, what it was when
// the backup in dir was taken, and brings it to the present topology. Every
// digest is checked before anything is touched. Streams that hold messages are
// replaced only with replace; roles must not run.
//
// Errors: ErrDamaged, ErrNewer, ErrOther, ErrInUse, ErrNotEmpty, with nothing
// changed. After any other error do it again with replace.
func Restore(ctx context.Context, conn *bus.Conn, dir string, replace bool, progress Progress) (Manifest, error) {
	m, err := Verify(ctx, dir)
	if err != nil {
		return m, err
	}
	present, err := check(ctx, conn, m, replace)
	if err != nil {
		return m, err
	}
	for _, s := range present {
		if err := conn.DeleteStream(ctx, s.Stream); err != nil {
			return m, err
		}
	}
	for i, s := range m.Streams {
		progress.tell(s.Name, i+1, len(m.Streams))
		if err := restoreStream(ctx, conn, dir, s); err != nil {
			return m, err
		}
	}
	// Tails need all streams: a schedule's may fire at once.
	for _, s := range m.Streams {
		if err := replayTail(ctx, conn, dir, s); err != nil {
			return m, err
		}
	}
	if _, err := conn.Init(ctx); err != nil {
		return m, fmt.Errorf("bring the restored streams up to date: %w", err)
	}
	return m, nil
}

// check refuses before anything is changed, and returns the streams in the way.
func check(ctx context.Context, conn *bus.Conn, m Manifest, replace bool) ([]bus.CopiedStream, error) {
	if m.Prefix != conn.Prefix() {
		return nil, fmt.Errorf("%w: it is of prefix %s, this installation has %s: name the same with --prefix", ErrOther, m.Prefix, conn.Prefix())
	}
	if m.Replicas > conn.Profile().Replicas {
		return nil, fmt.Errorf("%w: its streams have %d replicas, profile %s has %d: restore it into a cluster with --profile %s",
			ErrOther, m.Replicas, conn.Profile().Name, conn.Profile().Replicas, m.Profile)
	}
	pulling, err := conn.Pulling(ctx)
	if err != nil {
		return nil, err
	}
	if pulling > 0 {
		return nil, fmt.Errorf("%w: %d requests of API replicas or workers wait: stop them all, leaving the bus (helmdeck up --roles none)", ErrInUse, pulling)
	}
	present, err := conn.Streams(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range present {
		// The server itself reports events of restores and elections there.
		if s.Messages > 0 && !replace && !strings.HasSuffix(s.Stream, bus.StreamAudit) {
			return nil, fmt.Errorf("%w: stream %s has %d messages: restore into a fresh bus, or lose what is there with --replace", ErrNotEmpty, s.Stream, s.Messages)
		}
	}
	return present, nil
}

func restoreStream(ctx context.Context, conn *bus.Conn, dir string, s Stream) error {
	f, err := os.Open(filepath.Join(dir, s.Snapshot.Name))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer func() { _ = f.Close() }() // read-only
	return conn.Restore(ctx, bus.CopiedStream{Stream: s.Name, Config: s.Config, State: s.State}, f)
}

func replayTail(ctx context.Context, conn *bus.Conn, dir string, s Stream) error {
	if s.Tail == nil {
		return nil
	}
	f, err := os.Open(filepath.Join(dir, s.Tail.Name))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer func() { _ = f.Close() }() // read-only
	lines := json.NewDecoder(bufio.NewReader(f))
	for {
		var m bus.RawMessage
		if err := lines.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrDamaged, s.Tail.Name, err)
		}
		if err := conn.Replay(ctx, m); err != nil {
			return fmt.Errorf("replay %s: %w", s.Tail.Name, err)
		}
	}
}
