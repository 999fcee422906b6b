package packs_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/artifacts"
	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/packstest"
	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// box is a session that answers from memory, and the Leaser that grants it.
type box struct{ sessions.Session }

func (b box) Lease(context.Context, sessions.Request) (sessions.Session, error) { return b, nil }
func (box) ID() string                                                          { return "s-1" }
func (box) Lost() <-chan struct{}                                               { return nil }
func (box) Close(context.Context) error                                         { return nil }

func (box) Exec(_ context.Context, c sessions.Command) (sessions.Result, error) {
	for range 3 {
		fmt.Fprint(c.Stdout, "o")
		fmt.Fprint(c.Stderr, "e")
	}
	if c.Stdin != nil {
		_, err := io.Copy(io.Discard, c.Stdin)
		return sessions.Result{}, err
	}
	return sessions.Result{ExitCode: 3}, nil
}

func (box) WriteFile(_ context.Context, _ string, r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

func (box) ReadFile(context.Context, string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("file")), nil
}

func (box) Browser(context.Context) (sessions.Browser, error) {
	return sessions.Browser{URL: "ws://127.0.0.1/"}, nil
}

// pieces is a reader of three pieces.
func pieces() io.Reader {
	return io.MultiReader(strings.NewReader("a"), strings.NewReader("b"), strings.NewReader("c"))
}

// TestWhateverPassesIsASignOfLife: a pack that only waits for bytes is alive.
func TestWhateverPassesIsASignOfLife(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(server.Close)
	session := func(use func(ctx context.Context, s sessions.Session) error) func(context.Context, *packs.Run) error {
		return func(ctx context.Context, r *packs.Run) error {
			s, err := r.Session(ctx)
			if err != nil {
				return err
			}
			return use(ctx, s)
		}
	}
	for name, tt := range map[string]struct {
		least int64
		use   func(ctx context.Context, r *packs.Run) error
	}{
		"nothing": {0, func(context.Context, *packs.Run) error { return nil }},
		"upload and download": {6, func(ctx context.Context, r *packs.Run) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, pieces())
			if err != nil {
				return err
			}
			res, err := r.HTTP().Do(req)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); err != nil || string(b) != "abc" {
				return fmt.Errorf("got %q, %w", b, err)
			}
			return nil
		}},
		"an artifact": {3, func(ctx context.Context, r *packs.Run) error {
			_, err := r.SaveArtifact(ctx, "x.txt", "text/plain", pieces())
			return err
		}},
		"output that is kept": {6, session(func(ctx context.Context, s sessions.Session) error {
			res, err := s.Exec(ctx, sessions.Command{Argv: []string{"x"}})
			if string(res.Stdout) != "ooo" || string(res.Stderr) != "eee" || res.ExitCode != 3 {
				t.Errorf("got %+v", res)
			}
			return err
		})},
		"output that is passed on": {9, session(func(ctx context.Context, s sessions.Session) error {
			var out strings.Builder
			res, err := s.Exec(ctx, sessions.Command{Argv: []string{"x"}, Stdin: pieces(), Stdout: &out, Stderr: io.Discard})
			if out.String() != "ooo" || res.Stdout != nil {
				t.Errorf("got %q and %+v", out.String(), res)
			}
			return err
		})},
		"a file written": {3, session(func(ctx context.Context, s sessions.Session) error { return s.WriteFile(ctx, "f", pieces()) })},
		"a file read": {2, session(func(ctx context.Context, s sessions.Session) error {
			body, err := s.ReadFile(ctx, "f")
			if err != nil {
				return err
			}
			defer body.Close()
			_, err = io.Copy(io.Discard, body)
			return err
		})},
		"the browser": {2, session(func(ctx context.Context, s sessions.Session) error {
			b, err := s.Browser(ctx)
			b.Alive()
			return err
		})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var signs atomic.Int64
			p := handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) { return answer{}, tt.use(ctx, r) })
			res := packstest.Run(t, p, nil, packstest.WithLeaser(box{}), packstest.WithAlive(func() { signs.Add(1) }))
			if res.Err != nil {
				t.Fatal(res.Err)
			}
			if n := signs.Load(); n < tt.least || tt.least == 0 && n > 0 {
				t.Errorf("got %d signs of life, want %d or more", n, tt.least)
			}
		})
	}
}

// TestReadingAnArtifactIsASignOfLife needs one that an earlier run saved.
func TestReadingAnArtifactIsASignOfLife(t *testing.T) {
	t.Parallel()
	store := packstest.NewStore(t)
	saved := packstest.Run(t, handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
		_, err := r.SaveArtifact(ctx, "x.txt", "text/plain", pieces())
		return answer{}, err
	}), nil, packstest.WithStore(store)).Artifacts[0]
	var signs atomic.Int64
	packstest.Run(t, handler(needs, func(ctx context.Context, r *packs.Run) (answer, error) {
		_, body, err := r.OpenArtifact(ctx, saved.Key, artifacts.Range{})
		if err != nil {
			return answer{}, err
		}
		defer body.Close()
		_, err = io.Copy(io.Discard, body)
		return answer{}, err
	}), nil, packstest.WithStore(store), packstest.WithAlive(func() { signs.Add(1) }))
	if signs.Load() == 0 {
		t.Error("got no sign of life")
	}
}
