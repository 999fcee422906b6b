package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A durability is what a system promises once it has answered, and how each
// server is told so.
type durability struct {
	name     string
	profile  string // of helmdeck
	redis    string // appendfsync
	postgres string // synchronous_commit
	divide   int    // of the number of jobs
}

var durabilities = []durability{
	{"a power cut may lose the last second", "embedded", "everysec", "off", 1},
	{"nothing acknowledged is lost: a sync for each commit", "single", "always", "on", 5},
}

// against measures helmdeck beside asynq on Redis and River on PostgreSQL,
// each with its default polls and with the shortest.
func against(ctx context.Context, dir string) error {
	program, err := buildPeers(ctx, dir)
	if err != nil {
		return err
	}
	for _, d := range durabilities {
		t := &table{title: d.name, values: map[string]map[string]float64{}}
		p := plan{jobs: *count / 2 / d.divide, calls: *calls / 2 / d.divide, flights: []int{256, 8}}
		for _, m := range []struct {
			column string
			run    func(report func(figure)) error
		}{
			{"helmdeck", func(report func(figure)) error { return ourFigures(ctx, filepath.Join(dir, d.profile), d, p, report) }},
			{rawColumn, func(report func(figure)) error {
				return rawFigures(ctx, filepath.Join(dir, d.profile+"-raw"), d, p, report)
			}},
			{"asynq", func(report func(figure)) error { return asynqFigures(ctx, program, dir, d, "default", p, report) }},
			{"asynq 1ms", func(report func(figure)) error { return asynqFigures(ctx, program, dir, d, "best", p, report) }},
			{"River", func(report func(figure)) error { return riverFigures(ctx, program, dir, d, "default", p, report) }},
			{"River 1ms", func(report func(figure)) error { return riverFigures(ctx, program, dir, d, "best", p, report) }},
		} {
			if m.column != rawColumn {
				t.columns = append(t.columns, m.column)
			}
			if err := m.run(func(f figure) { t.put(m.column, f) }); err != nil {
				return fmt.Errorf("%s, %s: %w", m.column, d.name, err)
			}
		}
		t.print()
	}
	fmt.Print(notes)
	return nil
}

const notes = `A job is done: for helmdeck when the caller has its stored end; for asynq when Redis lists the task as completed, calls
when the handler returns; for River when its event says that the completion is stored, calls when the handler returns, up
to a quarter of a second earlier. "raw bus" is the bus doing the 4 stored messages and the acknowledgement of a job, with
nothing around it. The ratios are helmdeck to the best peer and to the raw bus; above 1.00 helmdeck is better in every row.

`

// buildPeers builds the program of the nested module.
func buildPeers(ctx context.Context, dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/helmdeck/helmdeck").Output()
	if err != nil {
		return "", fmt.Errorf("find this repository: %w", err)
	}
	program := filepath.Join(dir, "peers")
	build := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(strings.TrimSpace(string(root)), "bench", "peers"), "-o", program, ".")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build bench/peers: %w", err)
	}
	return program, nil
}

func asynqFigures(ctx context.Context, program, dir string, d durability, poll string, p plan, report func(figure)) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	data, err := os.MkdirTemp(dir, "redis-")
	if err != nil {
		return err
	}
	server := exec.CommandContext(ctx, "redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", data,
		"--save", "", "--appendonly", "yes", "--appendfsync", d.redis, "--loglevel", "warning")
	return withServer(ctx, server, "127.0.0.1:"+port, func() error {
		return runPeers(ctx, program, p, report, "-system", "asynq", "-addr", "127.0.0.1:"+port, "-poll", poll)
	})
}

func riverFigures(ctx context.Context, program, dir string, d durability, poll string, p plan, report func(figure)) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	data, err := os.MkdirTemp("", "helmdeck-bench-pg-") // not under dir, which its user may not enter
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(data) }() // leftovers are the system's to sweep
	programs, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(programs) == 0 {
		return errors.New("PostgreSQL is not installed; run scripts/setup --bench")
	}
	bin := programs[len(programs)-1]
	init, err := asPostgres(exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"), data)
	if err != nil {
		return err
	}
	if out, err := init.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	server, err := asPostgres(exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "-D", data, "-h", "127.0.0.1", "-p", port,
		"-k", data, "-c", "synchronous_commit="+d.postgres, "-c", "shared_buffers=256MB", "-c", "max_connections=200", "-c", "log_min_messages=fatal"), data)
	if err != nil {
		return err
	}
	return withServer(ctx, server, "127.0.0.1:"+port, func() error {
		return runPeers(ctx, program, p, report, "-system", "river", "-addr", "postgres://postgres@127.0.0.1:"+port+"/postgres", "-poll", poll)
	})
}

// asPostgres gives data and c to the user postgres when this program runs as
// root, whom PostgreSQL refuses.
func asPostgres(c *exec.Cmd, data string) (*exec.Cmd, error) {
	c.Dir = data
	if os.Geteuid() != 0 {
		return c, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("%w; run scripts/setup --bench", err)
	}
	uid, _ := strconv.Atoi(u.Uid) // numbers on every Unix
	gid, _ := strconv.Atoi(u.Gid)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return c, os.Chown(data, uid, gid)
}

// withServer runs fn beside a server that listens on addr.
func withServer(ctx context.Context, server *exec.Cmd, addr string, fn func() error) error {
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		return fmt.Errorf("%w; run scripts/setup --bench", err)
	}
	defer func() {
		_ = server.Process.Signal(syscall.SIGINT) // ended already otherwise
		_ = server.Wait()                         // its exit code is not what is measured
	}()
	for end := time.Now().Add(30 * time.Second); ; {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = conn.Close() // it listens
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not listen: %w", filepath.Base(server.Path), err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return fn()
}

func runPeers(ctx context.Context, program string, p plan, report func(figure), args ...string) error {
	c := exec.CommandContext(ctx, program, append(args, "-jobs", strconv.Itoa(p.jobs), "-calls", strconv.Itoa(p.calls))...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var f figure
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			return errors.Join(fmt.Errorf("figure %q: %w", lines.Text(), err), c.Wait())
		}
		report(f)
	}
	return c.Wait()
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }() // was only asked for its port
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
