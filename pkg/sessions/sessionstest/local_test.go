package sessionstest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/helmdeck/helmdeck/internal/agent"
	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

func TestMain(m *testing.M) { sessionstest.Main(m, agent.Main) }

func TestLocalRunsCommandsAndBrowser(t *testing.T) {
	t.Parallel()
	s, err := sessionstest.Local(t, "browser", sessionstest.Options{}).Lease(t.Context(), sessions.Request{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Exec(t.Context(), sessions.Command{Argv: []string{"sh", "-c", "id; ls -la /proc/self/fd; cat >&2"}, Stdin: strings.NewReader("hello")})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", r.Stdout)
	if r.ExitCode != 0 || string(r.Stderr) != "hello" {
		t.Fatalf("got %+v", r)
	}
	b, err := s.Browser(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ws, _, err := websocket.Dial(t.Context(), b.URL, &websocket.DialOptions{HTTPHeader: b.Header})
	if err != nil {
		t.Fatal(err)
	}
	if err := ws.Write(t.Context(), websocket.MessageText, []byte(`{"id":1,"method":"Browser.getVersion"}`)); err != nil {
		t.Fatal(err)
	}
	_, m, err := ws.Read(t.Context())
	if err != nil || !strings.Contains(string(m), "HeadlessChrome") && !strings.Contains(string(m), "Chrome/") {
		t.Fatalf("got %s, %v", m, err)
	}
	t.Logf("%s", m)
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	sessionstest.RunStore(t, func(*testing.T) (sessions.Registry, sessions.Queue) {
		return sessionstest.NewRegistry(), &sessionstest.Queue{}
	})
}
