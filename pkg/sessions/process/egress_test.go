package process_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/helmdeck/helmdeck/pkg/sessions"
	"github.com/helmdeck/helmdeck/pkg/sessions/process"
	"github.com/helmdeck/helmdeck/pkg/sessions/sessionstest"
)

// proxy answers every request itself, with its name and what was asked for.
func proxy(t *testing.T, name string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, "<title>%s %s</title>", name, r.URL)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestEgress: a browser's traffic, to loopback too, goes to the proxy, and to
// another one when an adopting scheduler says so.
func TestEgress(t *testing.T) {
	t.Parallel()
	rt := open(t, sessionstest.Config(t))
	images, err := rt.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if images[len(images)-1] != process.ImageBrowser {
		t.Skip("no browser here")
	}
	_, err = rt.Start(t.Context(), sessions.StartSpec{
		LeaseID: "egress", Generation: 1, Token: "token",
		Spec: sessions.Spec{Image: process.ImageBrowser}, ProxyURL: proxy(t, "first"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rt.Stop(context.Background(), "egress") })
	list, err := rt.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := sessions.NewAgent(list[0].Endpoint, "token", 1)
	for _, url := range []string{"http://elsewhere.test/", "http://127.0.0.1:8123/", "http://localhost:8124/"} {
		if got, want := title(t, a, url), "first "+url; got != want {
			t.Errorf("%s: got %q, want %q", url, got, want)
		}
	}
	if err := a.SetUpstream(t.Context(), proxy(t, "second")); err != nil {
		t.Fatal(err)
	}
	r, err := a.Exec(t.Context(), sessions.Command{Argv: []string{"sh", "-c", "echo $http_proxy $HTTPS_PROXY"}})
	if err != nil || strings.Count(string(r.Stdout), "http://127.0.0.1:") != 2 {
		t.Errorf("proxy variables: got %q, %v", r.Stdout, err)
	}
	// Connections kept from the first proxy may serve a while; another site
	// needs a new one only when none is left, so the second is asked for until
	// it answers.
	until(t, "the second proxy answers", func() bool {
		return title(t, a, "http://other.test/") == "second http://other.test/"
	})
	if err := a.SetUpstream(t.Context(), "socks5://127.0.0.1:1"); err == nil {
		t.Error("a proxy of another kind was accepted")
	}
}

// title is the title of a page opened in a tab of its own.
func title(t *testing.T, a *sessions.Agent, url string) string {
	t.Helper()
	b, err := a.Browser(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ws *websocket.Conn
	until(t, "the browser takes a client", func() bool {
		var resp *http.Response
		ws, resp, err = websocket.Dial(t.Context(), b.URL, &websocket.DialOptions{HTTPHeader: b.Header})
		if resp != nil && resp.Body != nil {
			_ = resp.Body.Close()
		}
		return err == nil
	})
	defer func() { _ = ws.CloseNow() }()
	id := 0
	call := func(method string, params map[string]any) map[string]any {
		t.Helper()
		id++
		m, _ := json.Marshal(map[string]any{"id": id, "method": method, "params": params})
		if err := ws.Write(t.Context(), websocket.MessageText, m); err != nil {
			t.Fatal(err)
		}
		for {
			_, data, err := ws.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var answer struct {
				ID     int
				Result map[string]any
			}
			if err := json.Unmarshal(data, &answer); err != nil {
				t.Fatal(err)
			}
			if answer.ID == id {
				return answer.Result
			}
		}
	}
	target := call("Target.createTarget", map[string]any{"url": url})["targetId"]
	var got string
	until(t, "the page has a title of its own", func() bool {
		info, _ := call("Target.getTargetInfo", map[string]any{"targetId": target})["targetInfo"].(map[string]any)
		got, _ = info["title"].(string)
		return strings.Contains(got, " ")
	})
	call("Target.closeTarget", map[string]any{"targetId": target})
	return got
}
