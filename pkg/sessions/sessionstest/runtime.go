package sessionstest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// RunRuntime checks a Runtime with its agent against the contract; open
// returns a fresh runtime for each case. The image base has to be there;
// without browser those cases are skipped.
func RunRuntime(t *testing.T, open func(t *testing.T) sessions.Runtime) {
	t.Helper()
	cases := map[string]func(*testing.T, *bench){
		"StartListStop":            startListStop,
		"ExecStreams":              execStreams,
		"ExecRefusals":             execRefusals,
		"ExecEndsWithItsCaller":    execEndsWithItsCaller,
		"ExecEndsItsGroup":         execEndsItsGroup,
		"ExecTimeout":              execTimeout,
		"ExecKilled":               execKilled,
		"ExecCapsOutput":           execCapsOutput,
		"FilesBothWays":            filesBothWays,
		"FilesStayInScratch":       filesStayInScratch,
		"OnlyTheLeaseHolder":       onlyTheLeaseHolder,
		"SidecarsAreApart":         sidecarsAreApart,
		"BrowserAnswers":           browserAnswers,
		"BrowserHasOneClient":      browserHasOneClient,
		"BrowserComesBack":         browserComesBack,
		"BrowserForgetsItsClient":  browserForgetsItsClient,
		"StopEndsEverything":       stopEndsEverything,
		"ShutdownEndsTheSidecar":   shutdownEndsTheSidecar,
		"StartOfAnUnknownImage":    startOfAnUnknownImage,
		"NothingOfTheHostsSecrets": nothingOfTheHostsSecrets,
	}
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*wait)
			t.Cleanup(cancel)
			run(t, &bench{t: t, ctx: ctx, rt: open(t)})
		})
	}
}

// bench is one case with its runtime.
type bench struct {
	t   *testing.T
	ctx context.Context
	rt  sessions.Runtime
}

// unit is one running sidecar.
type unit struct {
	*sessions.Agent
	id, token, endpoint string
}

func (b *bench) start(image string) unit {
	b.t.Helper()
	requireImage(b.t, b.rt, image)
	u := unit{id: "lease-" + strings.ToLower(rand.Text()), token: rand.Text()}
	sc, err := b.rt.Start(b.ctx, sessions.StartSpec{
		LeaseID: u.id, Generation: 4, Token: u.token, Spec: sessions.Spec{Image: image},
	})
	if err != nil {
		b.t.Fatalf("start: %v", err)
	}
	b.t.Cleanup(func() {
		if err := b.rt.Stop(context.WithoutCancel(b.ctx), u.id); err != nil {
			b.t.Errorf("stop: %v", err)
		}
	})
	u.endpoint = sc.Endpoint
	u.Agent = sessions.NewAgent(sc.Endpoint, u.token, 4)
	return u
}

func (b *bench) sh(u unit, script string) string {
	b.t.Helper()
	r, err := u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", script}})
	if err != nil {
		b.t.Fatalf("run %q: %v", script, err)
	}
	return string(r.Stdout) + string(r.Stderr)
}

// until waits for a condition.
func (b *bench) until(what string, ok func() bool) {
	b.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.t.Fatalf("never came true: %s", what)
		}
	}
}

// marked counts the processes of this machine that have mark among their
// arguments.
func marked(mark string) int {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	n := 0
	for _, p := range paths {
		if data, err := os.ReadFile(p); err == nil && strings.Contains(string(data), mark) {
			n++
		}
	}
	return n
}

// sleeper is a program that runs for ever and can be found by its mark.
func sleeper() (program, mark string) {
	mark = "1" + strconv.Itoa(int(time.Now().UnixNano()%1e9)) + ".0" + strconv.Itoa(os.Getpid())
	return "sleep " + mark, mark
}

func startListStop(t *testing.T, b *bench) {
	u := b.start("base")
	h, err := u.Health(b.ctx)
	if err != nil || h.Lease != u.id || h.Generation != 4 {
		t.Errorf("health: got %+v, %v", h, err)
	}
	list, err := b.rt.List(b.ctx)
	if err != nil || len(list) != 1 || list[0].LeaseID != u.id || list[0].Endpoint != u.endpoint {
		t.Errorf("list: got %+v, %v", list, err)
	}
	for range 2 { // the second knows nothing of it
		if err := b.rt.Stop(b.ctx, u.id); err != nil {
			t.Fatalf("stop: %v", err)
		}
	}
	if list, err := b.rt.List(b.ctx); err != nil || len(list) != 0 {
		t.Errorf("list after stop: got %+v, %v", list, err)
	}
	if err := u.Renew(b.ctx); !errors.Is(err, sessions.ErrLost) {
		t.Errorf("renewal after stop: got %v, want ErrLost", err)
	}
}

func execStreams(t *testing.T, b *bench) {
	u := b.start("base")
	if err := u.WriteFile(b.ctx, "sub/in.txt", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	r, err := u.Exec(b.ctx, sessions.Command{
		Argv: []string{"sh", "-c", `ls; cat; echo "$GREETING" >&2; exit 3`}, Dir: "sub",
		Env: map[string]string{"GREETING": "hello"}, Stdin: strings.NewReader(strings.Repeat("y", 100_000)),
		Stdout: &out, Stderr: &errOut,
	})
	if err != nil || r.ExitCode != 3 || r.Truncated {
		t.Fatalf("got %+v, %v", r, err)
	}
	if want := "in.txt\n" + strings.Repeat("y", 100_000); out.String() != want {
		t.Errorf("stdout: got %d bytes, want %d", out.Len(), len(want))
	}
	if diff := cmp.Diff("hello\n", errOut.String()); diff != "" {
		t.Errorf("stderr (-want +got):\n%s", diff)
	}
	// A program that does not read its input is not held up by it.
	r, err = u.Exec(b.ctx, sessions.Command{Argv: []string{"true"}, Stdin: strings.NewReader(strings.Repeat("z", 1<<20))})
	if err != nil || r.ExitCode != 0 {
		t.Errorf("input nobody reads: got %+v, %v", r, err)
	}
	// Output comes while the program runs.
	pr, pw := io.Pipe()
	first := &firstWrite{done: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		_, err := u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", "echo ready; cat"}, Stdin: pr, Stdout: first})
		done <- err
	}()
	select {
	case <-first.done:
	case <-b.ctx.Done():
		t.Fatal("no output while the program runs")
	}
	_ = pw.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type firstWrite struct {
	done chan struct{}
	seen bool
}

func (w *firstWrite) Write(p []byte) (int, error) {
	if !w.seen {
		w.seen = true
		close(w.done)
	}
	return len(p), nil
}

func execRefusals(t *testing.T, b *bench) {
	u := b.start("base")
	for name, c := range map[string]sessions.Command{
		"no such program":    {Argv: []string{"no-such-program"}},
		"no such path":       {Argv: []string{"./no-such-program"}},
		"no such folder":     {Argv: []string{"true"}, Dir: "none"},
		"folder outside":     {Argv: []string{"true"}, Dir: "../.."},
		"absolute folder":    {Argv: []string{"true"}, Dir: "/etc"},
		"malformed variable": {Argv: []string{"true"}, Env: map[string]string{"A=B": "x"}},
	} {
		_, err := u.Exec(b.ctx, c)
		var refusal *sessions.AgentError
		if !errors.As(err, &refusal) || refusal.Status/100 != 4 {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
		if missing := strings.HasPrefix(name, "no such"); missing != errors.Is(err, sessions.ErrNotFound) {
			t.Errorf("%s: got %v, ErrNotFound is %t", name, err, !missing)
		}
	}
}

func execEndsWithItsCaller(t *testing.T, b *bench) {
	u := b.start("base")
	program, mark := sleeper()
	// A group with a child, a shell that ignores polite signals, and input
	// that never ends.
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	pr, pw := io.Pipe()
	defer func() { _ = pw.Close() }()
	go func() {
		_, err := u.Exec(ctx, sessions.Command{Argv: []string{"sh", "-c", "trap '' TERM HUP INT; " + program + " & " + program}, Stdin: pr})
		done <- err
	}()
	b.until("the programs run", func() bool { return marked("sleep\x00"+mark) == 2 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	b.until("the programs ended", func() bool { return marked(mark) == 0 })
}

func execEndsItsGroup(t *testing.T, b *bench) {
	u := b.start("base")
	program, mark := sleeper()
	// The child in the background holds the output open; it must not hold the
	// call up.
	r, err := u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", program + " & echo started"}})
	if err != nil || string(r.Stdout) != "started\n" {
		t.Errorf("got %+v, %v", r, err)
	}
	b.until("the child ended", func() bool { return marked(mark) == 0 })
}

func execTimeout(t *testing.T, b *bench) {
	u := b.start("base")
	program, mark := sleeper()
	r, err := u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", "echo begun; " + program}, Timeout: 300 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) || string(r.Stdout) != "begun\n" {
		t.Errorf("got %+v, %v, want what was printed and DeadlineExceeded", r, err)
	}
	b.until("the program ended", func() bool { return marked(mark) == 0 })
}

func execKilled(t *testing.T, b *bench) {
	u := b.start("base")
	r, err := u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", "echo last words; kill -KILL $$"}})
	if !errors.Is(err, sessions.ErrKilled) || r.ExitCode != 137 || string(r.Stdout) != "last words\n" {
		t.Errorf("got %+v, %v, want code 137 and ErrKilled", r, err)
	}
	r, err = u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", "kill -TERM $$"}})
	if err != nil || r.ExitCode != 143 {
		t.Errorf("got %+v, %v, want code 143", r, err)
	}
}

func execCapsOutput(t *testing.T, b *bench) {
	u := b.start("base")
	r, err := u.Exec(b.ctx, sessions.Command{
		Argv: []string{"sh", "-c", "head -c 3000000 /dev/zero; echo short >&2"}, MaxOutput: 100_000,
	})
	if err != nil || len(r.Stdout) != 100_000 || !r.Truncated || string(r.Stderr) != "short\n" {
		t.Errorf("got %d bytes, truncated %t, stderr %q, %v", len(r.Stdout), r.Truncated, r.Stderr, err)
	}
	r, err = u.Exec(b.ctx, sessions.Command{Argv: []string{"head", "-c", "3000000", "/dev/zero"}})
	if err != nil || len(r.Stdout) != 1<<20 || !r.Truncated {
		t.Errorf("default cap: got %d bytes, truncated %t, %v", len(r.Stdout), r.Truncated, err)
	}
}

func filesBothWays(t *testing.T, b *bench) {
	u := b.start("base")
	want := make([]byte, 3<<20)
	_, _ = rand.Read(want)
	if err := u.WriteFile(b.ctx, "a/b/c.bin", bytes.NewReader(want)); err != nil {
		t.Fatalf("write: %v", err)
	}
	r, err := u.ReadFile(b.ctx, "a/b/c.bin")
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v, want the %d written", len(got), err, len(want))
	}
	_ = r.Close()
	if _, err := u.ReadFile(b.ctx, "none"); !errors.Is(err, sessions.ErrNotFound) {
		t.Errorf("missing file: got %v, want ErrNotFound", err)
	}
	// A writer that breaks off leaves the old content.
	broken := errors.New("broken")
	if err := u.WriteFile(b.ctx, "a/b/c.bin", io.MultiReader(strings.NewReader("half"), failing{broken})); !errors.Is(err, broken) {
		t.Errorf("broken writer: got %v", err)
	}
	b.until("the broken write left nothing", func() bool { return b.sh(u, "ls -A a/b; wc -c < a/b/c.bin") == "c.bin\n3145728\n" })
	// What programs write can be read, and the other way round.
	if got := b.sh(u, "sha256sum < a/b/c.bin; echo made > made.txt"); len(got) < 64 {
		t.Errorf("got %q", got)
	}
	if r, err = u.ReadFile(b.ctx, "made.txt"); err != nil {
		t.Fatal(err)
	}
	if data, _ := io.ReadAll(r); string(data) != "made\n" {
		t.Errorf("got %q", data)
	}
	_ = r.Close()
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func filesStayInScratch(t *testing.T, b *bench) {
	u := b.start("base")
	b.sh(u, "ln -s /etc etc; ln -s /etc/passwd passwd; ln -s .. up; mkfifo pipe; mkdir folder; ln -s folder/../ok inside; echo fine > ok; ln -s /proc/self/root root")
	for _, p := range []string{
		"", "/etc/passwd", "../x", "folder/../../x", "etc/passwd", "passwd", "up/x", "root/etc/passwd", "pipe", "folder", ".", "a\x00b",
	} {
		if r, err := u.ReadFile(b.ctx, p); err == nil {
			_ = r.Close()
			t.Errorf("read of %q succeeded", p)
		}
		if p == "passwd" || p == "pipe" {
			continue // a write replaces the link or pipe itself
		}
		if err := u.WriteFile(b.ctx, p, strings.NewReader("x")); err == nil {
			t.Errorf("write of %q succeeded", p)
		}
	}
	if err := u.WriteFile(b.ctx, "passwd", strings.NewReader("mine")); err != nil {
		t.Errorf("write over a link: %v", err)
	}
	if data, _ := os.ReadFile("/etc/passwd"); string(data) == "mine" {
		t.Error("a link led the write out of the scratch folder")
	}
	r, err := u.ReadFile(b.ctx, "inside")
	if err != nil {
		t.Fatalf("link within scratch: %v", err)
	}
	_ = r.Close()
}

func onlyTheLeaseHolder(t *testing.T, b *bench) {
	u := b.start("base")
	for name, a := range map[string]*sessions.Agent{
		"wrong token":      sessions.NewAgent(u.endpoint, "guess", 4),
		"no token":         sessions.NewAgent(u.endpoint, "", 4),
		"wrong generation": sessions.NewAgent(u.endpoint, u.token, 3),
	} {
		_, execErr := a.Exec(b.ctx, sessions.Command{Argv: []string{"true"}})
		_, readErr := a.ReadFile(b.ctx, "x")
		_, browserErr := a.Browser(b.ctx)
		_, healthErr := a.Health(b.ctx)
		for call, err := range map[string]error{
			"exec": execErr, "read": readErr, "browser": browserErr, "health": healthErr,
			"write": a.WriteFile(b.ctx, "x", strings.NewReader("")), "renew": a.Renew(b.ctx),
			"shutdown": a.Shutdown(b.ctx), "upstream": a.SetUpstream(b.ctx, "http://127.0.0.1:1"),
		} {
			if !errors.Is(err, sessions.ErrLost) {
				t.Errorf("%s, %s: got %v, want ErrLost", name, call, err)
			}
		}
	}
	if err := u.Renew(b.ctx); err != nil {
		t.Errorf("holder: %v", err)
	}
}

func sidecarsAreApart(t *testing.T, b *bench) {
	one, two := b.start("base"), b.start("base")
	if err := one.WriteFile(b.ctx, "secret.txt", strings.NewReader("s")); err != nil {
		t.Fatal(err)
	}
	if _, err := two.ReadFile(b.ctx, "secret.txt"); !errors.Is(err, sessions.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	scratch := strings.TrimSpace(b.sh(one, "pwd"))
	if os.Getuid() != 0 {
		return // one user's processes may see each other's files
	}
	if got := b.sh(two, fmt.Sprintf("cat %s/secret.txt 2>&1; true", scratch)); !strings.HasPrefix(got, "cat:") {
		t.Errorf("one sidecar reads another's file: %q", got)
	}
}

func nothingOfTheHostsSecrets(t *testing.T, b *bench) {
	u := b.start("base")
	got := b.sh(u, "env; cat /proc/1/environ /proc/$PPID/environ /proc/$PPID/cmdline 2>/dev/null | tr '\\0' '\\n'; true")
	for _, bad := range []string{u.token, "SECRET"} {
		if strings.Contains(got, bad) {
			t.Errorf("a program of the sidecar sees %q in:\n%s", bad, got)
		}
	}
	if !strings.Contains(got, "PATH=") {
		t.Errorf("no environment at all: %q", got)
	}
}

func stopEndsEverything(t *testing.T, b *bench) {
	u := b.start("base")
	program, mark := sleeper()
	go func() {
		// It leaves its group and its session, and ignores what can be ignored.
		_, _ = u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", "setsid sh -c \"trap '' TERM HUP; " + program + "; :\" & " + program}})
	}()
	b.until("the programs run", func() bool { return marked("sleep\x00"+mark) == 2 })
	scratch := strings.TrimSpace(b.sh(u, "pwd; mkdir -p locked/in && chmod 0 locked"))
	if err := b.rt.Stop(b.ctx, u.id); err != nil {
		t.Fatalf("stop: %v", err)
	}
	if n := marked(mark); n != 0 {
		t.Errorf("%d programs left", n)
	}
	if _, err := os.Lstat(scratch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("scratch folder: got %v, want it gone", err)
	}
}

func shutdownEndsTheSidecar(t *testing.T, b *bench) {
	u := b.start("base")
	program, mark := sleeper()
	go func() { _, _ = u.Exec(b.ctx, sessions.Command{Argv: []string{"sh", "-c", program}}) }()
	b.until("the program runs", func() bool { return marked("sleep\x00"+mark) == 1 })
	if err := u.Shutdown(b.ctx); err != nil {
		t.Fatalf("shutdown: %v", err)
	}
	b.until("everything ended", func() bool { return marked(mark) == 0 && u.Renew(b.ctx) != nil })
	b.until("the sidecar is off the list", func() bool {
		list, err := b.rt.List(b.ctx)
		return err == nil && len(list) == 0
	})
}

func startOfAnUnknownImage(t *testing.T, b *bench) {
	_, err := b.rt.Start(b.ctx, sessions.StartSpec{LeaseID: "x", Token: "t", Spec: sessions.Spec{Image: "no-such-image"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-image") {
		t.Errorf("got %v, want an error that names the image", err)
	}
}
