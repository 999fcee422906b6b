package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// family starts the programs of the sidecar and buries them: those it started
// and those that were left to it as the reaper of the sidecar.
type family struct {
	requests chan func()
	// mu guards known; it is held while a program starts, so that the reaper
	// never sees one it does not know.
	mu    sync.Mutex
	known map[int]bool // pid: started here and not yet waited for
}

func newFamily() *family {
	f := &family{requests: make(chan func()), known: map[int]bool{}}
	go f.spawn()
	go f.reap()
	return f
}

// spawn runs for the life of the process on one operating system thread: the
// kernel sends the parent-death signal when the thread that started a program
// ends, and a thread of the Go scheduler may. What this thread gives up, its
// programs never have.
func (f *family) spawn() {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	for r := range f.requests {
		r()
	}
}

// start starts cmd as the leader of a new process group that dies with the
// agent. Its files must be *os.File, so that waiting means the process alone.
func (f *family) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var err error
	f.on(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if err = cmd.Start(); err == nil {
			f.known[cmd.Process.Pid] = true
		}
	})
	return err
}

// on runs do on the starting thread and returns when it is done.
func (f *family) on(do func()) {
	done := make(chan struct{})
	f.requests <- func() { defer close(done); do() }
	<-done
}

// wait waits for a started cmd, kills what is left of its group while its
// number cannot have been given away yet, calls ended and returns how it
// ended.
func (f *family) wait(cmd *exec.Cmd, ended func()) (*os.ProcessState, error) {
	pid := cmd.Process.Pid
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	killGroup(pid)
	ended()
	err := cmd.Wait()
	f.mu.Lock()
	delete(f.known, pid)
	f.mu.Unlock()
	f.bury()
	if cmd.ProcessState == nil {
		return nil, fmt.Errorf("wait for %s: %w", cmd.Path, err)
	}
	return cmd.ProcessState, nil
}

func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

// reap buries orphans whenever a child ended.
func (f *family) reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for range ended {
		f.bury()
	}
}

// bury waits for dead children that nobody else waits for. It looks before it
// waits, since waiting for a known one would steal its exit status; a known
// one at the head of the line is no loss, because wait calls bury again.
func (f *family) bury() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		pid := siginfoPID(&info)
		if err != nil || pid == 0 || f.known[pid] {
			return
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, unix.WNOHANG, nil); err != nil {
			return
		}
	}
}

// siginfoPID reads si_pid, which package unix hides in padding: the first
// field of the union, aligned like a pointer, after three 32-bit numbers.
func siginfoPID(info *unix.Siginfo) int {
	const head = 3 * 4
	const align = unsafe.Sizeof(uintptr(0))
	offset := (head + align - 1) / align * align
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}

// killAll ends every program of the sidecar and returns when none is left.
func (f *family) killAll() {
	// Programs may fork while they are being killed: look until none is there.
	// The bound is for one that the kernel cannot end (stuck in a device).
	for range 200 {
		var pids []int
		if os.Getpid() == 1 {
			// All there is in this pid namespace.
			if err := syscall.Kill(-1, syscall.SIGKILL); errors.Is(err, syscall.ESRCH) {
				return
			}
		} else if pids = descendants(os.Getpid()); len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		f.bury()
		wait := time.NewTimer(10 * time.Millisecond)
		<-wait.C
	}
}

// descendants lists the living children of pid and theirs.
func descendants(pid int) []int {
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		return nil
	}
	var all []int
	for _, t := range tasks {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/task/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		for s := range strings.FieldsSeq(string(data)) {
			if child, err := strconv.Atoi(s); err == nil && !zombie(child) {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}

func zombie(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	return strings.HasPrefix(rest, "Z") || strings.HasPrefix(rest, "X")
}
