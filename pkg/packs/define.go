package packs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Defaults of a Spec that leaves them open.
const (
	DefaultTimeout       = 2 * time.Minute
	DefaultMaxAttempts   = 3 // 1 for EffectOnce
	DefaultMaxInputBytes = 8 << 20
)

// Spec declares a pack. In and Out are structs whose tags make the schemas:
//
//   - `json:"name"` names the key; without omitempty or omitzero it is required.
//   - `jsonschema:"minimum=1,maximum=9,enum=a,enum=b,format=uri"` sets limits.
//   - `jsonschema_description:"…"` describes the field to a stranger.
type Spec[In, Out any] struct {
	// Name is "family.verb_noun".
	Name string
	// Version counts from 1, which 0 means too. Versions live side by side.
	Version int
	// Pool is PoolCore when empty.
	Pool Pool
	// Summary is one line, required; Description says what the line cannot.
	Summary     string
	Description string
	// Async marks work that usually outlasts a request.
	Async bool
	Needs Needs
	// Defaults holds the scalars of optional fields. The schema shows them
	// and the input is decoded over them.
	Defaults In
	// Errors lists codes beyond those every pack of its Needs may answer with.
	Errors []Code
	Effect Effect
	// Timeout bounds one attempt; 0 is DefaultTimeout.
	Timeout time.Duration
	// Quiet is how long a run may show no sign of life before it counts as
	// stalled and is stopped, when that is longer than the worker's default of
	// five minutes. Signs are progress, log lines, and the bytes of programs,
	// files, artifacts, HTTP and the browser.
	Quiet time.Duration
	// MaxAttempts is DefaultMaxAttempts when 0.
	MaxAttempts int
	// MaxInputBytes is DefaultMaxInputBytes when 0.
	MaxInputBytes int64
	Examples      []Example
	Metadata      map[string]string
	// Hidden keeps a test pack out of catalogues and listings.
	Hidden bool
	// Run does the work. It returns what it wraps: *Error for what the caller
	// should read, any other error for the log alone.
	Run func(ctx context.Context, run *Run, in In) (Out, error)
}

// namePattern is the shape of every pack name.
var namePattern = regexp.MustCompile(`^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$`)

// IsName reports whether s has the shape of a pack name.
func IsName(s string) bool { return namePattern.MatchString(s) }

type pack[In, Out any] struct {
	spec     Spec[In, Out]
	info     Info
	defaults json.RawMessage
	input    *schema
	output   *schema
}

// Define checks the declaration and makes the pack. It panics on a mistake of
// the programmer: a bad name, no summary, a schema that cannot be derived, an
// example that does not validate.
func Define[In, Out any](s Spec[In, Out]) Pack {
	p, err := define(s)
	if err != nil {
		panic(fmt.Sprintf("packs: define %q: %v", s.Name, err))
	}
	return p
}

func define[In, Out any](s Spec[In, Out]) (Pack, error) {
	s = withDefaults(s)
	if err := check(s); err != nil {
		return nil, err
	}
	defaults, err := json.Marshal(s.Defaults)
	if err != nil {
		return nil, fmt.Errorf("encode defaults: %w", err)
	}
	id := fmt.Sprintf("urn:helmdeck:pack:%s:v%d", s.Name, s.Version)
	input, err := deriveSchema(id+":input", reflect.TypeFor[In](), defaults)
	if err != nil {
		return nil, fmt.Errorf("input schema: %w", err)
	}
	if err := checkDefaults(input, defaults); err != nil {
		return nil, err
	}
	output, err := deriveSchema(id+":output", reflect.TypeFor[Out](), nil)
	if err != nil {
		return nil, fmt.Errorf("output schema: %w", err)
	}
	p := &pack[In, Out]{spec: s, defaults: defaults, input: input, output: output}
	p.info = Info{
		Name: s.Name, Version: fmt.Sprintf("v%d", s.Version),
		Summary: s.Summary, Description: s.Description,
		Pool: s.Pool, Async: s.Async, Needs: s.Needs,
		Input: input.text, Output: output.text,
		Errors: allCodes(s.Needs, s.Effect, s.Errors), Effect: s.Effect,
		Metadata: s.Metadata, Examples: s.Examples,
		Timeout: s.Timeout, Quiet: s.Quiet, MaxAttempts: s.MaxAttempts, MaxInputBytes: s.MaxInputBytes,
		Hidden: s.Hidden,
	}
	for _, e := range s.Examples {
		_, warnings, err := p.Validate(e.Input)
		if err != nil {
			return nil, fmt.Errorf("example %q: %w", e.Title, err)
		}
		if len(warnings) > 0 {
			return nil, fmt.Errorf("example %q: %s", e.Title, warnings[0])
		}
	}
	return p, nil
}

func withDefaults[In, Out any](s Spec[In, Out]) Spec[In, Out] {
	if s.Version == 0 {
		s.Version = 1
	}
	if s.Pool == "" {
		s.Pool = PoolCore
	}
	if s.Timeout == 0 {
		s.Timeout = DefaultTimeout
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = DefaultMaxAttempts
		if s.Effect == EffectOnce {
			s.MaxAttempts = 1
		}
	}
	if s.MaxInputBytes == 0 {
		s.MaxInputBytes = DefaultMaxInputBytes
	}
	return s
}

func check[In, Out any](s Spec[In, Out]) error {
	var faults []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	fault(!IsName(s.Name), "the name must look like family.verb_noun")
	fault(s.Version < 1, "version %d is below 1", s.Version)
	fault(strings.TrimSpace(s.Summary) == "", "summary is missing")
	fault(strings.Contains(s.Summary, "\n"), "summary has more than one line")
	fault(!slices.Contains(Pools, s.Pool), "unknown pool %q", s.Pool)
	fault(s.Effect != EffectNone && s.Effect != EffectKeyed && s.Effect != EffectOnce, "unknown effect %q", s.Effect)
	fault(s.Timeout < 0 || s.Quiet < 0 || s.MaxAttempts < 0 || s.MaxInputBytes < 0, "a limit is negative")
	fault(s.Run == nil, "run is missing")
	fault(s.Needs.Session != nil && s.Needs.Session.Image == "", "needs a session but names no image")
	for _, c := range s.Errors {
		fault(!c.Known(), "unknown code %q", c)
	}
	return errors.Join(faults...)
}

// checkDefaults holds the defaults of optional keys against the schema.
func checkDefaults(input *schema, defaults json.RawMessage) error {
	value, err := parseObject(defaults)
	if err != nil {
		return err
	}
	for key := range value {
		if input.required[key] {
			delete(value, key) // a zero value that the caller replaces
		}
	}
	for _, d := range input.faults(value) {
		if !input.required[strings.TrimPrefix(d.Pointer, "/")] {
			return fmt.Errorf("default of %s %s", d.Pointer, d.Message)
		}
	}
	return nil
}

// allCodes adds to extra the codes any pack with these needs may answer with.
func allCodes(n Needs, e Effect, extra []Code) []Code {
	out := []Code{InvalidInput, HandlerFailed, InvalidOutput, Timeout, Cancelled, Internal}
	if n.Session != nil {
		out = append(out, SessionUnavailable, ResourceExhausted)
	}
	if n.Artifacts {
		out = append(out, ArtifactFailed)
	}
	if n.Calls { // those of its children
		out = append(out, SessionUnavailable, ResourceExhausted, RateLimited, ArtifactFailed, OutcomeUnknown, IdempotencyConflict)
	}
	if e == EffectOnce {
		out = append(out, OutcomeUnknown)
	}
	out = append(out, extra...)
	slices.Sort(out)
	return slices.Compact(out)
}

// Info implements Pack.
func (p *pack[In, Out]) Info() Info { return p.info }

// Validate implements Pack.
func (p *pack[In, Out]) Validate(input json.RawMessage) (json.RawMessage, []string, error) {
	clean, warnings, err := p.clean(input)
	if err == nil {
		_, err = p.decode(clean)
	}
	return clean, warnings, err
}

// Handle implements Pack.
func (p *pack[In, Out]) Handle(ctx context.Context, run *Run, input json.RawMessage) (json.RawMessage, error) {
	if run == nil || !run.trusted {
		var err error
		if input, _, err = p.clean(input); err != nil {
			return nil, err
		}
	}
	in, err := p.decode(input)
	if err != nil {
		return nil, err
	}
	out, err := p.spec.Run(ctx, run, in)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, Fail(InvalidOutput, fmt.Errorf("encode output of %s: %w", p.info.Name, err),
			"the pack produced output that is not JSON; report this")
	}
	return p.output.fillNulls(text), nil
}

// CheckOutput implements Pack.
func (p *pack[In, Out]) CheckOutput(output json.RawMessage) error {
	if p.output.quick.Valid(output) {
		return nil
	}
	value, err := parseJSON(output)
	if err != nil {
		return Fail(InvalidOutput, err, "the pack produced output that is not JSON; report this")
	}
	if faults := p.output.faults(value); len(faults) > 0 {
		return &Error{
			Code:    InvalidOutput,
			Message: fmt.Sprintf("the output of %s does not match its schema (%s); report this", p.info.Name, summarise(faults)),
			Details: capDetails(faults),
		}
	}
	return nil
}

// clean checks input and returns it without nulls and unknown keys.
func (p *pack[In, Out]) clean(input json.RawMessage) (clean json.RawMessage, warnings []string, err error) {
	if int64(len(input)) > p.info.MaxInputBytes {
		return nil, nil, Errorf(PayloadTooLarge, "the input of %s has %d bytes, at most %d are allowed; upload large content as an artifact",
			p.info.Name, len(input), p.info.MaxInputBytes)
	}
	if clean, ok := p.input.quick.Clean(input); ok {
		return clean, nil, nil
	}
	value, err := parseObject(input)
	if err != nil {
		return nil, nil, err
	}
	known, warnings, faults := p.input.normalise(value)
	if faults = merge(faults, p.input.faults(known)); len(faults) > 0 {
		return nil, warnings, invalid(p.info.Name, faults)
	}
	clean, err = json.Marshal(known)
	if err != nil {
		return nil, warnings, fmt.Errorf("encode input of %s: %w", p.info.Name, err)
	}
	return clean, warnings, nil
}

// decode decodes clean input over the defaults.
func (p *pack[In, Out]) decode(clean json.RawMessage) (in In, err error) {
	// Decoding the defaults afresh keeps one run from changing another's.
	if err := json.Unmarshal(p.defaults, &in); err != nil {
		return in, fmt.Errorf("decode defaults of %s: %w", p.info.Name, err)
	}
	if err := json.Unmarshal(clean, &in); err != nil {
		return in, invalid(p.info.Name, []Detail{decodeFault(err)})
	}
	return in, nil
}
