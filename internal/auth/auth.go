// Package auth turns a bearer token into the caller it stands for.
//
// The first kind of token is the administrator's: generated at the first
// start into a file that only its owner reads. Other kinds (JWT, tokens of the
// bus) are further Authenticators. What a caller may do is decided by the
// scopes of identity.Caller at each surface, not here.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"strings"

	"github.com/helmdeck/helmdeck/pkg/identity"
)

// Errors of authentication.
var (
	// ErrMissing: the request carries no bearer token.
	ErrMissing = errors.New("no bearer token")
	// ErrInvalid: the token stands for nobody.
	ErrInvalid = errors.New("invalid bearer token")
)

// Authenticator finds out whose token it is. It returns an error wrapping
// ErrInvalid for a token that stands for nobody, any other error when it
// cannot tell. It is safe for concurrent use.
type Authenticator interface {
	Authenticate(ctx context.Context, token string) (identity.Caller, error)
}

// Admin accepts one token, which stands for the administrator.
func Admin(token string) Authenticator {
	return Static(map[string]identity.Caller{
		token: {Subject: "admin", Scopes: []string{identity.ScopeAdmin}},
	})
}

// Static accepts a fixed set of tokens. Empty tokens are left out. It takes
// the same time whether, and where, a token matches.
func Static(tokens map[string]identity.Caller) Authenticator {
	var s static
	for token, c := range tokens {
		if token != "" {
			s = append(s, entry{sum: sha256.Sum256([]byte(token)), caller: c})
		}
	}
	return s
}

type entry struct {
	sum    [sha256.Size]byte
	caller identity.Caller
}

type static []entry

// Authenticate implements Authenticator.
func (s static) Authenticate(_ context.Context, token string) (identity.Caller, error) {
	sum := sha256.Sum256([]byte(token)) // equal lengths make the comparison constant
	found := -1
	for i := range s {
		if subtle.ConstantTimeCompare(sum[:], s[i].sum[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return identity.Caller{}, ErrInvalid
	}
	return s[found].caller, nil
}

// Bearer returns the token of the Authorization header, or ErrMissing when
// there is none and ErrInvalid when it has another form. It does not judge
// the token.
func Bearer(r *http.Request) (string, error) {
	header := r.Header.Values("Authorization")
	if len(header) == 0 {
		return "", ErrMissing
	}
	scheme, token, _ := strings.Cut(strings.TrimSpace(header[0]), " ")
	token = strings.TrimSpace(token)
	if len(header) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", ErrInvalid
	}
	return token, nil
}
