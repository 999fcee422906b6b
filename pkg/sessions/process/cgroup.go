package process

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// defaultMemory is what a sidecar may use whose Spec names nothing: enough for
// a browser with a heavy page and a Node program beside it.
const defaultMemory = 2 << 30

// cgroups bounds the memory of sidecars where this process may make control
// groups, of either version; elsewhere it does nothing.
type cgroups struct {
	root   string // of the groups; empty: none can be made
	prefix string // of their names
	limit  string // name of the file that takes bytes
	swap   string // likewise for swap, written after limit
}

// findCgroups looks for a place in the hierarchy of memory groups: below this
// process's own group, so that its limit holds for the sidecars too, else at
// the top. dir tells the groups of one data directory from another's.
func findCgroups(dir string) cgroups {
	const top = "/sys/fs/cgroup"
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir)) // never fails
	c := cgroups{prefix: fmt.Sprintf("helmdeck-%08x-", h.Sum32())}
	own := ownGroups()
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err == nil {
		c.limit, c.swap = "memory.max", "memory.swap.max"
		for _, root := range []string{filepath.Join(top, own[""]), top} {
			// The parent hands the controller down; it refuses when it holds
			// processes itself.
			if os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory"), 0) == nil {
				c.root = root
				return c
			}
		}
		return cgroups{}
	}
	c.limit, c.swap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	for _, root := range []string{filepath.Join(top, "memory", own["memory"]), filepath.Join(top, "memory")} {
		if _, err := os.Stat(filepath.Join(root, c.limit)); err == nil && unix.Access(root, unix.W_OK) == nil {
			c.root = root
			return c
		}
	}
	return cgroups{}
}

// ownGroups maps a controller, or "" for version 2, to this process's group.
func ownGroups() map[string]string {
	own := map[string]string{}
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return own
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			for controller := range strings.SplitSeq(f[1], ",") {
				own[controller] = f[2]
			}
		}
	}
	return own
}

func (c cgroups) group(lease string) string { return filepath.Join(c.root, c.prefix+lease) }

// enclose puts the agent, and all it will start, under a limit.
func (c cgroups) enclose(lease string, pid int, memory int64) error {
	if c.root == "" {
		return nil
	}
	group := c.group(lease)
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make control group: %w", err)
	}
	bytes := strconv.FormatInt(cmp.Or(memory, defaultMemory), 10)
	if err := os.WriteFile(filepath.Join(group, c.limit), []byte(bytes), 0); err != nil {
		return fmt.Errorf("limit memory of sidecar: %w", err)
	}
	swap := bytes // version 1 counts memory and swap together
	if c.limit == "memory.max" {
		swap = "0"
	}
	// Not every kernel accounts for swap; without, there is no limit to set.
	_ = os.WriteFile(filepath.Join(group, c.swap), []byte(swap), 0)
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
		return fmt.Errorf("put sidecar under its limit: %w", err)
	}
	return nil
}

// remove removes the group of an ended sidecar. The kernel may need a moment
// to let go of its processes.
func (c cgroups) remove(lease string) error {
	if c.root == "" {
		return nil
	}
	for deadline := time.Now().Add(2 * time.Second); ; {
		err := os.Remove(c.group(lease))
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("remove control group: %w", err)
		}
		t := time.NewTimer(10 * time.Millisecond)
		<-t.C
	}
}

// LimitsMemory reports whether sidecars have a limit of memory here.
func (r *Runtime) LimitsMemory() bool { return r.cgroups.root != "" }
