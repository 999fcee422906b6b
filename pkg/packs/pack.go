// Package packs says what a capability pack is: a typed value made by Define
// that holds its contract (name, version, pool, needs, schemas, limits) and
// its handler, and the engine that runs one under a deadline.
//
// A handler takes everything from *Run: see the packs in the sub-folders, one
// family a folder, one pack a file, and the table in catalog.
package packs

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// Pool is a class of workers.
type Pool string

// The pools. A pack names its own; an operator may route it elsewhere.
const (
	PoolCore    Pool = "core"
	PoolBrowser Pool = "browser"
	PoolMedia   Pool = "media"
	PoolLLM     Pool = "llm"
	PoolRepo    Pool = "repo"
	PoolCode    Pool = "code"
	PoolDoc     Pool = "doc"
	PoolDesktop Pool = "desktop"
)

// Pools lists all pools.
var Pools = []Pool{PoolCore, PoolBrowser, PoolMedia, PoolLLM, PoolRepo, PoolCode, PoolDoc, PoolDesktop}

// Effect says what a second run of the same job would do to the world.
type Effect string

// The effects a pack may declare.
const (
	// EffectNone: running again is harmless. The default.
	EffectNone Effect = ""
	// EffectKeyed: the job id goes upstream as an idempotency key, so
	// running again is safe.
	EffectKeyed Effect = "keyed"
	// EffectOnce: a second run would repeat an effect. A marker is written
	// before the effect; a run that finds it ends with outcome_unknown.
	EffectOnce Effect = "once"
)

// Pack is a declared pack with its types erased. Define makes it.
type Pack interface {
	// Info is the contract every surface shows.
	Info() Info
	// Validate checks input against the input schema, all faults at once as
	// Details of an invalid_input Error. clean is the input as it will run:
	// without unknown keys, each of which is named in a warning, and without
	// nulls, which on an optional key mean absent. Empty input counts as {}.
	Validate(input json.RawMessage) (clean json.RawMessage, warnings []string, err error)
	// Handle decodes validated input over the defaults and runs the handler.
	Handle(ctx context.Context, run *Run, input json.RawMessage) (json.RawMessage, error)
	// CheckOutput checks output against the output schema.
	CheckOutput(output json.RawMessage) error
}

// Info is the public contract of a pack.
type Info struct {
	Name        string          `json:"name"`
	Version     string          `json:"version"` // "v1"
	Summary     string          `json:"summary"`
	Description string          `json:"description,omitempty"`
	Pool        Pool            `json:"pool"`
	Async       bool            `json:"async"` // usually takes longer than a request should wait
	Needs       Needs           `json:"needs"`
	Input       json.RawMessage `json:"input_schema"`
	Output      json.RawMessage `json:"output_schema"`
	// Errors lists every code the pack may answer with.
	Errors   []Code            `json:"errors"`
	Effect   Effect            `json:"effect,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Examples []Example         `json:"examples,omitempty"`

	Timeout       time.Duration `json:"-"` // per attempt
	Quiet         time.Duration `json:"-"` // see Spec; 0: the worker's default
	MaxAttempts   int           `json:"-"`
	MaxInputBytes int64         `json:"-"`
	Hidden        bool          `json:"-"` // test packs
}

// Example is one call a reader can copy.
type Example struct {
	Title string          `json:"title"`
	Input json.RawMessage `json:"input"`
}

// Needs is what a pack declares; Run offers just that.
type Needs struct {
	Session   *sessions.Spec `json:"session,omitempty"`
	Egress    bool           `json:"egress,omitempty"`
	Artifacts bool           `json:"artifacts,omitempty"`
	// Calls: other packs, as child jobs.
	Calls bool `json:"calls,omitempty"`
}

// ArtifactStore is what a run needs of the artifact store; *artifacts.Store
// is one. What Put stores stays hidden until the host publishes it.
type ArtifactStore interface {
	Put(ctx context.Context, d artifacts.Draft, r io.Reader) (artifacts.Ref, error)
	Open(ctx context.Context, key string, rng artifacts.Range) (artifacts.Ref, io.ReadCloser, error)
	Stat(ctx context.Context, key string) (artifacts.Ref, error)
	List(ctx context.Context, q artifacts.Query) ([]artifacts.Ref, string, error)
	// URL is a signed download link; see Store.URL.
	URL(ctx context.Context, base string, ref artifacts.Ref) string
}

// EgressRefusal is what the error of a guarded HTTP client implements when
// the guard, not the network, stopped the request. Its text is for the caller.
type EgressRefusal interface {
	error
	EgressDenied() bool
}

// Services is what the host of a run (a worker, or packstest) provides.
type Services struct {
	Leaser sessions.Leaser
	// HTTP is the client behind the egress guard.
	HTTP *http.Client
	// CheckURL gives an early verdict on a URL a caller chose; a refusal is
	// an error whose text says why.
	CheckURL  func(ctx context.Context, url string) error
	Artifacts ArtifactStore
	// Calls runs child jobs.
	Calls Calls
	// Begin writes the marker of an EffectOnce pack; it fails with
	// outcome_unknown when an earlier attempt wrote it already.
	Begin func(ctx context.Context) error
	// Progress and Log report to whoever follows the job; both may be called
	// at any rate, the host coalesces.
	Progress func(percent float64, message string)
	Log      func(line string)
	// Alive is told of every other sign that the run gets on, such as bytes
	// that pass; at any rate. May be nil.
	Alive func()
	// Scratch makes an empty folder of the run's own, the same at every call;
	// the host removes it after the run.
	Scratch func() (string, error)
	// ArtifactTTL is how long artifacts of the run are kept; 0: as long as the
	// store keeps others.
	ArtifactTTL time.Duration
	// UserAgent names product and version to servers outside.
	UserAgent string
	// PublicURL is where callers reach the API, without a slash at the end.
	// Empty: artifact links are relative to wherever that is.
	PublicURL string
}

// Invocation is one attempt of a job as the engine sees it.
type Invocation struct {
	JobID   string
	Attempt int
	Fence   uint64 // fencing token of the claim
	Worker  string
	Caller  identity.Caller
	Input   json.RawMessage
	Timeout time.Duration // 0: the pack's own
	// Validated says that the input is what Validate of the same pack returned.
	Validated bool
	Services  Services
}

// Outcome is what a run leaves.
type Outcome struct {
	Output json.RawMessage // nil when the run failed
	// Artifacts are the hidden artifacts the run saved, for the host to
	// publish when the attempt wins and to delete when it does not.
	Artifacts []artifacts.Ref
	SessionID string
}
