package auth_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/internal/auth"
	"github.com/helmdeck/helmdeck/pkg/identity"
)

func TestStatic(t *testing.T) {
	t.Parallel()
	ann := identity.Caller{Subject: "ann", Scopes: []string{"packs:*"}}
	a := auth.Static(map[string]identity.Caller{"token-of-ann": ann, "token-of-bob": {Subject: "bob"}, "": {Subject: "nobody"}})
	got, err := a.Authenticate(t.Context(), "token-of-ann")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ann, got); diff != "" {
		t.Errorf("caller (-want +got):\n%s", diff)
	}
	for _, token := range []string{"", "token-of-an", "token-of-ann ", "TOKEN-OF-ANN"} {
		if _, err := a.Authenticate(t.Context(), token); !errors.Is(err, auth.ErrInvalid) {
			t.Errorf("token %q: got error %v, want %v", token, err, auth.ErrInvalid)
		}
	}
}

func TestAdminHoldsEveryScope(t *testing.T) {
	t.Parallel()
	c, err := auth.Admin("a-token-of-the-admin").Authenticate(t.Context(), "a-token-of-the-admin")
	if err != nil {
		t.Fatal(err)
	}
	if !c.Admin() || !c.Allows("packs:run") {
		t.Errorf("got %+v, want every scope", c)
	}
	if _, err := auth.Admin("").Authenticate(t.Context(), ""); !errors.Is(err, auth.ErrInvalid) {
		t.Errorf("an empty admin token: got error %v, want %v", err, auth.ErrInvalid)
	}
}

func TestBearer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		header []string
		want   string
		err    error
	}{
		"none":         {nil, "", auth.ErrMissing},
		"plain":        {[]string{"Bearer abc"}, "abc", nil},
		"any case":     {[]string{"bearer  abc "}, "abc", nil},
		"other scheme": {[]string{"Basic abc"}, "", auth.ErrInvalid},
		"no token":     {[]string{"Bearer "}, "", auth.ErrInvalid},
		"empty":        {[]string{""}, "", auth.ErrInvalid},
		"two":          {[]string{"Bearer a", "Bearer b"}, "", auth.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := auth.Bearer(&http.Request{Header: http.Header{"Authorization": tt.header}})
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

func TestLoadOrCreateToken(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	tokens := make([]string, 8)
	var wg sync.WaitGroup
	for i := range tokens {
		wg.Go(func() {
			var err error
			if tokens[i], err = auth.LoadOrCreateToken(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, token := range tokens {
		if token != tokens[0] || len(token) < 40 {
			t.Fatalf("got tokens %q, want one and the same", tokens)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("got mode %o, want 600", got)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".token-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestLoadOrCreateTokenRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"empty":      "",
		"short":      "secret",
		"two tokens": "first-long-enough-token\nsecond-long-enough-token",
		"binary":     "0123456789abcdef\x00\x01\xff",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if token, err := auth.LoadOrCreateToken(path); err == nil {
				t.Errorf("got token %q, want an error", token)
			}
		})
	}
	if _, err := auth.LoadOrCreateToken(filepath.Join(t.TempDir(), "no", "token")); err == nil {
		t.Error("a folder that is not there: want an error")
	}
}
