package bustest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/internal/bus"
)

// Nodes is how many servers a Cluster has.
const Nodes = 3

// Cluster is three NATS servers, each a process of its own with a store that
// syncs every write, whose routes to each other run through links that a test
// can cut. The package's TestMain must call MainNode first.
type Cluster struct {
	t     testing.TB
	nodes [Nodes]*clusterNode
	links [Nodes][Nodes]*link // from, to
	prof  bus.Profile
	log   zerolog.Logger
}

type clusterNode struct {
	conf nodeConf
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// StartCluster starts the servers and sets up the topology with profile.
func StartCluster(t testing.TB, profile bus.Profile, log zerolog.Logger) *Cluster {
	t.Helper()
	c := &Cluster{t: t, prof: profile, log: log}
	ports := freePorts(t, 3*Nodes)
	for i := range Nodes {
		c.nodes[i] = &clusterNode{conf: nodeConf{
			Name: fmt.Sprint("n", i), Dir: filepath.Join(t.TempDir(), "store"),
			Port: ports[3*i], RoutePort: ports[3*i+1], MonitorPort: ports[3*i+2],
		}}
	}
	for i := range Nodes {
		for j := range Nodes {
			if i == j {
				continue
			}
			l, err := newLink(fmt.Sprintf("127.0.0.1:%d", c.nodes[j].conf.RoutePort))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(l.close)
			c.links[i][j] = l
			c.nodes[i].conf.Routes = append(c.nodes[i].conf.Routes, l.addr())
		}
	}
	for i := range Nodes {
		c.Start(i)
	}
	t.Cleanup(func() {
		for i := range Nodes {
			c.Kill(i)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), 2*timeout)
	defer cancel()
	c.Await(ctx)
	admin := c.Dial(bus.RoleAdmin, "admin")
	if _, err := admin.Init(ctx); err != nil {
		t.Fatalf("set up bus: %v", err)
	}
	return c
}

// freePorts finds ports below those the system hands out by itself, which could
// be taken while a node is down.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for range 1000 {
		port := 10_000 + rand.N(22_000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil || slices.Contains(ports, port) {
			continue
		}
		_ = l.Close() // given to a server
		if ports = append(ports, port); len(ports) == n {
			return ports
		}
	}
	t.Fatal("no free ports")
	return nil
}

// Start starts node i, which must not run.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	n := c.nodes[i]
	conf, err := json.Marshal(n.conf)
	if err != nil {
		c.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), nodeEnv+"="+string(conf))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	n.cmd, n.done = cmd, make(chan struct{})
	go func() {
		defer close(n.done)
		_ = cmd.Wait() // killed, most of the time
	}()
}

// Kill ends node i as a crash would.
func (c *Cluster) Kill(i int) { c.signal(i, syscall.SIGKILL, true) }

// Stop ends node i as an operator does: clients are told to leave first.
func (c *Cluster) Stop(i int) { c.signal(i, syscall.SIGTERM, true) }

// Freeze halts node i without ending its connections.
func (c *Cluster) Freeze(i int) { c.signal(i, syscall.SIGSTOP, false) }

// Thaw lets a frozen node go on.
func (c *Cluster) Thaw(i int) { c.signal(i, syscall.SIGCONT, false) }

func (c *Cluster) signal(i int, s syscall.Signal, ends bool) {
	n := c.nodes[i]
	_ = n.cmd.Process.Signal(s) // an error: it has ended already
	if ends {
		<-n.done
	}
}

// Cut takes node i off the network of the servers; clients still reach it.
func (c *Cluster) Cut(i int) { c.each(i, (*link).cut) }

// Mend ends a Cut.
func (c *Cluster) Mend(i int) { c.each(i, (*link).mend) }

func (c *Cluster) each(i int, do func(*link)) {
	for j := range Nodes {
		if j != i {
			do(c.links[i][j])
			do(c.links[j][i])
		}
	}
}

func (c *Cluster) get(ctx context.Context, i int, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	url := fmt.Sprintf("http://127.0.0.1:%d%s", c.nodes[i].conf.MonitorPort, path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read only
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500)) // for people
		return fmt.Errorf("%s: %s: %s", path, resp.Status, text)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// Leader returns the node that leads stream, which must have a leader.
func (c *Cluster) Leader(ctx context.Context, stream string) int {
	c.t.Helper()
	return c.leader(ctx, stream, -1)
}

// Moved waits until another node than old leads stream.
func (c *Cluster) Moved(ctx context.Context, stream string, old int) {
	c.t.Helper()
	c.leader(ctx, stream, old)
}

func (c *Cluster) leader(ctx context.Context, stream string, not int) int {
	c.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		for i := range Nodes {
			view, err := c.view(ctx, i, false)
			if g, ok := view[stream]; err == nil && ok && i != not && g.Leader == c.nodes[i].conf.Name {
				return i
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.t.Fatalf("no node leads %s", stream)
		}
	}
}

// Dial connects a role to any node until the test ends.
func (c *Cluster) Dial(role bus.Role, name string) *bus.Conn {
	c.t.Helper()
	conn := c.connect(role, name)
	c.t.Cleanup(conn.Close)
	return conn
}

// DialNode is Dial to node i; the connection knows the other nodes.
func (c *Cluster) DialNode(i int, role bus.Role, name string) *bus.Conn {
	c.t.Helper()
	for range 100 {
		conn := c.connect(role, name)
		if conn.ServerName() == c.nodes[i].conf.Name {
			c.t.Cleanup(conn.Close)
			return conn
		}
		conn.Close()
	}
	c.t.Fatalf("no connection to node %d", i)
	return nil
}

func (c *Cluster) connect(role bus.Role, name string) *bus.Conn {
	c.t.Helper()
	var urls []string
	for _, n := range c.nodes {
		urls = append(urls, fmt.Sprintf("nats://127.0.0.1:%d", n.conf.Port))
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.Config{
		URL: strings.Join(urls, ","), User: role, Password: string(role), Name: name, Profile: c.prof,
		Timeout: 10 * time.Second, Log: c.log.With().Str("conn", name).Logger(),
	})
	if err != nil {
		c.t.Fatalf("connect to cluster: %v", err)
	}
	return conn
}
