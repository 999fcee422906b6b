package webhooks

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Rotation bounds of how long an old secret stays beside the new one.
const (
	DefaultKeep = 24 * time.Hour
	MaxKeep     = 7 * 24 * time.Hour
	// maxSecrets is how many may be in use at once: the newest and those a
	// rotation keeps.
	maxSecrets = 4
)

// Config is what a Service is built from.
type Config struct {
	Registry Registry
	Queue    Queue
	Log      Log
	Courier  Courier
	Sealer   *Sealer
	// CheckURL refuses an address that must not be reached with an error for
	// the caller; nil: all may be.
	CheckURL func(ctx context.Context, url string) error
	Now      func() time.Time // nil: time.Now
}

// Service is the client side of webhooks. REST, MCP and the command line all
// call it. Errors are *packs.Error.
type Service struct{ cfg Config }

// New returns a Service over the ports of cfg.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.CheckURL == nil {
		cfg.CheckURL = func(context.Context, string) error { return nil }
	}
	return &Service{cfg: cfg}
}

// Create makes an endpoint of the caller and shows its secret.
func (s *Service) Create(ctx context.Context, c identity.Caller, spec Spec) (Created, error) {
	if err := invalid(spec.faults()); err != nil {
		return Created{}, err
	}
	if err := s.checkURL(ctx, spec.URL); err != nil {
		return Created{}, err
	}
	secret := NewSecret()
	if spec.Secret != "" {
		var err error
		if secret, err = ParseSecret(spec.Secret); err != nil {
			return Created{}, packs.Fail(packs.InvalidInput, err, "secret "+err.Error())
		}
	}
	c.Scopes = nil // rights are checked at the door, not carried in records
	now := s.cfg.Now().UTC()
	r := Record{Endpoint: Endpoint{
		ID: newID(), URL: spec.URL, Events: eventsOr(spec.Events), Packs: spec.Packs, Labels: spec.Labels,
		Format: formatOr(spec.Format), Description: spec.Description, Enabled: true,
		Caller: c, CreatedAt: now, UpdatedAt: now,
	}}
	change := Change{Enabled: spec.Enabled}
	r.Endpoint, _ = change.apply(r.Endpoint) // checked above
	r.Secrets = []SealedSecret{{Sealed: s.cfg.Sealer.Seal(secret, EndpointPlace(r.ID))}}
	r, err := s.cfg.Registry.Create(ctx, r)
	if err != nil {
		return Created{}, asError(err)
	}
	return Created{Endpoint: r.Endpoint, Secret: secret.Reveal()}, nil
}

func newID() string { return "wh_" + strings.ToLower(rand.Text())[:16] }

func validID(id string) bool {
	rest, ok := strings.CutPrefix(id, "wh_")
	return ok && len(rest) == 16 && !strings.ContainsFunc(rest, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9')
	})
}

func (s *Service) checkURL(ctx context.Context, url string) error {
	err := s.cfg.CheckURL(ctx, url)
	if err == nil {
		return nil
	}
	e := packs.Fail(packs.InvalidInput, err, "the URL cannot be delivered to: "+err.Error())
	e.Details = []packs.Detail{{Pointer: "/url", Message: err.Error()}}
	return e
}

// find returns an endpoint of the caller's; an administrator finds all.
func (s *Service) find(ctx context.Context, c identity.Caller, id string) (Record, error) {
	if !validID(id) {
		return Record{}, asError(ErrNotFound)
	}
	r, err := s.cfg.Registry.Find(ctx, id)
	if err == nil && !c.Admin() && !c.Owns(r.Caller.TenantToken(), r.Caller.Owner()) {
		err = ErrNotFound
	}
	return r, asError(err)
}

// Get returns an endpoint.
func (s *Service) Get(ctx context.Context, c identity.Caller, id string) (Endpoint, error) {
	r, err := s.find(ctx, c, id)
	return r.Endpoint, err
}

// List returns a page of the caller's endpoints, oldest first; an
// administrator sees all. limit is 1 to 200, 0 means 50.
func (s *Service) List(ctx context.Context, c identity.Caller, limit int, cursor string) (page []Endpoint, next string, err error) {
	limit, err = pageLimit(limit)
	if err != nil {
		return nil, "", err
	}
	tenant, owner := c.TenantToken(), c.Owner()
	if c.Admin() {
		tenant, owner = "", ""
	}
	all, err := s.cfg.Registry.Of(ctx, tenant, owner)
	if err != nil {
		return nil, "", asError(err)
	}
	from := 0
	if cursor != "" {
		// The endpoint it names may be gone: its time is in the cursor too.
		at, id, _ := strings.Cut(cursor, "-")
		n, err := strconv.ParseInt(at, 10, 64)
		if err != nil || !validID(id) {
			return nil, "", packs.Errorf(packs.InvalidInput, "cursor is not one this list handed out")
		}
		for from < len(all) && compareTo(all[from], n, id) <= 0 {
			from++
		}
	}
	for _, r := range all[from:min(len(all), from+limit)] {
		page = append(page, r.Endpoint)
	}
	if last := from + limit; last < len(all) {
		r := all[last-1]
		next = strconv.FormatInt(r.CreatedAt.UnixNano(), 10) + "-" + r.ID
	}
	return page, next, nil
}

func compareTo(r Record, nano int64, id string) int {
	if n := r.CreatedAt.UnixNano(); n != nano {
		return int(max(-1, min(1, n-nano)))
	}
	return strings.Compare(r.ID, id)
}

func pageLimit(limit int) (int, error) {
	if limit == 0 {
		return 50, nil
	}
	if limit < 1 || limit > 200 {
		return 0, packs.Errorf(packs.InvalidInput, "limit must be between 1 and 200")
	}
	return limit, nil
}

// casTries bounds how often a change is tried again when the endpoint changed
// meanwhile.
const casTries = 8

// change updates an endpoint by compare-and-set.
func (s *Service) change(ctx context.Context, c identity.Caller, id string, edit func(*Record) error) (Record, error) {
	for range casTries {
		r, err := s.find(ctx, c, id)
		if err != nil {
			return r, err
		}
		if err := edit(&r); err != nil {
			return r, err
		}
		r.UpdatedAt = s.cfg.Now().UTC()
		r, err = s.cfg.Registry.Update(ctx, r)
		if !errors.Is(err, ErrConflict) {
			return r, asError(err)
		}
	}
	return Record{}, changing()
}

func changing() error {
	return packs.Errorf(packs.SchemaMismatch, "the webhook keeps changing; read it and try again")
}

// Update changes an endpoint; Enabled: true enables one that was disabled.
func (s *Service) Update(ctx context.Context, c identity.Caller, id string, change Change) (Endpoint, error) {
	if change.URL != nil {
		var f faults
		if f.url("/url", *change.URL); len(f) == 0 {
			if err := s.checkURL(ctx, *change.URL); err != nil {
				return Endpoint{}, err
			}
		}
	}
	r, err := s.change(ctx, c, id, func(r *Record) error {
		next, faults := change.apply(r.Endpoint)
		r.Endpoint = next
		return invalid(faults)
	})
	return r.Endpoint, err
}

// Delete removes an endpoint with its pending deliveries and its log.
func (s *Service) Delete(ctx context.Context, c identity.Caller, id string) error {
	for range casTries {
		r, err := s.find(ctx, c, id)
		if err != nil {
			return err
		}
		if err = s.cfg.Registry.Delete(ctx, r); !errors.Is(err, ErrConflict) {
			return asError(err)
		}
	}
	return changing()
}

// Rotate gives an endpoint a new secret and shows it. The old ones are used
// beside it for keep, 0 to MaxKeep: a receiver accepts either meanwhile.
func (s *Service) Rotate(ctx context.Context, c identity.Caller, id string, keep time.Duration) (Created, error) {
	if keep < 0 || keep > MaxKeep {
		return Created{}, invalid([]packs.Detail{{Pointer: "/keep_s", Message: "must be between 0 and " + strconv.Itoa(int(MaxKeep.Seconds())) + " seconds"}})
	}
	secret := NewSecret()
	r, err := s.change(ctx, c, id, func(r *Record) error {
		now := s.cfg.Now().UTC()
		old := r.Live(now)
		for i := range old {
			if end := now.Add(keep); old[i].ExpiresAt.IsZero() || old[i].ExpiresAt.After(end) {
				old[i].ExpiresAt = end
			}
		}
		if keep == 0 {
			old = nil
		}
		r.Secrets = append([]SealedSecret{{Sealed: s.cfg.Sealer.Seal(secret, EndpointPlace(r.ID))}}, old...)
		r.Secrets = r.Secrets[:min(len(r.Secrets), maxSecrets)]
		r.OldSecretUntil = time.Time{}
		if len(old) > 0 {
			r.OldSecretUntil = r.Secrets[1].ExpiresAt
		}
		return nil
	})
	return Created{Endpoint: r.Endpoint, Secret: secret.Reveal()}, err
}

// Live returns the secrets in use at a time, newest first.
func (r *Record) Live(now time.Time) []SealedSecret {
	return slices.DeleteFunc(slices.Clone(r.Secrets), func(s SealedSecret) bool {
		return !s.ExpiresAt.IsZero() && !s.ExpiresAt.After(now)
	})
}

// invalid is the error for faults, nil when there are none.
func invalid(faults []packs.Detail) error {
	if len(faults) == 0 {
		return nil
	}
	e := packs.Errorf(packs.InvalidInput, "the request is not valid: %s %s", faults[0].Pointer, faults[0].Message)
	e.Details = faults
	return e
}

// asError makes err a *packs.Error; what is none becomes internal.
func asError(err error) error {
	var pe *packs.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pe):
		return pe
	case errors.Is(err, ErrNotFound):
		return packs.Fail(packs.NotFound, err, "no such webhook; list them with GET /api/v1/webhooks")
	case errors.Is(err, ErrTooMany):
		return packs.Fail(packs.RateLimited, err, "you have "+strconv.Itoa(MaxPerOwner)+" webhooks, the most one owner may have; delete one first")
	case errors.Is(err, ErrUnavailable):
		e := packs.Fail(packs.SessionUnavailable, err, "the bus cannot be reached now; try again shortly")
		e.RetryAfter = 5 * time.Second
		return e
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return packs.Fail(packs.Timeout, err, "the request ended before the answer was there; try again")
	default:
		return packs.Fail(packs.Internal, err, "internal error; the server's log has the details")
	}
}
