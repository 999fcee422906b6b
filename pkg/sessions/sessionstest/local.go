// Package sessionstest helps to test what runs in sidecars: Local leases real
// ones without a bus, Registry and Queue are in-memory fakes, and RunRuntime
// and RunStore are the suites every implementation passes.
//
// A test package that uses real sidecars starts with
//
//	func TestMain(m *testing.M) { sessionstest.Main(m, agent.Main) }
//
// with package internal/agent, so that its own binary can play the agent.
package sessionstest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/process"
)

// agentArg makes a test binary play the agent.
const agentArg = "helmdeck-test-agent"

// ready says that Main was called.
var ready atomic.Bool

// Main runs the tests of a package, or the agent when the binary was started
// as one. It does not return.
func Main(m *testing.M, agent func() int) {
	if len(os.Args) == 2 && os.Args[1] == agentArg {
		os.Exit(agent())
	}
	ready.Store(true)
	os.Exit(m.Run())
}

// Config is that of a process runtime whose agent is the running test binary,
// with a data directory of the test.
func Config(t testing.TB) process.Config {
	t.Helper()
	if !ready.Load() {
		t.Fatal("the test package lacks TestMain: call sessionstest.Main(m, agent.Main)")
	}
	return process.Config{
		Dir: t.TempDir(), AgentPath: "/proc/self/exe", AgentArgs: []string{agentArg},
		Log: zerolog.New(zerolog.NewTestWriter(t)),
	}
}

// Options of Local.
type Options struct {
	// ProxyURL is the egress proxy of the sidecars, "http://127.0.0.1:port";
	// empty: they connect directly.
	ProxyURL string
	// Change, when set, may change the runtime's configuration.
	Change func(*process.Config)
}

// Local returns a Leaser that starts a process sidecar of image for every
// lease, whatever the request names, and stops it when the session is closed
// or the test ends. The test is skipped when the image cannot be started here.
func Local(t testing.TB, image string, o Options) sessions.Leaser {
	t.Helper()
	cfg := Config(t)
	if o.Change != nil {
		o.Change(&cfg)
	}
	rt, err := process.New(cfg)
	if err != nil {
		t.Fatalf("process runtime: %v", err)
	}
	requireImage(t, rt, image)
	l := &local{runtime: rt, image: image, proxy: o.ProxyURL}
	t.Cleanup(func() { l.closeAll(t) })
	return l
}

func requireImage(t testing.TB, rt sessions.Runtime, image string) {
	t.Helper()
	images, err := rt.Images(t.Context())
	if err != nil {
		t.Fatalf("images: %v", err)
	}
	for _, have := range images {
		if have == image {
			return
		}
	}
	t.Skipf("image %q cannot be started here (have %s)", image, strings.Join(images, ", "))
}

type local struct {
	runtime sessions.Runtime
	image   string
	proxy   string

	mu   sync.Mutex // guards open
	open []*localSession
}

// Lease starts a sidecar.
func (l *local) Lease(ctx context.Context, r sessions.Request) (sessions.Session, error) {
	spec := r.Spec
	spec.Image = l.image
	id, token := uuid.NewString(), uuid.NewString()
	sidecar, err := l.runtime.Start(ctx, sessions.StartSpec{
		LeaseID: id, Generation: 1, Token: token, Spec: spec, ProxyURL: l.proxy,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", sessions.ErrUnavailable, err)
	}
	s := &localSession{
		Agent: sessions.NewAgent(sidecar.Endpoint, token, 1), id: id, runtime: l.runtime,
		lost: make(chan struct{}), stop: make(chan struct{}),
	}
	s.renewing.Go(s.renew)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, s)
	return s, nil
}

func (l *local) closeAll(t testing.TB) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.open {
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("close session: %v", err)
		}
	}
}

type localSession struct {
	*sessions.Agent
	id       string
	runtime  sessions.Runtime
	lost     chan struct{} // closed by renew
	stop     chan struct{} // closed by Close
	once     sync.Once
	renewing sync.WaitGroup
}

func (s *localSession) ID() string            { return s.id }
func (s *localSession) Lost() <-chan struct{} { return s.lost }

func (s *localSession) renew() {
	tick := time.NewTicker(sessions.RenewEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			if err := s.Renew(context.Background()); err != nil {
				close(s.lost)
				return
			}
		}
	}
}

func (s *localSession) Close(ctx context.Context) error {
	var err error
	s.once.Do(func() {
		close(s.stop)
		s.renewing.Wait()
		err = s.runtime.Stop(ctx, s.id)
	})
	return err
}
