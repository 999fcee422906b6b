//go:build faults

package failpoint

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Enabled reports whether this binary was built with the tag "faults".
const Enabled = true

var (
	armed   = os.Getenv("HELMDECK_FAILPOINT") // "name" or "name:n" for the n-th hit
	planted = strings.Split(os.Getenv("HELMDECK_PLANT"), ",")

	mu   sync.Mutex // guards hits and planted
	hits int
)

// Hit ends the process by SIGKILL when it is the armed hit of name. When
// HELMDECK_FAILPOINT_FILE is set, a process dies only if it can create that
// file, so that a restarted process goes on.
func Hit(name string) {
	want, nth, _ := strings.Cut(armed, ":")
	if want != name {
		return
	}
	n, err := strconv.Atoi(nth)
	if err != nil {
		n = 1
	}
	mu.Lock()
	defer mu.Unlock()
	if hits++; hits != n {
		return
	}
	if path := os.Getenv("HELMDECK_FAILPOINT_FILE"); path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return
		}
		_ = f.Close() // the process ends in the next line
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// Planted reports whether HELMDECK_PLANT or Plant names bug.
func Planted(bug string) bool {
	mu.Lock()
	defer mu.Unlock()
	return slices.Contains(planted, bug)
}

// Plant plants bug in this process until the returned function is called.
func Plant(bug string) (remove func()) {
	mu.Lock()
	defer mu.Unlock()
	before := planted
	planted = append(slices.Clone(before), bug)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		planted = before
	}
}
