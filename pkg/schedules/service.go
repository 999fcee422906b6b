package schedules

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/identity"
	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/packs"
)

// Config is what a Service is built from.
type Config struct {
	Store  Store
	Names  Names
	Timers Timers
	Jobs   Jobs
	// KeySecret keys the digests of names and idempotency keys.
	KeySecret []byte
	// MaxPerTenant replaces the constant; 0: the constant.
	MaxPerTenant int
	Now          func() time.Time // nil: time.Now
	Log          zerolog.Logger
}

// Service is what REST, command line and control loops call. Errors are
// *packs.Error, except those of Attend and Pass. It is safe for concurrent use.
type Service struct {
	cfg Config
}

// New returns a Service over the ports of cfg.
func New(cfg Config) *Service {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MaxPerTenant == 0 {
		cfg.MaxPerTenant = MaxPerTenant
	}
	return &Service{cfg}
}

// Create checks spec, every fault at once, and stores a schedule. It returns
// once the bus has it safe. With an idempotency key the same caller gets the
// same schedule for the same spec, for as long as it exists.
func (s *Service) Create(ctx context.Context, c identity.Caller, spec Spec, idempotencyKey string) (Schedule, error) {
	now := s.cfg.Now().UTC()
	c.Scopes = nil // rights are checked at the door, not carried in records
	rec := Record{
		ID: uuid.Must(uuid.NewV7()).String(), Spec: spec.normalise(), Caller: c, CreatedAt: now, UpdatedAt: now, Anchor: now,
	}
	if err := s.check(&rec, now); err != nil {
		return Schedule{}, err
	}
	if len(idempotencyKey) > jobs.MaxIdempotencyKey {
		return Schedule{}, invalid([]packs.Detail{{Message: fmt.Sprintf("Idempotency-Key must be at most %d bytes", jobs.MaxIdempotencyKey)}})
	}
	if idempotencyKey != "" {
		rec.ID = s.keyed(c, idempotencyKey)
		rec.Hash = hash(rec.Spec)
		if old, _, err := s.cfg.Store.Get(ctx, rec.ID); err == nil {
			return again(old, rec)
		} else if !errors.Is(err, ErrNotFound) {
			return Schedule{}, asError(err)
		}
	}
	if err := s.admit(ctx, c); err != nil {
		return Schedule{}, err
	}
	if err := s.claimName(ctx, c, rec.Name, rec.ID); err != nil {
		return Schedule{}, err
	}
	err := s.cfg.Store.Create(ctx, rec)
	if errors.Is(err, ErrExists) { // the same call, at the same time
		old, _, err := s.cfg.Store.Get(ctx, rec.ID)
		if err != nil {
			return Schedule{}, asError(err)
		}
		return again(old, rec)
	}
	if err != nil {
		return Schedule{}, asError(err)
	}
	s.wake(ctx, rec.ID)
	return rec.view(), nil
}

// wake sets the timer of a schedule that is stored. A failure is no failure
// of the call: Pass sets the timers that are missing.
func (s *Service) wake(ctx context.Context, id string) {
	if err := s.arm(ctx, id); err != nil {
		s.cfg.Log.Warn().Err(err).Str("schedule", id).Msg("timer not set, the next pass sets it")
	}
}

// again answers a call that was made before.
func again(old, asked Record) (Schedule, error) {
	if old.Hash != asked.Hash {
		return Schedule{}, packs.Errorf(packs.IdempotencyConflict,
			"this Idempotency-Key was used for another call; use a new key, or repeat the call exactly")
	}
	return old.view(), nil
}

// check tells everything that is wrong with r. With from it also sets the
// first time after from.
func (s *Service) check(r *Record, from time.Time) error {
	faults := r.faults()
	if !from.IsZero() {
		if !r.StartAt.IsZero() {
			r.Anchor = r.StartAt
		}
		cal, more := r.Calendar(r.Anchor)
		if len(more) == 0 {
			r.NextAt, more = r.first(cal, from)
		}
		faults = append(faults, more...)
	}
	req := r.Request
	req.ParentID, req.RunAt, req.DelayS = "", time.Time{}, 0 // found fault with already
	req.Webhook, req.WebhookURL, req.WebhookSecret = nil, "", ""
	of, err := s.cfg.Jobs.Faults(req)
	if err != nil {
		return asError(err)
	}
	return invalid(append(faults, of...))
}

// Faults returns everything that is wrong with a spec, with pointers into the
// body of a create.
func (s *Service) Faults(spec Spec) ([]packs.Detail, error) {
	now := s.cfg.Now().UTC()
	err := s.check(&Record{Spec: spec.normalise(), Anchor: now}, now)
	var pe *packs.Error
	if errors.As(err, &pe) && pe.Code == packs.InvalidInput {
		return pe.Details, nil
	}
	return nil, err
}

// invalid is the error for faults, nil when there are none.
func invalid(faults []packs.Detail) error {
	if len(faults) == 0 {
		return nil
	}
	e := packs.Errorf(packs.InvalidInput, "the schedule is not valid: %s: %s", faults[0].Pointer, faults[0].Message)
	if len(faults) > 1 {
		e.Message += fmt.Sprintf(" (and %d more, see details)", len(faults)-1)
	}
	e.Details = faults
	return e
}

// admit refuses a schedule of a tenant that has too many. Replicas count what
// they know, so that a few more may slip through at once.
func (s *Service) admit(ctx context.Context, c identity.Caller) error {
	all, err := s.cfg.Store.List(ctx)
	if err != nil {
		return asError(err)
	}
	n := 0
	for _, r := range all {
		if cmp.Or(r.Caller.Tenant, identity.DefaultTenant) == cmp.Or(c.Tenant, identity.DefaultTenant) {
			n++
		}
	}
	if n >= s.cfg.MaxPerTenant {
		return packs.Errorf(packs.RateLimited, "this tenant has %d schedules, the most there may be; delete some first", n)
	}
	return nil
}

func (s *Service) digest(parts ...string) []byte {
	mac := hmac.New(sha256.New, s.cfg.KeySecret)
	for _, p := range parts {
		// The lengths keep ("a","bc") and ("ab","c") apart.
		fmt.Fprintf(mac, "%d:%s", len(p), p)
	}
	return mac.Sum(nil)
}

// keyed is the id of the schedule made under an idempotency key.
func (s *Service) keyed(c identity.Caller, key string) string {
	return uuid7(time.UnixMilli(0), [32]byte(s.digest("schedule", c.TenantToken(), c.Subject, key)))
}

func hash(s Spec) string {
	b, err := json.Marshal(s)
	if err != nil {
		b = s.Input // checked before, so it is JSON
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (s *Service) nameKey(c identity.Caller, name string) string {
	return hex.EncodeToString(s.digest("name", c.TenantToken(), c.Subject, name))
}

// abandoned is the age at which a name whose schedule does not exist was left
// behind by a process that died before it stored the schedule.
const abandoned = time.Minute

// claimName keeps a name for a schedule of c.
func (s *Service) claimName(ctx context.Context, c identity.Caller, name, id string) error {
	if name == "" {
		return nil
	}
	key := s.nameKey(c, name)
	held, ok, err := s.cfg.Names.Claim(ctx, key, id)
	if err != nil {
		return asError(err)
	}
	if ok || held.ID == id {
		return nil
	}
	rec, _, err := s.cfg.Store.Get(ctx, held.ID)
	gone := errors.Is(err, ErrNotFound) && s.cfg.Now().Sub(held.Since) > abandoned
	renamed := err == nil && rec.Name != name && s.cfg.Now().Sub(rec.UpdatedAt) > abandoned
	switch {
	case gone || renamed:
		err = s.cfg.Names.TakeOver(ctx, key, id, held)
		if err == nil {
			return nil
		}
	case errors.Is(err, ErrNotFound):
		err = ErrExists
	case err == nil:
		err = ErrExists
	}
	if errors.Is(err, ErrExists) || errors.Is(err, ErrConflict) {
		return packs.Errorf(packs.SchemaMismatch,
			"you have a schedule named %q already (%s); choose another name, change that one with PATCH, or delete it", name, held.ID)
	}
	return asError(err)
}

func (s *Service) freeName(ctx context.Context, c identity.Caller, name, id string) {
	if name == "" {
		return
	}
	if err := s.cfg.Names.Free(ctx, s.nameKey(c, name), id); err != nil {
		s.cfg.Log.Warn().Err(err).Str("schedule", id).Msg("name not freed, it can be taken in a minute")
	}
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
		return packs.Fail(packs.NotFound, err, "no such schedule; list them with GET /api/v1/schedules")
	case errors.Is(err, ErrConflict):
		return packs.Fail(packs.SchemaMismatch, err, "the schedule keeps changing; read it and try again")
	case errors.Is(err, jobs.ErrUnavailable):
		e := packs.Fail(packs.SessionUnavailable, err,
			"schedules cannot be read or stored now (bus or its storage unavailable); nothing was lost, try again shortly")
		e.RetryAfter = 5 * time.Second
		return e
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return packs.Fail(packs.Timeout, err, "the request ended before the answer was there; look whether it was carried out")
	default:
		return packs.Fail(packs.Internal, err, "internal error; the server's log has the details")
	}
}
