package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// Batch is what goes to the queue at once: redacted events of one source, in
// order. Source and N name it: a queue that has stored N of a source stores
// neither it nor a lower one of that source again.
type Batch struct {
	Source string    `json:"source"`
	N      uint64    `json:"n"`
	Events []Pending `json:"events"`
}

// ErrSpoolFull says that the spool file is at its bound.
var ErrSpoolFull = errors.New("the spool of audit events is full")

// spool is a file of batches that wait for the bus, one a line behind its
// checksum. A line that was not written whole is not there.
type spool struct {
	path string
	max  int64

	mu     sync.Mutex // guards what follows, and the file
	file   *os.File
	size   int64 // of whole lines
	at     int64 // up to here it is replayed
	events int   // not yet replayed
	synced bool
	broken int // lines that were damaged on disk
}

// maxSpools bounds the processes of one role that share a data directory.
const maxSpools = 16

// openSpool takes the first spool of name in dir that no other process has,
// and what processes left there that are gone.
func openSpool(dir, name string, limit int64) (*spool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("folder of the audit spool: %w", err)
	}
	for i := range maxSpools {
		path := filepath.Join(dir, name+".spool")
		if i > 0 {
			path = filepath.Join(dir, name+"-"+strconv.Itoa(i)+".spool")
		}
		f, err := lockSpool(path)
		if errors.Is(err, syscall.EWOULDBLOCK) {
			continue // of a process that lives
		}
		if err != nil {
			return nil, fmt.Errorf("open audit spool: %w", err)
		}
		s := &spool{path: path, max: limit, file: f, synced: true}
		if err := s.recover(); err != nil {
			_ = f.Close() // the fault before counts
			return nil, fmt.Errorf("read audit spool %s: %w", path, err)
		}
		return s, s.adopt(dir)
	}
	return nil, fmt.Errorf("open audit spool: %d processes use %s; give each a data directory of its own", maxSpools, dir)
}

// lockSpool opens a spool file for its one process. The kernel drops the lock
// with the process.
func lockSpool(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			var same bool
			if same, err = sameFile(f, path); same {
				return f, nil
			}
		}
		_ = f.Close() // nothing was written
		if err != nil {
			return nil, err
		}
		// Another process took it over and removed it in between.
	}
}

// sameFile reports whether f is still what path names.
func sameFile(f *os.File, path string) (bool, error) {
	own, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(own, named), err
}

// recover counts what is there and cuts off a line that was being written when
// the process ended.
func (s *spool) recover() error {
	s.size, s.events = 0, 0
	err := readLines(s.file, 0, func(line []byte) error {
		s.size += int64(len(line))
		if b, err := parseLine(line); err == nil {
			s.events += len(b.Events)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.file.Truncate(s.size)
}

// adopt appends what is in spools whose processes are gone, and removes them.
// Dying in between leaves batches twice, which the queue stores once.
func (s *spool) adopt(dir string) error {
	paths, err := filepath.Glob(filepath.Join(dir, "*.spool"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		if path == s.path {
			continue
		}
		f, err := lockSpool(path)
		if err != nil {
			continue // of a process that lives, or of another user
		}
		err = s.take(f)
		if err == nil {
			err = os.Remove(path)
		}
		_ = f.Close() // it was only read
		if err != nil {
			return fmt.Errorf("take over audit spool %s: %w", path, err)
		}
	}
	return nil
}

func (s *spool) take(f *os.File) error {
	err := readLines(f, 0, func(line []byte) error {
		b, err := parseLine(line)
		if err != nil {
			return nil //nolint:nilerr // what is damaged cannot be taken over
		}
		return s.write(line, len(b.Events))
	})
	if err != nil {
		return err
	}
	return s.sync()
}

// readLines calls fn for each whole line from an offset on.
func readLines(f *os.File, from int64, fn func(line []byte) error) error {
	r := bufio.NewReaderSize(io.NewSectionReader(f, from, 1<<62), 64<<10)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(line); err != nil {
			return err
		}
	}
}

func lineOf(b Batch) ([]byte, error) {
	data, err := encodePlain(b)
	if err != nil {
		return nil, fmt.Errorf("encode audit batch: %w", err)
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE(data), data), nil
}

func parseLine(line []byte) (Batch, error) {
	var b Batch
	sum, data, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	if want, err := strconv.ParseUint(string(sum), 16, 32); !ok || err != nil || uint32(want) != crc32.ChecksumIEEE(data) {
		return b, errors.New("damaged line")
	}
	return b, json.Unmarshal(data, &b)
}

// add appends b; number gives it its N once its place is certain. With sync it
// is on the disk when add returns.
func (s *spool) add(b *Batch, number func() uint64, sync bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.N == 0 {
		b.N = number() // one that is not used is missed by nobody
	}
	line, err := lineOf(*b)
	if err != nil {
		return err
	}
	if s.size+int64(len(line)) > s.max {
		return ErrSpoolFull
	}
	if err := s.write(line, len(b.Events)); err != nil {
		return err
	}
	if sync {
		return s.sync()
	}
	return nil
}

// write appends a line, whole or not at all. mu is held, or nobody else knows s.
func (s *spool) write(line []byte, events int) error {
	n, err := s.file.WriteAt(line, s.size)
	if err != nil {
		if n > 0 {
			_ = s.file.Truncate(s.size) // the next line overwrites it otherwise
		}
		return fmt.Errorf("write audit spool: %w", err)
	}
	s.size += int64(len(line))
	s.events += events
	s.synced = false
	return nil
}

func (s *spool) sync() error {
	if s.synced {
		return nil
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("sync audit spool: %w", err)
	}
	s.synced = true
	return nil
}

// next returns the oldest batch that is not replayed, with its length in the
// file; ok is false when there is none. Damaged lines are passed over.
func (s *spool) next() (b Batch, length int64, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at >= s.size {
		return b, 0, false, nil
	}
	found := errors.New("found")
	err = readLines(s.file, s.at, func(line []byte) error {
		if s.at+int64(len(line)) > s.size {
			return io.EOF
		}
		if b, err = parseLine(line); err != nil {
			s.at += int64(len(line))
			s.broken++
			return nil
		}
		length = int64(len(line))
		return found
	})
	if errors.Is(err, found) {
		return b, length, true, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return b, 0, false, nil
	}
	return b, 0, false, fmt.Errorf("read audit spool: %w", err)
}

// done notes that the oldest batch is in the queue and empties the file after
// the last one.
func (s *spool) done(b Batch, length int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at += length
	s.events = max(s.events-len(b.Events), 0)
	if s.at < s.size {
		return nil
	}
	if err := s.file.Truncate(0); err != nil {
		return fmt.Errorf("empty audit spool: %w", err)
	}
	s.at, s.size, s.events, s.synced = 0, 0, 0, false
	return nil
}

// state tells what waits, and how much room there is.
func (s *spool) state() (events int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events, s.size - s.at
}

// empty reports whether everything is replayed.
func (s *spool) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at >= s.size
}

func (s *spool) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.sync()
	return errors.Join(err, s.file.Close())
}
