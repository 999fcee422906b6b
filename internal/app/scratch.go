package app

import (
	"os"
	"path/filepath"
	"syscall"
)

// lockScratch takes the lock of a worker's scratch folder. The kernel drops
// it with the process.
func lockScratch(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // the error that matters is the lock's
		return nil, err
	}
	return f, nil
}
