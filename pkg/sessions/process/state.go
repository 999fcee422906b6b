package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stopGrace is between asking a sidecar to end and ending it.
	stopGrace = 5 * time.Second
	// killGrace bounds what the kernel needs after SIGKILL; longer means a
	// process stuck in a device, which no waiting helps.
	killGrace = 10 * time.Second
)

// state is what must be known of a sidecar to find it again; the file is the
// runtime's own, out of the sidecar's reach.
type state struct {
	Lease      string    `json:"lease"`
	Generation uint64    `json:"generation"`
	Token      string    `json:"token"`
	PID        int       `json:"pid"`
	BornAt     string    `json:"born_at"` // with PID, unique: see bornAt
	UID        int       `json:"uid,omitempty"`
	Plain      bool      `json:"plain,omitempty"` // without namespaces
	Endpoint   string    `json:"endpoint,omitempty"`
	StartedAt  time.Time `json:"started_at"`
}

func (r *Runtime) folder(id string) string { return filepath.Join(r.root, id) }

func (r *Runtime) readState(id string) (state, error) {
	var st state
	data, err := os.ReadFile(filepath.Join(r.folder(id), "state.json"))
	if err != nil {
		return st, err
	}
	err = json.Unmarshal(data, &st)
	return st, err
}

func (r *Runtime) writeState(st state) error {
	data, err := json.Marshal(st)
	if err != nil {
		return err
	}
	path := filepath.Join(r.folder(st.Lease), "state.json")
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return fmt.Errorf("write state of sidecar: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write state of sidecar: %w", err)
	}
	return nil
}

// bornAt tells a process from a later one with the same number: the boot of
// the machine and the clock tick of the start.
func bornAt(pid int) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	fields, err := statFields(pid)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(boot)) + "/" + fields[19], nil
}

// statFields are the fields of /proc/PID/stat after the program's name, which
// may hold anything; the first is the state, number 3 of proc(5).
func statFields(pid int) ([]string, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil, fmt.Errorf("look at process %d: %w", pid, err)
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("look at process %d: malformed stat", pid)
	}
	return fields, nil
}

// alive reports whether the agent runs; one that waits to be buried does not.
func (st state) alive() bool {
	if st.PID <= 0 {
		return false
	}
	born, err := bornAt(st.PID)
	if err != nil || born != st.BornAt {
		return false
	}
	fields, err := statFields(st.PID)
	return err == nil && fields[0] != "Z" && fields[0] != "X"
}

// end stops the agent: politely, then not.
func (st state) end(ctx context.Context) error {
	fd, err := unix.PidfdOpen(st.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", st.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	// From here the descriptor is the process, whoever gets its number later.
	if !st.alive() {
		return nil
	}
	for _, step := range []struct {
		signal unix.Signal
		wait   time.Duration
	}{{unix.SIGTERM, stopGrace}, {unix.SIGKILL, killGrace}} {
		if err := unix.PidfdSendSignal(fd, step.signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal process %d: %w", st.PID, err)
		}
		ended, err := awaitEnd(ctx, fd, step.wait)
		if ended || err != nil {
			return err
		}
	}
	return fmt.Errorf("process %d does not end", st.PID)
}

// awaitEnd waits until the process of fd ended.
func awaitEnd(ctx context.Context, fd int, within time.Duration) (bool, error) {
	deadline := time.Now().Add(within)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false, nil
		}
		if err := ctx.Err(); err != nil {
			return false, context.Cause(ctx)
		}
		// In steps, because poll knows no context.
		step := min(left, 100*time.Millisecond)
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(step.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, fmt.Errorf("wait for process: %w", err)
		}
		if n > 0 {
			return true, nil
		}
	}
}

// clear ends all there is of a lease and removes its folder.
func (r *Runtime) clear(ctx context.Context, id string) error {
	st, err := r.readState(id)
	switch {
	case err == nil:
		if err := st.end(ctx); err != nil {
			return err
		}
		if err := endLeftovers(ctx, st); err != nil {
			return err
		}
	case errors.Is(err, fs.ErrNotExist):
		// The runtime died before the agent was told anything.
	default:
		r.cfg.Log.Warn().Err(err).Str("lease", id).Msg("state of a sidecar is unreadable")
	}
	if err := r.cgroups.remove(id); err != nil {
		return err
	}
	if err := removeAll(r.folder(id)); err != nil {
		return fmt.Errorf("remove folder of sidecar: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, lease := range r.uids {
		if lease == id {
			delete(r.uids, uid)
		}
	}
	return nil
}

// takeUID picks a uid no sidecar of this host has.
func (r *Runtime) takeUID(id string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	uid := r.cfg.FirstUID
	for r.uids[uid] != "" {
		uid++
	}
	r.uids[uid] = id
	return uid
}

// endLeftovers kills the programs an agent without a namespace left behind
// when it was killed itself; its mark is in their environment.
func endLeftovers(ctx context.Context, st state) error {
	if !st.Plain {
		return nil // the kernel ended them with the agent
	}
	mark := []byte("\x00HELMDECK_LEASE=" + st.Lease + "\x00")
	deadline := time.Now().Add(killGrace)
	for time.Now().Before(deadline) {
		left := marked(mark)
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		select {
		case <-time.After(20 * time.Millisecond): // they may fork while they die
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return fmt.Errorf("programs of sidecar %s do not end", st.Lease)
}

func marked(mark []byte) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err == nil && bytes.Contains(append([]byte{0}, env...), mark) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// removeAll removes a tree even when its owner took away the permissions.
func removeAll(path string) error {
	err := os.RemoveAll(path)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(path)
}
