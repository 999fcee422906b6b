package bustest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/helmdeck/helmdeck/internal/bus"
)

// nodeEnv holds the configuration of a node of a Cluster, JSON.
const nodeEnv = "HELMDECK_TEST_NODE"

// logEnv may hold the path, without the node's name, of the logs of nodes.
const logEnv = "HELMDECK_TEST_NODE_LOG"

type nodeConf struct {
	Name, Dir                    string
	Port, RoutePort, MonitorPort int
	Routes                       []string // HOST:PORT of the links to the others
}

// MainNode makes this process a node of a Cluster and does not return, if it
// was started as one. Call it first in TestMain.
func MainNode() {
	text := os.Getenv(nodeEnv)
	if text == "" {
		return
	}
	if err := runNode(text); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runNode(text string) error {
	var conf nodeConf
	if err := json.Unmarshal([]byte(text), &conf); err != nil {
		return err
	}
	opts := &server.Options{
		ServerName: conf.Name, Host: "127.0.0.1", Port: conf.Port, NoSigs: true,
		HTTPHost: "127.0.0.1", HTTPPort: conf.MonitorPort,
		JetStream: true, StoreDir: conf.Dir, JetStreamMaxStore: 1 << 50, JetStreamMaxMemory: 1 << 28, SyncAlways: true,
		LameDuckDuration: time.Second, LameDuckGracePeriod: 200 * time.Millisecond,
		// Nodes know each other by the links only: an address learned from a
		// peer would lead around a cut.
		Cluster: server.ClusterOpts{
			Name: "c", Host: "127.0.0.1", Port: conf.RoutePort, Advertise: "127.0.0.1:1",
			PingInterval: 5 * time.Second, MaxPingsOut: 2, // as in deploy/nats/ha.conf
		},
	}
	for _, r := range conf.Routes {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats-route", Host: r})
	}
	for _, r := range bus.Roles {
		g := bus.GrantOf(bus.DefaultPrefix, r)
		opts.Users = append(opts.Users, &server.User{Username: string(r), Password: string(r), Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: g.Publish},
			Subscribe: &server.SubjectPermission{Allow: g.Subscribe},
		}})
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	if log := os.Getenv(logEnv); log != "" {
		opts.LogFile, opts.Logtime = log+"."+conf.Name, true
		s.ConfigureLogger()
	}
	s.Start()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	s.LameDuckShutdown()
	s.WaitForShutdown()
	return nil
}
