package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

// readyWithin bounds the start of an agent on a busy machine.
const readyWithin = 20 * time.Second

// errIsolation: the sidecar could not be shut in the way it was tried.
var errIsolation = errors.New("isolation refused")

// start tries one way of running the sidecar; nothing is left of a failure.
func (r *Runtime) start(ctx context.Context, s sessions.StartSpec, plain bool) (_ sessions.Sidecar, err error) {
	if err := r.clear(ctx, s.LeaseID); err != nil { // an earlier generation
		return sessions.Sidecar{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.clear(context.WithoutCancel(ctx), s.LeaseID))
		}
	}()
	st := state{Lease: s.LeaseID, Generation: s.Generation, Token: s.Token, StartedAt: time.Now().UTC(), Plain: plain}
	if r.uid == 0 {
		st.UID = r.takeUID(s.LeaseID)
	}
	scratch, err := r.folders(st)
	if err != nil {
		return sessions.Sidecar{}, err
	}
	boot := r.boot(s, st, scratch)
	if plain && st.UID != 0 {
		if err := r.passable(); err != nil {
			return sessions.Sidecar{}, err
		}
		if blocked := blockedAncestor(scratch); blocked != "" {
			return sessions.Sidecar{}, fmt.Errorf("%s is closed to the uid of sidecars and the system allows no mounts: use a data directory elsewhere", blocked)
		}
	}
	a, err := r.spawn(st, plain)
	if err != nil {
		return sessions.Sidecar{}, err
	}
	defer a.close()
	st.PID = a.pid
	if st.BornAt, err = bornAt(a.pid); err != nil {
		return sessions.Sidecar{}, err
	}
	// The agent waits for its configuration, and ends without it: by the time
	// it does anything, the state file names it.
	if err := r.writeState(st); err != nil {
		return sessions.Sidecar{}, err
	}
	if err := r.cgroups.enclose(s.LeaseID, a.pid, s.Spec.Memory); err != nil {
		// A machine that shows groups and refuses them runs sidecars as one
		// that has none.
		r.cfg.Log.Warn().Err(err).Str("lease", s.LeaseID).Msg("sidecar has no limit of memory")
	}
	if st.Endpoint, err = a.greet(ctx, boot); err != nil {
		return sessions.Sidecar{}, err
	}
	if err := r.writeState(st); err != nil {
		return sessions.Sidecar{}, err
	}
	if _, err := sessions.NewAgent(st.Endpoint, s.Token, s.Generation).Health(ctx); err != nil {
		return sessions.Sidecar{}, err
	}
	return sessions.Sidecar{LeaseID: s.LeaseID, Endpoint: st.Endpoint, StartedAt: st.StartedAt}, nil
}

// folders makes the lease's folder, which its sidecar may pass but not read,
// and in it the scratch, which is the sidecar's.
func (r *Runtime) folders(st state) (scratch string, err error) {
	if err := os.Mkdir(r.folder(st.Lease), 0o711); err != nil {
		return "", fmt.Errorf("make folder of sidecar: %w", err)
	}
	scratch = filepath.Join(r.folder(st.Lease), "scratch")
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return "", fmt.Errorf("make scratch folder: %w", err)
	}
	if st.UID != 0 {
		if err := os.Chown(scratch, st.UID, st.UID); err != nil {
			return "", fmt.Errorf("hand scratch folder over: %w", err)
		}
	}
	return scratch, nil
}

// passable lets other uids through the data directory, not into it; what lies
// beyond is protected by its own modes.
func (r *Runtime) passable() error {
	dir := filepath.Dir(r.root)
	info, err := os.Stat(dir)
	if err == nil && info.Mode()&0o001 == 0 {
		err = os.Chmod(dir, info.Mode().Perm()|0o001)
	}
	if err != nil {
		return fmt.Errorf("let sidecars through the data directory: %w", err)
	}
	return nil
}

func (r *Runtime) boot(s sessions.StartSpec, st state, scratch string) wire.Boot {
	b := wire.Boot{
		Lease: s.LeaseID, Generation: s.Generation, Token: s.Token, Scratch: scratch,
		Path: []string{"/usr/local/bin", "/usr/bin", "/bin"}, Env: map[string]string{},
		ProxyURL: s.ProxyURL, ExpireAfter: r.cfg.ExpireAfter, DeadManAfter: r.cfg.DeadManAfter,
		Limits: r.limits(), Isolate: &wire.Isolation{UID: st.UID, GID: st.UID},
	}
	if s.Spec.Image == ImageBrowser {
		b.Chromium = r.cfg.Chromium
		b.Env["CHROME_PATH"] = r.cfg.Chromium
		if r.cfg.Engines != "" {
			b.Env["HELMDECK_ENGINES_DIR"] = r.cfg.Engines
			b.Path = append(enginePath(r.cfg.Engines), b.Path...)
		}
	}
	if !st.Plain {
		b.Isolate.Mounts = true
		b.Isolate.Cover, b.Isolate.Keep = r.cover(scratch)
	}
	return b
}

// cover decides what a sidecar with its own mounts does not see: the data
// directory, or the folder above it that other uids may not enter anyway.
func (r *Runtime) cover(scratch string) (cover, keep []string) {
	hide := func(path, otherwise string) {
		c := otherwise
		if r.uid == 0 {
			if b := blockedAncestor(path); b != "" {
				c = b
			}
		}
		for _, have := range cover {
			if c == "" || within(c, have) {
				return
			}
		}
		if c != "" {
			cover = append(cover, c)
		}
	}
	hide(filepath.Dir(scratch), filepath.Dir(r.root))
	if e := r.cfg.Engines; e != "" {
		hide(e, "")
		for _, c := range cover {
			if within(e, c) {
				keep = []string{e}
			}
		}
	}
	return cover, keep
}

// launched is an agent that waits for its configuration.
type launched struct {
	cmd   *exec.Cmd
	pid   int
	boot  *os.File // the agent's standard input
	ready *os.File
	log   string
}

func (r *Runtime) spawn(st state, plain bool) (*launched, error) {
	logPath := filepath.Join(r.folder(st.Lease), "agent.log")
	logFile, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of agent: %w", err)
	}
	defer func() { _ = logFile.Close() }()
	theirBoot, boot, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirBoot.Close() }()
	ready, theirReady, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, boot.Close())
	}
	defer func() { _ = theirReady.Close() }()
	cmd := &exec.Cmd{
		Path: r.cfg.AgentPath, Args: append([]string{"helmdeck-agent"}, r.cfg.AgentArgs...),
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, Dir: "/",
		Stdin: theirBoot, Stderr: logFile, ExtraFiles: []*os.File{theirReady},
		SysProcAttr: r.attributes(plain),
	}
	cmd.Env = append(cmd.Env, telemetryEnv()...)
	if err := cmd.Start(); err != nil {
		err = errors.Join(err, boot.Close(), ready.Close())
		if !plain {
			return nil, fmt.Errorf("%w: %w", errIsolation, err)
		}
		return nil, err
	}
	go func() {
		// Whoever stops the sidecar watches it by other means: it may have
		// been started by an earlier process. Here it is only buried, and what
		// it left without a namespace ended.
		_ = cmd.Wait()
		if plain {
			_ = endLeftovers(context.Background(), st)
		}
	}()
	return &launched{cmd: cmd, pid: cmd.Process.Pid, boot: boot, ready: ready, log: logPath}, nil
}

// attributes gives the agent a session of its own, so that no terminal's
// signal reaches it, and namespaces.
func (r *Runtime) attributes(plain bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if plain {
		return attr
	}
	attr.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS
	if r.uid != 0 {
		gid := os.Getgid()
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: r.uid, HostID: r.uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		// Enough to mount; its programs do not inherit it.
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	return attr
}

// telemetryEnv hands the exporter's settings to the agent, and nothing else of
// this process's environment.
func telemetryEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "OTEL_") {
			env = append(env, e)
		}
	}
	return env
}

// greet sends the configuration and waits for the endpoint.
func (l *launched) greet(ctx context.Context, boot wire.Boot) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		past := time.Unix(1, 0)
		_, _ = l.ready.SetReadDeadline(past), l.boot.SetWriteDeadline(past)
	})()
	data, err := json.Marshal(boot)
	if err != nil {
		return "", err
	}
	_, werr := l.boot.Write(data)
	_ = l.boot.Close()
	answer, err := io.ReadAll(io.LimitReader(l.ready, 64<<10))
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("wait for agent: %w", context.Cause(ctx))
	case err != nil:
		return "", fmt.Errorf("wait for agent: %w", err)
	}
	var ready wire.Ready
	if err := json.Unmarshal(answer, &ready); err != nil {
		return "", fmt.Errorf("agent ended before it was ready: %w", errors.Join(werr, errors.New(l.lastWords())))
	}
	if ready.Isolation {
		return "", fmt.Errorf("%w: %s", errIsolation, ready.Error)
	}
	if ready.Error != "" {
		return "", errors.New(ready.Error)
	}
	return ready.Endpoint, nil
}

func (l *launched) lastWords() string {
	data, _ := os.ReadFile(l.log)
	data = bytes.TrimSpace(data)
	if len(data) > 2048 {
		data = data[len(data)-2048:]
	}
	return "its log: " + string(data)
}

func (l *launched) close() { _, _ = l.boot.Close(), l.ready.Close() }
