package webhooks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
	"github.com/helmdeck/helmdeck/internal/bus/hookstore"
	"github.com/helmdeck/helmdeck/internal/failpoint"
	"github.com/helmdeck/helmdeck/pkg/webhooks"
)

// Ladder is the pauses between the attempts of a delivery, as Standard
// Webhooks 1.0 recommends: ten attempts in about three days.
var Ladder = []time.Duration{
	5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
	10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// Config is what a Sender is built from. Fields without a remark are required.
type Config struct {
	JS       bus.JetStream
	Store    *hookstore.Store
	Registry webhooks.Registry
	Sealer   *webhooks.Sealer
	// Client reaches only what may be reached.
	Client *http.Client
	// Ladder: nil means the package's.
	Ladder []time.Duration
	// Timeout bounds one attempt; 0: 15 s.
	Timeout time.Duration
	Pace    Pace
	// InHand is how many deliveries this process holds at once; 0: 128.
	InHand int
	// Heartbeat is a third of the bus's acknowledgement wait; 0: 10 s.
	Heartbeat time.Duration
	// Drain is how long attempts under way may take at a stop; 0: 5 s.
	Drain time.Duration
	// Observe is told of every attempt, for metrics; may be nil.
	Observe func(o webhooks.Outcome, attempt int)
	Log     zerolog.Logger
}

// Sender posts deliveries. Several may run at once, in any processes.
type Sender struct {
	cfg    Config
	client *http.Client
	gates  *gates
	life   time.Duration // after which a delivery gets its last attempt

	mu   sync.Mutex // guards held
	held map[bus.Delivery]struct{}
}

// NewSender returns a Sender.
func NewSender(cfg Config) *Sender {
	if cfg.Ladder == nil {
		cfg.Ladder = Ladder
	}
	set(&cfg.Timeout, 15*time.Second)
	set(&cfg.InHand, 128)
	set(&cfg.Heartbeat, 10*time.Second)
	set(&cfg.Drain, 5*time.Second)
	if cfg.Observe == nil {
		cfg.Observe = func(webhooks.Outcome, int) {}
	}
	s := &Sender{
		cfg: cfg, client: noRedirects(cfg.Client, cfg.Timeout), gates: newGates(cfg.Pace), held: map[bus.Delivery]struct{}{},
		life: time.Hour, // in which a ladder of seconds can wait out a breaker
	}
	for _, pause := range cfg.Ladder {
		s.life += pause + pause/2
	}
	return s
}

// Open counts the endpoints whose breaker is open in this process.
func (s *Sender) Open() int { return s.gates.open() }

const (
	pullBatch = 32
	pullWait  = 30 * time.Second
	// again is when what went wrong on our side is tried again.
	again = time.Second
)

// Run sends until ctx ends.
func (s *Sender) Run(ctx context.Context) error {
	// Attempts under way at a stop get a little time to end.
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(s.cfg.Drain, cancel)
	})()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.keepHeld(ctx) })
	slots := make(chan struct{}, s.cfg.InHand)
	for {
		n, ok := take(ctx, slots)
		if !ok {
			return nil
		}
		ds, err := s.cfg.JS.Pull(ctx, bus.StreamHooks, bus.ConsumerSenders, n, pullWait)
		for range n - len(ds) {
			<-slots
		}
		for _, d := range ds {
			s.hold(d)
			wg.Go(func() {
				defer func() { <-slots }()
				defer s.release(d)
				s.serve(ctx, sending, d)
			})
		}
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.Warn().Err(err).Msg("deliveries cannot be pulled, trying again")
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
		}
	}
}

// take waits for a free slot and takes what is free, up to a batch.
func take(ctx context.Context, slots chan struct{}) (n int, ok bool) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return 0, false
	}
	for n = 1; n < pullBatch; n++ {
		select {
		case slots <- struct{}{}:
		default:
			return n, ctx.Err() == nil
		}
	}
	return n, ctx.Err() == nil
}

func (s *Sender) hold(d bus.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[d] = struct{}{}
}

func (s *Sender) release(d bus.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, d)
}

// keepHeld tells the bus that the deliveries in hand are being worked on.
func (s *Sender) keepHeld(ctx context.Context) {
	tick := time.NewTicker(s.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		held := make([]bus.Delivery, 0, len(s.held))
		for d := range s.held {
			held = append(held, d)
		}
		s.mu.Unlock()
		for _, d := range held {
			_ = d.Working(ctx) // lost: the delivery may be made twice
		}
	}
}

// serve brings one delivery a step further; what fails on our side comes again.
func (s *Sender) serve(ctx, sending context.Context, d bus.Delivery) {
	err := s.handle(ctx, sending, d)
	if err == nil {
		return
	}
	wait := again
	if ctx.Err() != nil {
		wait = 0 // for another replica
	} else {
		s.cfg.Log.Warn().Err(err).Str("subject", d.Message().Subject).Msg("delivery not handled, it comes again")
	}
	_ = d.Nak(sending, wait) // lost: it comes again after the acknowledgement wait
}

func (s *Sender) handle(ctx, sending context.Context, m bus.Delivery) error {
	d, err := hookstore.Decode(m.Message())
	if err != nil {
		s.cfg.Log.Error().Err(err).Msg("queued delivery not understood, taken out")
		return m.Term(sending, "not a delivery")
	}
	record, err := s.record(sending, d)
	if errors.Is(err, webhooks.ErrNotFound) {
		return m.Ack(sending) // deleted, and its deliveries with it
	}
	if err != nil {
		return err
	}
	if record != nil && !record.Enabled {
		a := s.attempt(d, webhooks.Dropped, answer{problem: "the webhook is disabled: " + record.DisabledReason})
		return s.conclude(sending, m, d, a)
	}
	expired := time.Since(d.CreatedAt) > s.life
	leave, later := s.gates.enter(ctx, gateOf(d), expired)
	if leave == nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return s.postpone(sending, m, d, later)
	}
	t, err := s.target(d, record)
	a := answer{}
	if err == nil {
		a = s.post(sending, t, d)
	} else {
		s.cfg.Log.Error().Err(err).Str("endpoint", d.Endpoint).Msg("secret of a webhook cannot be opened")
		a.problem = "the secret cannot be opened; rotate it"
	}
	leave(verdict{ok: a.delivered(), pause: a.pause(), took: a.took, void: sending.Err() != nil})
	if sending.Err() != nil {
		return sending.Err()
	}
	failpoint.Hit(failpoint.HookAfterSend)
	return s.settle(sending, m, d, a, expired)
}

// gateOf names the endpoint for its breaker: jobs of one owner with one URL
// share it.
func gateOf(d webhooks.Delivery) string {
	if d.OfJob() {
		return d.Tenant + "/" + d.Owner + "/" + d.URL
	}
	return d.Endpoint
}

// record reads the endpoint of a delivery; nil for a job's own webhook.
func (s *Sender) record(ctx context.Context, d webhooks.Delivery) (*webhooks.Record, error) {
	if d.OfJob() {
		return nil, nil
	}
	r, err := s.cfg.Registry.Find(ctx, d.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("read endpoint %s: %w", d.Endpoint, err)
	}
	return &r, nil
}

func (s *Sender) target(d webhooks.Delivery, r *webhooks.Record) (target, error) {
	if r == nil {
		t := target{url: d.URL}
		if d.Secret == "" {
			return t, nil
		}
		secret, err := s.cfg.Sealer.Open(d.Secret, webhooks.JobPlace(d.Tenant, d.Owner))
		t.secrets = []webhooks.Secret{secret}
		return t, err
	}
	t := target{url: r.URL}
	for _, sealed := range r.Live(time.Now()) {
		secret, err := s.cfg.Sealer.Open(sealed.Sealed, webhooks.EndpointPlace(r.ID))
		if err != nil {
			return t, err
		}
		t.secrets = append(t.secrets, secret)
	}
	return t, nil
}

// postpone puts a delivery that got no turn back on the ladder; it is no
// attempt.
func (s *Sender) postpone(ctx context.Context, m bus.Delivery, d webhooks.Delivery, at time.Time) error {
	if err := s.cfg.Store.Later(ctx, d, at); err != nil {
		return err
	}
	failpoint.Hit(failpoint.HookAfterSchedule)
	return m.Ack(ctx)
}

// settle does what follows from an answer.
func (s *Sender) settle(ctx context.Context, m bus.Delivery, d webhooks.Delivery, got answer, last bool) error {
	switch {
	case got.delivered():
		return s.conclude(ctx, m, d, s.attempt(d, webhooks.Delivered, got))
	case got.status == http.StatusGone:
		if !d.OfJob() {
			if err := s.disable(ctx, d.Endpoint, got.problem); err != nil {
				return err
			}
		}
		return s.conclude(ctx, m, d, s.attempt(d, webhooks.Gone, got))
	case last || d.Attempt >= len(s.cfg.Ladder) || d.Event == webhooks.EventTest:
		return s.conclude(ctx, m, d, s.attempt(d, webhooks.Failed, got))
	}
	pause := s.cfg.Ladder[d.Attempt]
	pause = max(pause+rand.N(pause/10+1), got.retryAfter)
	a := s.attempt(d, webhooks.Retrying, got)
	a.NextAt = a.At.Add(pause)
	next := d
	next.Attempt++
	if err := s.cfg.Store.Later(ctx, next, a.NextAt); err != nil {
		return err
	}
	failpoint.Hit(failpoint.HookAfterSchedule)
	return s.conclude(ctx, m, d, a)
}

func (s *Sender) attempt(d webhooks.Delivery, o webhooks.Outcome, got answer) webhooks.Attempt {
	return webhooks.Attempt{
		Delivery: d.ID, Event: d.Event, JobID: d.JobID, Attempt: d.Attempt + 1, Outcome: o, Status: got.status,
		At: time.Now().UTC(), LatencyMS: got.took.Milliseconds(), Response: got.response, Error: got.problem,
	}
}

// conclude writes the log and ends the message. A delivery that ends without
// success is not acknowledged before its entry is there: the log is where its
// owner finds it. The loss of any other entry loses nothing else.
func (s *Sender) conclude(ctx context.Context, m bus.Delivery, d webhooks.Delivery, a webhooks.Attempt) error {
	err := s.cfg.Store.Append(ctx, d.Tenant, d.Endpoint, a)
	if err != nil && a.Outcome != webhooks.Delivered && a.Outcome != webhooks.Retrying {
		return err
	}
	if err != nil {
		s.cfg.Log.Warn().Err(err).Str("endpoint", d.Endpoint).Msg("attempt is not in the delivery log")
	}
	s.cfg.Observe(a.Outcome, a.Attempt)
	level := zerolog.DebugLevel
	if a.Outcome != webhooks.Delivered {
		level = zerolog.InfoLevel
	}
	s.cfg.Log.WithLevel(level).Str("endpoint", d.Endpoint).Str("delivery", d.ID).Str("event", d.Event).Str("job", d.JobID).
		Int("attempt", a.Attempt).Int("status", a.Status).Str("outcome", string(a.Outcome)).Msg("webhook attempt")
	if err := m.Ack(ctx); err != nil {
		return err
	}
	failpoint.Hit(failpoint.HookAfterAck)
	return nil
}

// disable switches an endpoint off.
func (s *Sender) disable(ctx context.Context, id, reason string) error {
	for {
		r, err := s.cfg.Registry.Find(ctx, id)
		if errors.Is(err, webhooks.ErrNotFound) || err == nil && !r.Enabled {
			return nil
		}
		if err != nil {
			return err
		}
		r.Enabled, r.DisabledReason, r.UpdatedAt = false, reason, time.Now().UTC()
		if _, err = s.cfg.Registry.Update(ctx, r); !errors.Is(err, webhooks.ErrConflict) {
			return err
		}
		// It changed meanwhile, so this ends.
	}
}
