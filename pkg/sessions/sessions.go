// Package sessions is the contract between a pack that needs a sidecar and
// the schedulers that have room for one: what is asked for (Spec), the lease
// that grants it, and the Session through which it is used.
//
// Runtimes start and stop sidecars: pkg/sessions/process runs the agent as a
// child process. The lease records live behind Registry.
package sessions

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/records"
)

// Errors a caller may branch on.
var (
	// ErrUnavailable: no scheduler granted a lease in time, or the sidecar
	// could not be started.
	ErrUnavailable = errors.New("no session available")
	// ErrLost: the lease expired or was taken away while in use.
	ErrLost = errors.New("session lost")
	// ErrConflict: a compare-and-set found another revision.
	ErrConflict = errors.New("lease changed by someone else")
	// ErrNotFound: no such lease, file or process.
	ErrNotFound = errors.New("not found")
	// ErrKilled: the process was ended by the operating system, for want of
	// memory as a rule (exit status 137).
	ErrKilled = errors.New("process killed")
)

// Timing of leases; see the lease rules in docs/sessions.md.
const (
	ConfirmWithin = 5 * time.Second  // an offer not confirmed by then is taken back
	RenewEvery    = 10 * time.Second // by the worker that uses it
	ExpireAfter   = 30 * time.Second // since the last renewal: calls are refused
	SweepAfter    = 60 * time.Second // the scheduler stops the sidecar
	DeadManAfter  = 90 * time.Second // the agent ends itself
)

// Profile is a class of CPU demand.
type Profile string

// The profiles an image may be leased with.
const (
	ProfileIO      Profile = "io"      // waits for the network most of the time
	ProfileCompute Profile = "compute" // keeps every core it is given busy
)

// Spec is what a pack asks for.
type Spec struct {
	Image   string        `json:"image"` // "browser", "base", …
	Profile Profile       `json:"profile,omitempty"`
	Memory  int64         `json:"memory,omitempty"` // bytes; 0: the image's default
	Timeout time.Duration `json:"timeout,omitempty"`
}

// State of a lease.
type State string

// The states a lease passes through, in order.
const (
	StateRequested State = "requested"
	StateWarming   State = "warming"
	StateOffered   State = "offered"
	StateLeased    State = "leased"
	StateDraining  State = "draining"
	StateGone      State = "gone"
)

// Lease is the record of one sidecar, changed by compare-and-set only.
type Lease struct {
	ID         string          `json:"id"`
	Generation uint64          `json:"generation"`
	State      State           `json:"state"`
	Spec       Spec            `json:"spec"`
	JobID      string          `json:"job_id,omitempty"`
	Attempt    int             `json:"attempt,omitempty"`
	Fence      uint64          `json:"fence,omitempty"` // fencing token of the job's claim
	Worker     string          `json:"worker,omitempty"`
	Caller     identity.Caller `json:"caller"`
	Host       string          `json:"host,omitempty"` // scheduler that granted it
	// Endpoint is the base URL of the agent, reached with Token as bearer.
	Endpoint  string    `json:"endpoint,omitempty"`
	Token     string    `json:"token,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	RenewedAt time.Time `json:"renewed_at"`
	ExpiresAt time.Time `json:"expires_at"` // for people; watchers use their own clocks
	Error     string    `json:"error,omitempty"`
	// Unknown are the members that a newer program wrote; see package records.
	Unknown records.Unknown `json:"-"`
}

// Request asks for a lease on behalf of one attempt of a job.
type Request struct {
	Spec    Spec
	JobID   string
	Attempt int
	Fence   uint64
	Worker  string
	Caller  identity.Caller
	// Waiting is told the place in the queue while the request waits; may be nil.
	Waiting func(position int)
}

// Leaser grants sessions. Lease blocks until the session is usable, ctx ends
// or the request is refused (ErrUnavailable). The session is renewed in the
// background until it is closed.
type Leaser interface {
	Lease(ctx context.Context, r Request) (Session, error)
}

// Session is a leased sidecar in use. It is safe for concurrent use.
type Session interface {
	ID() string
	// Exec runs one command and returns when it ended. A non-zero exit is a
	// Result, not an error. The whole process group dies with ctx.
	Exec(ctx context.Context, c Command) (Result, error)
	// WriteFile streams r to path, relative to the scratch folder.
	WriteFile(ctx context.Context, path string, r io.Reader) error
	// ReadFile streams a file; ErrNotFound when absent.
	ReadFile(ctx context.Context, path string) (io.ReadCloser, error)
	// Browser starts Chromium when it is not running and says how to reach it.
	Browser(ctx context.Context) (Browser, error)
	// Lost is closed when the lease is gone while in use.
	Lost() <-chan struct{}
	// Close gives the lease back; the sidecar is stopped.
	Close(ctx context.Context) error
}

// Browser tells how to reach the DevTools protocol of a session's Chromium.
type Browser struct {
	// URL is the websocket of the browser target, for chromedp/remote.
	URL string
	// Header carries the lease's token.
	Header http.Header
	// Alive is called with every message to or from the browser, by whoever
	// connects to it; may be nil.
	Alive func()
}

// Command is one program run inside a sidecar.
type Command struct {
	Argv []string
	Env  map[string]string // added to the sidecar's own
	Dir  string            // relative to the scratch folder; empty: the folder itself
	// Stdin is fed to the program; nil means empty.
	Stdin io.Reader
	// Stdout and Stderr receive output as it comes; nil keeps up to
	// MaxOutput bytes of each in the Result.
	Stdout, Stderr io.Writer
	MaxOutput      int64         // bytes kept or passed on per stream; 0: 1 MiB
	Timeout        time.Duration // 0: the ctx alone
}

// Result is how a command ended.
type Result struct {
	ExitCode  int
	Stdout    []byte
	Stderr    []byte
	Truncated bool // some output exceeded MaxOutput and was dropped
	Duration  time.Duration
}

// Entry is a lease with the revision to compare against.
type Entry struct {
	Lease    Lease
	Revision uint64
	// Deleted, in a watch: the record is no more. Lease has its ID and is in
	// StateGone.
	Deleted bool
}

// Registry keeps lease records and carries requests to schedulers.
type Registry interface {
	// Create stores a new record; ErrConflict when the id exists.
	Create(ctx context.Context, l Lease) (revision uint64, err error)
	// Update stores l if the record is still at revision, else ErrConflict.
	Update(ctx context.Context, l Lease, revision uint64) (uint64, error)
	// Get returns the record of id, or ErrNotFound.
	Get(ctx context.Context, id string) (Entry, error)
	// Delete forgets id.
	Delete(ctx context.Context, id string) error
	// Watch sends the present records, then an Entry with an empty ID as a
	// mark, then changes until ctx ends, when the channel is closed. The newest
	// revision of a record always comes, those before it may be left out. A
	// deleted record comes as one that is Deleted.
	Watch(ctx context.Context) (<-chan Entry, error)
}

// Queue carries lease requests from workers to the schedulers that have room.
type Queue interface {
	// Offer puts the id of a requested lease into the queue of its image.
	Offer(ctx context.Context, image, leaseID string) error
	// Take waits for one request of the images; ack ends it, nak gives it
	// back. A request nobody acked comes again after 30 s.
	Take(ctx context.Context, images []string) (leaseID string, ack, nak func(), err error)
	// Position is the number of requests before leaseID, roughly.
	Position(ctx context.Context, image, leaseID string) (int, error)
}

// Runtime starts and stops sidecars on one host.
type Runtime interface {
	// Start runs a sidecar and returns when its agent answers /health.
	Start(ctx context.Context, s StartSpec) (Sidecar, error)
	// Stop ends a sidecar and removes its scratch; unknown ids are no error.
	Stop(ctx context.Context, leaseID string) error
	// List returns the sidecars of this host, those of an earlier process of
	// the same data directory included.
	List(ctx context.Context) ([]Sidecar, error)
	// Images names the images this runtime can start now.
	Images(ctx context.Context) ([]string, error)
}

// StartSpec is what a runtime needs to start a sidecar.
type StartSpec struct {
	LeaseID    string
	Generation uint64
	Token      string
	Spec       Spec
	// ProxyURL is the egress proxy the sidecar must use.
	ProxyURL string
}

// Sidecar is a running sidecar as its runtime sees it.
type Sidecar struct {
	LeaseID   string
	Endpoint  string // base URL of the agent
	StartedAt time.Time
}
