package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/helmdeck/helmdeck/internal/cli/console"
	"github.com/helmdeck/helmdeck/pkg/client"
)

// pool is helmdeck pool.
type pool struct {
	List   poolList   `cmd:"" default:"withargs" help:"Show the load of the pools."`
	Show   poolShow   `cmd:"" help:"Show one pool."`
	Pause  poolPause  `cmd:"" help:"Hold the jobs of a pool back."`
	Resume poolResume `cmd:"" help:"End the pause of a pool."`
}

// Help shows with --help.
func (pool) Help() string {
	return `Examples:

    helmdeck pool
    helmdeck pool list -o json | jq '.pools[] | select(.waiting > 0)'
    helmdeck pool pause media --for 30m --reason "new disk"`
}

type poolList struct {
	Watch bool `short:"w" help:"Show it again every two seconds, until Ctrl-C."`
	caller
}

// Help shows with --help.
func (poolList) Help() string {
	return `WAITING jobs lie in the queue, RUNNING ones are claimed by a live worker, UNACKNOWLEDGED were delivered to one. SCALE is waiting + unacknowledged - running, the number to scale workers by.

Examples:

    helmdeck pool list
    helmdeck pool list --watch
    helmdeck pool list -o json`
}

// watchEvery is how often --watch asks; the server looks no more often.
const watchEvery = 2 * time.Second

// Run shows.
func (p *poolList) Run(ctx context.Context, con *console.Console) error {
	c, err := p.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		list, err := c.Pools(ctx)
		if err != nil {
			return err
		}
		if err := showPools(con, list); err != nil || !p.Watch {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchEvery):
		}
		if !con.JSON {
			if err := con.Print(""); err != nil {
				return err
			}
		}
	}
}

func showPools(con *console.Console, list []client.PoolStatus) error {
	if con.JSON {
		return con.WriteJSON(client.PoolList{Pools: list})
	}
	rows := make([][]string, len(list))
	for i, l := range list {
		rows[i] = []string{
			l.Pool, fmt.Sprint(l.Waiting), fmt.Sprint(l.Running), fmt.Sprint(l.Unacknowledged), fmt.Sprint(l.Workers),
			seconds(l.OldestAgeS), fmt.Sprint(l.Autoscale), fmt.Sprint(l.DeadLetters), fmt.Sprint(l.Poison), poolRemark(l),
		}
	}
	return con.Table([]string{"POOL", "WAITING", "RUNNING", "UNACKNOWLEDGED", "WORKERS", "OLDEST", "SCALE", "DEAD", "POISON", "REMARK"}, rows)
}

func seconds(s float64) string {
	if s <= 0 {
		return ""
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

// pauseText is a pause in a few words, "" for none.
func pauseText(p *client.PoolPause) string {
	if p == nil {
		return ""
	}
	text := "paused"
	if !p.Until.IsZero() {
		text += " until " + console.Time(p.Until)
	}
	if p.Reason != "" {
		text += ": " + p.Reason
	}
	return text
}

func showPool(con *console.Console, p client.PoolStatus) error {
	if con.JSON {
		return con.WriteJSON(p)
	}
	pairs := []string{
		"pool", p.Pool, "waiting", fmt.Sprint(p.Waiting), "running", fmt.Sprint(p.Running), "unacknowledged", fmt.Sprint(p.Unacknowledged),
		"workers", fmt.Sprint(p.Workers), "slots", fmt.Sprint(p.Slots), "draining", fmt.Sprint(p.Draining),
		"oldest", seconds(p.OldestAgeS), "scale", fmt.Sprint(p.Autoscale), "unserved", unservedText(p.Unserved),
		"dead letters", fmt.Sprint(p.DeadLetters), "poison", fmt.Sprint(p.Poison),
	}
	if p.Paused != nil {
		pairs = append(pairs, "paused", pauseText(p.Paused), "paused since", console.Time(p.Paused.Since), "paused by", p.Paused.By)
	}
	return con.Fields(pairs...)
}

type poolShow struct {
	Pool string `arg:"" help:"Name of the pool."`
	caller
}

// Help shows with --help.
func (poolShow) Help() string {
	return `Examples:

    helmdeck pool show media
    helmdeck pool show media -o json | jq .autoscale`
}

// Run shows.
func (p *poolShow) Run(ctx context.Context, con *console.Console) error {
	c, err := p.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	status, err := c.Pool(ctx, p.Pool)
	if err != nil {
		return err
	}
	return showPool(con, status)
}

type poolPause struct {
	Pool   string        `arg:"" help:"Name of the pool."`
	For    time.Duration `xor:"end" placeholder:"DURATION" help:"Resume by itself after this time."`
	Until  string        `xor:"end" placeholder:"TIME" help:"Resume by itself at this time (RFC 3339)."`
	Reason string        `placeholder:"TEXT" help:"Why, for whoever sees a job wait; at most 256 bytes."`
	caller
}

// Help shows with --help.
func (poolPause) Help() string {
	return `Jobs are still accepted, and those that run go on; nothing new starts until the pause ends. It outlives restarts, and ends with helmdeck pool resume unless --for or --until says when. Pausing again changes end and reason. Needs an administrator's token.

Examples:

    helmdeck pool pause media --reason "new disk"
    helmdeck pool pause core --for 30m
    helmdeck pool pause core --until 2026-01-31T06:00:00Z`
}

// Run pauses.
func (p *poolPause) Run(ctx context.Context, con *console.Console) error {
	r := client.PauseRequest{Reason: p.Reason}
	if p.For != 0 {
		if r.ForS = int((p.For + time.Second - 1) / time.Second); p.For < 0 {
			return misused("--for must lie ahead, such as 30m")
		}
	}
	if p.Until != "" {
		t, err := time.Parse(time.RFC3339, p.Until)
		if err != nil {
			return misused("--until: %q is no time such as 2026-01-31T06:00:00Z", p.Until)
		}
		r.Until = t
	}
	c, err := p.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	status, err := c.PausePool(ctx, p.Pool, r)
	if err != nil {
		return err
	}
	return showPool(con, status)
}

type poolResume struct {
	Pool string `arg:"" help:"Name of the pool."`
	caller
}

// Help shows with --help.
func (poolResume) Help() string {
	return `Needs an administrator's token. Resuming a pool that is not paused is no error.

Examples:

    helmdeck pool resume media`
}

// Run resumes.
func (p *poolResume) Run(ctx context.Context, con *console.Console) error {
	c, err := p.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	status, err := c.ResumePool(ctx, p.Pool)
	if err != nil {
		return err
	}
	return showPool(con, status)
}

// poolRemark is what is out of the ordinary with a pool.
func poolRemark(p client.PoolStatus) string {
	remarks := slices.DeleteFunc([]string{pauseText(p.Paused), unservedText(p.Unserved)}, func(s string) bool { return s == "" })
	return strings.Join(remarks, "; ")
}

func unservedText(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d jobs no worker serves", n)
}
