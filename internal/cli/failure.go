package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// The exit codes, one for each class of error. Scripts depend on them.
const (
	exitOK          = 0
	exitInternal    = 1
	exitUsage       = 2
	exitInput       = 3
	exitDenied      = 4
	exitNotFound    = 5
	exitJobFailed   = 6
	exitRetry       = 7
	exitUnreachable = 8
	exitInterrupted = 130 // 128 + SIGINT, as shells have it
)

// exits gives each code of an answer its class.
var exits = map[packs.Code]int{
	packs.InvalidInput:        exitInput,
	packs.PayloadTooLarge:     exitInput,
	packs.IdempotencyConflict: exitInput,
	packs.MissingBearer:       exitDenied,
	packs.InvalidToken:        exitDenied,
	packs.Forbidden:           exitDenied,
	packs.NotFound:            exitNotFound,
	packs.HandlerFailed:       exitJobFailed,
	packs.ArtifactFailed:      exitJobFailed,
	packs.InvalidOutput:       exitJobFailed,
	packs.OutcomeUnknown:      exitJobFailed,
	packs.Cancelled:           exitJobFailed,
	packs.CredentialInvalid:   exitJobFailed,
	packs.SchemaMismatch:      exitJobFailed,
	packs.Timeout:             exitRetry,
	packs.RateLimited:         exitRetry,
	packs.SessionUnavailable:  exitRetry,
	packs.ResourceExhausted:   exitRetry,
	packs.MethodNotAllowed:    exitInternal,
	packs.Internal:            exitInternal,
}

// failure is an error as the command line tells it. It is also the JSON that
// --output json writes to standard error.
type failure struct {
	Code    string         `json:"error,omitempty"`
	Message string         `json:"message"`
	Details []packs.Detail `json:"details,omitempty"`
	JobID   string         `json:"job_id,omitempty"`
	// RequestID finds the call in the server's log.
	RequestID string `json:"request_id,omitempty"`
	// Hints say what to do next.
	Hints []string `json:"hints,omitempty"`
	Exit  int      `json:"exit_code"`

	exit int
	err  error
}

// Error implements error.
func (f *failure) Error() string { return f.Message }

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.err }

// misused is an error in how a command was called.
func misused(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &failure{exit: exitUsage, Code: "usage", Message: err.Error(), err: err}
}

// hinted adds what to do next to an error that has no class of its own.
func hinted(err error, hints ...string) error {
	if err == nil {
		return nil
	}
	f := failureOf(err)
	f.Hints = append(f.Hints, hints...)
	return f
}

// failureOf classifies an error.
func failureOf(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	var answer *client.Error
	if errors.As(err, &answer) {
		return ofAnswer(answer, err)
	}
	var own *packs.Error
	switch {
	case errors.As(err, &own):
		return &failure{exit: exitOf(own.Code), Code: string(own.Code), Message: own.Message, Details: own.Details, err: err}
	case errors.Is(err, client.ErrUnreachable):
		return &failure{exit: exitUnreachable, Code: "unreachable", Message: err.Error(), err: err, Hints: []string{
			"start a server: helmdeck up",
			"or name another: --url, --context, HELMDECK_URL, or helmdeck context use NAME",
		}}
	case errors.Is(err, bus.ErrUnavailable):
		return &failure{exit: exitUnreachable, Code: "unreachable", Message: err.Error(), err: err,
			Hints: []string{"is the NATS server up? It is named by --nats, by default DATA/nats.url of helmdeck up"}}
	case errors.Is(err, bus.ErrDenied):
		return &failure{exit: exitDenied, Code: string(packs.Forbidden), Message: err.Error(), err: err,
			Hints: []string{"name the file with user and password: --nats-creds FILE"}}
	case errors.Is(err, context.DeadlineExceeded):
		return &failure{exit: exitRetry, Code: string(packs.Timeout), Message: err.Error(), err: err}
	}
	return &failure{exit: exitInternal, Message: err.Error(), err: err}
}

func exitOf(code packs.Code) int {
	if n, ok := exits[code]; ok {
		return n
	}
	return exitInternal
}

func ofAnswer(e *client.Error, err error) *failure {
	f := &failure{
		exit: exitOf(e.Code), Code: string(e.Code), Message: e.Message, Details: e.Details,
		JobID: e.JobID, RequestID: e.RequestID, err: err,
	}
	switch f.exit {
	case exitDenied:
		f.Hints = append(f.Hints, "helmdeck up writes its token to DATA/token: pass --data DIR, --token-file FILE or HELMDECK_TOKEN")
	case exitRetry:
		again := "try again"
		if e.RetryAfter > 0 {
			again = fmt.Sprintf("try again in %s", e.RetryAfter)
		}
		f.Hints = append(f.Hints, again)
	case exitInternal:
		if e.RequestID != "" {
			f.Hints = append(f.Hints, "the server's log has more: request "+e.RequestID)
		}
	}
	if e.JobID != "" && (f.exit == exitJobFailed || f.exit == exitRetry || f.exit == exitInternal) && e.Code != packs.Cancelled {
		f.Hints = append(f.Hints, "its log: helmdeck job logs "+e.JobID, "run it again: helmdeck job retry "+e.JobID)
	}
	return f
}

// report tells an error and returns the exit code.
func report(con *console.Console, err error) int {
	if err == nil {
		return exitOK
	}
	f := failureOf(err)
	f.Exit = f.exit
	if con.JSON {
		text, err := json.MarshalIndent(f, "", "  ")
		if err == nil {
			con.Say("%s", text)
			return f.exit
		}
	}
	message := console.CleanText(f.Message)
	if f.Code != "" {
		message = f.Code + ": " + message
	}
	con.Say("%s %s", con.Red("helmdeck:"), message)
	for _, d := range f.Details {
		pointer := console.Clean(d.Pointer)
		if pointer != "" {
			pointer += ": "
		}
		con.Say("  %s%s", pointer, console.Clean(d.Message))
	}
	if f.JobID != "" {
		con.Say("  job %s", f.JobID)
	}
	for _, hint := range f.Hints {
		con.Say("  %s", con.Dim(console.Clean(hint)))
	}
	return f.exit
}
