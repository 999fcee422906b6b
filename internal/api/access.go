package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/helmdeck/helmdeck/internal/auth"
	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// The scopes of the routes. A caller with "packs:*" or "admin" holds the
// first two.
const (
	public    = ""
	anyScope  = "-" // any valid token
	readPacks = "packs:read"
	runPacks  = "packs:run"
	adminOnly = identity.ScopeAdmin
)

// authorise finds the caller and checks that scope is among its rights; a
// caller that lacks it comes back with the error. On a public route it looks at no token and returns the zero Caller.
func (a *API) authorise(r *http.Request, scope string) (identity.Caller, error) {
	if scope == public {
		return identity.Caller{}, nil
	}
	token, err := auth.Bearer(r)
	if err != nil {
		return identity.Caller{}, refused(err)
	}
	c, err := a.cfg.Auth.Authenticate(r.Context(), token)
	if err != nil {
		return identity.Caller{}, refused(err)
	}
	if scope != anyScope && !c.Allows(scope) {
		return c, packs.Errorf(packs.Forbidden,
			"this token lacks the scope %s; ask an administrator for a token that has it", scope)
	}
	return c, nil
}

func refused(err error) error {
	switch {
	case errors.Is(err, auth.ErrMissing):
		return packs.Fail(packs.MissingBearer, err,
			"no token was sent; send the header Authorization: Bearer <token> (helmdeck up prints where its token file is)")
	case errors.Is(err, auth.ErrInvalid):
		return packs.Fail(packs.InvalidToken, err, "the bearer token is not valid here; check HELMDECK_TOKEN, or ask for a new token")
	}
	return err
}

// asCaller puts c into the request's context; nobody stays out of it.
func asCaller(r *http.Request, c identity.Caller) *http.Request {
	if c.Subject == "" {
		return r
	}
	return r.WithContext(identity.With(r.Context(), c))
}

// callerOf returns the caller that authorise found.
func callerOf(ctx context.Context) identity.Caller {
	c, _ := identity.From(ctx)
	return c
}

// checkOrigin refuses pages of other sites. Browsers send Origin with every
// request that a page of another origin may have caused. It answers the
// preflight of allowed origins itself; then it is done.
func (a *API) checkOrigin(x *exchange, r *http.Request) (done bool, err error) {
	origin := r.Header.Get("Origin")
	if origin == "" || a.sameHost(origin, r) {
		return false, nil
	}
	if !a.origins[strings.ToLower(origin)] {
		return false, packs.Errorf(packs.Forbidden,
			"pages of %.200q may not call this API; an administrator can allow the origin", origin)
	}
	h := x.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Add("Vary", "Origin")
	h.Set("Access-Control-Expose-Headers", "Location, Retry-After, X-Request-Id, ETag, Content-Range")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false, nil
	}
	h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers",
		"Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Prefer, Range, If-None-Match, Traceparent")
	h.Set("Access-Control-Max-Age", "600")
	return true, x.noContent()
}

func (a *API) sameHost(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" { // "null" among others
		return false
	}
	if strings.EqualFold(u.Host, r.Host) {
		return true
	}
	own, err := url.Parse(a.cfg.PublicURL)
	return err == nil && own.Host != "" && strings.EqualFold(u.Host, own.Host)
}
