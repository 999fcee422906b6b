package sessionstest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

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
