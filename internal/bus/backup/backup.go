// Package backup copies an installation's streams to a folder and back:
// queues, schedules, events, buckets and the state of their consumers.
//
// The copy is taken while everything runs. Each stream is copied as of one
// moment, the streams one after the other in the direction in which jobs move
// (bus.Conn.Streams), and what moved against that direction meanwhile is read
// once more, message by message, before the events are copied and at the end.
// So everything that was accepted before the copy began is in it at least once,
// in a queue, a schedule or the events; what is there twice is sorted out by the
// rules that hold for every message that arrives twice. Bytes in an S3 bucket
// are not part of it.
//
// A folder holds manifest.json, written last, and for each stream a snapshot in
// the server's format and, where there is one, a tail in JSON lines.
package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/helmdeck/helmdeck/internal/bus"
)

// Format is the version of the folder's layout.
const Format = 1

const manifestName = "manifest.json"

// Errors of this package.
var (
	// ErrDamaged: the folder is no backup, not a whole one, or altered.
	ErrDamaged = errors.New("backup is damaged")
	// ErrNotEmpty: the folder to write to, or the installation to restore into,
	// holds something.
	ErrNotEmpty = errors.New("not empty")
	// ErrInUse: API replicas or workers are connected to the installation.
	ErrInUse = errors.New("installation is in use")
	// ErrNewer: the backup was written by a newer program.
	ErrNewer = errors.New("backup is of a newer version")
	// ErrOther: the backup is of an installation that this one cannot become.
	ErrOther = errors.New("backup does not fit")
)

// Manifest describes a backup.
type Manifest struct {
	Format int `json:"format"`
	// Version is that of the program that wrote it, Topology that of the
	// streams.
	Version    string    `json:"version"`
	Topology   int       `json:"topology"`
	Prefix     string    `json:"prefix"`
	Profile    string    `json:"profile"`
	Replicas   int       `json:"replicas"`
	StartedAt  time.Time `json:"started_at"`
	FinishedAt time.Time `json:"finished_at"`
	Streams    []Stream  `json:"streams"`
}

// Stream is one stream of a backup.
type Stream struct {
	Name     string `json:"name"`
	Messages uint64 `json:"messages"` // in the snapshot
	// Consumers is how many are kept with their state.
	Consumers    int    `json:"consumers"`
	LastSequence uint64 `json:"last_sequence"`
	Snapshot     File   `json:"snapshot"`
	// Tail holds what was stored while other streams were copied.
	Tail         *File           `json:"tail,omitempty"`
	TailMessages uint64          `json:"tail_messages,omitempty"`
	Config       json.RawMessage `json:"config"`
	State        json.RawMessage `json:"state"`
}

// File is a file of a backup.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Messages counts those of all streams.
func (m Manifest) Messages() (n uint64) {
	for _, s := range m.Streams {
		n += s.Messages + s.TailMessages
	}
	return n
}

// Bytes counts those of all files.
func (m Manifest) Bytes() (n int64) {
	for _, s := range m.Streams {
		n += s.Snapshot.Bytes
		if s.Tail != nil {
			n += s.Tail.Bytes
		}
	}
	return n
}

// Progress observes a backup or restore: the stream in hand is the done-th of
// all. May be nil.
type Progress func(stream string, done, all int)

func (p Progress) tell(stream string, done, all int) {
	if p != nil {
		p(stream, done, all)
	}
}

// Write copies the installation of conn, an administrator's, to dir, which is
// made and must be empty. What an error leaves is removed. version is the
// program's.
func Write(ctx context.Context, conn *bus.Conn, dir, version string, progress Progress) (m Manifest, err error) {
	if err := makeFolder(dir); err != nil {
		return m, err
	}
	w := &writer{conn: conn, dir: dir, tails: map[string]*tail{}}
	defer func() {
		if err != nil {
			w.discard()
		}
	}()
	m = Manifest{
		Format: Format, Version: version, Topology: bus.TopologyVersion, Prefix: conn.Prefix(),
		Profile: conn.Profile().Name, Replicas: conn.Profile().Replicas, StartedAt: time.Now().UTC(),
	}
	streams, err := conn.Streams(ctx)
	if err != nil {
		return m, fmt.Errorf("list streams: %w", err)
	}
	if len(streams) == 0 {
		return m, fmt.Errorf("nothing to back up: the bus has no streams of prefix %s", conn.Prefix())
	}
	copied := false // what is before the events
	for i, s := range streams {
		if !copied && !conn.BeforeEvents(s.Stream) {
			if err := w.catchUp(ctx, m.Streams); err != nil {
				return m, err
			}
			copied = true
		}
		progress.tell(s.Stream, i+1, len(streams))
		one, err := w.snapshot(ctx, s.Stream)
		if err != nil {
			return m, err
		}
		m.Streams = append(m.Streams, one)
	}
	if err := w.catchUp(ctx, m.Streams); err != nil {
		return m, err
	}
	if err := w.closeTails(m.Streams); err != nil {
		return m, err
	}
	m.FinishedAt = time.Now().UTC()
	return m, w.manifest(m)
}

func makeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at folder: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("folder %s: %w", dir, ErrNotEmpty)
	}
	return nil
}

// writer writes the files of one backup.
type writer struct {
	conn  *bus.Conn
	dir   string
	made  []string // names of files, for discard
	tails map[string]*tail
}

func (w *writer) discard() {
	for _, t := range w.tails {
		_ = t.file.Close() // removed next
	}
	for _, name := range w.made {
		_ = os.Remove(filepath.Join(w.dir, name)) // a file without a manifest is no backup
	}
}

func (w *writer) create(name string) (*output, error) {
	f, err := os.OpenFile(filepath.Join(w.dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	w.made = append(w.made, name)
	return &output{File: f, name: name, sum: sha256.New()}, nil
}

// output is a file whose size and digest are kept as it is written.
type output struct {
	*os.File
	name string
	sum  hash.Hash
	size int64
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	o.sum.Write(p[:n])
	o.size += int64(n)
	return n, err
}

// finish brings the file to the disk.
func (o *output) finish() (File, error) {
	err := errors.Join(o.Sync(), o.Close())
	return File{Name: o.name, Bytes: o.size, SHA256: hex.EncodeToString(o.sum.Sum(nil))}, err
}

func (w *writer) snapshot(ctx context.Context, stream string) (Stream, error) {
	out, err := w.create(stream + ".snapshot")
	if err != nil {
		return Stream{}, err
	}
	s, err := w.conn.Snapshot(ctx, stream, out)
	file, ferr := out.finish()
	if err := errors.Join(err, ferr); err != nil {
		return Stream{}, err
	}
	return Stream{
		Name: stream, Messages: s.Messages, Consumers: s.Consumers, LastSequence: s.LastSequence,
		Snapshot: file, Config: s.Config, State: s.State,
	}, nil
}

// tail is what a stream got after its snapshot.
type tail struct {
	file  *output
	last  uint64 // sequence
	count uint64
}

// catchUps bounds the passes over streams that change all the time.
const catchUps = 3

// catchUp reads what the streams copied so far were given since. Passes go on
// while there is something new, a few times: what still changes then is renewed
// so often that the next change makes up for it.
func (w *writer) catchUp(ctx context.Context, copied []Stream) error {
	for range catchUps {
		news := uint64(0)
		for _, s := range copied {
			if w.conn.AppendOnly(s.Name) {
				continue // its snapshot lacks nothing
			}
			n, err := w.readTail(ctx, s)
			if err != nil {
				return err
			}
			news += n
		}
		if news == 0 {
			return nil
		}
	}
	return nil
}

func (w *writer) readTail(ctx context.Context, s Stream) (uint64, error) {
	t := w.tails[s.Name]
	if t == nil {
		t = &tail{last: s.LastSequence}
	}
	before := t.count
	var err error
	t.last, err = w.conn.Since(ctx, s.Name, t.last, func(m bus.RawMessage) error {
		if t.file == nil {
			if t.file, err = w.create(s.Name + ".tail"); err != nil {
				return err
			}
			w.tails[s.Name] = t
		}
		t.count++
		return json.NewEncoder(t.file).Encode(m)
	})
	if err != nil {
		return 0, err
	}
	return t.count - before, nil
}

func (w *writer) closeTails(streams []Stream) error {
	for i := range streams {
		s := &streams[i]
		t := w.tails[s.Name]
		if t == nil {
			continue
		}
		file, err := t.file.finish()
		if err != nil {
			return err
		}
		s.Tail, s.TailMessages = &file, t.count
		delete(w.tails, s.Name)
	}
	return nil
}

// manifest is written aside and moved, so that it is whole or not there.
func (w *writer) manifest(m Manifest) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	out, err := w.create(manifestName + ".new")
	if err != nil {
		return err
	}
	_, err = out.Write(append(b, '\n'))
	if _, ferr := out.finish(); err != nil || ferr != nil {
		return errors.Join(err, ferr)
	}
	if err := os.Rename(filepath.Join(w.dir, out.name), filepath.Join(w.dir, manifestName)); err != nil {
		return err
	}
	return syncFolder(w.dir)
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Verify reads a backup's manifest and every byte of its files, and returns
// the manifest when sizes and digests are the stored ones. ErrDamaged, ErrNewer.
func Verify(ctx context.Context, dir string) (Manifest, error) {
	m, err := readManifest(dir)
	if err != nil {
		return m, err
	}
	for _, s := range m.Streams {
		files := []File{s.Snapshot}
		if s.Tail != nil {
			files = append(files, *s.Tail)
		}
		for _, f := range files {
			if err := ctx.Err(); err != nil {
				return m, err
			}
			if err := verifyFile(dir, f); err != nil {
				return m, err
			}
		}
	}
	return m, nil
}

func readManifest(dir string) (m Manifest, err error) {
	b, err := os.ReadFile(filepath.Join(dir, manifestName))
	if errors.Is(err, os.ErrNotExist) {
		return m, fmt.Errorf("%w: %s has no %s: it is no backup, or one that was not finished", ErrDamaged, dir, manifestName)
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil || m.Format == 0 || len(m.Streams) == 0 {
		return m, fmt.Errorf("%w: %s is not readable: %w", ErrDamaged, manifestName, errors.Join(err, errors.New("no backup's manifest")))
	}
	if m.Format > Format || m.Topology > bus.TopologyVersion {
		return m, fmt.Errorf("%w: helmdeck %s wrote format %d, topology %d; this program knows %d and %d: use a newer one",
			ErrNewer, m.Version, m.Format, m.Topology, Format, bus.TopologyVersion)
	}
	return m, nil
}

func verifyFile(dir string, want File) error {
	if filepath.Base(want.Name) != want.Name {
		return fmt.Errorf("%w: %q is no file of the folder", ErrDamaged, want.Name)
	}
	f, err := os.Open(filepath.Join(dir, want.Name))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer func() { _ = f.Close() }() // read-only
	sum := sha256.New()
	n, err := io.Copy(sum, f)
	if err != nil {
		return fmt.Errorf("read %s: %w", want.Name, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); n != want.Bytes || got != want.SHA256 {
		return fmt.Errorf("%w: %s has %d bytes with SHA-256 %s, want %d with %s", ErrDamaged, want.Name, n, got, want.Bytes, want.SHA256)
	}
	return nil
}
