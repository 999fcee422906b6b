package sessionstest

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/helmdeck/helmdeck/pkg/sessions"
)

// devtools is a raw DevTools client.
type devtools struct {
	b  *bench
	ws *websocket.Conn
	id int
}

func (b *bench) devtools(u unit) *devtools {
	b.t.Helper()
	d, err := b.dial(u)
	if err != nil {
		b.t.Fatalf("connect to browser: %v", err)
	}
	return d
}

func (b *bench) dial(u unit) (*devtools, error) {
	br, err := u.Browser(b.ctx)
	if err != nil {
		return nil, err
	}
	ws, resp, err := websocket.Dial(b.ctx, br.URL, &websocket.DialOptions{HTTPHeader: br.Header})
	if resp != nil && resp.Body != nil {
		defer func() { _ = resp.Body.Close() }()
	}
	if err != nil {
		if resp != nil && resp.StatusCode == http.StatusConflict {
			return nil, errBusy
		}
		return nil, err
	}
	ws.SetReadLimit(64 << 20)
	b.t.Cleanup(func() { _ = ws.CloseNow() })
	return &devtools{b: b, ws: ws}, nil
}

var errBusy = errors.New("busy")

// call sends one command and returns its result; events are skipped.
func (d *devtools) call(method string, params any) (json.RawMessage, error) {
	d.id++
	m, err := json.Marshal(map[string]any{"id": d.id, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	if err := d.ws.Write(d.b.ctx, websocket.MessageText, m); err != nil {
		return nil, err
	}
	for {
		_, data, err := d.ws.Read(d.b.ctx)
		if err != nil {
			return nil, err
		}
		var answer struct {
			ID     int             `json:"id"`
			Method string          `json:"method"`
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(data, &answer); err != nil {
			return nil, err
		}
		switch {
		case answer.ID == d.id && answer.Error != nil:
			return nil, errors.New(string(answer.Error))
		case answer.ID == d.id:
			return answer.Result, nil
		case answer.Method == "":
			d.b.t.Errorf("an answer to somebody else: %s", data)
		}
	}
}

func (d *devtools) must(method string, params any) string {
	d.b.t.Helper()
	r, err := d.call(method, params)
	if err != nil {
		d.b.t.Fatalf("%s: %v", method, err)
	}
	return string(r)
}

type params = map[string]any

func browserAnswers(t *testing.T, b *bench) {
	u := b.start("browser")
	d := b.devtools(u)
	if got := d.must("Browser.getVersion", nil); !strings.Contains(got, "Chrome") {
		t.Errorf("got %s", got)
	}
	// A large answer passes whole.
	page := struct{ TargetID, SessionID string }{}
	decode(t, d.must("Target.createTarget", params{"url": "about:blank"}), &page)
	decode(t, d.must("Target.attachToTarget", params{"targetId": page.TargetID, "flatten": true}), &page)
	d.id++
	m, _ := json.Marshal(params{"id": d.id, "sessionId": page.SessionID, "method": "Runtime.evaluate", "params": params{"expression": "'x'.repeat(3000000)"}})
	if err := d.ws.Write(b.ctx, websocket.MessageText, m); err != nil {
		t.Fatal(err)
	}
	for {
		_, data, err := d.ws.Read(b.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 3_000_000 {
			return
		}
	}
}

func decode(t *testing.T, data string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(data), v); err != nil {
		t.Fatalf("decode %s: %v", data, err)
	}
}

func browserHasOneClient(t *testing.T, b *bench) {
	u := b.start("browser")
	first := b.devtools(u)
	if _, err := b.dial(u); !errors.Is(err, errBusy) {
		t.Errorf("second client: got %v, want a conflict", err)
	}
	first.must("Browser.getVersion", nil)
	_ = first.ws.Close(websocket.StatusNormalClosure, "")
	b.until("the place is free", func() bool {
		d, err := b.dial(u)
		if err != nil {
			return false
		}
		d.must("Browser.getVersion", nil)
		return true
	})
}

func browserComesBack(t *testing.T, b *bench) {
	u := b.start("browser")
	d := b.devtools(u)
	d.must("Browser.getVersion", nil)
	_, err := d.call("Browser.crash", nil)
	if websocket.CloseStatus(err) != websocket.StatusInternalError {
		t.Errorf("after the crash: got %v, want close status 1011", err)
	}
	b.until("a fresh browser answers", func() bool {
		d, err := b.dial(u)
		if err != nil {
			return false
		}
		_, err = d.call("Browser.getVersion", nil)
		return err == nil
	})
}

func browserForgetsItsClient(t *testing.T, b *bench) {
	u := b.start("browser")
	first := b.devtools(u)
	page := struct{ TargetID, SessionID string }{}
	decode(t, first.must("Target.createTarget", params{"url": "about:blank"}), &page)
	decode(t, first.must("Target.attachToTarget", params{"targetId": page.TargetID, "flatten": true}), &page)
	first.must("Target.setDiscoverTargets", params{"discover": true})
	_ = first.ws.CloseNow()
	var second *devtools
	b.until("the place is free", func() bool {
		var err error
		second, err = b.dial(u)
		return err == nil
	})
	// The page is still there, the first client's session is not, and no event
	// meant for the first comes.
	if got := second.must("Target.getTargets", nil); !strings.Contains(got, page.TargetID) {
		t.Errorf("the page is gone: %s", got)
	}
	second.id++
	m, _ := json.Marshal(params{"id": second.id, "sessionId": page.SessionID, "method": "Runtime.evaluate", "params": params{"expression": "1"}})
	if err := second.ws.Write(b.ctx, websocket.MessageText, m); err != nil {
		t.Fatal(err)
	}
	_, data, err := second.ws.Read(b.ctx)
	if err != nil || !strings.Contains(string(data), "error") {
		t.Errorf("old session: got %s, %v, want an error", data, err)
	}
}

var _ sessions.Leaser = (*local)(nil)
