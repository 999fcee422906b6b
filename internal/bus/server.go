package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	_ "time/tzdata" // cron schedules name time zones; a bare machine has none

	"github.com/nats-io/nats-server/v2/server"
	"github.com/rs/zerolog"
)

// ServerConfig describes an embedded server.
type ServerConfig struct {
	Dir string // holds the store; made when missing, locked while in use
	// Listen is HOST:PORT for connections over TCP, port 0 for any; default
	// 127.0.0.1:0.
	Listen  string
	Profile Profile
	Prefix  string // default DefaultPrefix
	// Passwords of the roles; a role without gets a random one.
	Passwords map[Role]string
	// MaxStore bounds the store in bytes; 0: the disk alone does. The bounds
	// of the streams must fit in it.
	MaxStore int64
	Log      zerolog.Logger
}

func (c ServerConfig) withDefaults() ServerConfig {
	set(&c.Listen, "127.0.0.1:0")
	set(&c.Prefix, DefaultPrefix)
	c.Profile = c.Profile.withDefaults()
	c.Passwords = maps.Clone(c.Passwords)
	if c.Passwords == nil {
		c.Passwords = map[Role]string{}
	}
	for _, r := range Roles {
		if c.Passwords[r] == "" {
			c.Passwords[r] = rand.Text()
		}
	}
	return c
}

func (c ServerConfig) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("no directory"))
	}
	if !validPrefix(c.Prefix) {
		errs = append(errs, fmt.Errorf("prefix %q: use lower-case letters, digits and -", c.Prefix))
	}
	if _, _, err := splitListen(c.Listen); err != nil {
		errs = append(errs, err)
	}
	if c.Profile.Replicas > 1 {
		errs = append(errs, fmt.Errorf("profile %s wants %d replicas, an embedded server keeps one", c.Profile.Name, c.Profile.Replicas))
	}
	return errors.Join(append(errs, c.Profile.validate())...)
}

func splitListen(listen string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(listen)
	if err != nil {
		return "", 0, fmt.Errorf("listen address %q: %w", listen, err)
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("listen address %q: port %q", listen, p)
	}
	return host, int(n), nil
}

// PortError says that the listen address cannot be had.
type PortError struct {
	Addr string
	Err  error
}

func (e *PortError) Error() string {
	if errors.Is(e.Err, syscall.EADDRINUSE) {
		return fmt.Sprintf("address %s is taken by another program", e.Addr)
	}
	return fmt.Sprintf("cannot listen on %s: %v", e.Addr, e.Err)
}

func (e *PortError) Unwrap() error { return e.Err }

// A store that is not bounded by configuration may promise more than the disk
// has: streams reserve their limits, and a laptop's disk is smaller than their
// sum. A disk that does fill up freezes the streams (see Healthy).
const unboundedStore = int64(1) << 50

const (
	maxMemoryStore = 256 << 20 // watches keep their state in memory
	maxPayload     = 1 << 20
	startTimeout   = 60 * time.Second // a large store is read first
)

// Server is an embedded NATS server.
type Server struct {
	cfg  ServerConfig
	lock *os.File
	// frozen is set once a stream refused writes for a storage error.
	frozen atomic.Bool

	// turn is held while the server is started or stopped; over is guarded by
	// it and set by Shutdown.
	turn sync.Mutex
	over bool

	mu   sync.Mutex // guards ns and addr
	ns   *server.Server
	addr string // as first listened on
}

// StartServer starts a server on a directory and returns when it takes
// connections. Errors that tell the reader what to do: *LockedError,
// *DirError, *PortError, *VersionError.
func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("start bus server: %w", err)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("start bus server: %w", err)
	}
	s := &Server{cfg: cfg, lock: lock, addr: cfg.Listen}
	err = s.start(ctx)
	if err == nil {
		err = s.checkVersion(ctx)
	}
	if err != nil {
		s.Shutdown()
		return nil, fmt.Errorf("start bus server: %w", err)
	}
	return s, nil
}

func (s *Server) options() (*server.Options, error) {
	host, port, err := splitListen(s.addr)
	if err != nil {
		return nil, err
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	store := s.cfg.MaxStore
	set(&store, unboundedStore)
	return &server.Options{
		ServerName: "helmdeck-" + s.cfg.Prefix, Host: host, Port: port,
		JetStream: true, StoreDir: filepath.Join(s.cfg.Dir, "store"),
		JetStreamMaxStore: store, JetStreamMaxMemory: maxMemoryStore,
		SyncAlways: s.cfg.Profile.SyncAlways, SyncInterval: s.cfg.Profile.SyncInterval,
		// What a stream may hold in memory before it refuses.
		StreamMaxBufferedMsgs: 20_000, StreamMaxBufferedSize: 64 << 20,
		MaxPayload: maxPayload, Users: s.users(),
		NoSigs: true, DisableJetStreamBanner: true,
	}, nil
}

// start runs a server; the caller holds turn or is alone.
func (s *Server) start(ctx context.Context) error {
	if err := probeDir(s.cfg.Dir); err != nil {
		return err
	}
	if err := probeListen(ctx, s.addr); err != nil {
		return err
	}
	opts, err := s.options()
	if err != nil {
		return err
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("configure NATS: %w", err)
	}
	log := &serverLog{log: s.cfg.Log, server: s}
	ns.SetLoggerV2(log, false, false, false)
	s.frozen.Store(false)
	ns.Start()
	if err := awaitReady(ctx, ns, log); err != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ns = ns
	s.addr = ns.Addr().String()
	return nil
}

// probeListen finds a taken port before the server, which only logs it.
func probeListen(ctx context.Context, addr string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return &PortError{Addr: addr, Err: err}
	}
	return l.Close()
}

func awaitReady(ctx context.Context, ns *server.Server, log *serverLog) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for !ns.ReadyForConnections(10 * time.Millisecond) {
		if fatal := log.fatal.Load(); fatal != nil {
			return fmt.Errorf("NATS server: %s", *fatal)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for NATS server: %w", err)
		}
	}
	if !ns.JetStreamEnabled() {
		return fmt.Errorf("NATS server: JetStream did not start: %s", log.lastError())
	}
	return nil
}

// checkVersion refuses data of a newer program before anybody uses it.
func (s *Server) checkVersion(ctx context.Context) error {
	c, err := Connect(ctx, Config{Server: s, User: RoleAdmin, Name: "version check", Log: s.cfg.Log})
	if err != nil {
		return err
	}
	defer c.Close()
	st, all, err := c.survey(ctx)
	if err != nil {
		return err
	}
	if st.Version > TopologyVersion {
		return c.newer(all)
	}
	return nil
}

// URL is where the server takes connections over TCP.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return "nats://" + s.addr
}

// Password is the password of a role.
func (s *Server) Password(r Role) string { return s.cfg.Passwords[r] }

// InProcessConn connects without a socket; the client library calls it, also
// to reconnect after Restart.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	ns := s.ns
	s.mu.Unlock()
	if ns == nil {
		return nil, errors.New("bus server is not running")
	}
	return ns.InProcessConn()
}

// Restart stops the server and starts it again on the same directory and
// address; connections of this package reconnect by themselves. It is the way
// out of a frozen stream once there is space again.
//
// When the start fails, for instance because there is no space yet, Restart
// may be called again.
func (s *Server) Restart(ctx context.Context) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	if s.over {
		return fmt.Errorf("restart bus server: %w", ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("restart bus server: %w", err)
	}
	s.halt()
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("restart bus server: %w", err)
	}
	return nil
}

// Shutdown stops the server and waits until its files are closed.
func (s *Server) Shutdown() {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.over = true
	s.halt()
	_ = s.lock.Close() // drops the lock; closing again is harmless
}

func (s *Server) halt() {
	s.mu.Lock()
	ns := s.ns
	s.ns = nil
	s.mu.Unlock()
	if ns != nil {
		ns.Shutdown()
		ns.WaitForShutdown()
	}
}
