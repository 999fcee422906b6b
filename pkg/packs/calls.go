package packs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
)

// Calls runs child jobs of a run; its host provides it.
type Calls interface {
	// Call runs c as a child job and returns it once it has succeeded. Its
	// failure is an *Error with the code of the child; when ctx ends first the
	// error wraps the cause, and the child is cancelled unless it is shared.
	Call(ctx context.Context, c Call) (Child, error)
	// Lend tells the host that the handler waits until it calls back, so that
	// the slot of the run is free for its children meanwhile. back returns
	// once the run has a slot again, or with the cause when ctx ends.
	Lend() (back func(ctx context.Context) error)
}

// Call asks for a child job.
type Call struct {
	Pack  string // "family.verb_noun", perhaps with "@v<n>"
	Input json.RawMessage
	CallOptions
	// Held: the run keeps a session while it waits.
	Held bool
	// Progress hears how far the child is, 0 to 100, at any rate; may be nil.
	Progress func(percent float64)
}

// CallOptions are the rarer wishes of a call. The zero value asks for none.
type CallOptions struct {
	Version string // "" and "latest": the newest
	// Key shares the child: every call of the same caller with the same key,
	// from whatever parent, waits for the same job, which must have the same
	// pack and input (else idempotency_conflict). A shared child does not end
	// with any of its parents, and its time is its own. Up to 256 bytes.
	Key string
	// Timeout bounds one attempt of the child; 0 is the pack's own. Unless the
	// child is shared it gets no more than the run has left. Whole seconds.
	Timeout time.Duration
	// MaxAttempts is the pack's own when 0.
	MaxAttempts int
}

// Child is a child job that has ended.
type Child struct {
	JobID   string
	Pack    string
	Version string
	// Output is nil when the child failed.
	Output    json.RawMessage
	Artifacts []artifacts.Ref
	// Err is why the child itself failed, nil if it succeeded.
	Err *Error
}

// Decode decodes the output of a child into v, or returns its failure.
func (c Child) Decode(v any) error {
	if c.Err != nil {
		return c.Err
	}
	if err := json.Unmarshal(c.Output, v); err != nil {
		return fmt.Errorf("decode output of child job %s: %w", c.JobID, err)
	}
	return nil
}

// Call runs another pack as a child job and waits for its result. input is
// encoded as JSON; a json.RawMessage is taken as it is. The error is an
// *Error with the code of the child, which the handler may return as it is:
// no automatic retry follows, for the child has had its own.
//
// A run that repeats after its worker was lost, or as another attempt, gets
// the children that succeeded before, and those that still run, instead of
// new ones: as long as it makes the same calls.
func (r *Run) Call(ctx context.Context, pack string, input any) (Child, error) {
	return r.CallWith(ctx, pack, input, CallOptions{})
}

// CallWith is Call with options.
func (r *Run) CallWith(ctx context.Context, pack string, input any, o CallOptions) (Child, error) {
	calls := r.calls()
	return r.call(ctx, calls, Call{Pack: pack, CallOptions: o}, input)
}

// CallAs is CallWith for a child whose output has a type.
func CallAs[Out any](ctx context.Context, r *Run, pack string, input any, o CallOptions) (Out, error) {
	var out Out
	c, err := r.CallWith(ctx, pack, input, o)
	if err != nil {
		return out, err
	}
	return out, c.Decode(&out)
}

func (r *Run) call(ctx context.Context, calls Calls, c Call, input any) (Child, error) {
	if r.isClosed() {
		return Child{}, errRunOver
	}
	text, err := json.Marshal(input)
	if err != nil {
		return Child{}, fmt.Errorf("encode input of %s: %w", c.Pack, err)
	}
	c.Input, c.Held = text, r.leased() != nil
	return calls.Call(ctx, c)
}

func (r *Run) calls() Calls {
	r.must(r.info.Needs.Calls, "Needs.Calls")
	if r.services.Calls == nil {
		panic(misuse("this worker cannot run child jobs"))
	}
	return r.services.Calls
}

// ChildFailed is the error of a call whose child did not succeed. The text
// names the child, so that it can be looked at.
func ChildFailed(id, pack string, code Code, message string) *Error {
	if !code.Known() {
		code = Internal
	}
	return Fatal(&Error{Code: code, Message: fmt.Sprintf("child job %s (%s): %s", id, pack, cmp.Or(message, string(code)))})
}

// givenUp is the failure of a child that a map did not wait for.
func givenUp(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Fatal(Fail(Cancelled, err, "not waited for, because the work it belongs to ended before"))
}

// named makes "name" of "name@v2", for texts.
func named(pack string) string {
	name, _, _ := strings.Cut(pack, "@")
	return name
}
