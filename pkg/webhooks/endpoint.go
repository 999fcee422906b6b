package webhooks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Endpoint is a subscription as every surface shows it, without its secret.
type Endpoint struct {
	ID  string `json:"id"` // "wh_" and 16 characters
	URL string `json:"url"`
	// Events are the names of the events it gets.
	Events []string `json:"events"`
	// Packs are those whose jobs it hears of, by name or family ("slides.*");
	// none: all.
	Packs []string `json:"packs,omitempty"`
	// Labels must all be on a job with these values; none: any job.
	Labels      map[string]string `json:"labels,omitempty"`
	Format      Format            `json:"format"`
	Description string            `json:"description,omitempty"`
	// Enabled is false when its owner switched it off, or the receiver did by
	// answering 410 Gone; DisabledReason says which.
	Enabled        bool            `json:"enabled"`
	DisabledReason string          `json:"disabled_reason,omitempty"`
	Caller         identity.Caller `json:"caller"`
	CreatedAt      time.Time       `json:"created_at"`
	UpdatedAt      time.Time       `json:"updated_at"`
	// OldSecretUntil is when the secret before the last rotation stops being
	// used beside the new one.
	OldSecretUntil time.Time `json:"old_secret_until,omitzero"`
}

// Record is an Endpoint as it is stored: with sealed secrets.
type Record struct {
	Endpoint
	// Secrets are sealed, newest first; the older ones have an end.
	Secrets []SealedSecret `json:"secrets"`
	// Revision and Slot are where the Registry keeps it.
	Revision uint64 `json:"-"`
	Slot     int    `json:"-"`
}

// SealedSecret is a secret at rest.
type SealedSecret struct {
	Sealed    string    `json:"sealed"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// Subject is what an event is about, for the filters of endpoints.
type Subject struct {
	Event, Pack string
	Labels      map[string]string
}

// Wants reports whether an enabled endpoint gets an event about s.
func (e *Endpoint) Wants(s Subject) bool {
	if !e.Enabled || !Wants(e.Events, s.Event) {
		return false
	}
	for k, v := range e.Labels {
		if got, ok := s.Labels[k]; !ok || got != v {
			return false
		}
	}
	if len(e.Packs) == 0 {
		return true
	}
	return slices.ContainsFunc(e.Packs, func(p string) bool {
		family, wild := strings.CutSuffix(p, "*")
		return p == s.Pack || wild && strings.HasPrefix(s.Pack, family)
	})
}

// Spec asks for an endpoint. It is the body of POST /api/v1/webhooks.
type Spec struct {
	URL         string            `json:"url"`
	Events      []string          `json:"events,omitempty"` // none: the terminal ones
	Packs       []string          `json:"packs,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Format      Format            `json:"format,omitempty"`
	Description string            `json:"description,omitempty"`
	// Secret is "whsec_" and base64 of 24 to 64 bytes; empty: one is made.
	Secret string `json:"secret,omitempty"`
	// Enabled: nil means true.
	Enabled *bool `json:"enabled,omitempty"`
}

// Change changes an endpoint: nil fields stay. It is the body of PATCH
// /api/v1/webhooks/{id}.
type Change struct {
	URL         *string            `json:"url,omitempty"`
	Events      *[]string          `json:"events,omitempty"`
	Packs       *[]string          `json:"packs,omitempty"`
	Labels      *map[string]string `json:"labels,omitempty"`
	Format      *Format            `json:"format,omitempty"`
	Description *string            `json:"description,omitempty"`
	Enabled     *bool              `json:"enabled,omitempty"`
}

// Created is an endpoint with its secret, which is shown when it is made or
// rotated and never again.
type Created struct {
	Endpoint
	Secret string `json:"secret"`
}

func (s *Spec) faults() []packs.Detail {
	var f faults
	f.url("/url", s.URL)
	f.events("/events", s.Events)
	f.format("/format", s.Format)
	f.filters(s.Packs, s.Labels)
	f.text("/description", s.Description, MaxDescription)
	if s.Secret != "" {
		if secret, err := ParseSecret(s.Secret); err != nil || !secret.standard() {
			f.add("/secret", "must be whsec_ and base64 of 24 to 64 bytes; leave it out and one is made")
		}
	}
	return f
}

func (f *faults) filters(names []string, labels map[string]string) {
	if len(names) > MaxPacks {
		f.add("/packs", "at most %d, got %d", MaxPacks, len(names))
	} else {
		for i, p := range names {
			if p == "" || len(p) > MaxFilter || strings.Contains(strings.TrimSuffix(p, "*"), "*") {
				f.add(fmt.Sprintf("/packs/%d", i), "must be the name of a pack, or a family such as slides.*")
			}
		}
	}
	if len(labels) > MaxLabels {
		f.add("/labels", "at most %d, got %d", MaxLabels, len(labels))
	}
	for k, v := range labels {
		if k == "" || len(k) > MaxFilter || len(v) > MaxFilter {
			f.add("/labels", "label %.80q: key of 1 to %d bytes and value of at most %d bytes", k, MaxFilter, MaxFilter)
		}
	}
}

// apply returns e with c's fields.
func (c *Change) apply(e Endpoint) (Endpoint, []packs.Detail) {
	var f faults
	if c.URL != nil {
		f.url("/url", *c.URL)
		e.URL = *c.URL
	}
	if c.Events != nil {
		f.events("/events", *c.Events)
		e.Events = eventsOr(*c.Events)
	}
	if c.Packs != nil {
		e.Packs = slices.Clone(*c.Packs)
	}
	if c.Labels != nil {
		e.Labels = maps.Clone(*c.Labels)
	}
	f.filters(e.Packs, e.Labels)
	if c.Format != nil {
		f.format("/format", *c.Format)
		e.Format = formatOr(*c.Format)
	}
	if c.Description != nil {
		f.text("/description", *c.Description, MaxDescription)
		e.Description = *c.Description
	}
	if c.Enabled != nil {
		e.Enabled, e.DisabledReason = *c.Enabled, ""
		if !e.Enabled {
			e.DisabledReason = "switched off by its owner"
		}
	}
	return e, f
}
