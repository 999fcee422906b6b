package bus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// LockedError says that another process uses the directory.
type LockedError struct {
	Dir string
	PID int // 0: not known
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("directory %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("directory %s is in use by process %d", e.Dir, e.PID)
}

// DirError says that the directory cannot be used.
type DirError struct {
	Dir string
	Err error
}

func (e *DirError) Error() string {
	switch {
	case errors.Is(e.Err, syscall.EROFS), errors.Is(e.Err, os.ErrPermission):
		return fmt.Sprintf("directory %s is not writable: %v", e.Dir, e.Err)
	case errors.Is(e.Err, syscall.ENOSPC):
		return fmt.Sprintf("no space left in directory %s", e.Dir)
	}
	return fmt.Sprintf("directory %s cannot be used: %v", e.Dir, e.Err)
}

func (e *DirError) Unwrap() error { return e.Err }

const lockFile = "bus.lock"

// lockDir makes dir and takes the lock in it. The kernel drops the lock with
// the process, however that ends, so there is nothing stale to judge; the id
// in the file is for people.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, &DirError{Dir: dir, Err: err}
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &DirError{Dir: dir, Err: err}
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &LockedError{Dir: dir, PID: readPID(f)}
		}
		return nil, &DirError{Dir: dir, Err: err}
	}
	if err := writePID(f); err != nil {
		f.Close()
		return nil, &DirError{Dir: dir, Err: err}
	}
	return f, nil
}

func readPID(f *os.File) int {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0) // short files end in io.EOF
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

func writePID(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// probeDir finds out whether files can be written, before the server does it
// the hard way.
func probeDir(dir string) error {
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return &DirError{Dir: dir, Err: err}
	}
	defer os.Remove(f.Name())
	_, err = f.Write(make([]byte, 4096))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return &DirError{Dir: dir, Err: err}
	}
	return nil
}
