package packs_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

var _ packs.ArtifactStore = (*artifacts.Store)(nil)

type answer struct {
	N int `json:"n" jsonschema:"maximum=9"`
}

// needs declares everything, for handlers that use some of it.
var needs = packs.Needs{Session: &sessions.Spec{Image: "base"}, Egress: true, Artifacts: true}

func handler(n packs.Needs, run func(ctx context.Context, run *packs.Run) (answer, error)) packs.Pack {
	return packs.Define(packs.Spec[struct{}, answer]{
		Name: "t.t", Summary: "s", Needs: n,
		Run: func(ctx context.Context, r *packs.Run, _ struct{}) (answer, error) { return run(ctx, r) },
	})
}

func failing(err error) packs.Pack {
	return handler(needs, func(context.Context, *packs.Run) (answer, error) { return answer{}, err })
}

type refusal struct{}

func (refusal) Error() string      { return "egress denied: 10.0.0.1 is private" }
func (refusal) EgressDenied() bool { return true }

func TestExecuteClassifies(t *testing.T) {
	t.Parallel()
	secret := errors.New("secret detail")
	tests := []struct {
		name    string
		pack    packs.Pack
		code    packs.Code
		message string
	}{
		{"typed", failing(packs.Errorf(packs.SchemaMismatch, "it moved")), packs.SchemaMismatch, "it moved"},
		{"typed and wrapped", failing(errors.Join(secret, packs.Errorf(packs.RateLimited, "slow down"))), packs.RateLimited, "slow down"},
		{"unknown code", failing(&packs.Error{Code: "oops", Message: "x"}), packs.Internal, "something went wrong inside the system; report this with the job id"},
		{"untyped", failing(secret), packs.Internal, "something went wrong inside the system; report this with the job id"},
		{"no session", failing(sessions.ErrUnavailable), packs.SessionUnavailable, "no session is free now; try again later"},
		{"session lost", failing(sessions.ErrLost), packs.SessionUnavailable, "the session was lost while in use; try again"},
		{"killed", failing(sessions.ErrKilled), packs.ResourceExhausted, "a program of the pack was killed, for want of memory as a rule; try a smaller input"},
		{"store full", failing(artifacts.ErrNoSpace), packs.ArtifactFailed, "the artifact store is full; delete artifacts or ask the operator for space, then try again"},
		{"refusal", failing(errors.Join(errors.New("get"), refusal{})), packs.InvalidInput, "egress denied: 10.0.0.1 is private"},
		{"step timeout", failing(context.DeadlineExceeded), packs.Timeout, "a step of the job took too long; try again"},
		{"panic", handler(needs, func(context.Context, *packs.Run) (answer, error) { panic(secret) }), packs.HandlerFailed, "the pack crashed on this input; report it with the job id"},
		{"index out of range", handler(needs, func(context.Context, *packs.Run) (answer, error) {
			return answer{N: len(strings.Split("", "")[1])}, nil
		}), packs.HandlerFailed, "the pack crashed on this input; report it with the job id"},
		{"goexit", handler(needs, func(context.Context, *packs.Run) (answer, error) { runtime.Goexit(); return answer{}, nil }), packs.Internal, "something went wrong inside the system; report this with the job id"},
		{"output", handler(needs, func(context.Context, *packs.Run) (answer, error) { return answer{N: 10}, nil }), packs.InvalidOutput, "the output of t.t does not match its schema (/n: must be at most 9, got 10); report this"},
		{"undeclared session", handler(packs.Needs{}, func(ctx context.Context, r *packs.Run) (answer, error) {
			_, err := r.Session(ctx)
			return answer{}, err
		}), packs.Internal, "something went wrong inside the system; report this with the job id"},
		{"undeclared egress", handler(packs.Needs{}, func(_ context.Context, r *packs.Run) (answer, error) { r.HTTP(); return answer{}, nil }), packs.Internal, "something went wrong inside the system; report this with the job id"},
		{"undeclared effect", handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) { return answer{}, r.Begin(ctx) }), packs.Internal, "something went wrong inside the system; report this with the job id"},
		{"no leaser", handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
			_, err := r.Session(ctx)
			return answer{}, err
		}), packs.SessionUnavailable, "no scheduler is configured on this worker"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			res := packstest.Run(t, tt.pack, nil)
			res.WantCode(t, tt.code)
			if res.Err.Message != tt.message {
				t.Errorf("got message %q, want %q", res.Err.Message, tt.message)
			}
			if res.Output != nil {
				t.Errorf("got output %s of a failed run", res.Output)
			}
		})
	}
}

func TestPanicKeepsItsStack(t *testing.T) {
	t.Parallel()
	res := packstest.Run(t, handler(needs, func(context.Context, *packs.Run) (answer, error) { panic("boom") }), nil)
	if text := res.Err.Err.Error(); !strings.Contains(text, "panic: boom") || !strings.Contains(text, "engine_test.go") {
		t.Errorf("the cause has no stack: %s", text)
	}
}

func TestExecuteRefusesBadInput(t *testing.T) {
	t.Parallel()
	ran := false
	p := handler(needs, func(context.Context, *packs.Run) (answer, error) { ran = true; return answer{}, nil })
	packstest.Run(t, p, `[]`).WantCode(t, packs.InvalidInput)
	if ran {
		t.Error("the handler ran")
	}
}

func untilDone(ctx context.Context, _ *packs.Run) (answer, error) {
	<-ctx.Done()
	return answer{}, packs.Fail(packs.HandlerFailed, ctx.Err(), "the tool failed")
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	res := packstest.Run(t, handler(needs, untilDone), nil, packstest.WithTimeout(time.Millisecond))
	res.WantCode(t, packs.Timeout)
	if want := "within 1ms"; !strings.Contains(res.Err.Message, want) {
		t.Errorf("got message %q, want it to contain %q", res.Err.Message, want)
	}
}

func TestCancelKeepsItsCause(t *testing.T) {
	t.Parallel()
	shutdown := errors.New("worker stops")
	ctx, cancel := context.WithCancelCause(t.Context())
	p := handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
		r.Progress(1, "started")
		return untilDone(ctx, r)
	})
	res := packstest.Run(t, p, nil, packstest.WithContext(ctx),
		packstest.WithOnProgress(func(packstest.Progress) { cancel(shutdown) }))
	res.WantCode(t, packs.Cancelled)
	if !errors.Is(res.Err, shutdown) {
		t.Errorf("%v does not wrap the cause", res.Err)
	}
}

func TestDefiniteErrorsOutliveTheDeadline(t *testing.T) {
	t.Parallel()
	p := handler(needs, func(ctx context.Context, _ *packs.Run) (answer, error) {
		<-ctx.Done()
		return answer{}, packs.Errorf(packs.OutcomeUnknown, "who knows")
	})
	packstest.Run(t, p, nil, packstest.WithTimeout(time.Millisecond)).WantCode(t, packs.OutcomeUnknown)
}

// TestHandlerThatIgnoresItsContext: the engine closes the session under it
// and then goes on without it.
func TestHandlerThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	release, finished := make(chan struct{}), make(chan struct{})
	leaser := &leaser{}
	var late error
	p := handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
		defer close(finished)
		if _, err := r.Session(ctx); err != nil {
			return answer{}, err
		}
		r.Progress(50, "leased")
		<-release
		_, late = r.SaveArtifact(context.WithoutCancel(ctx), "a", "", strings.NewReader("late"))
		r.Progress(100, "late")
		return answer{N: 1}, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	res := packstest.Run(t, p, nil, packstest.WithContext(ctx), packstest.WithGrace(time.Millisecond), packstest.WithLeaser(leaser),
		packstest.WithOnProgress(func(p packstest.Progress) {
			if p.Message == "leased" {
				cancel()
			}
		}))
	res.WantCode(t, packs.Cancelled)
	if !errors.Is(res.Err, packs.ErrAbandoned) {
		t.Errorf("%v does not say that the handler was left behind", res.Err)
	}
	if got := leaser.sessions()[0].closes.Load(); got == 0 {
		t.Error("the session is still open")
	}
	close(release)
	<-finished
	if late == nil {
		t.Error("a handler left behind saved an artifact")
	}
	if got := res.Progress[len(res.Progress)-1].Message; got != "leased" {
		t.Errorf("got progress %q of a handler left behind", got)
	}
}
