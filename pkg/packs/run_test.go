package packs_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// leaser grants sessions that do nothing.
type leaser struct {
	mu       sync.Mutex
	granted  []*session
	requests []sessions.Request
}

func (l *leaser) Lease(_ context.Context, r sessions.Request) (sessions.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &session{lost: make(chan struct{})}
	l.granted = append(l.granted, s)
	l.requests = append(l.requests, r)
	r.Waiting(2)
	return s, nil
}

func (l *leaser) sessions() []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.granted
}

type session struct {
	sessions.Session // the rest is not called
	lost             chan struct{}
	closes           atomic.Int64
	closedWith       error // of the context
}

func (s *session) ID() string            { return "lease-1" }
func (s *session) Lost() <-chan struct{} { return s.lost }
func (s *session) Close(ctx context.Context) error {
	s.closedWith = ctx.Err()
	s.closes.Add(1)
	return nil
}

func TestSession(t *testing.T) {
	t.Parallel()
	l := &leaser{}
	p := handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
		first, err := r.Session(ctx)
		if err != nil {
			return answer{}, err
		}
		second, err := r.Session(ctx)
		if first != second {
			t.Error("the second call leased another session")
		}
		return answer{N: 1}, err
	})
	res := packstest.Run(t, p, nil, packstest.WithLeaser(l), packstest.WithAttempt(3))
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	if res.SessionID != "lease-1" || l.sessions()[0].closes.Load() != 1 {
		t.Errorf("got session %q closed %d times", res.SessionID, l.sessions()[0].closes.Load())
	}
	want := []packstest.Progress{{Percent: 0, Message: "waiting for a session, place 2 in the queue"}}
	if diff := cmp.Diff(want, res.Progress); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	if r := l.requests[0]; r.Attempt != 3 || r.Fence != 1 || r.Worker != "packstest" || r.Spec.Image != "base" || r.Caller.Subject != "tester" {
		t.Errorf("got request %+v", r)
	}
}

func TestSessionIsClosedAfterCancel(t *testing.T) {
	t.Parallel()
	l := &leaser{}
	p := handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
		if _, err := r.Session(ctx); err != nil {
			return answer{}, err
		}
		return untilDone(ctx, r)
	})
	packstest.Run(t, p, nil, packstest.WithLeaser(l), packstest.WithTimeout(time.Millisecond)).WantCode(t, packs.Timeout)
	if s := l.sessions()[0]; s.closes.Load() != 1 || s.closedWith != nil {
		t.Errorf("closed %d times with a context that says %v", s.closes.Load(), s.closedWith)
	}
}

func TestLostSessionEndsTheHandler(t *testing.T) {
	t.Parallel()
	l := &leaser{}
	p := handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
		if _, err := r.Session(ctx); err != nil {
			return answer{}, err
		}
		close(l.sessions()[0].lost)
		return untilDone(ctx, r)
	})
	res := packstest.Run(t, p, nil, packstest.WithLeaser(l))
	res.WantCode(t, packs.SessionUnavailable)
	if !errors.Is(res.Err, sessions.ErrLost) {
		t.Errorf("%v does not wrap ErrLost", res.Err)
	}
}

func TestSaveArtifact(t *testing.T) {
	t.Parallel()
	broken := errors.New("upstream broke")
	t.Run("saved", func(t *testing.T) {
		t.Parallel()
		p := handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
			_, err := r.SaveArtifact(ctx, "a.txt", "", strings.NewReader("hello"))
			return answer{}, err
		})
		res := packstest.Run(t, p, nil)
		if res.Err != nil || len(res.Artifacts) != 1 {
			t.Fatalf("got %+v", res)
		}
		a := res.Artifacts[0]
		if string(a.Bytes) != "hello" || a.Pack != "t.t" || a.Attempt != 1 || a.JobID == "" || !packstest.Caller.Owns(a.Tenant, a.Owner) {
			t.Errorf("got %+v", a)
		}
	})
	t.Run("source breaks", func(t *testing.T) {
		t.Parallel()
		p := handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
			_, err := r.SaveArtifact(ctx, "a.txt", "", io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken)))
			if !errors.Is(err, broken) {
				t.Errorf("%v does not wrap the source's error", err)
			}
			return answer{}, err
		})
		packstest.Run(t, p, nil).WantCode(t, packs.Internal)
	})
	t.Run("store breaks", func(t *testing.T) {
		t.Parallel()
		for err, want := range map[error]string{artifacts.ErrNoSpace: "is full", broken: "did not answer"} {
			var engine packs.Engine
			_, got := engine.Execute(t.Context(), handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
				_, err := r.SaveArtifact(ctx, "a.txt", "", strings.NewReader("x"))
				return answer{}, err
			}), packs.Invocation{Services: packs.Services{Artifacts: brokenStore{err: err}}})
			if e, ok := errors.AsType[*packs.Error](got); !ok || e.Code != packs.ArtifactFailed || !strings.Contains(e.Message, want) || !errors.Is(got, err) {
				t.Errorf("got %v, want artifact_failed saying %q", got, want)
			}
		}
	})
	t.Run("namespace of another pack", func(t *testing.T) {
		t.Parallel()
		p := handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
			_, err := r.SaveArtifactIn(ctx, "slides.render", "a.txt", "", strings.NewReader("x"))
			return answer{}, err
		})
		packstest.Run(t, p, nil).WantCode(t, packs.InvalidInput)
	})
}

// brokenStore fails every Put.
type brokenStore struct {
	packs.ArtifactStore
	err error
}

func (b brokenStore) Put(context.Context, artifacts.Draft, io.Reader) (artifacts.Ref, error) {
	return artifacts.Ref{}, b.err
}

func TestOpenArtifactBelongsToItsOwner(t *testing.T) {
	t.Parallel()
	store := packstest.NewStore(t)
	saved := packstest.Run(t, handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
		_, err := r.SaveArtifact(ctx, "a.txt", "", strings.NewReader("hello"))
		return answer{}, err
	}), nil, packstest.WithStore(store)).Artifacts[0]
	open := handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
		_, body, err := r.OpenArtifact(ctx, saved.Key, artifacts.Range{Offset: 1})
		if err != nil {
			return answer{}, err
		}
		defer body.Close()
		b, err := io.ReadAll(body)
		return answer{N: len(b)}, err
	})
	tests := []struct {
		name    string
		caller  identity.Caller
		allowed bool
	}{
		{"owner", packstest.Caller, true},
		{"administrator", identity.Caller{Subject: "root", Scopes: []string{"admin"}}, true},
		{"somebody else", identity.Caller{Subject: "mallory"}, false},
		{"same subject of another tenant", identity.Caller{Subject: "tester", Tenant: "acme"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			res := packstest.Run(t, open, nil, packstest.WithStore(store), packstest.WithCaller(tt.caller))
			if tt.allowed {
				var out answer
				if res.Decode(t, &out); out.N != 4 {
					t.Errorf("read %d bytes, want 4", out.N)
				}
				return
			}
			res.WantCode(t, packs.ArtifactFailed)
			if res.Err.Retry == nil || *res.Err.Retry || !strings.Contains(res.Err.Message, saved.Key) {
				t.Errorf("got %+v, want an error that names the key and is not retried", res.Err)
			}
		})
	}
}

func TestBegin(t *testing.T) {
	t.Parallel()
	p := packs.Define(packs.Spec[struct{}, answer]{
		Name: "t.once", Summary: "s", Effect: packs.EffectOnce,
		Run: func(ctx context.Context, r *packs.Run, _ struct{}) (answer, error) { return answer{}, r.Begin(ctx) },
	})
	if res := packstest.Run(t, p, nil); res.Err != nil || res.Begun != 1 {
		t.Errorf("got %v, begun %d times", res.Err, res.Begun)
	}
	packstest.Run(t, p, nil, packstest.WithBegun()).WantCode(t, packs.OutcomeUnknown)
}

func TestRetryAndFatal(t *testing.T) {
	t.Parallel()
	e := packs.Retry(packs.Errorf(packs.RateLimited, "slow down"), time.Minute)
	if e.Code != packs.RateLimited || e.RetryAfter != time.Minute || e.Retry == nil || !*e.Retry {
		t.Errorf("got %+v", e)
	}
	cause := errors.New("cause")
	e = packs.Fatal(cause)
	if e.Code != packs.HandlerFailed || e.Retry == nil || *e.Retry || !errors.Is(e, cause) {
		t.Errorf("got %+v", e)
	}
}
