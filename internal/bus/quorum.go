package bus

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	// probeEvery and probeTimeout bound how long a server without its peers
	// goes unnoticed: probeLimit failed probes in a row, about 8 s.
	probeEvery   = 2 * time.Second
	probeTimeout = 2 * time.Second
	probeLimit   = 2
)

// keepQuorum leaves a server that is cut off from its peers, or that hangs:
// the connection to it stays, but nothing can be stored through it. The
// leader of the cluster answers the question for the account (look-ups of
// streams and consumers would cost more); a server alone never does. With one
// known server there is nowhere to go: a server tells of its peers only while
// it sees them, so the URL of a connection should name them all.
func (c *Conn) keepQuorum() {
	failed := 0
	for {
		select {
		case <-c.alive.Done():
			return
		case <-time.After(probeEvery + rand.N(probeEvery/2)):
		}
		if !c.nc.IsConnected() || len(c.nc.Servers()) < 2 {
			failed = 0
			continue
		}
		if err := c.probe(); err == nil {
			failed = 0
			continue
		}
		if failed++; failed < probeLimit {
			continue
		}
		failed = 0
		c.log.Warn().Str("server", c.ServerName()).Msg("bus server answers nothing for its cluster, trying another")
		_ = c.nc.ForceReconnect() // fails on a closed connection only
	}
}

// ServerName is the name of the connected server, empty without one.
func (c *Conn) ServerName() string { return c.nc.ConnectedServerName() }

func (c *Conn) probe() error {
	ctx, cancel := context.WithTimeout(c.alive, probeTimeout)
	defer cancel()
	var info struct{ answer }
	return c.ask(ctx, "INFO", nil, &info)
}
