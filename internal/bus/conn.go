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
	js      jetstream.JetStream // topology and watches; the rest is asked directly
	names   names
	profile Profile
	timeout time.Duration
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
		names: names{cfg.Prefix}, profile: cfg.Profile, timeout: cfg.Timeout,
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
	js, err := jetstream.New(c.nc)
	if err != nil {
		c.nc.Close()
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	c.js = js
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
			c.setUp(false)
			c.log.Warn().Err(err).Msg("bus connection lost")
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
		opts = append(opts, nats.Timeout(max(time.Until(deadline), time.Millisecond)))
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
	ev := c.log.Warn().Err(err)
	if sub != nil {
		ev = ev.Str("subject", sub.Subject)
	}
	ev.Msg("bus refused something")
}

func (c *Conn) setUp(up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.up:
		if !up {
			c.up = make(chan struct{})
			c.end()
		}
	default:
		if up {
			c.life, c.end = context.WithCancel(context.Background())
			close(c.up)
		}
	}
}

// lost is closed when the present connection goes, and is closed already when
// there is none.
func (c *Conn) lost() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.life.Done()
}

// errLost is the cause of a context that ended with the connection.
var errLost = errors.New("connection lost")

// whileUp ends ctx with the present connection: what was asked over it will
// not be answered, and waiting longer would only delay the caller's retry.
func (c *Conn) whileUp(ctx context.Context) (context.Context, context.CancelFunc) {
	c.mu.Lock()
	life := c.life
	c.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(life, func() { cancel(errLost) })
	return ctx, func() { stop(); cancel(nil) }
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
	if err := c.ready(ctx); err != nil {
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

// bound gives ctx a deadline when it has none.
func (c *Conn) bound(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if c.server != nil && c.server.frozen.Load() {
		return context.WithTimeout(ctx, frozenTimeout)
	}
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// ready waits until a server is connected.
func (c *Conn) ready(ctx context.Context) error {
	c.mu.Lock()
	up := c.up
	c.mu.Unlock()
	select {
	case <-up:
		return nil
	default:
	}
	select {
	case <-up:
		return nil
	case <-c.closed:
		return ErrClosed
	case <-ctx.Done():
		return c.translate(ctx.Err())
	}
}

// send runs fn when connected, again when the connection went away before
// anything was sent.
func (c *Conn) send(ctx context.Context, subject string, fn func() error) error {
	if c.deniedN.Load() > 0 {
		if _, ok := c.denied.Load(subject); ok {
			return fmt.Errorf("%w: publish to %s", ErrDenied, subject)
		}
	}
	for {
		if err := c.ready(ctx); err != nil {
			return err
		}
		err := fn()
		if !errors.Is(err, nats.ErrReconnectBufExceeded) && !errors.Is(err, nats.ErrConnectionReconnecting) {
			return err
		}
		select {
		case <-ctx.Done():
			return c.translate(ctx.Err())
		case <-time.After(5 * time.Millisecond): // the disconnect handler is about to run
		}
	}
}

// lostCause names the loss of the connection where err is the end of ctx.
func lostCause(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errLost) {
		return errLost
	}
	return err
}

// call is one request with one reply.
func (c *Conn) call(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	ctx, cancel := c.bound(ctx, c.timeout)
	defer cancel()
	var reply *nats.Msg
	err := c.send(ctx, m.Subject, func() (err error) {
		ctx, done := c.whileUp(ctx)
		defer done()
		reply, err = c.nc.RequestMsgWithContext(ctx, m)
		return lostCause(ctx, err)
	})
	if err == nil {
		return reply, nil
	}
	if _, ok := c.denied.Load(m.Subject); ok {
		return nil, fmt.Errorf("%w: publish to %s", ErrDenied, m.Subject)
	}
	return nil, c.translate(err)
}
