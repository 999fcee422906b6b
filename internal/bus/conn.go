package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
)

const (
	// defaultTimeout bounds a call whose ctx has no deadline.
	defaultTimeout = 5 * time.Second
	// surveyTimeout bounds a pass over the whole topology: on three servers
	// each stream and consumer is a round of the meta leader.
	surveyTimeout = 60 * time.Second
	// frozenTimeout bounds a call while the embedded server is known to
	// refuse writes without an answer.
	frozenTimeout = 500 * time.Millisecond
	maxReconnect  = 2 * time.Second
)

// Observer hears of a durable write: the first token of its subject ("kv" for
// a bucket), how long it took and how it ended.
type Observer func(family string, took time.Duration, err error)

// Config says how to reach a server. Either URL or Server is set.
type Config struct {
	URL    string  // nats://host:port, several separated by commas
	Server *Server // of this process: connects without a socket
	// User is the role, Password its password; with Server the password is
	// known already.
	User      Role
	Password  string
	CredsFile string // NATS credentials instead of a password
	// Name shows in the server's list of connections.
	Name    string
	Prefix  string  // default DefaultPrefix; with Server the server's
	Profile Profile // of the topology; with Server the server's
	// Observe hears of every durable write; may be nil.
	Observe Observer
	// Timeout bounds calls whose ctx has no deadline; default 5 s.
	Timeout time.Duration
	Log     zerolog.Logger
}

func (c Config) withDefaults() Config {
	if c.Server != nil {
		c.Prefix, c.Profile = c.Server.cfg.Prefix, c.Server.cfg.Profile
		c.URL = c.Server.URL()
		if c.Password == "" {
			c.Password = c.Server.Password(c.User)
		}
	}
	set(&c.Prefix, DefaultPrefix)
	set(&c.Timeout, defaultTimeout)
	if c.Observe == nil {
		c.Observe = func(string, time.Duration, error) {}
	}
	c.Profile = c.Profile.withDefaults()
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.URL == "" {
		errs = append(errs, errors.New("no URL and no server"))
	}
	if !validPrefix(c.Prefix) {
		errs = append(errs, fmt.Errorf("prefix %q: use lower-case letters, digits and -", c.Prefix))
	}
	if c.User == "" && c.CredsFile == "" {
		errs = append(errs, errors.New("no user and no credentials file"))
	}
	return errors.Join(errs...)
}

func validPrefix(p string) bool {
	for _, r := range p {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return false
		}
	}
	return p != ""
}

// Conn is a connection of one role. It reconnects for ever; calls made
// meanwhile wait for it within their bound. Safe for concurrent use.
type Conn struct {
	nc      *nats.Conn
	replies *replies
	js      jetstream.JetStream // topology and watches; the rest is asked directly
	names   names
	profile Profile
	timeout time.Duration
	observe Observer
	server  *Server
	log     zerolog.Logger

	mu sync.Mutex
	up chan struct{} // guarded by mu; closed while connected
	// life ends with the present connection; guarded by mu, as is end.
	life context.Context //nolint:containedctx // that of the connection
	end  context.CancelFunc

	// denied holds the subjects a permissions violation named since the last
	// connect, so that the next call fails at once; deniedN is its size.
	denied  sync.Map
	deniedN atomic.Int32
	losses  atomic.Uint64 // see Core.Losses

	groups groups // the writers of streams

	closed  chan struct{} // closed by the closed handler
	watches sync.WaitGroup
	stop    context.CancelFunc // ends the watches
	alive   context.Context    //nolint:containedctx // the life of the connection, for its watches
}

// Connect connects a role. It fails when no server answers within ctx (5 s
// without a deadline) or the password is refused; later losses heal by
// themselves.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("connect to bus: %w", err)
	}
	c := &Conn{
		names: names{cfg.Prefix}, profile: cfg.Profile, timeout: cfg.Timeout, observe: cfg.Observe,
		server: cfg.Server, log: cfg.Log, up: make(chan struct{}), closed: make(chan struct{}),
	}
	c.alive, c.stop = context.WithCancel(context.Background())
	ctx, cancel := c.bound(ctx, c.timeout)
	defer cancel()
	opts := c.options(ctx, cfg)
	for {
		nc, err := nats.Connect(cfg.URL, opts...)
		if err == nil {
			c.nc = nc
			break
		}
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) {
			return nil, fmt.Errorf("connect to bus as %s: %w: %w", cfg.User, ErrDenied, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to bus at %s: %w: %w", cfg.URL, ErrUnavailable, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	c.setUp(true)
	var js jetstream.JetStream
	var err error
	if c.replies, err = listenForReplies(c.nc); err == nil {
		js, err = jetstream.New(c.nc)
	}
	if err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	c.js = js
	c.watches.Go(c.keepQuorum)
	return c, nil
}

func (c *Conn) options(ctx context.Context, cfg Config) []nats.Option {
	opts := []nats.Option{
		nats.Name(cfg.Name), nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(reconnectDelay),
		// Nothing is sent after its call gave up: call waits itself.
		nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(), nats.PermissionErrOnSubscribe(true),
		nats.PingInterval(20 * time.Second), nats.MaxPingsOutstanding(2),
		nats.DrainTimeout(5 * time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			c.losses.Add(1)
			c.setUp(false)
			if c.alive.Err() == nil { // not by Close
				c.log.Warn().Err(err).Msg("bus connection lost")
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			c.denied.Clear()
			c.deniedN.Store(0)
			c.setUp(true)
			c.log.Info().Msg("bus connection back")
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
		nats.ErrorHandler(c.asyncError),
	}
	if deadline, ok := ctx.Deadline(); ok {
		// Also that of later reconnects, hence not as short as ctx may be.
		opts = append(opts, nats.Timeout(min(max(time.Until(deadline), time.Second), defaultTimeout)))
	}
	if cfg.CredsFile != "" {
		opts = append(opts, nats.UserCredentials(cfg.CredsFile))
	} else {
		opts = append(opts, nats.UserInfo(string(cfg.User), cfg.Password))
	}
	if cfg.User != "" {
		opts = append(opts, nats.CustomInboxPrefix(inboxPrefix(cfg.Prefix, cfg.User)))
	}
	if cfg.Server != nil {
		opts = append(opts, nats.InProcessServer(cfg.Server))
	}
	return opts
}

// reconnectDelay grows to maxReconnect, with jitter: a restarted server is not
// stormed.
func reconnectDelay(attempt int) time.Duration {
	d := min(50*time.Millisecond<<min(attempt, 6), maxReconnect)
	return d/2 + rand.N(d)
}

// asyncError runs when the server complains about something already sent.
func (c *Conn) asyncError(_ *nats.Conn, sub *nats.Subscription, err error) {
	if subject, ok := deniedSubject(err); ok {
		if _, seen := c.denied.LoadOrStore(subject, struct{}{}); !seen {
			c.deniedN.Add(1)
		}
	}
	if errors.Is(err, nats.ErrSlowConsumer) {
		c.losses.Add(1)
	}
	ev := c.log.Warn().Err(err)
	if sub != nil {
		ev = ev.Str("subject", sub.Subject)
	}
	ev.Msg("bus refused something")
}

// Connected reports whether a server is connected at the moment.
func (c *Conn) Connected() bool { return c.nc.IsConnected() }

// Prefix is the installation's subject prefix.
func (c *Conn) Prefix() string { return c.names.prefix }

// Profile is the profile the connection was made with.
func (c *Conn) Profile() Profile { return c.profile }

// JetStream is the durable side.
func (c *Conn) JetStream() JetStream { return (*jetStream)(c) }

// Core is the fire-and-forget side.
func (c *Conn) Core() Core { return (*core)(c) }

// Ping makes a round trip to the server.
func (c *Conn) Ping(ctx context.Context) error {
	ctx, cancel := c.bound(ctx, c.timeout)
	defer cancel()
	if err := c.ready(ctx, nil); err != nil {
		return fmt.Errorf("ping bus: %w", err)
	}
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("ping bus: %w", c.translate(err))
	}
	return nil
}

// Close drains the subscriptions, ends the watches and closes. It waits until
// that is done, at most about 5 s.
func (c *Conn) Close() {
	c.stop()
	c.watches.Wait()
	defer c.groups.end()
	if c.nc.IsConnected() && c.nc.Drain() == nil {
		select {
		case <-c.closed:
			return
		case <-time.After(6 * time.Second):
		}
	}
	c.nc.Close()
	<-c.closed
}
