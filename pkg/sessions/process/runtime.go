// Package process runs sidecars as child processes: the agent with a scratch
// folder of its own, for machines without a container engine.
//
// Where the kernel allows it a sidecar gets its own pid and mount namespaces,
// so that nothing of it can outlive its agent and the data directory is out of
// its sight; started as root, it also runs under its own uid. It is no
// container: the file system and the network are the host's. How it differs
// from one is told in docs/sessions.md.
//
//	rt, err := process.New(process.Config{Dir: dataDir, Log: log})
//	sidecar, err := rt.Start(ctx, sessions.StartSpec{LeaseID: id, Token: token, …})
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

// Images this runtime knows.
const (
	ImageBase    = "base"    // the system's programs
	ImageBrowser = "browser" // with Chromium, Node and the engines
)

// Config says where things are. The zero value of everything but Dir is
// useful.
type Config struct {
	// Dir is the data directory; sidecars live below Dir/sidecars.
	Dir string
	// AgentPath is the agent's program, AgentArgs its arguments. By default
	// the running program with the argument "agent" when it is called
	// helmdeck, else helmdeck-agent or helmdeck beside it.
	AgentPath string
	AgentArgs []string
	// Engines is the folder with node_modules; by default the first that
	// exists of $HELMDECK_ENGINES_DIR, /var/lib/helmdeck/engines and
	// ${XDG_DATA_HOME:-~/.local/share}/helmdeck/engines.
	Engines string
	// Chromium is the browser's program; by default it is looked for.
	Chromium string
	// FirstUID is the uid of the first sidecar when started as root, 10001 by
	// default; each sidecar on the host has another.
	FirstUID int
	// Plain leaves the namespaces out, as on a kernel that refuses them.
	Plain bool
	// ExpireAfter and DeadManAfter are the agents' timing; by default the
	// constants of package sessions.
	ExpireAfter, DeadManAfter time.Duration
	// MaxFileBytes bounds one file in a sidecar, in bytes; 8 GiB by default.
	MaxFileBytes int64
	Log          zerolog.Logger
}

func (c Config) withDefaults() Config {
	c.FirstUID = cmp.Or(c.FirstUID, 10001)
	c.ExpireAfter = cmp.Or(c.ExpireAfter, sessions.ExpireAfter)
	c.DeadManAfter = cmp.Or(c.DeadManAfter, sessions.DeadManAfter)
	c.MaxFileBytes = cmp.Or(c.MaxFileBytes, 8<<30)
	if c.AgentPath == "" {
		c.AgentPath, c.AgentArgs = findAgent()
	}
	if c.Engines == "" {
		c.Engines = findEngines()
	}
	if c.Chromium == "" {
		c.Chromium = findChromium()
	}
	return c
}

func (c Config) validate() error {
	var faults []error
	if c.Dir == "" {
		faults = append(faults, errors.New("no data directory"))
	}
	if !executable(c.AgentPath) {
		faults = append(faults, fmt.Errorf("no agent program at %s", c.AgentPath))
	}
	if c.ExpireAfter > c.DeadManAfter {
		faults = append(faults, errors.New("ExpireAfter must not exceed DeadManAfter"))
	}
	return errors.Join(faults...)
}

// Runtime is a sessions.Runtime. It is safe for concurrent use; one process
// at a time may use a Dir.
type Runtime struct {
	cfg  Config
	root string // Dir/sidecars, absolute
	uid  int    // of this process

	cgroups cgroups

	mu      sync.Mutex // guards the rest
	busy    map[string]bool
	uids    map[int]string // uid: lease
	plain   bool           // namespaces are refused here
	stopped chan struct{}  // closed and replaced when a busy id is free
}

var _ sessions.Runtime = (*Runtime)(nil)

// New makes the folder of the sidecars and finds what they need. It starts
// nothing.
func New(cfg Config) (*Runtime, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	root, err := filepath.Abs(filepath.Join(cfg.Dir, "sidecars"))
	if err != nil {
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	// Other uids pass through; only those who know a name get further.
	if err := os.MkdirAll(root, 0o711); err != nil {
		return nil, fmt.Errorf("make folder of sidecars: %w", err)
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, fmt.Errorf("make folder of sidecars: %w", err)
	}
	if err := os.Chmod(root, 0o711); err != nil {
		return nil, fmt.Errorf("make folder of sidecars: %w", err)
	}
	return &Runtime{
		cfg: cfg, root: root, uid: os.Getuid(), plain: cfg.Plain, cgroups: findCgroups(root),
		busy: map[string]bool{}, uids: map[int]string{}, stopped: make(chan struct{}),
	}, nil
}

var leaseID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

// Images names base, and browser when a Chromium is there.
func (r *Runtime) Images(context.Context) ([]string, error) {
	images := []string{ImageBase}
	if r.cfg.Chromium != "" && executable(r.cfg.Chromium) {
		images = append(images, ImageBrowser)
	}
	return images, nil
}

// Start runs a sidecar; see sessions.Runtime. The sidecar does not end with
// ctx nor with this process.
func (r *Runtime) Start(ctx context.Context, s sessions.StartSpec) (sessions.Sidecar, error) {
	images, err := r.Images(ctx)
	if err != nil {
		return sessions.Sidecar{}, err
	}
	if !leaseID.MatchString(s.LeaseID) {
		return sessions.Sidecar{}, fmt.Errorf("start sidecar: malformed lease id %q", s.LeaseID)
	}
	if !slices.Contains(images, s.Spec.Image) {
		return sessions.Sidecar{}, fmt.Errorf("start sidecar: image %q is not available here", s.Spec.Image)
	}
	free, err := r.occupy(ctx, s.LeaseID)
	if err != nil {
		return sessions.Sidecar{}, err
	}
	defer free()
	for {
		plain := r.isPlain()
		sidecar, err := r.start(ctx, s, plain)
		if err == nil {
			return sidecar, nil
		}
		if !errors.Is(err, errIsolation) || plain {
			return sessions.Sidecar{}, fmt.Errorf("start sidecar %s: %w", s.LeaseID, err)
		}
		r.cfg.Log.Warn().Err(err).Msg("the system refuses namespaces, sidecars run without")
		r.mu.Lock()
		r.plain = true
		r.mu.Unlock()
	}
}

func (r *Runtime) isPlain() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.plain
}

// occupy makes one goroutine at a time deal with a lease.
func (r *Runtime) occupy(ctx context.Context, id string) (free func(), err error) {
	for {
		r.mu.Lock()
		if !r.busy[id] {
			r.busy[id] = true
			r.mu.Unlock()
			return func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				delete(r.busy, id)
				close(r.stopped)
				r.stopped = make(chan struct{})
			}, nil
		}
		wait := r.stopped
		r.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Stop ends a sidecar, all its processes and its folder; see
// sessions.Runtime.
func (r *Runtime) Stop(ctx context.Context, id string) error {
	if !leaseID.MatchString(id) {
		return nil
	}
	free, err := r.occupy(ctx, id)
	if err != nil {
		return fmt.Errorf("stop sidecar %s: %w", id, err)
	}
	defer free()
	if err := r.clear(ctx, id); err != nil {
		return fmt.Errorf("stop sidecar %s: %w", id, err)
	}
	return nil
}

// List returns the living sidecars below Dir, and removes what is left of
// those that ended.
func (r *Runtime) List(ctx context.Context) ([]sessions.Sidecar, error) {
	entries, err := os.ReadDir(r.root)
	if err != nil {
		return nil, fmt.Errorf("list sidecars: %w", err)
	}
	var list []sessions.Sidecar
	var faults []error
	for _, e := range entries {
		id := e.Name()
		if !leaseID.MatchString(id) || r.isBusy(id) {
			continue
		}
		st, err := r.readState(id)
		if err == nil && st.alive() {
			r.mu.Lock()
			if st.UID != 0 {
				r.uids[st.UID] = id
			}
			r.mu.Unlock()
			if st.Endpoint != "" {
				list = append(list, sessions.Sidecar{LeaseID: id, Endpoint: st.Endpoint, StartedAt: st.StartedAt})
				continue
			}
		}
		// Ended, or its runtime died while it started.
		if err := r.Stop(ctx, id); err != nil {
			faults = append(faults, err)
		}
	}
	return list, errors.Join(faults...)
}

func (r *Runtime) isBusy(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy[id]
}

func (r *Runtime) limits() wire.Limits {
	l := wire.Limits{FileBytes: r.cfg.MaxFileBytes}
	if r.uid == 0 {
		// Its uid is its own, so the count is too. Chromium and a render need
		// a few hundred threads.
		l.Processes = 4096
	}
	return l
}
