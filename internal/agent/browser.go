package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/helmdeck/helmdeck/pkg/sessions/wire"
)

const (
	// startWithin bounds Chromium's start on a busy machine.
	startWithin = 30 * time.Second
	// detachWithin bounds the clean-up after a client; a browser that takes
	// longer hangs and is replaced.
	detachWithin = 5 * time.Second
	// maxMessage bounds one DevTools message, in bytes: a full-page PNG or a
	// PDF travels as one, in base64.
	maxMessage = 256 << 20
	// sendWithin bounds a write to Chromium's pipe, which stands still only
	// when Chromium does.
	sendWithin = 15 * time.Second
)

// browser starts Chromium when it is asked for and again after it died.
type browser struct {
	boot   wire.Boot
	proxy  string
	env    []string
	family *family
	log    zerolog.Logger

	mu      sync.Mutex // guards the rest; held while Chromium starts
	current *chromium
	starts  int
	bare    bool // the kernel does not allow Chromium's own sandbox
	probed  bool
}

func newBrowser(boot wire.Boot, proxy string, env []string, f *family, log zerolog.Logger) *browser {
	return &browser{boot: boot, proxy: proxy, env: env, family: f, log: log}
}

// ensure returns a running Chromium.
func (b *browser) ensure(ctx context.Context) (*chromium, error) {
	if b.boot.Chromium == "" {
		return nil, notFound("no browser in this image")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != nil && b.current.alive() {
		return b.current, nil
	}
	if !b.probed {
		b.probed, b.bare = true, !b.family.sandboxable()
	}
	c, err := b.start(ctx)
	if err != nil && !b.bare && bytes.Contains([]byte(err.Error()), []byte("No usable sandbox")) {
		b.bare = true
		c, err = b.start(ctx)
	}
	if err != nil {
		return nil, err
	}
	b.current = c
	return c, nil
}

// start runs a Chromium with a fresh profile and waits until it answers.
func (b *browser) start(ctx context.Context) (*chromium, error) {
	b.starts++
	profile := filepath.Join(b.boot.Scratch, ".chromium", strconv.Itoa(b.starts))
	if err := os.RemoveAll(filepath.Dir(profile)); err != nil {
		return nil, fmt.Errorf("remove old browser profile: %w", err)
	}
	if err := os.MkdirAll(profile, 0o700); err != nil {
		return nil, fmt.Errorf("make browser profile: %w", err)
	}
	c, err := launch(b.family, b.boot.Chromium, chromiumFlags(profile, b.proxy, b.bare), b.env, b.boot.Scratch)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", b.boot.Chromium, err)
	}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if err := c.barrier(ctx); err != nil {
		c.kill()
		<-c.done
		return nil, fmt.Errorf("start browser: %w: %s", err, c.stderr.String())
	}
	b.log.Info().Bool("sandbox", !b.bare).Dur("took", time.Since(c.startedAt)).Msg("browser started")
	return c, nil
}

// chromiumFlags: quiet, on the pipe, and with no way to the network but the
// proxy.
func chromiumFlags(profile, proxy string, bare bool) []string {
	flags := []string{
		"--headless", "--remote-debugging-pipe", "--user-data-dir=" + profile,
		"--no-first-run", "--no-default-browser-check", "--disable-default-apps", "--disable-extensions",
		"--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--disable-domain-reliability", "--disable-breakpad", "--metrics-recording-only", "--no-pings",
		"--disable-features=Translate,OptimizationHints,MediaRouter,DialMediaRouteProvider,AutofillServerCommunication",
		"--disable-gpu", "--hide-scrollbars", "--mute-audio", "--password-store=basic",
		"--disable-quic", "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
		"--webrtc-ip-handling-policy=disable_non_proxied_udp",
	}
	if proxy != "" {
		flags = append(flags, "--proxy-server="+proxy, "--proxy-bypass-list=<-loopback>",
			// Names are the proxy's to look up.
			"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")
	} else {
		flags = append(flags, "--no-proxy-server")
	}
	if bare {
		flags = append(flags, "--no-sandbox")
	}
	return append(flags, "about:blank")
}

// sandboxable reports whether a program of this sidecar may make the user
// namespace that Chromium's sandbox is built on.
func (f *family) sandboxable() bool {
	if os.Getuid() == 0 {
		return false // Chromium refuses
	}
	var err error
	f.on(func() {
		// The reaper must not take this one's exit status.
		f.mu.Lock()
		defer f.mu.Unlock()
		cmd := &exec.Cmd{Path: "/bin/true", Args: []string{"true"}}
		// Without a mapping of uids: the agent hides its memory, and with it the
		// file a mapping would be written to.
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET,
		}
		err = cmd.Run()
	})
	return err == nil || errors.Is(err, syscall.ENOENT)
}

// chromium is one running browser and its pipe.
type chromium struct {
	family    *family
	cmd       *exec.Cmd
	in        *os.File // commands, ended by NUL
	startedAt time.Time
	stderr    *tail
	done      chan struct{} // closed when the process ended and its output is read
	ended     string        // how; valid after done

	writing sync.Mutex // one message at a time on in

	mu       sync.Mutex // guards the rest
	client   *client
	sessions map[string]bool          // attached by the present client
	waiting  map[string]chan struct{} // answers to the agent's own commands, by id
	nextID   int
	gone     bool
}

func launch(f *family, program string, flags, env []string, dir string) (*chromium, error) {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), in.Close())
	}
	errOut, theirErr, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), in.Close(), out.Close(), theirOut.Close())
	}
	cmd := &exec.Cmd{
		Path: program, Args: append([]string{program}, flags...), Env: env, Dir: dir,
		Stderr: theirErr, ExtraFiles: []*os.File{theirIn, theirOut},
	}
	c := &chromium{
		family: f, cmd: cmd, in: in, startedAt: time.Now(), stderr: &tail{},
		done: make(chan struct{}), sessions: map[string]bool{}, waiting: map[string]chan struct{}{},
	}
	err = f.start(cmd)
	_, _, _ = theirIn.Close(), theirOut.Close(), theirErr.Close()
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close(), errOut.Close())
	}
	go c.supervise(out, errOut)
	return c, nil
}

// supervise reads what Chromium says until it ended.
func (c *chromium) supervise(out, errOut *os.File) {
	var readers sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(c.stderr, errOut) })
	readers.Go(func() { c.read(out) })
	state, err := c.family.wait(c.cmd, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gone = true
	})
	deadline := time.Now().Add(lingering)
	_, _ = out.SetReadDeadline(deadline), errOut.SetReadDeadline(deadline)
	readers.Wait()
	_, _, _ = out.Close(), errOut.Close(), c.in.Close()
	c.ended = "browser ended"
	if err == nil {
		c.ended += ": " + state.String()
	}
	close(c.done)
}

// read hands every message on. A message that nobody could want (over the
// limit) or a broken pipe ends the browser.
func (c *chromium) read(out io.Reader) {
	br := bufio.NewReaderSize(out, 64<<10)
	var message []byte
	for {
		part, err := br.ReadSlice(0)
		message = append(message, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(message) < maxMessage:
			continue
		case err != nil:
			c.kill()
			return
		}
		c.route(message[:len(message)-1])
		message = nil // the client may still hold it
	}
}

func (c *chromium) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.gone
}

func (c *chromium) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		killGroup(c.cmd.Process.Pid)
	}
}

// startBrowser answers when Chromium can be connected to.
func (a *Agent) startBrowser(w http.ResponseWriter, r *http.Request) error {
	ctx, span := a.tracer.Start(r.Context(), "agent.browser")
	defer span.End()
	if _, err := a.browser.ensure(ctx); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex // guards data
	data []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - tailBytes; over > 0 {
		t.data = append([]byte(nil), t.data[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}
