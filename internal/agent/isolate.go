package agent

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

// isolate shuts the agent in as boot says and sets its limits.
func isolate(boot wire.Boot) error {
	// What the runtime's own parent left open is not for the programs here.
	if err := unix.CloseRange(wire.ReadyFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keep inherited files to the agent: %w", err)
	}
	if in := boot.Isolate; in != nil {
		if in.Mounts {
			if err := mounts(boot.Scratch, in); err != nil {
				return err
			}
		}
		if err := dropTo(in.UID, in.GID); err != nil {
			return err
		}
	}
	// The agent's memory holds the token: no program of the same uid may look.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide memory of agent: %w", err)
	}
	// Outside a pid namespace, programs whose parent ended become children of
	// the agent instead of escaping to init.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become reaper: %w", err)
	}
	return limit(boot.Limits)
}

func limit(l wire.Limits) error {
	set := func(name string, which int, n uint64) error {
		if n == 0 {
			return nil
		}
		var old unix.Rlimit
		if err := unix.Getrlimit(which, &old); err != nil {
			return fmt.Errorf("read limit of %s: %w", name, err)
		}
		n = min(n, old.Max)
		if err := unix.Setrlimit(which, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return fmt.Errorf("limit %s: %w", name, err)
		}
		return nil
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	if err := set("file size", unix.RLIMIT_FSIZE, uint64(l.FileBytes)); err != nil {
		return err
	}
	return set("processes", unix.RLIMIT_NPROC, l.Processes)
}

func dropTo(uid, gid int) error {
	if uid == 0 {
		return nil
	}
	gid = cmp.Or(gid, uid)
	if err := syscall.Setgroups([]int{}); err != nil {
		return fmt.Errorf("drop groups: %w", err)
	}
	if err := syscall.Setgid(gid); err != nil {
		return fmt.Errorf("continue as gid %d: %w", gid, err)
	}
	if err := syscall.Setuid(uid); err != nil {
		return fmt.Errorf("continue as uid %d: %w", uid, err)
	}
	return nil
}

// mounts gives the namespace its own /proc and hides in.Cover.
func mounts(scratch string, in *wire.Isolation) error {
	// Nothing mounted here may travel back to the host.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", "/proc", "proc", quiet, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	if len(in.Cover) == 0 {
		return nil
	}
	kept, err := openAll(append([]string{scratch}, in.Keep...))
	if err != nil {
		return err
	}
	defer func() {
		for _, k := range kept {
			_ = unix.Close(k.fd)
		}
	}()
	// Mode 0711 of each folder: its names are known or they are not found.
	for _, c := range in.Cover {
		if err := unix.Mount("tmpfs", c, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size=1m"); err != nil {
			return fmt.Errorf("hide %s: %w", c, err)
		}
	}
	for i, k := range kept {
		if err := k.bind(i > 0); err != nil {
			return err
		}
	}
	return nil
}

type keptFolder struct {
	path string
	fd   int
}

func openAll(paths []string) ([]keptFolder, error) {
	var kept []keptFolder
	for _, p := range paths {
		fd, err := unix.Open(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return kept, fmt.Errorf("open %s: %w", p, err)
		}
		kept = append(kept, keptFolder{p, fd})
	}
	return kept, nil
}

// bind makes the folder visible again at its old path.
func (k keptFolder) bind(readOnly bool) error {
	if err := os.MkdirAll(filepath.Dir(k.path), 0o711); err != nil {
		return fmt.Errorf("make way to %s: %w", k.path, err)
	}
	if err := os.MkdirAll(k.path, 0o700); err != nil {
		return fmt.Errorf("make %s: %w", k.path, err)
	}
	from := "/proc/self/fd/" + strconv.Itoa(k.fd)
	if err := unix.Mount(from, k.path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("show %s: %w", k.path, err)
	}
	if !readOnly {
		return nil
	}
	// A remount must repeat the flags a user namespace may not clear.
	var st unix.Statfs_t
	if err := unix.Statfs(k.path, &st); err != nil {
		return fmt.Errorf("look at %s: %w", k.path, err)
	}
	keep := uintptr(st.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("", k.path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|keep, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", k.path, err)
	}
	return nil
}
