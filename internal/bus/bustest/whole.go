package bustest

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Await waits until the cluster is whole: every node is healthy, and of the
// servers' own group, every stream and every consumer all nodes name the same
// leader, to which each replica has been current since Await was called. A
// fault before that would be the second at once, which three nodes do not
// survive.
func (c *Cluster) Await(ctx context.Context) {
	c.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	current := map[string]bool{} // by group; under load a replica is so now and then
	for {
		err := c.whole(ctx, current)
		if err == nil {
			return
		}
		var ended [Nodes]<-chan struct{}
		for i, n := range c.nodes {
			ended[i] = n.done
		}
		select {
		case <-tick.C:
		case <-ended[0]:
			c.t.Fatalf("node 0 ended by itself: %v", err)
		case <-ended[1]:
			c.t.Fatalf("node 1 ended by itself: %v", err)
		case <-ended[2]:
			c.t.Fatalf("node 2 ended by itself: %v", err)
		case <-ctx.Done():
			c.t.Fatalf("cluster is not whole: %v", err)
		}
	}
}

// whole makes one look; it notes the groups it found current.
func (c *Cluster) whole(ctx context.Context, current map[string]bool) error {
	for i := range Nodes {
		if err := c.get(ctx, i, "/healthz", nil); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
	}
	var views [Nodes]map[string]group
	for i := range views {
		var err error
		if views[i], err = c.view(ctx, i, true); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
	}
	for name, g := range views[0] {
		for i, v := range views {
			if len(v) != len(views[0]) || v[name].Leader != g.Leader || g.Leader == "" {
				return fmt.Errorf("%s: node 0 follows %q, node %d %q", name, g.Leader, i, v[name].Leader)
			}
			if g.Leader == c.nodes[i].conf.Name && v[name].current() {
				current[name] = true
			}
		}
	}
	for name := range views[0] {
		if !current[name] {
			return fmt.Errorf("%s: a replica is behind its leader", name)
		}
	}
	return nil
}

// group is what a node knows of one Raft group.
type group struct {
	Leader   string `json:"leader"`
	Replicas []struct {
		Current bool `json:"current"`
		Offline bool `json:"offline"`
	} `json:"replicas"`
}

// current reports whether all the others keep up; the leader knows.
func (g group) current() bool {
	for _, r := range g.Replicas {
		if !r.Current || r.Offline {
			return false
		}
	}
	return len(g.Replicas) == Nodes-1
}

// errNoMeta: the node has not joined the others yet.
var errNoMeta = errors.New("no leader of the servers")

// view is what node i knows of the groups: "STREAM", "STREAM/CONSUMER" and,
// for the servers' own, "". Consumers that last no longer than who watches
// have one replica, and are left out.
func (c *Cluster) view(ctx context.Context, i int, consumers bool) (map[string]group, error) {
	var jsz struct {
		Meta     *group `json:"meta_cluster"`
		Accounts []struct {
			Streams []struct {
				Name      string `json:"name"`
				Cluster   group  `json:"cluster"`
				Consumers []struct {
					Name    string `json:"name"`
					Cluster group  `json:"cluster"`
				} `json:"consumer_detail"`
			} `json:"stream_detail"`
		} `json:"account_details"`
	}
	path := "/jsz?streams=true"
	if consumers {
		path += "&consumers=true"
	}
	if err := c.get(ctx, i, path, &jsz); err != nil {
		return nil, err
	}
	if jsz.Meta == nil {
		return nil, errNoMeta
	}
	all := map[string]group{"": *jsz.Meta}
	for _, a := range jsz.Accounts {
		for _, s := range a.Streams {
			all[s.Name] = s.Cluster
			for _, k := range s.Consumers {
				if len(k.Cluster.Replicas) > 0 {
					all[s.Name+"/"+k.Name] = k.Cluster
				}
			}
		}
	}
	return all, nil
}
