// Package identity says who is asking: the caller on whose behalf a job runs,
// and the opaque tokens under which the bus files what belongs to that caller.
//
// It does not authenticate anybody; that is internal/auth.
package identity

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"slices"
	"strings"
)

// ScopeAdmin implies every other scope.
const ScopeAdmin = "admin"

// DefaultTenant is the tenant of a caller that names none.
const DefaultTenant = "default"

// Caller is the authenticated origin of a request. It travels with every
// message of the bus and is set by the API, never by a client.
type Caller struct {
	// Subject is the stable name of the person or program, any Unicode.
	Subject string `json:"subject"`
	// Tenant groups subjects; empty means DefaultTenant.
	Tenant string `json:"tenant,omitempty"`
	// Client names the program used, for instance "cli" or "ui".
	Client string `json:"client,omitempty"`
	// Scopes are the rights granted, for instance "packs:*" or "admin".
	Scopes []string `json:"scopes,omitempty"`
}

// Owner is the opaque form of the subject used in bus subjects and keys:
// the first 16 characters of the lower-case base32 SHA-256 of Subject.
func (c Caller) Owner() string { return digest(c.Subject) }

var plainTenant = regexp.MustCompile(`^[a-wyz0-9][a-z0-9-]{0,31}$`)

// TenantToken is the tenant as one token of a bus subject. A short lower-case
// name stands as it is; any other is hashed and starts with "x", which no
// plain one does, so that two tenants never share a token.
func (c Caller) TenantToken() string {
	switch {
	case c.Tenant == "":
		return DefaultTenant
	case plainTenant.MatchString(c.Tenant):
		return c.Tenant
	default:
		return "x" + digest(c.Tenant)
	}
}

// Allows reports whether the caller holds scope, the family wildcard of scope
// ("packs:*" for "packs:run") or ScopeAdmin.
func (c Caller) Allows(scope string) bool {
	family, _, _ := strings.Cut(scope, ":")
	return slices.Contains(c.Scopes, ScopeAdmin) ||
		slices.Contains(c.Scopes, scope) ||
		slices.Contains(c.Scopes, family+":*")
}

// Admin reports whether the caller holds ScopeAdmin.
func (c Caller) Admin() bool { return slices.Contains(c.Scopes, ScopeAdmin) }

// Owns reports whether something filed under tenant and owner tokens belongs
// to the caller. It does not consider ScopeAdmin.
func (c Caller) Owns(tenantToken, owner string) bool {
	return c.TenantToken() == tenantToken && c.Owner() == owner
}

var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567")

// digest is the first 16 characters of the lower-case base32 SHA-256 of s,
// which ten bytes make.
func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	var text [16]byte
	lowerBase32.Encode(text[:], sum[:10])
	return string(text[:])
}

type contextKey struct{}

// With returns a context that carries c.
func With(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, contextKey{}, c)
}

// From returns the caller carried by ctx; ok is false when there is none.
func From(ctx context.Context) (c Caller, ok bool) {
	c, ok = ctx.Value(contextKey{}).(Caller)
	return c, ok
}
