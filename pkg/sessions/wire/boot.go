package wire

import "time"

// Boot is what a runtime tells an agent at its start, as JSON on the agent's
// standard input: never in arguments or the environment, where others could
// read the token.
type Boot struct {
	Lease      string `json:"lease"`
	Generation uint64 `json:"generation"`
	Token      string `json:"token"`
	Listen     string `json:"listen,omitempty"` // "127.0.0.1:0" by default
	// Scratch is the absolute path of the folder all files live in.
	Scratch string `json:"scratch"`
	// Path and Env are the environment of every program in the sidecar.
	Path []string          `json:"path"`
	Env  map[string]string `json:"env,omitempty"`
	// ProxyURL is the egress proxy, "http://host:port"; empty: none, programs
	// connect directly.
	ProxyURL string `json:"proxy_url,omitempty"`
	// Chromium is the program started on demand; empty: no browser here.
	Chromium string `json:"chromium,omitempty"`
	// ExpireAfter and DeadManAfter count from the last renewal.
	ExpireAfter  time.Duration `json:"expire_after"`
	DeadManAfter time.Duration `json:"dead_man_after"`
	Limits       Limits        `json:"limits"`
	// Isolate, when set, is done before anything else.
	Isolate *Isolation `json:"isolate,omitempty"`
}

// Limits bound what a sidecar may use; 0 means no limit.
type Limits struct {
	FileBytes int64  `json:"file_bytes,omitempty"` // of one file
	Processes uint64 `json:"processes,omitempty"`  // of the sidecar's uid
}

// Isolation is how an agent that was started with more rights than its
// programs may have shuts itself in.
type Isolation struct {
	// Mounts: the agent is the first process of its own pid and mount
	// namespaces; it mounts its own /proc and hides each folder of Cover
	// behind an empty file system that has nothing but Scratch and, read-only,
	// the folders of Keep, if they lie in it.
	Mounts bool     `json:"mounts,omitempty"`
	Cover  []string `json:"cover,omitempty"`
	Keep   []string `json:"keep,omitempty"`
	// UID and GID the agent continues under; 0: unchanged.
	UID int `json:"uid,omitempty"`
	GID int `json:"gid,omitempty"`
}

// ReadyFD is the file descriptor on which the agent writes one JSON Ready.
const ReadyFD = 3

// Ready tells the runtime that the agent listens, or why it does not.
type Ready struct {
	Endpoint string `json:"endpoint,omitempty"` // base URL
	Error    string `json:"error,omitempty"`
	// Isolation is set when Error came from shutting itself in, so that
	// another way may be tried.
	Isolation bool `json:"isolation,omitempty"`
}
